"""Reclaims tasks that a backend holds in advance and has not started, so that an idle backend runs them. Invariant: a
backend that supports reclaims (`returns` in READY) keeps its lease until it has returned the task, so nothing that it
has started is started elsewhere, regardless of delays. A backend without support is only notified: a task whose start
it has not reported yet may run twice. A cancelled task is reclaimed in the same way, so that its cancellation is
answered when the task cannot begin any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.tasks.core.queue import TaskQueue
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.messages import quoted

if TYPE_CHECKING:
    from scale0.tasks.core.leases import Leases

CONFIRM_SECONDS: Final = 2.0
"""How long the answer to a cancellation waits for a backend that does not confirm it."""
RECALL: Final = {"recall": True}
"""Options of a TASKSCANCEL that requests a return."""


Then = Callable[[bool, Now, Effects], None]


class CancelledTask:
    """A cancelled task that its backend may begin until it has read that."""

    __slots__ = ("attempt", "backend", "ended", "id", "thens")

    def __init__(self, id_: str, attempt: int, backend: Any) -> None:
        self.id = id_
        self.attempt = attempt
        self.backend = backend
        self.ended = False
        """It cannot begin any more, or the time to confirm that is over."""
        self.thens: list[Then] = []


class Reclaim:
    def __init__(self, state: BrokerState, leases: Leases, queue: TaskQueue) -> None:
        self._state = state
        self._leases = leases
        self._queue = queue
        self._asks: dict[Any, list[bytes]] = {}
        self._cancelled: dict[str, list[CancelledTask]] = {}
        """Cancelled attempts, by task, whose backends have not confirmed that they do not begin them. A task that was
        retried and cancelled again has several."""

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

    def cancelled(self, task: QueuedTask, backend: Any, now: Now) -> None:
        """Requests the return of a task that was cancelled; its lease has ended."""
        self._asks.setdefault(backend.peer, []).append(b"[%b,%d]" % (quoted(task.id), task.attempt))
        wait = CancelledTask(task.id, task.attempt, backend)
        self._cancelled.setdefault(task.id, []).append(wait)
        self._state.timers.add((self._over, wait), now.mono + CONFIRM_SECONDS)

    def when_confirmed(self, id_: str, then: Then, now: Now, effects: Effects) -> None:
        """Calls `then` once an ended task cannot begin any more: at once, unless it was cancelled a moment ago."""
        self._when_all(tuple(self._cancelled.get(id_, ())), then, True, now, effects)

    def _when_all(self, waits: Iterable[CancelledTask], then: Then, known: bool, now: Now, effects: Effects) -> None:
        wait = next((wait for wait in waits if not wait.ended), None)
        if wait is None:
            then(known, now, effects)
        else:
            wait.thens.append(partial(self._when_all, waits, then))

    def confirmed(self, backend: Any, id_: str, attempt: int, now: Now, effects: Effects) -> None:
        """Handles a report about a task that its backend does not hold: it returned the task, or had begun it."""
        for wait in tuple(self._cancelled.get(id_, ())):
            if wait.backend is backend and wait.attempt == attempt:
                self._over(wait, now, effects)

    def gone(self, backend: Any, now: Now, effects: Effects) -> None:
        """Handles a backend that is dead or has left."""
        for wait in [wait for waits in self._cancelled.values() for wait in waits if wait.backend is backend]:
            self._over(wait, now, effects)

    def _over(self, wait: CancelledTask, now: Now, effects: Effects) -> None:
        if not wait.ended:
            wait.ended = True
            waits = self._cancelled[wait.id]
            waits.remove(wait)
            if not waits:
                del self._cancelled[wait.id]
            for then in wait.thens:
                then(True, now, effects)

    def _back(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        self._leases.release(task)
        self._leases.losses.add(task, "cancelled", False, now, effects)

    def settle(self, effects: Effects) -> None:
        if self._asks:
            asks, self._asks = self._asks, {}
            for peer, entries in asks.items():
                effects.promise(peer, ("TASKSCANCEL", RECALL, b"[%b]" % b",".join(entries)))
