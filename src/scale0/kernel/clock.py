"""The time, as a value.

Lives here: `Now`. Never here: a clock. Machines are told the time; only `io/` reads one.
Invariant: `mono` decides (liveness, deadlines), `wall` is only recorded or compared with
another party's clock. The two never meet in one expression.
"""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """One instant, read once per turn."""

    mono: float
    """Seconds of the monotonic clock."""
    wall: float
    """Seconds since the Unix epoch."""
