"""What a management server is told when it starts: the name by which this room knows it.

Lives here: nothing of its own; `io/management_settings.py` has the shape, because a broker makes one of its file.
"""

from __future__ import annotations

from scale0.io.management_settings import Settings

__all__ = ["Settings"]
