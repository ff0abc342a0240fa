"""Delayed tasks in a store that brokers share: no broker holds a scheduled task, and any broker of the group claims it
when it is due. The database's clock is the group's time: a broker reads it once, with its first heartbeat, and counts
on by its monotonic clock, so that a jump of its own wall clock changes nothing. Invariant: every broker queries the
store every second, so that the tasks of a failed broker are at most about a second late."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import TakeDue
from scale0.storage.task_rows import OpenTask
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import MICRO, QueuedTask, from_store, of_seconds

LOOK_SECONDS: Final = 1.0
"""Maximum interval between queries."""
TIMES: Final = 10_000
"""Due times of own tasks that are remembered, so that they are queried exactly when due."""
DUE_TASKS: Final = 1_000
"""Tasks claimed by one query."""


class SharedDelayedTasks:
    def __init__(
        self,
        state: BrokerState,
        backlog: StoredBacklog,
        release: Callable[[QueuedTask, Now, Effects], bool],
        _next_seq: int,
    ) -> None:
        self._state = state
        self._backlog = backlog
        self._release = release
        self._times: list[int] = []
        self._asking = False
        self._armed = math.inf
        self._offset_us: int | None = None
        """The database's clock minus the monotonic one, at the first heartbeat."""

    def start(self, now: Now, effects: Effects) -> None:
        self._arm(now)

    def synchronise(self, database_us: int, now: Now) -> None:
        if self._offset_us is None:
            self._offset_us = database_us - of_seconds(now.mono)

    def now_us(self, now: Now) -> int:
        """The group's time."""
        return of_seconds(now.wall) if self._offset_us is None else of_seconds(now.mono) + self._offset_us

    def submitted(self, task: QueuedTask, now: Now) -> None:
        """The group's time does not jump, so nothing is noted."""

    def left(self, task: QueuedTask, now: Now) -> float:
        """Returns the seconds until a task is due."""
        return (task.runnable_us - self.now_us(now)) / MICRO

    def add(self, task: QueuedTask, now: Now, as_submitted: bool = False) -> None:
        """Schedules a task for its `runnable_us`; no broker holds it until then."""
        del as_submitted  # the group's time does not jump
        self._backlog.unload(task)
        if len(self._times) < TIMES:
            heapq.heappush(self._times, task.runnable_us)
            self._arm(now)

    def _arm(self, now: Now) -> None:
        rest = LOOK_SECONDS
        if self._times:
            rest = min(rest, max(0.0, (self._times[0] - self.now_us(now)) / MICRO))
        when = now.mono + rest
        if when < self._armed:
            self._armed = when
            self._state.timers.add((self._ring, when), when)

    def _ring(self, when: float, now: Now, effects: Effects) -> None:
        if when != self._armed:
            return
        self._armed = math.inf
        now_us = self.now_us(now)
        while self._times and self._times[0] <= now_us:
            heapq.heappop(self._times)
        if not self._asking:
            self._read_due(now_us, effects)
        self._arm(now)

    def _read_due(self, now_us: int, effects: Effects) -> None:
        self._asking = True
        self._backlog.ask(TakeDue(now_us, DUE_TASKS), self._taken, effects)

    def _taken(self, rows: tuple[OpenTask, ...], _mark: int, now: Now, effects: Effects) -> None:
        self._asking = False
        for row in rows:
            self._release(from_store(row), now, effects)
        if len(rows) == DUE_TASKS:
            self._read_due(self.now_us(now), effects)
