"""`AsyncClient`: the same methods as `Client`, for asyncio.

Everything that is called in one turn of the loop leaves as one BATCH.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from scale0.client import core, payload
from scale0.client.core import Result
from scale0.client.task import AsyncSubmission, AsyncTask
from scale0.client.task_options import TaskOptionArguments, TaskOptions
from scale0.kernel.clock import Now
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.asyncio_socket import SocketWatcher


class AsyncClient:
    """A connection to a network, for calls and tasks from coroutines of one loop."""

    def __init__(
        self,
        endpoint: str | Sequence[str] = core.DEFAULT_ENDPOINT,
        *,
        identity: str | None = None,
        timeout: float = core.DEFAULT_TIMEOUT,
        retry: bool = False,
        patience: float | None = None,
        task_client: str | None = None,
        key: str | Path | None = None,
        server_key: str | None = None,
    ) -> None:
        """As `Client`; it connects at its first use, in the loop that uses it."""
        self._core = core.ClientCore(
            self, core.deliver, endpoint, identity, timeout, retry, patience, task_client, key, server_key
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: SocketWatcher | None = None
        self._actions: list[core.Action] = []
        self._task_actions: list[core.TaskAction] = []
        self._tasks = AsyncSubmission(self, TaskOptions())

    @property
    def identity(self) -> str | None:
        """The client's identity on the network, once the broker has assigned it."""
        return self._core.session.connection.identity

    async def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Call `service` with these arguments, and return its result."""
        body = payload.encode_arguments(args, kwargs)
        return await self._result(self._core.start(service, (body,), timeout, retry, raw=False))

    async def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Send raw frames, and return raw frames."""
        frames: list[bytes] = await self._result(self._core.start(service, bodies, timeout, retry, raw=True))
        return frames

    async def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like `call`, for a handler that yields: its values as they arrive."""
        body = payload.encode_arguments(args, kwargs)
        reply = self._core.start(service, (body,), timeout, retry, raw=False)
        for part in reply.stream():
            if part is reply:
                await self._wait(reply, parts=True)
            else:
                yield part

    async def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = core.DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        retry: bool | None = None,
        raw: bool = False,
    ) -> AsyncIterator[Any]:
        """Call `service` with each item, at most `in_flight` at once, and yield the results in order."""
        for reply in self._core.map(service, items, in_flight, timeout, retry, raw):
            yield await self._result(reply)

    @property
    def task_client(self) -> str:
        """The owner of our tasks: the identity that was given, or a random one."""
        return self._core.tasks.client_id

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Submit a durable task: it is on disk when this returns, and survives crashes."""
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
        """Every service of the network, with its backends, slots and busy count."""
        return await self._run(self._core.rows("scale0.services"))

    async def clients(self) -> list[dict[str, Any]]:
        """Every client of the broker."""
        return await self._run(self._core.rows("scale0.clients"))

    async def brokers(self) -> list[dict[str, Any]]:
        """Every broker that the broker knows, itself included, with its state."""
        return await self._run(self._core.rows("scale0.brokers"))

    async def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """Check that the broker answers; returns its identity and state."""
        answer: dict[str, Any] = await self.call("scale0.ping", timeout=timeout)
        return answer

    async def manage(self, command: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run a management command (PROTOCOL 4). `config`, or `body`, becomes the message's body."""
        return await self._result(self._core.manage(command, timeout, arguments))

    async def close(self) -> None:
        """Disconnect; calls in progress fail. Submitted tasks go on."""
        self._flush()
        self._core.is_closed = True
        if self._watcher is not None:
            self._watcher.stop()
        self._core.socket.close(self._core.session.end)

    async def __aenter__(self) -> AsyncClient:
        self._running_loop()
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._core.is_closed:
            raise RuntimeError("this client is closed")
        if self._loop is None:
            self._loop = loop
            self._watcher = SocketWatcher(loop, self._core.socket)
            self._core.socket.act(self._core.session.start)
            self._watcher.update()
        elif self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to one event loop: create a new one in this loop")
        return loop

    async def _result(self, reply: core.CallReply) -> Any:
        while not reply.done:
            await woken(reply)
        return reply.value()

    async def _run(self, steps: core.Steps[Result]) -> Result:
        with contextlib.closing(steps):
            while True:
                try:
                    awaited, timeout = next(steps)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                await self._wait(awaited, timeout=timeout)

    def _act(self, action: core.Action) -> None:
        if not self._actions:
            self._schedule_flush()
        self._actions.append(action)

    def _act_on_tasks(self, action: core.TaskAction) -> None:
        self._schedule_flush()
        self._task_actions.append(action)

    def _schedule_flush(self) -> None:
        loop = self._running_loop()
        if not self._actions and not self._task_actions:
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Run all actions of this turn of the loop together."""
        actions, self._actions = self._actions, []
        task_actions, self._task_actions = self._task_actions, []
        if not actions and not task_actions:
            return

        def run_task_actions(now: Now) -> None:
            for action in task_actions:
                action(now)

        def run(now: Now, effects: SessionEffects) -> None:
            for action in actions:
                action(now, effects)
            if task_actions:
                self._core.session.run_sub_protocol(run_task_actions, now, effects)

        self._core.socket.act(run)
        if self._watcher is not None:
            self._watcher.update()

    def _send_off(self, awaited: core.Awaited) -> None:
        self._flush()

    async def _wait(self, awaited: core.Awaited, parts: bool = False, timeout: float | None = None) -> None:
        """Wait until it is done (or has a part), or the timeout is over."""
        if timeout is None:
            await self._sleep(awaited, parts)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._sleep(awaited, parts)

    async def _sleep(self, awaited: core.Awaited, parts: bool) -> None:
        while not awaited.is_ready(parts):
            await woken(awaited)


def woken(awaited: core.Awaited) -> asyncio.Future[None]:
    """A future that ends when something arrives for what is awaited."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    core.register(awaited, partial(finish, future))
    return future


def finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
