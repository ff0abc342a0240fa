"""`Task`: a durable task, in the hand of the one who submitted it.

Lives here: waiting for one task, and asking about it. Never here: the protocol (`tasks.client.task_client`). A task
that nobody holds is not forgotten by the broker: `task_of(id)` finds it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scale0.client import results
from scale0.client.pending import PendingWait
from scale0.client.results import TaskStatus
from scale0.errors import NoAnswer, task_error
from scale0.kernel import codes
from scale0.storage.task_rows import FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureWait, TaskFuture, TaskQuery

if TYPE_CHECKING:
    from scale0.client.client import Client


class Task:
    """One task. Every method may be called from any thread, any number of times."""

    __slots__ = ("_client", "_held")

    def __init__(self, client: Client, ticket: TaskFuture) -> None:
        self._client = client
        self._held = ticket

    @property
    def _ticket(self) -> TaskFuture:
        if self._held.original is not None:
            self._held = self._held.original
        return self._held

    @property
    def id(self) -> str:
        """Its id: with it, and the client's identity, any process finds it again."""
        return self._ticket.id

    def result(self, timeout: float | None = None) -> Any:
        """What it returned, once it has; raises `TaskFailed`, `TaskCancelled`, or `NoAnswer` after `timeout`."""
        ticket = self._ticket
        if not ticket.ended:
            self._watch(timeout)
            ticket = self._ticket
            if not ticket.ended:
                raise NoAnswer(codes.NO_ANSWER, f"task {ticket.id} has not ended in time; it goes on", ticket.service)
        return results.value_of(ticket)

    def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended, well or not; False if that takes longer than `timeout`."""
        if not self._ticket.ended:
            self._watch(timeout)
        return self._ticket.ended

    def done(self) -> bool:
        """True if it has ended, well or not. Does not wait, except for the broker's word where it must be asked."""
        if not self._ticket.ended:
            self._client._link.pump()
        ticket = self._ticket
        return ticket.ended or (not self._client._asker.is_pushed(ticket) and self.status().ended)

    def error(self) -> Exception | None:
        """Why it has no result, if it has ended without one."""
        ticket = self._ticket
        return results.error_from(ticket) if ticket.ended and ticket.status != FINISHED else None

    def status(self) -> TaskStatus:
        """What the broker knows of it now."""
        return results.status_in(self._ask(futures.STATUS))

    def progress(self) -> tuple[float | None, str]:
        """How far it is (0 to 1; None: the worker did not say), and the worker's note."""
        return self.status().progress

    def cancel(self) -> bool:
        """Have it not run, or not run on; True if it will not."""
        return self._ask(futures.CANCEL) == b"true"

    def confirm(self, timeout: float | None = None) -> Task:
        """Wait until it is on disk, if it was submitted with `wait=False`; raises as `submit` does."""
        receipt = self._held.receipt
        if receipt is not None and receipt.tag is not None:
            self._client._wait(receipt.tag, timeout=timeout)
        ticket = self._ticket
        if ticket.status == futures.NEW:
            raise NoAnswer(codes.NO_ANSWER, f"task {ticket.id} is not acknowledged yet", ticket.service)
        results.check_taken(ticket)
        return self

    def __repr__(self) -> str:
        return f"<Task {self.id}>"

    def _watch(self, timeout: float | None) -> None:
        client, asker, ticket = self._client, self._client._asker, self._ticket
        waiting = PendingWait()
        watch = waiting.thing = FutureWait(waiting)
        client._ride(lambda now: asker.add_wait(watch, (ticket,), now))
        try:
            client._wait(waiting, timeout=timeout)
        finally:
            if not watch.ended:
                client._ride(lambda now: asker.remove_wait(watch, (ticket,)))
        if watch.fault is not None and not self._ticket.ended:
            raise task_error(watch.fault.code, watch.fault.message, ticket.service, ticket.id)

    def _ask(self, kind: str) -> bytes:
        client, ticket = self._client, self._ticket
        waiting = PendingWait()

        def ask(now: Any) -> None:
            waiting.thing = client._asker.query(kind, ticket.id, client._timeout, waiting, now)

        client._ride(ask)
        client._wait(waiting)
        question: TaskQuery = waiting.thing
        return results.answer_to(question, ticket)
