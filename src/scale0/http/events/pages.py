"""Events page by page, the newest first.

Lives here: `BackwardReader`, with which all history is read, and pages of events. Never here: a loop, or HTTP.
Invariants: page after page, each chosen event comes once, however clocks jumped: a cursor is a number for each source;
what one call looks at is bounded, so a page may be short, or empty, and still have a next one.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from scale0.history.events.columns import MAX_BIGINT
from scale0.history.segments.event_reader import EventReader, Reason
from scale0.history.segments.reader import EventFilter
from scale0.http.events import cursor
from scale0.http.events.cursor import Vector
from scale0.http.events.event_index import EventIndex, LostEvents, OutgoingEvent, lines_of
from scale0.kernel.errors import StoreError

MAX_LOOKED_AT: Final = 2_000_000
"""Events that one call looks at: most are passed over by a few of their columns."""
LOOK_SECONDS: Final = 3.0
"""After that a call gives what it has; it is less than a page may take."""
MAX_TAKEN: Final = 5_000
"""Chosen events that one read brings."""
AUDIT_KINDS: Final = (
    "management.commanded",
    "config.changed",
    "config.conflict",
    "broker.started",
    "broker.stopped",
    "broker.state_changed",
)
"""What an audit is about: who changed what, and what became of the broker."""


class EventPagePart(NamedTuple):
    """A part of one source's history."""

    source: str
    first_seq: int
    last_seq: int
    table: pa.Table
    """The chosen events of these numbers."""
    reason: Reason = ""


class EventPage(NamedTuple):
    """Some events, the newest first."""

    lines: list[OutgoingEvent]
    next: str | None
    gaps: list[LostEvents]


class _Reader:
    """How far back one source has been read."""

    def __init__(self, source: EventReader, stands: int) -> None:
        self.source = source
        self.stands = stands
        """Everything from here on was looked at."""
        self.oldest_us = MAX_BIGINT
        self.is_over = False


class BackwardReader:
    """All sources, part by part, always the one that was read least far back."""

    def __init__(
        self, library: EventIndex, choice: EventFilter, before: Vector | None = None, most: int = MAX_TAKEN
    ) -> None:
        self._choice = choice
        self._most = most
        self._readers: dict[str, _Reader] = {}
        for source, one in library.all().items():
            try:
                stands = one.last() + 1 if before is None else before.get(source)
            except StoreError:
                continue  # what cannot be read now is not told
            if stands is not None:
                self._readers[source] = _Reader(one, stands)

    @property
    def stands(self) -> dict[str, int]:
        """By source: everything from here on was looked at."""
        return {source: reader.stands for source, reader in self._readers.items()}

    @property
    def bound_us(self) -> int:
        """What was not looked at yet is not newer than this, as far as clocks can be believed."""
        return self.bound_without("")

    def bound_without(self, source: str) -> int:
        """The same of all sources but one."""
        left = (one.oldest_us for name, one in self._readers.items() if name != source and not one.is_over)
        return max(left, default=0)

    @property
    def is_over(self) -> bool:
        """Nothing is left."""
        return all(reader.is_over for reader in self._readers.values())

    def __iter__(self) -> Iterator[EventPagePart]:
        """Part by part, to the end or as far as one call may look."""
        began, looked_at = time.monotonic(), 0
        while not self.is_over and looked_at < MAX_LOOKED_AT and time.monotonic() - began < LOOK_SECONDS:
            source, reader = max(
                ((source, reader) for source, reader in self._readers.items() if not reader.is_over),
                key=lambda pair: pair[1].oldest_us,
            )
            try:
                found = reader.source.before(reader.stands, self._choice, self._most)
            except StoreError:
                found = None
            if found is None:
                reader.is_over = True
                continue
            last = reader.stands - 1
            looked_at += last - found.first_seq + 1
            reader.stands = found.first_seq
            if found.oldest_us is not None:
                reader.oldest_us = found.oldest_us
                since_us = self._choice.since_us
                reader.is_over = since_us is not None and found.oldest_us < since_us
            yield EventPagePart(source, found.first_seq, last, found.table, found.reason)


def page_of(library: EventIndex, choice: EventFilter, before: Vector | None, limit: int) -> EventPage:
    """The newest chosen events; or those that come behind a cursor."""
    look = BackwardReader(library, choice, before, limit)
    began = look.stands
    found: dict[str, list[OutgoingEvent]] = {}
    gaps: list[LostEvents] = []
    for part in look:
        found.setdefault(part.source, []).extend(reversed(lines_of(part.table)))
        if part.reason:
            gaps.append(LostEvents(part.source, part.first_seq, part.last_seq, part.reason, part.first_seq))
        if len(_ready(look, found, limit)) >= limit:
            break
    lines = _ready(look, found, limit)
    stands = _behind(look, found, lines)
    if stands == began and any(found.values()):
        # Two sources with strange clocks would wait for each other for ever.
        lines = [max((rest[0] for rest in found.values() if rest), key=lambda line: line.time_us)]
        stands = _behind(look, found, lines)
    is_last = look.is_over and sum(map(len, found.values())) == len(lines)
    return EventPage(lines, None if is_last else cursor.write(stands), gaps)


def _behind(look: BackwardReader, found: dict[str, list[OutgoingEvent]], lines: list[OutgoingEvent]) -> dict[str, int]:
    """Where the next page begins: what was found and is not given comes again."""
    given = Counter(line.source for line in lines)
    left = {source: rest[given[source]].seq + 1 for source, rest in found.items() if len(rest) > given[source]}
    return {**look.stands, **left}


def _ready(look: BackwardReader, found: dict[str, list[OutgoingEvent]], limit: int) -> list[OutgoingEvent]:
    """The newest events before which nothing can come any more: a source's own are in the order of their numbers."""
    bounds = {source: look.bound_without(source) for source in found}
    merged = heapq.merge(*found.values(), key=lambda line: -line.time_us)
    ready = itertools.takewhile(lambda line: line.time_us >= bounds[line.source], merged)
    return list(itertools.islice(ready, limit))
