"""The time, as a value. Only `edge` modules read a clock; all others receive a `Now`. Invariant: `mono` decides
(liveness, deadlines); `wall` is only recorded or compared with another machine's clock. The two are never combined in
one expression."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """One instant, read once for each turn."""

    mono: float
    """Seconds of the monotonic clock."""
    wall: float
    """Seconds since the Unix epoch."""
