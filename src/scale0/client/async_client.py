"""`AsyncClient`: the same methods as `Client`, for asyncio.

Lives here: futures in place of threads that wait. Never here: the protocol, or the socket. What is asked in one turn of
the loop leaves as one BATCH.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from scale0.client import payload
from scale0.client.argument_checks import check_command, check_request, check_timeout
from scale0.client.async_task import AsyncSubmission, AsyncTask
from scale0.client.client import DEFAULT_ENDPOINT, DEFAULT_IN_FLIGHT, DEFAULT_TIMEOUT, TASK_CLIENT_BITS
from scale0.client.endpoints import endpoints_of
from scale0.client.task_options import TaskOptionArguments, TaskOptions
from scale0.errors import error_of
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.tasks.client.futures import FutureChanged
from scale0.tasks.client.task_client import TaskClientSession
from scale0.transport.core.calls import CallAnswered, CallFailed, ManagementAnswered, PartialReply
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.edge.client_keys import keys_for
from scale0.transport.edge.client_socket import ClientSocket


class _Reply:
    """Where one call's news go."""

    __slots__ = ("future", "parts", "raw", "service")

    def __init__(self, loop: asyncio.AbstractEventLoop, service: str, raw: bool, parts: bool = False) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self.parts: asyncio.Queue[Any] | None = asyncio.Queue() if parts else None
        self.raw = raw
        self.service = service

    def read(self, bodies: Sequence[bytes]) -> Any:
        if self.raw:
            return list(bodies)
        return payload.decode(bodies[0]) if bodies else None


class AsyncClient:
    """A connection to a network, for calls and tasks from coroutines of one loop."""

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        identity: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry: bool = False,
        patience: float | None = None,
        task_client: str | None = None,
        key: str | Path | None = None,
        server_key: str | None = None,
    ) -> None:
        """As `Client`; it connects with its first use, in the loop that uses it."""
        endpoints = endpoints_of(endpoint, "tcp://host:5700")
        chance = random.SystemRandom()
        owner = task_client or identity or f"c-{chance.getrandbits(TASK_CLIENT_BITS):024x}"
        self._asker = TaskClientSession(owner, chance)
        self._session = FrontendSession(endpoints, identity, chance, patience, sub_protocol=self._asker)
        keys = keys_for(self._session.connection.addresses, endpoints, key, server_key)
        self._link = ClientSocket(self._session, self._deliver, keys)
        self._timeout = check_timeout(timeout)
        self._retry = retry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._asked: list[tuple[str, Sequence[bytes], float, bool, _Reply]] = []
        self._rides: list[Callable[[Now], None]] = []
        self._tasks = AsyncSubmission(self, TaskOptions())
        self._watched: tuple[int, ...] = ()
        self._generation = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> str | None:
        """Who we are on the network, once the broker has said so."""
        return self._session.connection.identity

    async def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Have `service` done with these arguments, and return what it returns."""
        return await self._ask(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False).future

    async def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Raw frames out, raw frames back."""
        frames: list[bytes] = await self._ask(service, bodies, timeout, retry, raw=True).future
        return frames

    async def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like `call`, for a handler that yields: its values as they come."""
        body = payload.encode_arguments(args, kwargs)
        reply = self._ask(service, (body,), timeout, retry, raw=False, parts=True)
        if reply.parts is None:
            raise AssertionError("a streamed call has a queue")
        while True:
            part = await reply.parts.get()
            if part is reply:
                break
            yield part
        last = await reply.future
        if last not in (None, []):
            yield last

    async def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        retry: bool | None = None,
        raw: bool = False,
    ) -> AsyncIterator[Any]:
        """Call `service` with each item, at most `in_flight` at once, and yield the results in order."""
        if in_flight < 1:
            raise ValueError(f"in_flight is at least 1, not {in_flight}")
        window: deque[_Reply] = deque()
        for item in items:
            body = item if raw else payload.encode_arguments((item,), {})
            window.append(self._ask(service, (body,), timeout, retry, raw))
            if len(window) >= in_flight:
                yield await window.popleft().future
        while window:
            yield await window.popleft().future

    @property
    def task_client(self) -> str:
        """Whom our tasks belong to: the identity that we were given, or one of our own making."""
        return self._asker.client_id

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Have `service` done with these arguments, whoever dies meanwhile: it is on disk when this returns."""
        return await self._tasks.submit(service, *args, **kwargs)

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncTask]:
        """Submit a task for each item (one argument; with `star`, a sequence of them), in few messages."""
        return await self._tasks.submit_many(service, items, star=star)

    def task(self, **options: Unpack[TaskOptionArguments]) -> AsyncSubmission:
        """Options for tasks (see `TaskOptions`)."""
        return AsyncSubmission(self, TaskOptions(**options)) if options else self._tasks

    def task_of(self, id_: str) -> AsyncTask:
        """A task that was submitted before, by this client or by another one with the same identity."""
        return self._tasks.task_of(id_)

    async def services(self) -> list[dict[str, Any]]:
        """Every service of the network."""
        return [row async for row in self._pages("scale0.services")]

    async def clients(self) -> list[dict[str, Any]]:
        """Every client of the broker."""
        return [row async for row in self._pages("scale0.clients")]

    async def brokers(self) -> list[dict[str, Any]]:
        """Every broker that the broker knows, itself included, with its state."""
        return [row async for row in self._pages("scale0.brokers")]

    async def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """A sign of life from the broker."""
        answer: dict[str, Any] = await self.call("scale0.ping", timeout=timeout)
        return answer

    async def manage(self, command: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """A management command (PROTOCOL 4). `config`, or `body`, goes as the message's body."""
        reply = _Reply(self._running(), command, raw=False)
        body = payload.body_of(arguments)
        said = {"command": command, **arguments}
        check_command(said)
        wait = self._timeout if timeout is None else check_timeout(timeout)
        self._link.act(lambda now, out: self._session.manage(said, body, wait, reply, now, out))
        self._settle()
        return await reply.future

    async def close(self) -> None:
        """Leave; what is under way fails."""
        self._flush()
        self._closed = True
        self._link.close(self._session.end)
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    async def __aenter__(self) -> AsyncClient:
        self._running()
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False

    async def _pages(self, service: str) -> AsyncIterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = await (self.call(service, after=after) if after else self.call(service))
            for row in page["items"]:
                yield row
            after = page["next"]
            if after is None:
                return

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._loop is None:
            self._loop = loop
            self._link.act(self._session.start)
            self._settle()
        elif self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to one event loop: make a new one here")
        return loop

    def _ask(
        self,
        service: str,
        bodies: Sequence[bytes],
        timeout: float | None,
        retry: bool | None,
        raw: bool,
        parts: bool = False,
    ) -> _Reply:
        check_request(service, bodies)
        loop = self._running()
        reply = _Reply(loop, service, raw, parts)
        wait = self._timeout if timeout is None else check_timeout(timeout)
        if not self._asked and not self._rides:
            loop.call_soon(self._flush)
        self._asked.append((service, bodies, wait, self._retry if retry is None else retry, reply))
        return reply

    def _ride(self, do: Callable[[Now], None]) -> None:
        """Ask the tasks' session for something, together with what else is asked in this turn."""
        loop = self._running()
        if not self._asked and not self._rides:
            loop.call_soon(self._flush)
        self._rides.append(do)

    def _flush(self) -> None:
        asked, self._asked = self._asked, []
        rides, self._rides = self._rides, []
        if not asked and not rides:
            return

        def together(now: Now) -> None:
            for do in rides:
                do(now)

        def ask(now: Any, out: Any) -> None:
            for service, bodies, wait, retry, reply in asked:
                self._session.request(service, bodies, wait, retry, reply, now, out)
            if rides:
                self._session.run_sub_protocol(together, now, out)

        self._link.act(ask)
        self._settle()

    def _readable(self, monitor: bool = False) -> None:
        self._link.pump(monitor)
        self._settle()

    def _settle(self) -> None:
        """Watch the present socket, and wake up for the next deadline."""
        loop = self._loop
        if loop is None:
            return
        if self._link.generation != self._generation:
            self._unwatch()
            self._generation = self._link.generation
            self._watched = self._link.descriptors()
            # None while there is no connection.
            for descriptor, monitor in zip(self._watched, (False, True), strict=False):
                loop.add_reader(descriptor, self._readable, monitor)
        due = self._link.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = loop.call_later(max(0.0, due - read_now().mono), self._readable)

    def _unwatch(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            for descriptor in self._watched:
                self._loop.remove_reader(descriptor)
        self._watched = ()

    def _deliver(self, news: list[Any]) -> None:
        for one in news:
            if type(one) is FutureChanged:
                one.tag.ring()
                continue
            reply = getattr(one, "tag", None)
            if reply is None or reply.future.done():
                continue
            try:
                self._conclude(reply, one)
            except (ValueError, RecursionError) as error:
                # An answer that is no JSON is its own caller's trouble.
                reply.future.set_exception(error)
            if reply.parts is not None and reply.future.done():
                reply.parts.put_nowait(reply)

    def _conclude(self, reply: _Reply, news: Any) -> None:
        match news:
            case CallAnswered():
                reply.future.set_result(reply.read(news.bodies))
            case PartialReply():
                if reply.parts is not None:
                    reply.parts.put_nowait(reply.read(news.bodies))
            case ManagementAnswered(code=200):
                reply.future.set_result(payload.decode(news.body))
            case CallFailed() | ManagementAnswered():
                error = error_of(news.code, news.message, reply.service)
                if isinstance(news, ManagementAnswered) and news.body:
                    error.detail = payload.decode(news.body)
                reply.future.set_exception(error)
