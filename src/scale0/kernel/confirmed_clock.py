"""The time by which something is deleted or revoked: only time that this process saw pass.

Invariants: a jump of the wall clock forward ends nothing at once, because time goes on by the monotonic clock until the
new time is confirmed; a wall clock that keeps its time counts again after CONFIRM_SECONDS.
"""

from __future__ import annotations

from typing import Final

from scale0.kernel.clock import Now

STEP_SECONDS: Final = 1.0
"""A larger advance of the wall clock over the monotonic one is a jump."""
CONFIRM_SECONDS: Final = 3_600.0
"""How long the wall clock must keep its time after a jump, or after the start, before it counts."""
LONG_AGO: Final = 1.0
"""As the last known time: the wall clock must keep its time once before it counts at all. For what is deleted for good
and can wait: the time of the newest file or row may be from a wrong clock too."""


class ConfirmedClock:
    def __init__(self, now: Now, last_wall: float = 0.0) -> None:
        """`last_wall`: the last time that is known from before the start; 0: there is none, the wall clock counts."""
        self._time = min(now.wall, last_wall or now.wall)
        self._mono = self._steady_since = now.mono
        self._offset = now.wall - now.mono
        self.jump_seconds = 0.0
        """The last jump of the wall clock forward since it was confirmed."""

    def read(self, now: Now, is_suspect: bool = False) -> float:
        """The time that counts. `is_suspect`: clients do not confirm the broker's wall clock."""
        offset = now.wall - now.mono
        if is_suspect or abs(offset - self._offset) > STEP_SECONDS:
            self._steady_since = now.mono
            self.jump_seconds = max(self.jump_seconds, offset - self._offset)
        time = self._time + now.mono - self._mono
        if now.wall <= time + STEP_SECONDS or now.mono - self._steady_since >= CONFIRM_SECONDS:
            time, self.jump_seconds = now.wall, 0.0
        self._time, self._mono, self._offset = time, now.mono, offset
        return time
