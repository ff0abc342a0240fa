"""Retention: the time by which ended tasks, with their results and keys, expire. Time counts only as far as this
process saw it pass: after a jump of the wall clock forward, or a start long after the store's last event (which may be
the same jump), it goes on by the monotonic clock from where it was. Invariants: no jump deletes an ended task before
its result_ttl has passed; once every task from before the jump has expired, the wall clock counts again, so that a
correct clock costs at most the longest result_ttl in space."""

from __future__ import annotations

import math
from typing import Final

from scale0.kernel.clock import Now
from scale0.tasks.core.task import of_seconds

STEP_US: Final = 1_000_000
"""A larger advance of the wall clock over the monotonic one is a jump."""


class Retention:
    def __init__(self) -> None:
        self._offset_us = 0
        """The time of retention minus the monotonic clock."""
        self._ahead_us = 0
        """How far the wall clock is ahead of the time of retention."""
        self._until_us = -math.inf
        """When the last task from before a jump expires: until then the wall clock does not count."""
        self._last_us = math.inf
        """When the last stored task expires; not known yet: never."""
        self._longest_us = 0
        """The longest result_ttl of a task that this process ended."""

    def start(self, wall_us: int, last_time_us: int, now: Now) -> None:
        """`last_time_us`: the time of the last stored event; 0: there is none."""
        begin_us = min(wall_us, last_time_us or wall_us)
        self._offset_us = begin_us - of_seconds(now.mono)
        self._ahead_us = wall_us - begin_us
        self._until_us = math.inf if self._ahead_us > STEP_US else -math.inf

    def now_us(self, wall_us: int, now: Now) -> int:
        """Returns the time by which stored tasks expire."""
        mono_us = of_seconds(now.mono)
        time_us = mono_us + self._offset_us
        ahead_us = wall_us - time_us
        if ahead_us - self._ahead_us > STEP_US:
            # Tasks that ended since an earlier jump are dated by the clock as it was until now.
            self._until_us = max(self._until_us, self._last_us, time_us + self._ahead_us + self._longest_us)
        self._ahead_us = ahead_us
        if ahead_us <= 0 or time_us > self._until_us:
            self._offset_us, self._ahead_us, self._until_us = wall_us - mono_us, 0, -math.inf
            return wall_us
        return time_us

    def stored(self, last_us: int | None) -> None:
        """Notes when the last stored task expires."""
        if self._until_us == math.inf:
            self._until_us = -math.inf if last_us is None else last_us
        if self._until_us == -math.inf:
            self._last_us = -math.inf if last_us is None else last_us

    def ended(self, result_ttl_us: int) -> None:
        self._longest_us = max(self._longest_us, result_ttl_us)
