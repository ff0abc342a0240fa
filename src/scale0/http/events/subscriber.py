"""One who listens to the feed: what it is told, from where it stands, and what becomes of it if it does not listen.

Lives here: `StreamSubscriber`. Never here: a thread, a file, or HTTP. Invariants: each chosen event is told once and in
its source's order, however the listener came to it: as one who came back reads on, or live; every item says where the
listener stands once it has it; what waits for a listener is bounded, and one who is too slow is told so and let go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

import msgspec

from scale0.history.segments.reader import EventFilter
from scale0.http.events import cursor
from scale0.http.events.event_index import LostEvents, NextEvents, OutgoingEvent

MAX_WAITING_EVENTS: Final = 20_000
"""For one listener: half a minute of a busy network."""
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
TAKE_EVENTS: Final = 500
"""Handed over at once."""

Sort = Literal["event", "gap", "dropped"]
ReadOn = Callable[["StreamSubscriber"], Awaitable[None]]
"""Offers a listener what follows where it stands, and has it join the others once it is where they are."""


class StreamItem(NamedTuple):
    """One item of a stream."""

    id: str
    sort: Sort
    data: bytes
    """A JSON object."""


class StreamGap(msgspec.Struct, frozen=True):
    """Events that a listener is not told of."""

    source: str
    first: int
    last: int
    reason: str
    """retention, damaged, limit or renumbered."""


class SubscriberDropped(msgspec.Struct, frozen=True):
    """Why a listener is told nothing more; it may come back with the last id that it has."""

    reason: str
    """slow, access or stopped."""
    words: str


DROPPED: Final = {
    "slow": SubscriberDropped("slow", "it was not read fast enough; come back with the last id"),
    "access": SubscriberDropped("access", "the token has expired or was revoked; log in again"),
    "stopped": SubscriberDropped("stopped", "the server stops; come back with the last id"),
}


class StreamSubscriber:
    """Made by `Feed.listen`."""

    def __init__(self, choice: EventFilter, stands: dict[str, int], read_on: ReadOn | None) -> None:
        self.choice = choice
        self.dropped = ""
        """Why it gets nothing more; blank: it does."""
        self.is_over = False
        """It has been told that."""
        self._stands = stands
        """After the last item that was taken."""
        self._ahead = dict(stands)
        """After the last that waits."""
        self._read_on = read_on
        """None: it is live."""
        self._waiting: deque[OutgoingEvent | LostEvents | dict[str, int]] = deque()
        self._bytes = 0
        self._events = 0
        self._wake = asyncio.Event()

    @property
    def is_live(self) -> bool:
        """True once it has read on to where the feed is."""
        return self._read_on is None

    @property
    def id(self) -> str:
        """Where it stands."""
        return cursor.write(self._stands)

    @property
    def ahead(self) -> dict[str, int]:
        """Where it will stand once it has taken all that waits."""
        return dict(self._ahead)

    def join(self, cursors: dict[str, int]) -> None:
        """Go on with the others, if it is where they are."""
        if all(self._ahead.get(source, 0) >= seq for source, seq in cursors.items()):
            self._read_on = None

    def fall_back(self, read_on: ReadOn) -> None:
        """Read on by itself for a while: the others have moved without it."""
        self._read_on = read_on
        self._wake.set()

    def offer(self, step: NextEvents) -> None:
        """What followed; each event is taken once."""
        if self.dropped:
            return
        for lost in step.lost:
            if lost.reason == "renumbered" or lost.stands > self._ahead.get(lost.source, 0):
                self._put(lost, lost.source, lost.stands)
        for line in step.lines[self.choice]:
            if line.seq > self._ahead.get(line.source, 0):
                self._put(line, line.source, line.seq)
                self._events += 1
                self._bytes += len(line.text)
        moved = {source: seq for source, seq in step.stands.items() if seq > self._ahead.get(source, -1)}
        if moved:
            self._waiting.append(moved)
            self._ahead.update(moved)
        # Who reads on takes a step when nothing waits: however large it is, nobody pushes.
        if self.is_live and (self._events > MAX_WAITING_EVENTS or self._bytes > MAX_WAITING_BYTES):
            self.drop("slow")
        self._wake.set()

    def drop(self, reason: str) -> None:
        """Tell it nothing more, but that."""
        self.dropped = self.dropped or reason
        self._waiting.clear()
        self._wake.set()

    async def take(self, seconds: float) -> list[StreamItem]:
        """What it is to be told next; nothing, if there is nothing for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.dropped:
            if self._read_on is not None and not self._waiting:
                await self._read_on(self)
            told = self._handed_over()
            if told or loop.time() >= until:
                return told
            if self._read_on is None and not self._waiting and not self.dropped:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await self._wake.wait()
        if self.is_over:
            return []
        self.is_over = True
        return [StreamItem(self.id, "dropped", msgspec.json.encode(DROPPED[self.dropped]))]

    def _put(self, item: OutgoingEvent | LostEvents, source: str, seq: int) -> None:
        self._waiting.append(item)
        self._ahead[source] = seq

    def _handed_over(self) -> list[StreamItem]:
        told: list[StreamItem] = []
        while self._waiting and len(told) < TAKE_EVENTS:
            match self._waiting.popleft():
                case OutgoingEvent(_, source, seq, text):
                    self._stands[source] = seq
                    self._events -= 1
                    self._bytes -= len(text)
                    told.append(StreamItem(self.id, "event", text))
                case LostEvents(source, first, last, reason, stands):
                    self._stands[source] = stands
                    told.append(StreamItem(self.id, "gap", msgspec.json.encode(StreamGap(source, first, last, reason))))
                case moved:
                    self._stands.update(moved)
        return told
