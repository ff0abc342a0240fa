"""The work of `scale0 demo`: calls and durable tasks that go on and on through the public client, whoever is killed.

Lives here: asking and waiting, in a thread of its own. Never here: a judgement (`demo_count`), or a process. Invariant:
what is written down as accepted was acknowledged; what is written down as answered came from the client alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Final

from scale0.cli.demo.chaos_load import ending_of
from scale0.cli.demo.chaos_plan import FINISHED
from scale0.cli.demo.counts import CountedTask, DemoCounts
from scale0.cli.demo.plan import BATCH, CALL_SECONDS, CALLERS, PAUSE_SECONDS, SETTLE_SECONDS, SUBMITTERS, TASK_SECONDS
from scale0.client.async_client import AsyncClient
from scale0.errors import CallError

ANSWER_SECONDS: Final = 30.0
"""How long one answer may take, whoever dies meanwhile."""
ABANDON_SECONDS: Final = 5.0
PULSE_SECONDS: Final = 0.05


class DemoLoad:
    """Callers and submitters at two brokers; the first one is where they belong."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = list(endpoints)
        self._ended = threading.Event()
        self._settle_seconds = SETTLE_SECONDS
        self.ledger = DemoCounts()
        self._thread = threading.Thread(target=self._main, name="scale0-demo-work", daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask nothing new, and return when all that was asked has ended, or its time is over."""
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Wait for nothing any more: something else went wrong."""
        self._settle_seconds = 0.0
        self._ended.set()
        self._thread.join(ABANDON_SECONDS)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # it is raised in `stop`
            self._error = error

    async def _run(self) -> None:
        names = (*CALLERS, *SUBMITTERS)
        clients = {name: AsyncClient(self._endpoints, identity=name, timeout=ANSWER_SECONDS) for name in names}
        work = [self._call(clients[name]) for name in CALLERS] + [self._submit(clients[name]) for name in SUBMITTERS]
        running = [asyncio.create_task(one) for one in work]
        try:
            ended: set[asyncio.Task[None]] = set()
            while not self._ended.is_set() and not ended:  # one that ends before it is told to has failed
                ended, _ = await asyncio.wait(running, timeout=PULSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._ended.set()
            await asyncio.wait(running, timeout=self._settle_seconds)
        finally:
            for one in running:
                one.cancel()
            errors = await asyncio.gather(*running, return_exceptions=True)
            await asyncio.gather(*(client.close() for client in clients.values()))
        for error in errors:
            if isinstance(error, Exception):  # a fault of ours, and no answer of the network's
                raise error

    async def _call(self, client: AsyncClient) -> None:
        """One caller: a call after the other."""
        ledger = self.ledger
        while not self._ended.is_set():
            number = ledger.asked
            ledger.asked += 1
            began = time.monotonic()
            try:
                answer = await client.call("demo.work", number, CALL_SECONDS, retry=True)
            except CallError as error:
                ledger.failed[str(error)] += 1
            else:
                ledger.answered(number, answer, began, time.monotonic())
            await asyncio.sleep(PAUSE_SECONDS)

    async def _submit(self, client: AsyncClient) -> None:
        """One submitter: a few tasks, their results, and again."""
        while not self._ended.is_set():
            await asyncio.gather(*(self._task(client, self._entry()) for _ in range(BATCH)))
            await asyncio.sleep(PAUSE_SECONDS)

    def _entry(self) -> CountedTask:
        entry = CountedTask(len(self.ledger.entries), time.monotonic())
        self.ledger.entries.append(entry)
        return entry

    async def _task(self, client: AsyncClient, entry: CountedTask) -> None:
        try:
            task = await client.task(max_attempts=10).submit("demo.build", entry.number, TASK_SECONDS)
        except CallError as error:
            entry.trouble = str(error)
            return
        entry.id, entry.accepted = task.id, time.monotonic()
        self.ledger.accepted += 1
        told = await ending_of(task)
        entry.ended, entry.result, entry.trouble = time.monotonic(), told.value, told.message
        self.ledger.finished += told.status == FINISHED
