"""Scale0: a service network in one install.

Lives here: the names that users import. Never here: code of its own, or an import that a user who
only wants the version must pay for.
"""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
