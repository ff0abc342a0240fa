"""Taking back what a backend was given in advance and has not begun, so that somebody who is idle does it.

Lives here: asking, and what comes of it. Never here: when that is fair (`pacing`). Invariant: a backend that answers
recalls keeps its lease until it has given the task back, so that nothing which it has begun is begun elsewhere, however
slow it, its line or this broker is. One that does not say `returns` in READY can only be told: what it has begun
without a word so far may run twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import quoted

if TYPE_CHECKING:
    from scale0.tasks.core.leases import Leases

RECALL: Final = {"recall": True}
"""The options of TASKSCANCEL that asks."""


class Reclaim:
    """The recalls of one broker."""

    __slots__ = ("_asks", "_leases", "_queue")

    def __init__(self, leases: Leases, queue: TaskQueue) -> None:
        self._leases = leases
        self._queue = queue
        self._asks: dict[Any, list[bytes]] = {}

    def ask(self, backend: Any, now: Now, effects: Effects) -> None:
        """What was pushed to it and it has not begun goes back to the queue."""
        if not backend.pushes:
            return
        spare = len(backend.tasks) - backend.slotted
        for task in list(reversed(backend.tasks.values()))[:spare]:
            if task.said or task.restored:
                continue
            if not backend.returns:
                self._leases.refuse(backend, task.id, task.attempt)
                self._back(task, now, effects)
            elif task.recalled != task.attempt:
                task.recalled = task.attempt
                self._asks.setdefault(backend.peer, []).append(b"[%b,%d]" % (quoted(task.id), task.attempt))

    def returned(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Its holder gives it back; what was not asked for stays where it is."""
        if task.recalled == task.attempt and not task.said:
            self._back(task, now, effects)

    def _back(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        self._leases.release(task)
        self._queue.attempt_over(task, "cancelled", None, b"", counted=False, now=now, effects=effects)

    def settle(self, effects: Effects) -> None:
        """The turn ends: say it."""
        if self._asks:
            asks, self._asks = self._asks, {}
            for peer, entries in asks.items():
                effects.promise(peer, ("TASKSCANCEL", RECALL, b"[%b]" % b",".join(entries)))
