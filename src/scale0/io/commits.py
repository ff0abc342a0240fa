"""Commits: one writer thread, one in flight, and what waits for each.

Lives here: the order "stored, then said". Never here: what is stored. Invariants: batches are committed in the order in
which they were decided; what depends on a batch is released only after its commit returned; after a failed commit
nothing is released any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scale0.store.interface import Store

log = logging.getLogger("scale0.commits")

Release = Callable[[], None]


class Commits:
    """The writer of one store."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None]) -> None:
        self._store = store
        self._loop = loop
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scale0-writer")
        self._writes: list[Any] = []
        self._releases: list[Release] = []
        self._in_flight = False
        self._broken = False
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, writes: list[Any], release: Release | None) -> None:
        """Store these; then do that. Without writes it waits for those before it."""
        if self._broken:
            return
        self._writes.extend(writes)
        if release is not None:
            self._releases.append(release)
        self._next()

    async def read(self, ask: Any) -> Any:
        """Ask the store, on its own thread, behind what is being committed."""
        return await self._loop.run_in_executor(self._thread, self._store.read, ask)

    async def flush(self) -> None:
        """Wait until everything is stored."""
        await self._idle.wait()

    def close(self) -> None:
        """The thread ends, then the store is closed."""
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=True)

    def _next(self) -> None:
        if self._in_flight:
            return
        if not self._writes:
            releases, self._releases = self._releases, []
            for release in releases:
                self._do(release)
            return
        writes, self._writes = self._writes, []
        releases, self._releases = self._releases, []
        self._in_flight = True
        self._idle.clear()
        future = self._loop.run_in_executor(self._thread, self._store.commit, writes)
        future.add_done_callback(lambda done: self._committed(done, releases))

    def _committed(self, done: asyncio.Future[None], releases: list[Release]) -> None:
        self._in_flight = False
        error = done.exception()
        if error is not None:
            self._broken = True
            self._idle.set()
            self._failed(error)
            return
        for release in releases:
            self._do(release)
        self._next()
        if not self._in_flight:
            self._idle.set()

    def _do(self, release: Release) -> None:
        try:
            release()
        except Exception:
            log.exception("what was stored could not be said: please report this")
