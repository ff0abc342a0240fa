"""`Submission`: submit tasks with certain options, from any thread.

Lives here: windows of tasks on their way, and waiting for their acknowledgement. Never here: the protocol
(`tasks.client.task_client`). Invariant: at most `window` tasks of one call are unacknowledged at once, and at most
`in_flight` of one map are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from scale0.client import results
from scale0.client.argument_checks import check_service
from scale0.client.pending import PendingWait
from scale0.client.task import Task
from scale0.client.task_options import TaskOptions
from scale0.errors import task_error
from scale0.kernel.names import is_identity
from scale0.storage.task_rows import FINISHED
from scale0.tasks.client.futures import FutureWait, SubmissionTemplate, TaskFuture

if TYPE_CHECKING:
    from scale0.client.client import Client

DEFAULT_IN_FLIGHT: Final = 1_000
MAX_ORDERS: Final = 1_000
"""Services that one set of options remembers."""

Errors = Literal["raise", "yield"]
What = Literal["results", "tasks"]


class Submission:
    """Options for tasks, and the ways to submit tasks with them. It never changes, and may be used many times."""

    __slots__ = ("_client", "_orders", "options")

    def __init__(self, client: Client, options: TaskOptions) -> None:
        self._client = client
        self._orders: dict[str, SubmissionTemplate] = {}
        self.options = options

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> Task:
        """One task; it is on disk when this returns, unless the options say `wait=False`."""
        check_service(service)
        client = self._client
        waiting = self._send(service, (results.params_of(service, args, kwargs),))
        if self.options.wait or client._asker.unanswered > self.options.window:
            client._wait(waiting)
        else:
            client._see_off(waiting)
        [ticket] = waiting.tickets
        if self.options.wait:
            results.check_taken(ticket)
        return Task(client, ticket)

    def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[Task]:
        """A task for each item (one argument; with `star`, a sequence of them), in order, in few messages.

        All are on disk when this returns. If some were not taken, `NotAllSubmitted` says which, and holds the rest.
        """
        self.options.check_many()
        client, window = self._client, self.options.window
        tickets: list[TaskFuture] = []
        under_way: deque[PendingWait] = deque()
        try:
            for bodies in results.chunks(service, items, star, max(1, window // 2)):
                while under_way and sum(one.thing.remaining for one in under_way) + len(bodies) > window:
                    client._wait(under_way.popleft())
                waiting = self._send(service, bodies)
                under_way.append(waiting)
                tickets += waiting.tickets
        except Exception as error:
            error.add_note(f"{len(tickets)} tasks were submitted before this")
            raise
        tasks = [Task(client, ticket) for ticket in tickets]
        if self.options.wait:
            for waiting in under_way:
                client._wait(waiting)
            results.check_all_taken(tasks, tickets)
        return tasks

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        star: bool = False,
        errors: Errors = "raise",
        what: What = "results",
    ) -> Iterator[Any]:
        """A task for each item, and what they return as they end, in that order: at most `in_flight` at once.

        The first failure is raised, or with `errors="yield"` each is yielded in place of a result. With `what="tasks"`
        the ended tasks themselves are yielded. Tasks that were submitted go on, whether somebody looks or not.
        """
        self.options.check_many()
        if in_flight < 1:
            raise ValueError(f"in_flight is at least 1, not {in_flight}")
        return self._map(results.chunks(service, items, star, max(1, in_flight // 2)), service, in_flight, errors, what)

    def task_of(self, id_: str) -> Task:
        """A task that was submitted before."""
        if not is_identity(id_):
            raise ValueError(f"{id_!r} is no task id")
        found: list[TaskFuture] = []
        self._client._ride(lambda _: found.append(self._client._asker.future_of(id_)))
        return Task(self._client, found[0])

    def _map(
        self, chunks: Iterator[list[bytes]], service: str, in_flight: int, errors: Errors, what: What
    ) -> Iterator[Any]:
        client = self._client
        waiting = PendingWait()
        watch = waiting.thing = FutureWait(waiting)
        came = watch.completed
        chunk: Sequence[bytes] = next(chunks, ())
        under_way = 0
        try:
            while under_way or chunk:
                while chunk and under_way + len(chunk) <= in_flight:
                    self._send(service, chunk, watch)
                    under_way += len(chunk)
                    chunk = next(chunks, ())
                if not came:
                    client._wait(waiting)
                while came:
                    ticket = came.popleft()
                    under_way -= 1
                    if what == "tasks":
                        yield Task(client, ticket)
                    elif ticket.status == FINISHED or errors == "raise":
                        yield results.value_of(ticket)
                    else:
                        yield results.error_from(ticket)
                if watch.fault is not None:
                    raise task_error(watch.fault.code, watch.fault.message, service, "")
        finally:
            if under_way and not client._closed:
                client._ride(lambda _: client._asker.remove_wait(watch))

    def _send(self, service: str, bodies: Sequence[bytes], watch: FutureWait | None = None) -> PendingWait:
        client = self._client
        order = self._order(service)
        waiting = PendingWait()
        tag = None if watch is not None else waiting

        def submit(now: Any) -> None:
            made = client._asker.submit(order, bodies, client._timeout, tag, now, watch, self.options.id)
            waiting.thing, waiting.tickets = made

        client._ride(submit)
        return waiting

    def _order(self, service: str) -> SubmissionTemplate:
        order = self._orders.get(service)
        if order is None:
            if len(self._orders) >= MAX_ORDERS:
                self._orders.clear()
            order = self._orders[service] = self._client._asker.template(service, self.options.wire())
        return order
