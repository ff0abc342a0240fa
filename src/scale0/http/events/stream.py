"""The live event stream: one thread reads the journals for all subscribers, while there are any.

A subscriber that resumes reads on its own until it has reached the live position, and then joins the others. It gets
each matching event once and in the order of its source either way, and every item carries its cursor. The backlog of a
live subscriber is bounded: one that reads too slowly is dropped, and never delays the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.reader import EventFilter
from scale0.http.events.event_index import Cursor, EventIndex, LostEvents, NextEvents, OutgoingEvent, format_cursor
from scale0.http.thread_pool import BlockingThreads
from scale0.kernel.errors import Scale0Error
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.http.events")

POLL_SECONDS: Final = 0.25
"""How often the journals are read when there are no new events."""
MAX_STREAMS: Final = 50
"""Subscribers at once; each may have a backlog of megabytes."""
MAX_USER_STREAMS: Final = 10
"""Of one user, whatever the addresses: a browser has one for each tab."""
READ_THREADS: Final = 2
MAX_READERS_WAITING: Final = 16
READ_SECONDS: Final = 10.0
"""Timeout of reading a page, a timeline or a series."""
MAX_BACKLOG_EVENTS: Final = 20_000
"""For one subscriber: half a minute of a busy network."""
MAX_BACKLOG_BYTES: Final = 8 * 1024 * 1024
TAKE_EVENTS: Final = 500
"""Items that `take` returns at once."""

Result = TypeVar("Result")
ItemKind = Literal["event", "gap", "dropped"]
CatchUp = Callable[["StreamSubscriber"], Awaitable[None]]
"""Offers a subscriber its next events, and lets it join the live stream once it has reached the live position."""


class TooManySubscribers(Scale0Error):
    """The limit of subscribers is reached."""


class StreamItem(NamedTuple):
    id: str
    kind: ItemKind
    data: bytes
    """A JSON object."""


DROPPED: Final = {
    "slow": "the client reads too slowly; reconnect with the last id",
    "access": "the token has expired or was revoked; log in again",
    "stopped": "the server is stopping; reconnect with the last id",
}
"""Why a subscriber was dropped. It may resume with its last id."""


class StreamSubscriber:
    """One subscriber; `EventStream.subscribe` creates it."""

    def __init__(
        self, filter_: EventFilter, position: dict[str, int], catch_up: CatchUp | None, user: str = ""
    ) -> None:
        self.filter = filter_
        self.user = user
        self.dropped = ""
        """Why it gets no more events; blank: it was not dropped."""
        self.is_over = False
        """True once `take` has returned the item `dropped`."""
        self._position = position
        """After the last item that was taken."""
        self._queued_position = dict(position)
        """After the last item in the backlog."""
        self._catch_up = catch_up
        """None: it is live."""
        self._backlog: deque[OutgoingEvent | LostEvents | dict[str, int]] = deque()
        self._bytes = 0
        self._events = 0
        self._changed = asyncio.Event()

    @property
    def is_live(self) -> bool:
        return self._catch_up is None

    @property
    def id(self) -> str:
        """The cursor after the last item that was taken."""
        return format_cursor(self._position)

    @property
    def queued_position(self) -> dict[str, int]:
        """The position after everything in the backlog."""
        return dict(self._queued_position)

    def join(self, live_position: dict[str, int]) -> None:
        """Become live, if it has reached the live position."""
        if all(self._queued_position.get(source, 0) >= seq for source, seq in live_position.items()):
            self._catch_up = None

    def fall_back(self, catch_up: CatchUp) -> None:
        """Read on its own again: the live position has moved without it."""
        self._catch_up = catch_up
        self._changed.set()

    def offer(self, found: NextEvents) -> None:
        """Queue the events that it does not have yet."""
        if self.dropped:
            return
        for lost in found.lost:
            if lost.reason == "renumbered" or lost.position > self._queued_position.get(lost.source, 0):
                self._put(lost, lost.source, lost.position)
        for line in found.lines[self.filter]:
            if line.seq > self._queued_position.get(line.source, 0):
                self._put(line, line.source, line.seq)
                self._events += 1
                self._bytes += len(line.text)
        moved = {source: seq for source, seq in found.cursor.items() if seq > self._queued_position.get(source, -1)}
        if moved:
            self._backlog.append(moved)
            self._queued_position.update(moved)
        # A subscriber that catches up reads only when its backlog is empty, so its backlog has no limit.
        if self.is_live and (self._events > MAX_BACKLOG_EVENTS or self._bytes > MAX_BACKLOG_BYTES):
            self.drop("slow")
        self._changed.set()

    def drop(self, reason: str) -> None:
        """Discard the backlog; the only item left is `dropped`."""
        self.dropped = self.dropped or reason
        self._backlog.clear()
        self._changed.set()

    async def take(self, seconds: float) -> list[StreamItem]:
        """The next items; none, if there are none for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.dropped:
            if self._catch_up is not None and not self._backlog:
                await self._catch_up(self)
            items = self._take_backlog()
            if items or loop.time() >= until:
                return items
            if self._catch_up is None and not self._backlog and not self.dropped:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await self._changed.wait()
        if self.is_over:
            return []
        self.is_over = True
        why = {"reason": self.dropped, "words": DROPPED[self.dropped]}
        return [StreamItem(self.id, "dropped", msgspec.json.encode(why))]

    def _put(self, item: OutgoingEvent | LostEvents, source: str, seq: int) -> None:
        self._backlog.append(item)
        self._queued_position[source] = seq

    def _take_backlog(self) -> list[StreamItem]:
        items: list[StreamItem] = []
        while self._backlog and len(items) < TAKE_EVENTS:
            match self._backlog.popleft():
                case OutgoingEvent(_, source, seq, text):
                    self._position[source] = seq
                    self._events -= 1
                    self._bytes -= len(text)
                    items.append(StreamItem(self.id, "event", text))
                case LostEvents(source, first, last, reason, position):
                    self._position[source] = position
                    gap = {"source": source, "first": first, "last": last, "reason": reason}
                    items.append(StreamItem(self.id, "gap", msgspec.json.encode(gap)))
                case moved:
                    self._position.update(moved)
        return items


class EventStream:
    """The events of some folders: the live stream, and reads in threads."""

    def __init__(self, folders: Sequence[Path], poll_seconds: float = POLL_SECONDS, segments: str = "") -> None:
        """`segments` is the location of the first folder's segments, for a folder without an export state file."""
        self._folders = list(dict.fromkeys(folders))
        self._poll_seconds = poll_seconds
        self._catalogs = [
            SegmentCatalog(one, segments if number == 0 else "") for number, one in enumerate(self._folders)
        ]
        self._live_index = EventIndex(self._folders, self._catalogs)
        """Only the live thread uses it."""
        self._live_thread = ThreadPoolExecutor(1, thread_name_prefix="events-live")
        self._resume_threads = BlockingThreads("events-resume", 1, MAX_STREAMS)
        self._read_threads = BlockingThreads("events-read", READ_THREADS, MAX_READERS_WAITING)
        self._subscribers: set[StreamSubscriber] = set()
        self._live_position: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    async def subscribe(self, filter_: EventFilter, after: Cursor | None = None, user: str = "") -> StreamSubscriber:
        """Subscribe from now on, or after a cursor. Raises `TooManySubscribers`."""
        if self._closed or self.subscribers >= MAX_STREAMS:
            raise TooManySubscribers(f"{MAX_STREAMS} event streams are open already; close one, or try again later")
        if sum(one.user == user for one in self._subscribers) >= MAX_USER_STREAMS and user:
            raise TooManySubscribers(f"{user} has {MAX_USER_STREAMS} event streams open already; close one")
        placeholder = StreamSubscriber(filter_, {}, None, user)
        self._subscribers.add(placeholder)  # it counts while the journals are opened
        try:
            async with self._starting:
                if self._task is None or self._task.done():
                    self._live_position = await self._in_live_thread(self._live_index.ends)
                    self._task = asyncio.get_running_loop().create_task(self._run())
            if after is None:
                subscriber = StreamSubscriber(filter_, dict(self._live_position), None, user)
            else:
                subscriber = StreamSubscriber(filter_, dict(after), self._catch_up, user)
                subscriber.join(self._live_position)
            self._subscribers.add(subscriber)
        finally:
            self._subscribers.discard(placeholder)
        return subscriber

    def unsubscribe(self, subscriber: StreamSubscriber) -> None:
        self._subscribers.discard(subscriber)

    async def read(self, work: Callable[[EventIndex], Result], seconds: float = READ_SECONDS) -> Result:
        """Run `work` in a thread. Raises `ThreadPoolBusy` or `ThreadPoolTimeout`."""
        return await self._read_threads.run(lambda: self._with_index(work), seconds)

    async def close(self) -> None:
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.drop("stopped")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._in_live_thread(self._live_index.close)
        self._live_thread.shutdown(wait=False)
        self._resume_threads.close()
        self._read_threads.close()

    async def _run(self) -> None:
        """Read and publish new events while there are subscribers."""
        while self._subscribers:
            filters = {one.filter for one in self._subscribers if one.is_live and not one.dropped}
            position = self._live_position
            try:
                found = await self._in_live_thread(lambda: self._live_index.read_next(position, filters))  # noqa: B023
            except Exception:
                log.exception("internal error while reading the journals; please report this traceback", extra=about())
                await asyncio.sleep(self._poll_seconds)
                continue
            self._publish(found)
            if not found.cursor:
                await asyncio.sleep(self._poll_seconds)

    def _publish(self, found: NextEvents) -> None:
        self._live_position.update(found.cursor)
        for subscriber in self._subscribers:
            if not subscriber.is_live or not found.cursor:
                continue
            if subscriber.filter in found.lines:
                subscriber.offer(found)
            else:  # it subscribed during the read
                subscriber.fall_back(self._catch_up)

    async def _catch_up(self, subscriber: StreamSubscriber) -> None:
        """Read the next events of one subscriber that is not live."""
        position, filters = subscriber.queued_position, (subscriber.filter,)
        found = await self._resume_threads.run(
            lambda: self._with_index(lambda index: index.read_next(position, filters)), None
        )
        subscriber.offer(found)
        subscriber.join(self._live_position)
        if not found.cursor and not subscriber.is_live:
            await asyncio.sleep(self._poll_seconds)  # a journal cannot be read now

    def _with_index(self, work: Callable[[EventIndex], Result]) -> Result:
        index = EventIndex(self._folders, self._catalogs)
        try:
            return work(index)
        finally:
            index.close()

    async def _in_live_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._live_thread, work)
