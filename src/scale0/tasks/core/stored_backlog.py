"""The stored backlog: queries for tasks that are only in the store. An answer arrives in a later turn, when the task
may have ended or been loaded. Invariants: a read follows all writes that were decided before it; code that acts on a
row must check `is_stale` first; a task is in memory at most once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.storage.task_queries import ClaimedTask, ClaimTasks, FindTasks
from scale0.storage.task_rows import EndedTask, OpenTask
from scale0.tasks.core.task import QueuedTask, from_store

MAX_LOOKS: Final = 100
"""How often a row that keeps changing is read again."""

Then = Callable[[Any, int, Now, Effects], None]
Ask = Callable[[Any, Then, Effects], None]


class StoredBacklog:
    def __init__(self) -> None:
        self.tasks: dict[str, QueuedTask] = {}
        """Every task in memory, by id."""
        self._asked = 0
        """Number of unanswered queries."""
        self._next = 1
        self._marks: dict[int, int] = {}
        """The mark of each task's last change, while queries are unanswered."""
        self.on_loaded: Callable[[str], None] = lambda _: None
        """Called with a method that has more tasks in memory."""
        self.on_leaving: Callable[[QueuedTask], None] = lambda _: None
        """Called with an open task that leaves memory."""

    def ask(self, ask: Any, then: Then, effects: Effects, rows: int = 1) -> None:
        """Queries the store; `then` gets the answer and the mark for `is_stale`."""
        mark = self._next
        self._next += 1
        self._asked += 1

        def answered(value: Any, now: Now, out: Effects) -> None:
            self._asked -= 1
            try:
                then(value, mark, now, out)
            finally:
                if not self._asked:
                    self._marks.clear()

        effects.ask(StoreQuery(ask, answered, rows=rows))

    def touch(self, seq: int) -> None:
        """Records that a task has changed, so that pending answers are stale."""
        if self._asked:
            self._marks[seq] = self._next
            self._next += 1

    def is_stale(self, seq: int, mark: int) -> bool:
        """True if the task has changed since the query."""
        return self._marks.get(seq, 0) > mark

    def load(self, row: OpenTask) -> QueuedTask | None:
        """Loads a stored task; returns None if it is in memory already."""
        if row.id in self.tasks:
            return None
        task = from_store(row)
        self.tasks[row.id] = task
        return task

    def unload(self, task: QueuedTask) -> None:
        """Removes a task from memory; it stays in the store."""
        self.tasks.pop(task.id, None)
        self.on_leaving(task)

    def claim(
        self,
        ids: tuple[str, ...],
        then: Callable[[tuple[ClaimedTask, ...], Now, Effects], None],
        effects: Effects,
        node: str | None = None,
        looks: int = 0,
        behind: tuple[ClaimedTask, ...] = (),
    ) -> None:
        """Reads tasks by id and claims those that no broker holds: the caller must load or write them.

        `behind`: orphans of the node that an earlier query claimed; the next answer does not include them."""

        def answered(found: tuple[ClaimedTask, ...], mark: int, now: Now, out: Effects) -> None:
            rows = [row.task for row in found if row.task is not None]
            stale = any(row.id not in self.tasks and self.is_stale(row.seq, mark) for row in rows)
            if stale and looks < MAX_LOOKS:
                self.claim(ids, then, out, node, looks + 1, behind + found[len(ids) :])
                return
            then(found + behind, now, out)

        self.ask(ClaimTasks(ids, node), answered, effects, rows=max(1, len(ids)))

    def loaded(self, method: str) -> None:
        self.on_loaded(method)

    def find(
        self,
        ids: tuple[str, ...],
        then: Callable[[tuple[QueuedTask | OpenTask | EndedTask | None, ...], Now, Effects], None],
        effects: Effects,
        looks: int = 0,
        brief: bool = False,
        ask: Ask | None = None,
    ) -> None:
        """Returns tasks by id in their current state: from memory, or from the store, read again if stale.

        `brief`: rows of the store come without params and results. `ask`: how the store is queried, for a client: see
        `FairReads.find`."""

        def answered(rows: tuple[OpenTask | EndedTask | None, ...], mark: int, now: Now, out: Effects) -> None:
            stale = any(row is not None and row.id not in self.tasks and self.is_stale(row.seq, mark) for row in rows)
            if stale and looks < MAX_LOOKS:
                self.find(ids, then, out, looks + 1, brief, ask)
                return
            then(tuple(self.tasks.get(id_) or row for id_, row in zip(ids, rows, strict=True)), now, out)

        (ask or self.ask)(FindTasks(ids, brief), answered, effects)
