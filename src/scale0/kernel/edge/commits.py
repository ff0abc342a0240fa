"""Commits: one writer thread, one commit in flight, and the callbacks that wait for each. Invariants: batches are
committed in the order in which they were decided; whatever depends on a batch is released only after its commit
returned; after a failed commit nothing is released any more."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scale0.kernel.errors import StoreError
from scale0.kernel.log_context import about
from scale0.kernel.machine import CommitStore

log = logging.getLogger("scale0.commits")

Release = Callable[[], None]
Then = Callable[[Any], None]


class Commits:
    def __init__(
        self, store: CommitStore, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None]
    ) -> None:
        self._store = store
        self._loop = loop
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-writer")
        self._writes: list[Any] = []
        self._releases: list[Release] = []
        self._questions: list[tuple[Any, Then]] = []
        self._in_flight = False
        self._broken = False
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, writes: list[Any], release: Release | None) -> None:
        """Stores the writes, then calls `release`. Without writes, `release` waits for the earlier ones."""
        if self._broken:
            return
        self._writes.extend(writes)
        if release is not None:
            self._releases.append(release)
        self._next()

    def ask(self, ask: Any, then: Then) -> None:
        """Reads after everything that was added before; `then` gets the answer."""
        if not self._broken:
            self._questions.append((ask, then))
            self._next()

    async def read(self, ask: Any) -> Any:
        """Reads on the store's own thread, after the commit in flight."""
        return await self._loop.run_in_executor(self._thread, self._store.read, ask)

    async def trim(self, up_to_seq: int) -> None:
        """Deletes exported journal rows on the store's own thread, between two commits."""
        if self._broken:
            return
        try:
            await self._loop.run_in_executor(self._thread, self._store.trim_journal, up_to_seq)
        except StoreError as error:
            # As after a failed commit, the state on disk is unknown.
            self._broken = True
            self._idle.set()
            self._failed(error)
            raise

    def read_directly(self, ask: Any) -> Any:
        """Reads on the caller's thread, concurrently with commits."""
        return self._store.scan(ask)

    async def flush(self) -> None:
        await self._idle.wait()

    def close(self) -> None:
        """Ends the thread, then closes the store."""
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=True)

    def _next(self) -> None:
        if self._in_flight:
            return
        if not self._writes and not self._questions:
            releases, self._releases = self._releases, []
            for release in releases:
                self._do(release)
            return
        writes, self._writes = self._writes, []
        releases, self._releases = self._releases, []
        questions, self._questions = self._questions, []
        self._in_flight = True
        self._idle.clear()
        future = self._loop.run_in_executor(self._thread, self._work, writes, [ask for ask, _ in questions])
        future.add_done_callback(lambda done: self._committed(done, releases, questions))

    def _work(self, writes: list[Any], asks: list[Any]) -> list[Any]:
        """Runs on the writer's thread."""
        if writes:
            self._store.commit(writes)
        return self._store.read_all(asks)

    def _committed(
        self, done: asyncio.Future[list[Any]], releases: list[Release], questions: list[tuple[Any, Then]]
    ) -> None:
        self._in_flight = False
        error = done.exception()
        if error is not None:
            self._broken = True
            self._idle.set()
            self._failed(error)
            return
        for release in releases:
            self._do(release)
        for (_, then), answer in zip(questions, done.result(), strict=True):
            self._do(functools.partial(then, answer))
        self._next()
        if not self._in_flight:
            self._idle.set()

    def _do(self, release: Release) -> None:
        try:
            release()
        except Exception:
            log.exception(
                "internal error while sending after a commit. Please report this traceback.",
                extra=about(),
            )
