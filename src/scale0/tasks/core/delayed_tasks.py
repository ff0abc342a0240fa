"""Delayed tasks: the schedule of tasks that become runnable later, of which only the next ones are in memory. `at` is a
calendar time, so the wall clock decides, checked every second; the monotonic clock only triggers the checks. Invariant:
every scheduled task without open dependencies that is due at or before `horizon` is in memory; the store orders the
others."""

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
"""Scheduled tasks that are loaded at once; memory holds at most twice as many."""
LOOK_SECONDS: Final = 1.0
"""Interval between checks of the wall clock while any task is scheduled."""
DUE_PER_LOOK: Final = 1_000
"""Tasks that become runnable in one turn."""

Place = tuple[int, int]
"""Due time in microseconds, and seq."""
BEGINNING: Final = (-1, 0)
END: Final = (2**63 - 1, 0)


class DelayedTasks:
    def __init__(
        self, state: BrokerState, backlog: StoredBacklog, release: Callable[[QueuedTask, Now, Effects], bool]
    ) -> None:
        self._state = state
        self._backlog = backlog
        self._release = release
        """Makes a task runnable; returns False if there is no room for it now."""
        self._heap: list[tuple[int, int, QueuedTask]] = []
        self._horizon: Place = BEGINNING
        self._beyond = True
        """True if the store may hold tasks after the horizon."""
        self._crowded: list[QueuedTask] = []
        """Tasks that are due but have no room in their queue."""
        self._loading = False
        self._shortened: Place | None = None
        """Tasks after this place were dropped from memory during a read of the store."""
        self._armed = math.inf

    def start(self, now: Now, effects: Effects) -> None:
        self._load(effects)
        self._arm(now)

    def add(self, task: QueuedTask, now: Now) -> None:
        """Schedules a task for its `runnable_us`."""
        place = (task.runnable_us, task.seq)
        if self._beyond and place > self._horizon and not self._loading:
            self._backlog.tasks.pop(task.id, None)
            self._arm(now)
            return
        # This includes tasks that arrive during a read of the store: the read's end is not known yet and might skip
        # them.
        self._push(task)
        self._arm(now)

    def _push(self, task: QueuedTask) -> None:
        self._backlog.tasks[task.id] = task
        heapq.heappush(self._heap, (task.runnable_us, task.seq, task))
        if len(self._heap) > 2 * SCHEDULE_TASKS:
            self._shorten()

    def _shorten(self) -> None:
        """Drops all but the next tasks from memory."""
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
            # These tasks changed during the read: read them again to learn whether they are still scheduled.
            self._backlog.find(tuple(again), self._read_again, effects)
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

    def _read_again(self, rows: tuple[Any, ...], now: Now, effects: Effects) -> None:
        for row in rows:
            if isinstance(row, OpenTask) and row.status == SCHEDULED and not row.waits:
                self._push(from_store(row))
        self._arm(now)

    def _arm(self, now: Now) -> None:
        """Sets the timer for the next task, at most one second ahead, because the wall clock may be set."""
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
