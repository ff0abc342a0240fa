"""The shelf: tasks that are in the store only, and the questions about them.

Lives here: asking, and knowing which answers are out of date. Never here: what is done with a task. A question is
answered in a later turn, and by then the task may have ended, or have been taken into memory. Invariants: reads are
done behind all writes that were decided before them; whoever acts on a row first asks `is_stale`; a task is in memory
at most once.
"""

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


class StoredBacklog:
    """The way to the stored tasks of one broker."""

    __slots__ = ("_asked", "_marks", "_next", "on_leaving", "on_loaded", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[str, QueuedTask] = {}
        """Every task that is in memory, by id."""
        self._asked = 0
        """Questions that are not answered yet."""
        self._next = 1
        self._marks: dict[int, int] = {}
        """When a task was last changed, while there are questions."""
        self.on_loaded: Callable[[str], None] = lambda _: None
        """Told of a method that has more tasks in memory now."""
        self.on_leaving: Callable[[QueuedTask], None] = lambda _: None
        """Told of a task that leaves memory and has not ended."""

    def ask(self, ask: Any, then: Then, effects: Effects) -> None:
        """Have the store asked; `then` gets the answer and the mark to judge it by."""
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

        effects.ask(StoreQuery(ask, answered))

    def touch(self, seq: int) -> None:
        """A task has changed: answers that are on their way do not know it."""
        if self._asked:
            self._marks[seq] = self._next
            self._next += 1

    def is_stale(self, seq: int, mark: int) -> bool:
        """True if the task has changed since the question."""
        return self._marks.get(seq, 0) > mark

    def load(self, row: OpenTask) -> QueuedTask | None:
        """A stored task, taken into memory; None if it is there already."""
        if row.id in self.tasks:
            return None
        task = from_store(row)
        self.tasks[row.id] = task
        return task

    def let_go(self, task: QueuedTask) -> None:
        """A task is in the store only, from now on."""
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
        """Tasks by id, and those that nobody holds are ours from now on: whoever asks must load them, or write them.

        `behind`: orphans of the node that were taken when it was asked before: the next answer does not name them.
        """

        def answered(found: tuple[ClaimedTask, ...], mark: int, now: Now, out: Effects) -> None:
            rows = [row.task for row in found if row.task is not None]
            stale = any(row.id not in self.tasks and self.is_stale(row.seq, mark) for row in rows)
            if stale and looks < MAX_LOOKS:
                self.claim(ids, then, out, node, looks + 1, behind + found[len(ids) :])
                return
            then(found + behind, now, out)

        self.ask(ClaimTasks(ids, node), answered, effects)

    def loaded(self, method: str) -> None:
        """More tasks of a method are in memory."""
        self.on_loaded(method)

    def find(
        self,
        ids: tuple[str, ...],
        then: Callable[[tuple[QueuedTask | OpenTask | EndedTask | None, ...], Now, Effects], None],
        effects: Effects,
        looks: int = 0,
    ) -> None:
        """Tasks by id, as they are now: from memory where they are there, else from the store, read anew if stale."""

        def answered(rows: tuple[OpenTask | EndedTask | None, ...], mark: int, now: Now, out: Effects) -> None:
            stale = any(row is not None and row.id not in self.tasks and self.is_stale(row.seq, mark) for row in rows)
            if stale and looks < MAX_LOOKS:
                self.find(ids, then, out, looks + 1)
                return
            then(tuple(self.tasks.get(id_) or row for id_, row in zip(ids, rows, strict=True)), now, out)

        self.ask(FindTasks(ids), answered, effects)
