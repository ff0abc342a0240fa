"""The live feed: one thread looks at the journals for all who listen.

Lives here: `EventStream`, which owns the threads and knows who listens. Never here: HTTP. Invariants: journals are
looked at only while somebody listens, by one thread, and nobody who listens waits for another who does not read; who
comes back reads on in steps of its own until it is where the feed is, and then goes on with the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.reader import EventFilter
from scale0.http.events.cursor import Vector
from scale0.http.events.event_index import EventIndex, NextEvents
from scale0.http.events.subscriber import StreamSubscriber
from scale0.http.thread_pool import BlockingThreads
from scale0.kernel.errors import Scale0Error
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.http.events")

POLL_SECONDS: Final = 0.25
"""How often the journals are looked at when nothing happens."""
MAX_STREAMS: Final = 50
"""Who may listen at once; each may have megabytes waiting."""
READ_THREADS: Final = 2
MAX_READERS_WAITING: Final = 16
READ_SECONDS: Final = 10.0
"""How long a page, a story or a series may take."""

Result = TypeVar("Result")


class TooManySubscribers(Scale0Error):
    """Nobody else can listen now."""


class EventStream:
    """Events of some data folders."""

    def __init__(self, folders: Sequence[Path], poll_seconds: float = POLL_SECONDS, segments: str = "") -> None:
        """`segments` is where those of the first folder are, if its writer did not say."""
        self._folders = list(dict.fromkeys(folders))
        self._poll_seconds = poll_seconds
        self._shelves = [
            SegmentCatalog(one, segments if number == 0 else "") for number, one in enumerate(self._folders)
        ]
        self._live = EventIndex(self._folders, self._shelves)
        """Of the live thread alone."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed-live")
        self._followers = BlockingThreads("feed-resume", 1, MAX_STREAMS)
        self._readers = BlockingThreads("feed-read", READ_THREADS, MAX_READERS_WAITING)
        self._listeners: set[StreamSubscriber] = set()
        self._cursors: dict[str, int] = {}
        """Where the live thread stands."""
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def listeners(self) -> int:
        """Who listens now."""
        return len(self._listeners)

    async def listen(self, choice: EventFilter, after: Vector | None = None) -> StreamSubscriber:
        """Listen from now on, or to all that came after a position. TooMany if nobody else can."""
        if self._closed or self.listeners >= MAX_STREAMS:
            raise TooManySubscribers(f"{MAX_STREAMS} streams of events are open already; close one, or try again later")
        placeholder = StreamSubscriber(choice, {}, None)
        self._listeners.add(placeholder)  # it counts while the journals are opened
        try:
            async with self._starting:
                if self._task is None or self._task.done():
                    self._cursors = await self._in_thread(self._live.ends)
                    self._task = asyncio.get_running_loop().create_task(self._run())
            if after is None:
                listener = StreamSubscriber(choice, dict(self._cursors), None)
            else:
                listener = StreamSubscriber(choice, dict(after), self._read_on)
                listener.join(self._cursors)
            self._listeners.add(listener)
        finally:
            self._listeners.discard(placeholder)
        return listener

    def leave(self, listener: StreamSubscriber) -> None:
        """It listens no more."""
        self._listeners.discard(listener)

    async def read(self, work: Callable[[EventIndex], Result], seconds: float = READ_SECONDS) -> Result:
        """Do some reading off the loop. Busy or TooLate if that cannot be done."""
        return await self._readers.run(lambda: self._with_library(work), seconds)

    async def close(self) -> None:
        """Everybody is told, and the threads end."""
        self._closed = True
        for listener in self._listeners:
            listener.drop("stopped")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._in_thread(self._live.close)
        self._thread.shutdown(wait=False)
        self._followers.close()
        self._readers.close()

    async def _run(self) -> None:
        """Look, tell, wait; until nobody listens."""
        while self._listeners:
            choices = {one.choice for one in self._listeners if one.is_live and not one.dropped}
            try:
                step = await self._in_thread(lambda: self._live.step(self._cursors, choices))  # noqa: B023
            except Exception:
                # A mistake of ours must not end everybody's stream for good.
                log.exception("the journals cannot be looked at", extra=about())
                await asyncio.sleep(self._poll_seconds)
                continue
            self._tell(step)
            if not step.stands:
                await asyncio.sleep(self._poll_seconds)

    def _tell(self, step: NextEvents) -> None:
        self._cursors.update(step.stands)
        for listener in self._listeners:
            if not listener.is_live or not step.stands:
                continue
            if listener.choice in step.lines:
                listener.offer(step)
            else:  # it came while we looked
                listener.fall_back(self._read_on)

    async def _read_on(self, listener: StreamSubscriber) -> None:
        """A step of one who is not where the feed is."""
        stands, choices = listener.ahead, (listener.choice,)
        work = lambda library: library.step(stands, choices)  # noqa: E731
        step = await self._followers.run(lambda: self._with_library(work), None)
        listener.offer(step)
        listener.join(self._cursors)
        if not step.stands and not listener.is_live:
            await asyncio.sleep(self._poll_seconds)  # a journal cannot be read now

    def _with_library(self, work: Callable[[EventIndex], Result]) -> Result:
        library = EventIndex(self._folders, self._shelves)
        try:
            return work(library)
        finally:
            library.close()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
