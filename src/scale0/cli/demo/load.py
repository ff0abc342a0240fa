"""The load of `scale0 demo` and `scale0 chaos`: calls and tasks through the public client, in a thread of its own.

A task is recorded as accepted only if it was acknowledged, and a result only if the client returned it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from scale0.cli.demo.audit import FAILED, FINISHED, LoadRecord, SubmittedTask, TaskEnd
from scale0.client.async_client import AsyncClient
from scale0.client.task import AsyncTask
from scale0.errors import CallError, TaskCancelled, TaskFailed
from scale0.kernel import codes

ABANDON_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.1
AUDIT_SECONDS: Final = 30.0
AUDIT_AT_ONCE: Final = 1_000
NO_ANSWER_YET: Final = frozenset({codes.UNREACHABLE, codes.NO_ANSWER, codes.NOT_SERVING})

Source = Callable[["Load", AsyncClient], Coroutine[Any, Any, None]]
"""What one client does until `Load.stopping` is set."""


class Load:
    """Clients by identity, each with a source of calls or tasks."""

    def __init__(self, endpoints: Sequence[str], sources: Mapping[str, Source], answer_seconds: float) -> None:
        self._endpoints = list(endpoints)
        self._sources = sources
        self._answer_seconds = answer_seconds
        self._stop = threading.Event()
        self._abandon = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="scale0-load", daemon=True)
        self.record = LoadRecord()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float, progress: Callable[[], None] | None = None) -> None:
        """Submit nothing new, and wait until everything has ended, but at most so long."""
        self._stop.set()
        until = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < until:
            self._thread.join(POLL_SECONDS)
            if progress is not None:
                progress()
        self.abandon()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        self._stop.set()
        self._abandon.set()
        if self._thread.is_alive():
            self._thread.join(ABANDON_SECONDS)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # `stop` raises it
            self._error = error

    async def _run(self) -> None:
        clients = {
            name: AsyncClient(self._endpoints, identity=name, timeout=self._answer_seconds) for name in self._sources
        }
        running = {asyncio.create_task(source(self, clients[name])) for name, source in self._sources.items()}
        waiting = running
        try:
            while waiting and not self._abandon.is_set():
                done, waiting = await asyncio.wait(waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if done:  # a source that ends before `stop` has failed
                    self._stop.set()
        finally:
            for one in running:
                one.cancel()
            errors = await asyncio.gather(*running, return_exceptions=True)
            await asyncio.gather(*(client.close() for client in clients.values()))
        for error in errors:
            if isinstance(error, Exception):  # our own fault: failed calls are recorded
                raise error

    def new_task(self, kind: str = "", ends: str = FINISHED, max_attempts: int = 10) -> SubmittedTask:
        task = SubmittedTask(len(self.record.tasks), time.monotonic(), kind, ends, max_attempts)
        self.record.tasks.append(task)
        return task

    async def submit(
        self, client: AsyncClient, task: SubmittedTask, service: str, *arguments: Any, **options: Any
    ) -> AsyncTask | None:
        """Submit, and record the acknowledgement; None if there is none."""
        try:
            handle = await client.task(max_attempts=task.max_attempts, **options).submit(
                service, task.number, *arguments
            )
        except CallError as error:
            task.refusal = str(error)
            return None
        if task.id is None:
            self.record.accepted += 1
            task.accepted_at = time.monotonic()
        task.id = handle.id
        return handle

    async def follow(self, task: SubmittedTask, handle: AsyncTask | None) -> None:
        if handle is not None:
            task.result = await end_of(handle)
            task.ended_at = time.monotonic()
            self.record.ended += 1
            self.record.finished += task.result.status == FINISHED


def calls(service: str, seconds: float, pause_seconds: float) -> Source:
    async def call(load: Load, client: AsyncClient) -> None:
        record = load.record
        while not load.stopping:
            number = record.calls
            record.calls += 1
            began = time.monotonic()
            try:
                answer = await client.call(service, number, seconds, retry=True)
            except CallError as error:
                record.failures[str(error)] += 1
            else:
                record.call_answered(number, answer, began, time.monotonic())
            await asyncio.sleep(pause_seconds)

    return call


def batches(service: str, seconds: float, size: int, pause_seconds: float) -> Source:
    """A few tasks at once, their results, and again."""

    async def one(load: Load, client: AsyncClient) -> None:
        task = load.new_task()
        await load.follow(task, await load.submit(client, task, service, seconds))

    async def submit(load: Load, client: AsyncClient) -> None:
        while not load.stopping:
            await asyncio.gather(*(one(load, client) for _ in range(size)))
            await asyncio.sleep(pause_seconds)

    return submit


Start = Callable[[Load, AsyncClient], tuple[int, Coroutine[Any, Any, None]]]
"""Begins something: how many tasks it is, and what is left to do for them."""


def at_rate(starts: Iterator[Start], rate: float) -> Source:
    """So many tasks in a second, also while no broker answers."""

    async def submit(load: Load, client: AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        began, made = loop.time(), 0
        async with asyncio.TaskGroup() as group:
            while not load.stopping:
                due = int((loop.time() - began) * rate)
                while made < due:
                    count, work = next(starts)(load, client)
                    made += count
                    group.create_task(work)
                await asyncio.sleep(POLL_SECONDS)

    return submit


async def end_of(handle: AsyncTask) -> TaskEnd:
    """How a task ended, as its client learns it; waits while no broker answers."""
    while True:
        try:
            return TaskEnd(FINISHED, await handle.result())
        except TaskFailed as error:
            return TaskEnd(FAILED, None, error.code, error.message)
        except TaskCancelled as error:
            return TaskEnd("cancelled", None, error.code, error.message)
        except CallError as error:
            if error.code not in NO_ANSWER_YET:
                return TaskEnd("unknown", None, error.code, error.message)
        await asyncio.sleep(RETRY_SECONDS)


async def ask_again(endpoint: str, identity: str, tasks: Sequence[SubmittedTask], answer_seconds: float) -> None:
    """Ask for the result of every acknowledged task from a new connection, and record it as stored."""
    known = [task for task in tasks if task.id is not None]
    client = AsyncClient(endpoint, identity=identity, timeout=answer_seconds)

    async def ask(task: SubmittedTask) -> None:
        with contextlib.suppress(TimeoutError):
            task.stored = await asyncio.wait_for(end_of(client.task_of(task.id or "")), AUDIT_SECONDS)

    try:
        for first in range(0, len(known), AUDIT_AT_ONCE):
            await asyncio.gather(*map(ask, known[first : first + AUDIT_AT_ONCE]))
    finally:
        await client.close()
