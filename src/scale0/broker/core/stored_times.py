"""The times that count, stored for the next start.

Retention of tasks and expiry of keys and tokens count only time that a process saw pass. The times of events do not
tell it: within a boot they stay at the latest time of a wall clock that was ahead. Invariant: the store has each time
as this process counts it, never later, and at most STORE_SECONDS older than the last commit. A start never continues
from a later time than was counted before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.interface import OpenedStore
from scale0.storage.rows import PutSetting

STORE_SECONDS: Final = 1.0
STEP_SECONDS: Final = 1.0
"""A larger change of the wall clock against the monotonic one is a jump."""
SETTING: Final = "time:"
RETENTION: Final = "retention"
LAG: Final = "lag"
CONFIRMED: Final = "confirmed"

ReadTime = Callable[[Now], tuple[int, ...]]
"""Returns a time in microseconds, or several."""


def last_time_us(opened: OpenedStore, name: str) -> int:
    """The time that counted before this start; 0: nothing is stored. A store of an earlier version has only the time of
    its last event."""
    stored = opened.settings.get(SETTING + name)
    return int(stored) if stored is not None else opened.last_time_us


def stored_us(opened: OpenedStore, name: str) -> tuple[int, ...]:
    """What is stored under this name; nothing in a store of an earlier version."""
    return tuple(int(each) for each in opened.settings.get(SETTING + name, b"").split())


class StoredTimes:
    def __init__(self, times: Mapping[str, ReadTime]) -> None:
        self._times = times
        self._offset = math.nan
        """The wall clock minus the monotonic one, when the times were last stored."""
        self._due = -math.inf

    def settle(self, now: Now, effects: Effects) -> None:
        """Ends a turn: stores the times in its commit when they are due, and at once when the wall clock has jumped."""
        if abs(now.wall - now.mono - self._offset) > STEP_SECONDS or (
            now.mono >= self._due and (effects.writes or effects.events)
        ):
            self.store(now, effects)

    def store(self, now: Now, effects: Effects) -> None:
        self._offset, self._due = now.wall - now.mono, now.mono + STORE_SECONDS
        for name, read in self._times.items():
            effects.write(PutSetting(SETTING + name, b" ".join(b"%d" % each for each in read(now))))
