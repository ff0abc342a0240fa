"""The schedule: tasks whose time has not come, of which only the next ones are in memory.

Lives here: who becomes runnable when. Never here: handing out. `at` is a time of the calendar, so the wall clock
decides here, looked at again every second, and the monotonic one only rings. Invariant: every scheduled task that waits
for nobody and comes at or before `horizon` is in memory; the others are in the store's own order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import ReadSchedule
from scale0.storage.task_rows import SCHEDULED, OpenTask
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import MICRO, QueuedTask, from_store, of_seconds

SCHEDULE_TASKS: Final = 2_000
"""Scheduled tasks that are loaded at once; at most twice as many are in memory."""
LOOK_SECONDS: Final = 1.0
"""How often the wall clock is looked at, while anything is scheduled."""
DUE_PER_LOOK: Final = 1_000
"""Tasks that become runnable in one turn."""

Place = tuple[int, int]
"""When, in microseconds, and the seq."""
BEGINNING: Final = (-1, 0)
END: Final = (2**63 - 1, 0)


class DelayedTasks:
    """All scheduled tasks of one broker."""

    __slots__ = (
        *("_armed", "_beyond", "_crowded", "_heap", "_horizon", "_state", "_loading", "_release", "_backlog"),
        "_shortened",
    )

    def __init__(
        self, state: BrokerState, backlog: StoredBacklog, release: Callable[[QueuedTask, Now, Effects], bool]
    ) -> None:
        self._state = state
        self._backlog = backlog
        self._release = release
        """Makes a task runnable; False: there is no room for it now."""
        self._heap: list[tuple[int, int, QueuedTask]] = []
        self._horizon: Place = BEGINNING
        self._beyond = True
        """The store may hold tasks behind the horizon."""
        self._crowded: list[QueuedTask] = []
        """Their time has come, and there is no room for them."""
        self._loading = False
        self._shortened: Place | None = None
        """Tasks behind this place were dropped from memory while the store was being read."""
        self._armed = math.inf

    def start(self, now: Now, effects: Effects) -> None:
        """Learn what comes first."""
        self._load(effects)
        self._arm(now)

    def add(self, task: QueuedTask, now: Now) -> None:
        """It becomes runnable at its `runnable_us`."""
        place = (task.runnable_us, task.seq)
        if self._beyond and place > self._horizon and not self._loading:
            self._backlog.tasks.pop(task.id, None)
            self._arm(now)
            return
        # Also while the store is read: how far that will reach is not known yet, and it might pass over this one.
        self._push(task)
        self._arm(now)

    def _push(self, task: QueuedTask) -> None:
        self._backlog.tasks[task.id] = task
        heapq.heappush(self._heap, (task.runnable_us, task.seq, task))
        if len(self._heap) > 2 * SCHEDULE_TASKS:
            self._shorten()

    def _shorten(self) -> None:
        """Too many: keep the next ones."""
        kept = [entry for entry in sorted(self._heap) if not entry[2].ended]
        self._heap, dropped = kept[:SCHEDULE_TASKS], kept[SCHEDULE_TASKS:]
        if dropped:
            for _, _, task in dropped:
                self._backlog.tasks.pop(task.id, None)
            last = self._heap[-1][:2]
            self._horizon, self._beyond = min(self._horizon, last), True
            if self._loading:
                self._shortened = last

    def _load(self, effects: Effects) -> None:
        if self._loading or not self._beyond or 2 * len(self._heap) > SCHEDULE_TASKS:
            return
        self._loading, self._shortened = True, None
        self._backlog.ask(ReadSchedule(*self._horizon, SCHEDULE_TASKS), self._loaded, effects)

    def _loaded(self, rows: tuple[OpenTask, ...], mark: int, now: Now, effects: Effects) -> None:
        again = [row.id for row in rows if row.id not in self._backlog.tasks and self._backlog.is_stale(row.seq, mark)]
        if again:
            # They changed while they were being read: whether they still belong here must be read anew.
            self._backlog.find(tuple(again), self._look_again, effects)
        stale = set(again)
        for row in rows:
            if row.id not in stale and row.id not in self._backlog.tasks:
                self._push(from_store(row))
        reached = (rows[-1].runnable_us, rows[-1].seq) if len(rows) == SCHEDULE_TASKS else END
        if self._shortened is not None:
            reached = min(reached, self._shortened)
        self._beyond = reached != END
        self._horizon = reached
        self._loading = False
        self._arm(now)

    def _look_again(self, rows: tuple[Any, ...], now: Now, effects: Effects) -> None:
        for row in rows:
            if isinstance(row, OpenTask) and row.status == SCHEDULED and not row.waits:
                self._push(from_store(row))
        self._arm(now)

    def _arm(self, now: Now) -> None:
        """Ring for the next one, and every second meanwhile: the wall clock may have been set."""
        rest = LOOK_SECONDS
        if self._heap:
            rest = min(rest, max(0.0, self._heap[0][0] / MICRO - now.wall))
        if len(self._crowded) >= SCHEDULE_TASKS:
            rest = LOOK_SECONDS
        when = now.mono + rest
        if when < self._armed:
            self._armed = when
            self._state.timers.add((self._ring, when), when)

    def _ring(self, when: float, now: Now, effects: Effects) -> None:
        if when != self._armed:
            return
        self._armed = math.inf
        wall_us = of_seconds(now.wall)
        crowded, self._crowded = self._crowded, []
        due = [task for task in crowded if not task.ended]
        for _ in range(DUE_PER_LOOK):
            if not self._heap or self._heap[0][0] > wall_us or len(due) >= SCHEDULE_TASKS + DUE_PER_LOOK:
                break
            task = heapq.heappop(self._heap)[2]
            if not task.ended:
                due.append(task)
        self._crowded = [task for task in due if not self._release(task, now, effects)]
        self._load(effects)
        self._arm(now)
