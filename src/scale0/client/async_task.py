"""`AsyncTask` and `AsyncSubmission`: the same as `Task` and `Submission`, for coroutines of one loop.

Lives here: futures in place of threads that wait. Never here: the protocol (`tasks.client.task_client`). What is
submitted in one turn of the loop leaves as one message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scale0.client import results
from scale0.client.argument_checks import check_service
from scale0.client.results import TaskStatus
from scale0.client.submission import DEFAULT_IN_FLIGHT, MAX_ORDERS, Errors, What
from scale0.client.task_options import TaskOptions
from scale0.errors import NoAnswer, task_error
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.names import is_identity
from scale0.storage.task_rows import FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureWait, SubmissionTemplate, TaskFuture

if TYPE_CHECKING:
    from scale0.client.async_client import AsyncClient


class Alarm:
    """A receipt, a watch or a question, as coroutines wait for it."""

    __slots__ = ("_sleepers", "thing", "tickets")

    def __init__(self) -> None:
        self._sleepers: list[asyncio.Future[None]] = []
        self.thing: Any = None
        """None until the turn of the loop in which it was asked for is over."""
        self.tickets: list[TaskFuture] = []

    @property
    def done(self) -> bool:
        """True if there is something to be seen."""
        return self.thing is not None and bool(self.thing.ended)

    def ring(self) -> None:
        """Wake all who sleep."""
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Until it is done, or the time is over."""
        if timeout is None:
            await self._sleep()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._sleep()

    async def _sleep(self) -> None:
        while not self.done:
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            try:
                await sleeper
            finally:
                self._sleepers.remove(sleeper)


class AsyncTask:
    """One task. `await task` gives its result."""

    __slots__ = ("_client", "_held")

    def __init__(self, client: AsyncClient, ticket: TaskFuture) -> None:
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

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> Any:
        """What it returned, once it has; raises `TaskFailed`, `TaskCancelled`, or `NoAnswer` after `timeout`."""
        if not self._ticket.ended:
            await self._watch(timeout)
        ticket = self._ticket
        if not ticket.ended:
            raise NoAnswer(codes.NO_ANSWER, f"task {ticket.id} has not ended in time; it goes on", ticket.service)
        return results.value_of(ticket)

    async def wait(self, timeout: float | None = None) -> bool:
        """Until it has ended, well or not; False if that takes longer than `timeout`."""
        if not self._ticket.ended:
            await self._watch(timeout)
        return self._ticket.ended

    async def done(self) -> bool:
        """True if it has ended, well or not."""
        ticket = self._ticket
        return ticket.ended or (not self._client._asker.is_pushed(ticket) and (await self.status()).ended)

    def error(self) -> Exception | None:
        """Why it has no result, if it has ended without one."""
        ticket = self._ticket
        return results.error_from(ticket) if ticket.ended and ticket.status != FINISHED else None

    async def status(self) -> TaskStatus:
        """What the broker knows of it now."""
        return results.status_in(await self._ask(futures.STATUS))

    async def progress(self) -> tuple[float | None, str]:
        """How far it is (0 to 1; None: the worker did not say), and the worker's note."""
        return (await self.status()).progress

    async def cancel(self) -> bool:
        """Have it not run, or not run on; True if it will not."""
        return await self._ask(futures.CANCEL) == b"true"

    async def confirm(self, timeout: float | None = None) -> AsyncTask:
        """Wait until it is on disk, if it was submitted with `wait=False`; raises as `submit` does."""
        receipt = self._held.receipt
        if receipt is not None and receipt.tag is not None:
            await receipt.tag.wait(timeout)
        ticket = self._ticket
        if ticket.status == futures.NEW:
            raise NoAnswer(codes.NO_ANSWER, f"task {ticket.id} is not acknowledged yet", ticket.service)
        results.check_taken(ticket)
        return self

    def __repr__(self) -> str:
        return f"<AsyncTask {self.id}>"

    async def _watch(self, timeout: float | None) -> None:
        client, asker, ticket = self._client, self._client._asker, self._ticket
        alarm = Alarm()
        watch = alarm.thing = FutureWait(alarm)

        def begin(now: Now) -> None:
            asker.add_wait(watch, (ticket,), now)
            if watch.ended:
                # Its end was read before we began to watch: nobody would ring.
                alarm.ring()

        client._ride(begin)
        try:
            await alarm.wait(timeout)
        finally:
            if not watch.ended:
                client._ride(lambda now: asker.remove_wait(watch, (ticket,)))
        if watch.fault is not None and not self._ticket.ended:
            raise task_error(watch.fault.code, watch.fault.message, ticket.service, ticket.id)

    async def _ask(self, kind: str) -> bytes:
        client, ticket = self._client, self._ticket
        alarm = Alarm()

        def ask(now: Any) -> None:
            alarm.thing = client._asker.query(kind, ticket.id, client._timeout, alarm, now)

        client._ride(ask)
        await alarm.wait()
        return results.answer_to(alarm.thing, ticket)


class AsyncSubmission:
    """Options for tasks, and the ways to submit tasks with them. It never changes, and may be used many times."""

    __slots__ = ("_client", "_orders", "options")

    def __init__(self, client: AsyncClient, options: TaskOptions) -> None:
        self._client = client
        self._orders: dict[str, SubmissionTemplate] = {}
        self.options = options

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """One task; it is on disk when this returns, unless the options say `wait=False`."""
        check_service(service)
        client = self._client
        alarm = self._send(service, (results.params_of(service, args, kwargs),))
        if not self.options.wait:
            client._flush()
        if self.options.wait or client._asker.unanswered > self.options.window:
            await alarm.wait()
        [ticket] = alarm.tickets
        if self.options.wait:
            results.check_taken(ticket)
        return AsyncTask(client, ticket)

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncTask]:
        """A task for each item (one argument; with `star`, a sequence of them), in order, in few messages.

        All are on disk when this returns. If some were not taken, `NotAllSubmitted` says which, and holds the rest.
        """
        self.options.check_many()
        client, window = self._client, self.options.window
        held: list[TaskFuture] = []
        under_way: deque[Alarm] = deque()
        try:
            for bodies in results.chunks(service, items, star, max(1, window // 2)):
                while under_way and sum(one.thing.remaining for one in under_way) + len(bodies) > window:
                    await under_way.popleft().wait()
                alarm = self._send(service, bodies)
                client._flush()
                under_way.append(alarm)
                held += alarm.tickets
        except Exception as error:
            error.add_note(f"{len(held)} tasks were submitted before this")
            raise
        made = [AsyncTask(client, ticket) for ticket in held]
        if self.options.wait:
            for alarm in under_way:
                await alarm.wait()
            results.check_all_taken(made, held)
        return made

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        star: bool = False,
        errors: Errors = "raise",
        what: What = "results",
    ) -> AsyncIterator[Any]:
        """A task for each item, and what they return as they end, in that order: as `Submission.map`."""
        self.options.check_many()
        if in_flight < 1:
            raise ValueError(f"in_flight is at least 1, not {in_flight}")
        return self._map(results.chunks(service, items, star, max(1, in_flight // 2)), service, in_flight, errors, what)

    def task_of(self, id_: str) -> AsyncTask:
        """A task that was submitted before."""
        if not is_identity(id_):
            raise ValueError(f"{id_!r} is no task id")
        return AsyncTask(self._client, self._client._asker.future_of(id_))

    async def _map(
        self, chunks: Iterator[list[bytes]], service: str, in_flight: int, errors: Errors, what: What
    ) -> AsyncIterator[Any]:
        client = self._client
        alarm = Alarm()
        watch = alarm.thing = FutureWait(alarm)
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
                    await alarm.wait()
                while came:
                    ticket = came.popleft()
                    under_way -= 1
                    if what == "tasks":
                        yield AsyncTask(client, ticket)
                    elif ticket.status == FINISHED or errors == "raise":
                        yield results.value_of(ticket)
                    else:
                        yield results.error_from(ticket)
                if watch.fault is not None:
                    raise task_error(watch.fault.code, watch.fault.message, service, "")
        finally:
            if under_way and not client._closed:
                client._ride(lambda _: client._asker.remove_wait(watch))

    def _send(self, service: str, bodies: Sequence[bytes], watch: FutureWait | None = None) -> Alarm:
        client = self._client
        order = self._order(service)
        alarm = Alarm()
        tag = None if watch is not None else alarm

        def submit(now: Any) -> None:
            made = client._asker.submit(order, bodies, client._timeout, tag, now, watch, self.options.id)
            alarm.thing, alarm.tickets = made

        client._ride(submit)
        return alarm

    def _order(self, service: str) -> SubmissionTemplate:
        order = self._orders.get(service)
        if order is None:
            if len(self._orders) >= MAX_ORDERS:
                self._orders.clear()
            order = self._orders[service] = self._client._asker.template(service, self.options.wire())
        return order
