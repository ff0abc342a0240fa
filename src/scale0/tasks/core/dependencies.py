"""Dependencies: tasks that wait for other tasks to finish. Dependents are stored; those that the current round is about
are also in memory, so that every change in that time applies to the same object. Invariants: rounds run one after
another, and each reads after the writes of the previous one, so that a dependency count is never decreased from a stale
value; the row that names a dependent is deleted in the write that updates it, so that none is updated twice; after a
crash in between, the next start finds the rest (`ReadEndedDependencies`)."""

from __future__ import annotations

from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import ReadDependents, ReadEndedDependencies
from scale0.storage.task_rows import FAILED, FINISHED, SCHEDULED, STATUS_NAMES, DropDependency, EndedTask, OpenTask
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import AFTER_FAILED, error_object

ROUND_TASKS: Final = 200
"""Ended tasks whose dependents are looked up in one round."""
PAGE_TASKS: Final = 1_000
"""Dependents in one page."""


class EndedDependency:
    """An ended task whose dependents are being updated."""

    __slots__ = ("id", "open", "seq", "status")

    def __init__(self, seq: int, id_: str, status: int) -> None:
        self.seq = seq
        self.id = id_
        self.status = status
        self.open = 1
        """Number of outstanding reads."""


class Dependencies:
    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        self._ended: list[EndedDependency | None] = []
        """Tasks whose dependents have not been updated; None means that the store has more."""
        self._open = 0
        """How many of `_ended` the current round handles."""
        self._touched: dict[str, QueuedTask] = {}
        """Dependents that the current round holds in memory."""

    def start(self, effects: Effects) -> None:
        """Completes updates that a previous process, or another broker of the shared store, left unfinished."""
        if self._open or self._ended:
            return
        self._queue.backlog.ask(ReadEndedDependencies(PAGE_TASKS), self._settled, effects)

    def _settled(self, rows: tuple[EndedTask, ...], _mark: int, _now: Now, effects: Effects) -> None:
        self._ended.extend(EndedDependency(row.seq, row.id, row.status) for row in rows)
        if len(rows) == PAGE_TASKS:
            self._ended.append(None)
        self.settle(effects)

    def ended(self, task: QueuedTask, status: int) -> None:
        self._ended.append(EndedDependency(task.seq, task.id, status))

    def settle(self, effects: Effects) -> None:
        """Starts a round at the end of the turn if none is running."""
        if self._touched and self._queue.shared is not None:
            self._release_done()  # other brokers may claim them once this turn is stored
        if self._open or not self._ended:
            return
        round_, self._ended = self._ended[:ROUND_TASKS], self._ended[ROUND_TASKS:]
        for ended in round_:
            if ended is None:
                self._queue.backlog.ask(ReadEndedDependencies(PAGE_TASKS), self._settled, effects)
                continue
            self._open += 1
            self._ask(ended, 0, effects)

    def _ask(self, ended: EndedDependency, after: int, effects: Effects) -> None:
        self._queue.backlog.ask(
            ReadDependents(ended.seq, after, PAGE_TASKS),
            lambda rows, mark, now, out: self._update_dependents(ended, rows, mark, now, out),
            effects,
        )

    def _update_dependents(
        self, ended: EndedDependency, rows: tuple[OpenTask, ...], mark: int, now: Now, effects: Effects
    ) -> None:
        backlog = self._queue.backlog
        again: list[str] = []
        released: list[int] = []
        for row in rows:
            if row.id not in backlog.tasks and backlog.is_stale(row.seq, mark):
                again.append(row.id)
            else:
                self._step_on(ended, row, now, effects)
                released.append(row.seq)
        if released:
            effects.write(DropDependency(ended.seq, tuple(released)))
        if again and self._queue.shared is not None:
            # The rows that name the dependents still exist: read them again.
            self._ask(ended, 0, effects)
            return
        if again:
            ended.open += 1
            backlog.find(tuple(again), lambda found, at, out: self._update_changed(ended, found, at, out), effects)
        if len(rows) == PAGE_TASKS:
            self._ask(ended, rows[-1].seq, effects)
        else:
            self._done(ended, effects)

    def _update_changed(self, ended: EndedDependency, found: tuple[Any, ...], now: Now, effects: Effects) -> None:
        """Updates the dependents that changed while they were being read."""
        for row in found:
            if isinstance(row, QueuedTask | OpenTask):
                self._step_on(ended, row, now, effects)
                effects.write(DropDependency(ended.seq, (row.seq,)))
        self._done(ended, effects)

    def _done(self, ended: EndedDependency, effects: Effects) -> None:
        ended.open -= 1
        if ended.open:
            return
        if self._queue.shared is None:
            effects.write(DropDependency(ended.seq))
        self._open -= 1
        if not self._open:
            self._release_done()

    def _release_done(self) -> None:
        touched, self._touched = self._touched, {}
        for task in touched.values():
            if task.status == SCHEDULED and task.waits > 0:
                self._queue.backlog.unload(task)

    def _step_on(self, ended: EndedDependency, row: QueuedTask | OpenTask, now: Now, effects: Effects) -> None:
        backlog = self._queue.backlog
        now_in_memory = backlog.tasks.get(row.id)
        if (now_in_memory or row).waits <= 0:
            # It has no open dependencies: an administrator retried it.
            return
        task = now_in_memory or (backlog.load(row) if isinstance(row, OpenTask) else row)
        if task is None or task.ended:
            return
        self._touched[task.id] = task
        if ended.status != FINISHED:
            message = f"the task {ended.id}, which this one waits for, is {STATUS_NAMES[ended.status]}"
            self._queue.end(task, FAILED, error_object(AFTER_FAILED, message), AFTER_FAILED, now, effects)
            return
        task.waits -= 1
        if task.waits > 0:
            self._queue.changed(task, effects)
        else:
            self._queue.runnable(task, now, effects)
