"""Pages of events, the newest first.

A cursor is a sequence number per source, so each event is on exactly one page even if clocks jumped. One call reads a
bounded number of events, so a page may be short or empty and still have a next one.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from scale0.history.events.audit import AUDIT_KINDS
from scale0.history.events.columns import MAX_BIGINT
from scale0.history.segments.event_reader import EventReader, Reason
from scale0.history.segments.reader import EventFilter
from scale0.http.events.event_index import Cursor, EventIndex, LostEvents, OutgoingEvent, format_cursor, lines_of
from scale0.kernel.errors import StoreError

MAX_SCANNED: Final = 2_000_000
"""Events that one call scans; a few columns are enough to skip most of them."""
SCAN_SECONDS: Final = 3.0
"""After this time a call returns what it has."""
MAX_MATCHES: Final = 5_000
"""Matching events that one read returns."""
SHOWN_KINDS: Final = (*AUDIT_KINDS, "broker.started", "broker.stopped")
"""The events of the audit log, and the starts and ends of the broker."""


class EventPagePart(NamedTuple):
    source: str
    first_seq: int
    last_seq: int
    table: pa.Table
    """The matching events of the range."""
    reason: Reason = ""


class EventPage(NamedTuple):
    """One page, the newest event first."""

    lines: list[OutgoingEvent]
    next: str | None
    gaps: list[LostEvents]


class _Reader:
    def __init__(self, source: EventReader, position: int) -> None:
        self.source = source
        self.position = position
        """All events from this sequence number on were scanned."""
        self.oldest_us = MAX_BIGINT
        self.is_over = False


class BackwardReader:
    """Reads all sources range by range, always the source that was read least far back."""

    def __init__(
        self, index: EventIndex, filter_: EventFilter, before: Cursor | None = None, limit: int = MAX_MATCHES
    ) -> None:
        self._filter = filter_
        self._limit = limit
        self._readers: dict[str, _Reader] = {}
        for source, one in index.all().items():
            try:
                position = one.last() + 1 if before is None else before.get(source)
            except StoreError:
                continue  # a source that cannot be read now is left out
            if position is not None:
                self._readers[source] = _Reader(one, position)

    @property
    def cursor(self) -> dict[str, int]:
        """By source: all events from this sequence number on were scanned."""
        return {source: reader.position for source, reader in self._readers.items()}

    @property
    def bound_us(self) -> int:
        """Events that were not scanned yet are not newer than this, if the clocks are right."""
        return self.bound_without("")

    def bound_without(self, source: str) -> int:
        """The same for all sources but one."""
        left = (one.oldest_us for name, one in self._readers.items() if name != source and not one.is_over)
        return max(left, default=0)

    @property
    def is_over(self) -> bool:
        """True once all sources were read to their first event."""
        return all(reader.is_over for reader in self._readers.values())

    def __iter__(self) -> Iterator[EventPagePart]:
        """Range by range, to the end or to the limit of one call."""
        began, scanned = time.monotonic(), 0
        while not self.is_over and scanned < MAX_SCANNED and time.monotonic() - began < SCAN_SECONDS:
            source, reader = max(
                ((source, reader) for source, reader in self._readers.items() if not reader.is_over),
                key=lambda pair: pair[1].oldest_us,
            )
            try:
                found = reader.source.before(reader.position, self._filter, self._limit)
            except StoreError:
                found = None
            if found is None:
                reader.is_over = True
                continue
            last = reader.position - 1
            scanned += last - found.first_seq + 1
            reader.position = found.first_seq
            if found.oldest_us is not None:
                reader.oldest_us = found.oldest_us
                since_us = self._filter.since_us
                reader.is_over = since_us is not None and found.oldest_us < since_us
            yield EventPagePart(source, found.first_seq, last, found.table, found.reason)


def page_of(index: EventIndex, filter_: EventFilter, before: Cursor | None, limit: int) -> EventPage:
    """The newest matching events, or those before a cursor."""
    reader = BackwardReader(index, filter_, before, limit)
    began = reader.cursor
    found: dict[str, list[OutgoingEvent]] = {}
    gaps: list[LostEvents] = []
    for part in reader:
        found.setdefault(part.source, []).extend(reversed(lines_of(part.table)))
        if part.reason:
            gaps.append(LostEvents(part.source, part.first_seq, part.last_seq, part.reason, part.first_seq))
        if len(_ready(reader, found, limit)) >= limit:
            break
    lines = _ready(reader, found, limit)
    cursor = _next_cursor(reader, found, lines)
    if cursor == began and any(found.values()):
        # Otherwise two sources whose clocks jumped would wait for each other for ever.
        lines = [max((rest[0] for rest in found.values() if rest), key=lambda line: line.time_us)]
        cursor = _next_cursor(reader, found, lines)
    is_last = reader.is_over and sum(map(len, found.values())) == len(lines)
    return EventPage(lines, None if is_last else format_cursor(cursor), gaps)


def _next_cursor(
    reader: BackwardReader, found: dict[str, list[OutgoingEvent]], lines: list[OutgoingEvent]
) -> dict[str, int]:
    """The cursor of the next page, which begins with the events that were found and are not on this page."""
    given = Counter(line.source for line in lines)
    left = {source: rest[given[source]].seq + 1 for source, rest in found.items() if len(rest) > given[source]}
    return {**reader.cursor, **left}


def _ready(reader: BackwardReader, found: dict[str, list[OutgoingEvent]], limit: int) -> list[OutgoingEvent]:
    """The events that no unscanned event can precede; those of one source are ordered by sequence number."""
    bounds = {source: reader.bound_without(source) for source in found}
    merged = heapq.merge(*found.values(), key=lambda line: -line.time_us)
    ready = itertools.takewhile(lambda line: line.time_us >= bounds[line.source], merged)
    return list(itertools.islice(ready, limit))
