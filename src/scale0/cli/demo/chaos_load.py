"""The work of `scale0 chaos`: tasks submitted through the public client, and what was told of each.

Lives here: submitting, waiting, and asking once more at the end. Never here: a judgement (`chaos_audit`), or a process.
Invariant: what is written down as accepted was acknowledged; what is written down as told came from the client alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from scale0.cli.demo.chaos_audit import AuditedTask, TaskEnd
from scale0.cli.demo.chaos_plan import CHAIN, FAILED, FINISHED, SORTS
from scale0.client.async_client import AsyncClient
from scale0.client.async_task import AsyncTask
from scale0.errors import CallError, TaskCancelled, TaskFailed
from scale0.kernel import codes

CLIENT: Final = "chaos"
"""Whose tasks they are."""
PULSE_SECONDS: Final = 0.05
"""Between one handful of tasks and the next."""
SUBMIT_SECONDS: Final = 60.0
"""How long an acknowledgement may take: longer than a broker is down."""
AUDIT_SECONDS: Final = 30.0
AUDIT_AT_ONCE: Final = 1_000
PAUSE_SECONDS: Final = 0.1
NOBODY: Final = frozenset({codes.UNREACHABLE, codes.NO_ANSWER, codes.NOT_SERVING})
"""No answer about a task, which may still come."""


class ChaosLoad:
    """Tasks of many kinds, and everything that is known of them."""

    def __init__(self, endpoint: str, kinds: Iterator[str]) -> None:
        self._client = AsyncClient(endpoint, identity=CLIENT, timeout=SUBMIT_SECONDS)
        self._kinds = kinds
        self._running: set[asyncio.Task[None]] = set()
        self.entries: list[AuditedTask] = []
        self.ended = 0
        self.accepted = 0

    async def submit(self, rate: float) -> None:
        """So many tasks a second, until cancelled; a broker that is down holds nothing up."""
        loop = asyncio.get_running_loop()
        began, made = loop.time(), 0
        while True:
            due = int((loop.time() - began) * rate)
            while made < due:
                made += self._start(next(self._kinds))
            await asyncio.sleep(PULSE_SECONDS)

    async def settle(self, seconds: float) -> bool:
        """Until everything has ended, or the time is over."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        return not self._running

    async def close(self) -> None:
        """Wait for nothing any more."""
        for one in self._running:
            one.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.close()

    def _start(self, kind: str) -> int:
        """Begin one, and say how many tasks it is."""
        count = CHAIN if kind == "chained" else 1
        made = [self._entry(kind) for _ in range(count)]
        work = (
            self._chain(made) if kind == "chained" else self._twice(made[0]) if kind == "keyed" else self._one(made[0])
        )
        running = asyncio.create_task(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return count

    def _entry(self, kind: str) -> AuditedTask:
        entry = AuditedTask(len(self.entries), kind)
        self.entries.append(entry)
        return entry

    async def _one(self, entry: AuditedTask, **more: Any) -> None:
        task = await self._submit(entry, **more)
        if task is not None:
            await self._follow(entry, task)

    async def _chain(self, entries: Sequence[AuditedTask]) -> None:
        """Each after the one before."""
        async with asyncio.TaskGroup() as group:
            last: AsyncTask | None = None
            for place, entry in enumerate(entries):
                if place:
                    entry.after = entries[place - 1].number
                last = await self._submit(entry, **({} if last is None else {"after": [last]}))
                if last is None:
                    break
                group.create_task(self._follow(entry, last))

    async def _twice(self, entry: AuditedTask) -> None:
        """The same key two times at once: it is one task."""
        key = f"key-{entry.number}"
        first, second = await asyncio.gather(self._submit(entry, key=key), self._submit(entry, key=key))
        if first is not None and second is not None:
            entry.other_id = second.id
        task = first or second
        if task is not None:
            entry.id = task.id
            await self._follow(entry, task)

    async def _submit(self, entry: AuditedTask, **more: Any) -> AsyncTask | None:
        """The task, if it was acknowledged."""
        sort = SORTS[entry.kind]
        options: dict[str, Any] = {"max_attempts": sort.max_attempts, **sort.options, **more}
        try:
            task = await self._client.task(**options).submit(sort.service, entry.number)
        except CallError as error:
            entry.refusal = str(error)
            return None
        if entry.id is None:
            self.accepted += 1
        entry.id = task.id
        return task

    async def _follow(self, entry: AuditedTask, task: AsyncTask) -> None:
        entry.told = await ending_of(task)
        self.ended += 1


async def ending_of(task: AsyncTask) -> TaskEnd:
    """How a task ended, as its client is told; a broker that is away is waited for."""
    while True:
        try:
            return TaskEnd(FINISHED, await task.result())
        except TaskFailed as error:
            return TaskEnd(FAILED, None, error.code, error.message)
        except TaskCancelled as error:
            return TaskEnd("cancelled", None, error.code, error.message)
        except CallError as error:
            if error.code not in NOBODY:
                return TaskEnd("unknown", None, error.code, error.message)
        await asyncio.sleep(PAUSE_SECONDS)


async def ask_again(endpoint: str, entries: Sequence[AuditedTask]) -> None:
    """What a client that was told nothing is answered, for every task that was acknowledged."""
    known = [entry for entry in entries if entry.id is not None]
    client = AsyncClient(endpoint, identity=CLIENT, timeout=SUBMIT_SECONDS)
    try:
        for first in range(0, len(known), AUDIT_AT_ONCE):
            await asyncio.gather(*(_ask(client, entry) for entry in known[first : first + AUDIT_AT_ONCE]))
    finally:
        await client.close()


async def _ask(client: AsyncClient, entry: AuditedTask) -> None:
    with contextlib.suppress(TimeoutError):
        entry.stored = await asyncio.wait_for(ending_of(client.task_of(entry.id or "")), AUDIT_SECONDS)
