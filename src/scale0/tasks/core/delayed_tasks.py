"""Delayed tasks: the schedule of tasks that become runnable later, of which only the next ones are in memory. A delay
or a backoff that this process scheduled passes by the monotonic clock: a jump of the wall clock neither shortens nor
prolongs it. For `at`, a calendar time, and for tasks of an earlier process the wall clock decides, checked every
second. Invariants: every scheduled task without open dependencies whose `runnable_us` is at or before `horizon` is in
memory; the store orders the others. A scheduled task is in memory without its params, which are read when it is due."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import FindTasks, ReadSchedule
from scale0.storage.task_rows import SCHEDULED, OpenTask
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import MICRO, QueuedTask, from_store, of_seconds

SCHEDULE_TASKS: Final = 2_000
"""Scheduled tasks that are loaded at once; memory holds at most twice as many."""
LOOK_SECONDS: Final = 1.0
"""Interval between checks of the wall clock while any task is scheduled."""
DUE_PER_LOOK: Final = 1_000
"""Tasks that become runnable in one turn."""
DUE_BYTES: Final = 8 * 1024 * 1024
"""Params of due tasks that are read at once, unless those of one task are larger. A queue has room for as many."""
STEP_SECONDS: Final = 1.0
"""A larger change of the wall clock against the monotonic one is a jump."""
STEPPED_TASKS: Final = 100_000
"""After a jump the order of the store is not the order in which tasks are due: then memory may hold this many."""

Place = tuple[int, int]
"""Due time in microseconds, and seq."""
BEGINNING: Final = (-1, 0)
END: Final = (2**63 - 1, 0)


class DelayedTasks:
    def __init__(
        self,
        state: BrokerState,
        backlog: StoredBacklog,
        release: Callable[[QueuedTask, Now, Effects], bool],
        next_seq: int,
    ) -> None:
        self._state = state
        self._backlog = backlog
        self._release = release
        """Makes a task runnable; returns False if there is no room for it now."""
        self._delays: list[tuple[float, int, QueuedTask]] = []
        """A heap of delays that this process scheduled, by monotonic time."""
        self._calendar: list[tuple[int, int, QueuedTask]] = []
        """A heap of all others, by `runnable_us`."""
        self._jumps: list[tuple[int, float]] = [(next_seq, math.nan)]
        """Offsets of the wall clock to the monotonic one, each with the seq of the first task that was submitted under
        it; the first task of this process is the first."""
        self._stepped = False
        """True if the wall clock has jumped while this process ran."""
        self._horizon: Place = BEGINNING
        self._beyond = True
        """True if the store may hold tasks after the horizon."""
        self._due_tasks: list[QueuedTask] = []
        """Tasks that are due: their params are not read yet, or there was no room in their queue."""
        self._untried = 0
        """How many of them are still to be released by this look."""
        self._reading = False
        """Params are being read."""
        self._full: set[tuple[str, int]] = set()
        """Methods and priorities that had no room in this look: the params of their other tasks are not read."""
        self._loading = False
        self._shortened: Place | None = None
        """Tasks after this place were dropped from memory during a read of the store."""
        self._armed = math.inf

    def start(self, now: Now, effects: Effects) -> None:
        self._jumps = [(self._jumps[0][0], now.wall - now.mono)]
        self._load(now, effects)
        self._arm(now)

    def now_us(self, now: Now) -> int:
        """The time that `runnable_us` of a new task counts from."""
        return of_seconds(now.wall)

    def submitted(self, task: QueuedTask, now: Now) -> None:
        """Notes the clock under which a new task was scheduled."""
        offset = now.wall - now.mono
        if abs(offset - self._jumps[-1][1]) > STEP_SECONDS:
            self._jumps.append((task.seq, offset))

    def left(self, task: QueuedTask, now: Now) -> float:
        """Returns the seconds until a task is due whose `runnable_us` is as it was submitted."""
        if self._is_calendar(task):
            return task.runnable_us / MICRO - now.wall
        return self._due(task) - now.mono

    def _is_calendar(self, task: QueuedTask) -> bool:
        return task.seq < self._jumps[0][0] or (task.kept.at and not task.attempt)

    def _due(self, task: QueuedTask) -> float:
        """Returns the monotonic time of a delay, by the clock under which the task was submitted."""
        _, offset = self._jumps[bisect.bisect_right(self._jumps, task.seq, key=lambda jump: jump[0]) - 1]
        return task.runnable_us / MICRO - offset

    def add(self, task: QueuedTask, now: Now, as_submitted: bool = False) -> None:
        """Schedules a task for its `runnable_us`, which was computed in this turn, or is `as_submitted`."""
        place = (task.runnable_us, task.seq)
        if self._beyond and place > self._horizon and not self._loading:
            self._backlog.tasks.pop(task.id, None)
            self._arm(now)
            return
        # This includes tasks that arrive during a read of the store: the read's end is not known yet and might skip
        # them.
        if (task.kept.at and not task.attempt) or (as_submitted and self._is_calendar(task)):
            self._push(task, None)
        else:
            self._push(task, now.mono + (task.runnable_us - of_seconds(now.wall)) / MICRO)
        self._arm(now)

    def _read(self, row: OpenTask) -> None:
        """Schedules a task as the store has it. When its next attempt was scheduled is not stored: for such a task the
        wall clock decides, so that one that was read while the clock was wrong does not wait once it is right."""
        task = from_store(row)
        self._push(task, None if task.attempt or self._is_calendar(task) else self._due(task))

    def _push(self, task: QueuedTask, due: float | None) -> None:
        if not task.fresh:
            task.params = b""  # those of a new task are written first
        self._backlog.tasks[task.id] = task
        if due is None:
            heapq.heappush(self._calendar, (task.runnable_us, task.seq, task))
        else:
            heapq.heappush(self._delays, (due, task.seq, task))
        if self._size > (STEPPED_TASKS if self._stepped else 2 * SCHEDULE_TASKS):
            self._shorten()

    @property
    def _size(self) -> int:
        return len(self._delays) + len(self._calendar)

    def _shorten(self) -> None:
        """Drops all but the next tasks from memory, in the order of the store."""
        tasks = sorted(
            (task for _, _, task in (*self._delays, *self._calendar) if not task.ended),
            key=lambda task: (task.runnable_us, task.seq),
        )
        dropped = set(map(id, tasks[SCHEDULE_TASKS:]))
        self._delays = sorted(entry for entry in self._delays if not entry[2].ended and id(entry[2]) not in dropped)
        self._calendar = sorted(entry for entry in self._calendar if not entry[2].ended and id(entry[2]) not in dropped)
        for task in tasks[SCHEDULE_TASKS:]:
            self._backlog.tasks.pop(task.id, None)
        if dropped:
            last = (tasks[SCHEDULE_TASKS - 1].runnable_us, tasks[SCHEDULE_TASKS - 1].seq)
            self._horizon, self._beyond = min(self._horizon, last), True
            if self._loading:
                self._shortened = last

    def _load(self, now: Now, effects: Effects) -> None:
        if self._loading or not self._beyond or (2 * self._size > SCHEDULE_TASKS and not self._may_miss(now)):
            return
        self._loading, self._shortened = True, None
        self._backlog.ask(ReadSchedule(*self._horizon, SCHEDULE_TASKS), self._loaded, effects)

    def _may_miss(self, now: Now) -> bool:
        """True if a task may be due although its `runnable_us` is after the horizon: the clock has jumped."""
        offset = now.wall - now.mono
        latest = max(offset, *(each for _, each in self._jumps))
        self._stepped = latest - min(offset, *(each for _, each in self._jumps)) > STEP_SECONDS
        return self._stepped and self._size < STEPPED_TASKS and self._horizon[0] <= of_seconds(now.mono + latest)

    def _loaded(self, rows: tuple[OpenTask, ...], mark: int, now: Now, effects: Effects) -> None:
        again = [row.id for row in rows if row.id not in self._backlog.tasks and self._backlog.is_stale(row.seq, mark)]
        if again:
            # These tasks changed during the read: read them again to learn whether they are still scheduled.
            self._backlog.find(tuple(again), self._read_again, effects, brief=True)
        stale = set(again)
        for row in rows:
            if row.id not in stale and row.id not in self._backlog.tasks:
                self._read(row)
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
                self._read(row)
        self._arm(now)

    def _arm(self, now: Now) -> None:
        """Sets the timer for the next task, at most one second ahead, because the wall clock may be set."""
        rest = LOOK_SECONDS
        if self._delays:
            rest = min(rest, max(0.0, self._delays[0][0] - now.mono))
        if self._calendar:
            rest = min(rest, max(0.0, self._calendar[0][0] / MICRO - now.wall))
        if len(self._due_tasks) >= SCHEDULE_TASKS:
            rest = LOOK_SECONDS
        when = now.mono + rest
        if when < self._armed:
            self._armed = when
            self._state.timers.add((self._ring, when), when)

    def _ring(self, when: float, now: Now, effects: Effects) -> None:
        if when != self._armed:
            return
        self._armed = math.inf
        due = self._due_tasks
        for _ in range(DUE_PER_LOOK):
            task = self._pop_due(now) if len(due) < SCHEDULE_TASKS + DUE_PER_LOOK else None
            if task is None:
                break
            due.append(task)
        self._untried = len(due)
        self._full.clear()
        self._read_params(effects)
        self._load(now, effects)
        self._arm(now)

    def _read_params(self, effects: Effects) -> None:
        """Reads the params of the next due tasks, as many as one read may have."""
        if self._reading:
            return
        tasks: list[QueuedTask] = []
        size = 0
        while (
            self._untried and len(tasks) < DUE_PER_LOOK and (not tasks or size + self._due_tasks[0].size <= DUE_BYTES)
        ):
            task = self._due_tasks.pop(0)
            self._untried -= 1
            if (task.method, task.priority) in self._full and not task.ended:
                self._due_tasks.append(task)
            elif not task.ended:
                tasks.append(task)
                size += task.size
        if tasks:
            self._reading = True
            ids = tuple(task.id for task in tasks)
            self._backlog.ask(
                FindTasks(ids), lambda rows, _mark, now, out: self._params_read(tasks, rows, now, out), effects
            )

    def _params_read(self, tasks: list[QueuedTask], rows: tuple[Any, ...], now: Now, effects: Effects) -> None:
        self._reading = False
        for task, row in zip(tasks, rows, strict=True):
            if task.ended:
                continue
            task.params = row.params  # params never change
            if not self._release(task, now, effects):
                task.params = b""
                self._due_tasks.append(task)
                self._full.add((task.method, task.priority))
        self._read_params(effects)

    def _pop_due(self, now: Now) -> QueuedTask | None:
        """Removes and returns a due task, in the order of the store."""
        delayed = self._delays[0][2] if self._delays and self._delays[0][0] <= now.mono else None
        dated = self._calendar[0][2] if self._calendar and self._calendar[0][0] <= of_seconds(now.wall) else None
        if delayed is None or (dated is not None and dated.runnable_us < delayed.runnable_us):
            return heapq.heappop(self._calendar)[2] if dated is not None else None
        return heapq.heappop(self._delays)[2]
