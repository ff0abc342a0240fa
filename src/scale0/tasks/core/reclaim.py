"""Reclaims tasks that a backend holds in advance and has not started, so that an idle backend runs them. Invariant: a
backend that supports reclaims (`returns` in READY) keeps its lease until it has returned the task, so nothing that it
has started is started elsewhere, regardless of delays. A backend without support is only notified: a task whose start
it has not reported yet may run twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import quoted

if TYPE_CHECKING:
    from scale0.tasks.core.leases import Leases

RECALL: Final = {"recall": True}
"""Options of a TASKSCANCEL that requests a return."""


class Reclaim:
    def __init__(self, leases: Leases, queue: TaskQueue) -> None:
        self._leases = leases
        self._queue = queue
        self._asks: dict[Any, list[bytes]] = {}

    def ask(self, backend: Any, services: Iterable[str], now: Now, effects: Effects) -> None:
        """Requests the return of tasks of these services that were pushed to the backend and that it has not started:
        of each service the newest ones, beyond those that have a slot."""
        if not backend.pushes:
            return
        found = [offering for name in services if (offering := backend.offerings.get(name)) is not None]
        spare = {offering.name: offering.held - offering.slotted for offering in found}
        for task in list(reversed(backend.tasks.values())) if any(spare.values()) else ():
            if not spare.get(task.method):
                continue
            spare[task.method] -= 1
            if task.start_reported or task.restored:
                continue
            if not backend.returns:
                self._leases.refuse(backend, task.id, task.attempt)
                self._back(task, now, effects)
            elif task.recalled != task.attempt:
                task.recalled = task.attempt
                self._asks.setdefault(backend.peer, []).append(b"[%b,%d]" % (quoted(task.id), task.attempt))

    def returned(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Requeues a returned task; a return that was not requested has no effect."""
        if task.recalled == task.attempt and not task.start_reported:
            self._back(task, now, effects)

    def _back(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        self._leases.release(task)
        self._queue.attempt_over(task, "cancelled", None, b"", counted=False, now=now, effects=effects)

    def settle(self, effects: Effects) -> None:
        if self._asks:
            asks, self._asks = self._asks, {}
            for peer, entries in asks.items():
                effects.promise(peer, ("TASKSCANCEL", RECALL, b"[%b]" % b",".join(entries)))
