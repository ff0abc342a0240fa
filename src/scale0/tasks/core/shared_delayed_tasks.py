"""Delayed tasks in a store that brokers share: no broker holds a scheduled task, and any broker of the group claims it
when it is due. Invariant: every broker queries the store every second, so that the tasks of a failed broker are at most
about a second late."""

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
        self, state: BrokerState, backlog: StoredBacklog, release: Callable[[QueuedTask, Now, Effects], bool]
    ) -> None:
        self._state = state
        self._backlog = backlog
        self._release = release
        self._times: list[int] = []
        self._asking = False
        self._armed = math.inf

    def start(self, now: Now, effects: Effects) -> None:
        self._arm(now)

    def add(self, task: QueuedTask, now: Now) -> None:
        """Schedules a task for its `runnable_us`; no broker holds it until then."""
        self._backlog.unload(task)
        if len(self._times) < TIMES:
            heapq.heappush(self._times, task.runnable_us)
            self._arm(now)

    def _arm(self, now: Now) -> None:
        rest = LOOK_SECONDS
        if self._times:
            rest = min(rest, max(0.0, self._times[0] / MICRO - now.wall))
        when = now.mono + rest
        if when < self._armed:
            self._armed = when
            self._state.timers.add((self._ring, when), when)

    def _ring(self, when: float, now: Now, effects: Effects) -> None:
        if when != self._armed:
            return
        self._armed = math.inf
        wall_us = of_seconds(now.wall)
        while self._times and self._times[0] <= wall_us:
            heapq.heappop(self._times)
        if not self._asking:
            self._read_due(wall_us, effects)
        self._arm(now)

    def _read_due(self, wall_us: int, effects: Effects) -> None:
        self._asking = True
        self._backlog.ask(TakeDue(wall_us, DUE_TASKS), self._taken, effects)

    def _taken(self, rows: tuple[OpenTask, ...], _mark: int, now: Now, effects: Effects) -> None:
        self._asking = False
        for row in rows:
            self._release(from_store(row), now, effects)
        if len(rows) == DUE_TASKS:
            self._read_due(of_seconds(now.wall), effects)
