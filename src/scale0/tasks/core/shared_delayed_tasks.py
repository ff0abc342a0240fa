"""The schedule of a store that brokers share: whoever looks first makes a task runnable.

Lives here: when to look for tasks whose time has come. Never here: the tasks: nobody holds one that is scheduled, and
any broker of the group takes it when it is due. Invariant: the store is asked every second, whatever this broker knows,
so that a task of a broker that died is as punctual, nearly, as one of its own.
"""

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
"""How often the store is asked, at the least."""
TIMES: Final = 10_000
"""Of tasks of our own that are remembered, so that they are looked for at their very time."""
DUE_TASKS: Final = 1_000
"""That are taken at once."""


class SharedDelayedTasks:
    """When to look."""

    __slots__ = ("_armed", "_asking", "_backlog", "_release", "_state", "_times")

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
        """Begin to look."""
        self._arm(now)

    def add(self, task: QueuedTask, now: Now) -> None:
        """It becomes runnable at its `runnable_us`; nobody holds it until then."""
        self._backlog.let_go(task)
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
            self._look(wall_us, effects)
        self._arm(now)

    def _look(self, wall_us: int, effects: Effects) -> None:
        self._asking = True
        self._backlog.ask(TakeDue(wall_us, DUE_TASKS), self._taken, effects)

    def _taken(self, rows: tuple[OpenTask, ...], _mark: int, now: Now, effects: Effects) -> None:
        self._asking = False
        for row in rows:
            self._release(from_store(row), now, effects)
        if len(rows) == DUE_TASKS:
            self._look(of_seconds(now.wall), effects)
