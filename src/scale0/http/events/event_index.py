"""The event index: every source with events in the data folders of this machine, read by sequence number; and cursors.

An index belongs to one thread, which also closes it, because SQLite requires that; segment catalogs may be shared. A
folder, a journal or a source may appear at any time. A source that cannot be read does not block the others.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa

from scale0.history.events.columns import MAX_BIGINT
from scale0.history.events.journal import event_as_json
from scale0.history.segments import arrow
from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.event_reader import EventRange, EventReader, Reason, empty
from scale0.history.segments.journals import JournalSource, journal_identity, open_for_reading
from scale0.history.segments.reader import EventFilter, events_of
from scale0.history.segments.settings import ExportState, read_export_state
from scale0.kernel.errors import Scale0Error, StoreError
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.http.events")

HELEN_FOLDER: Final = Path("monitoring", "helen")
"""The folder of the Helen of `scale0 up`, in the broker's folder."""
MAX_RESUME_EVENTS: Final = 100_000
"""Of one source, that a resumed stream gets; older events become a gap. `/events` has them."""
PAGE_EVENTS: Final = 2_000
"""Of one source, read in one step, give or take a row of the journal: it takes a thread a few milliseconds."""
MAX_SOURCES: Final = 64
"""Brokers and Helens of one server: a request header must hold a cursor with all of them."""
MAX_CURSOR_CHARS: Final = 4_096
_UNQUOTED: Final = ":"
"""Besides letters, digits and `_.-~`: characters of identities."""
_CURSOR_PART: Final = re.compile(r"([A-Za-z0-9._~:%-]{1,512}):(0|[1-9][0-9]{0,18})", re.ASCII)

Cursor = Mapping[str, int]
"""By source: the sequence number of the last event that the reader has."""


class InvalidCursor(Scale0Error):
    """A text that is no cursor."""


class OutgoingEvent(NamedTuple):
    time_us: int
    source: str
    seq: int
    text: bytes


class LostEvents(NamedTuple):
    """Events that cannot be delivered."""

    source: str
    first_seq: int
    last_seq: int
    reason: Reason
    position: int
    """The reader's position after this gap."""


class NextEvents(NamedTuple):
    lines: dict[EventFilter, list[OutgoingEvent]]
    """The events of each filter."""
    lost: list[LostEvents]
    cursor: dict[str, int]
    """The reader's position afterwards, for the sources that had events."""


def data_folders(data_dir: Path) -> list[Path]:
    """The folder of a broker, and that of the Helen that `scale0 up` starts with it."""
    return [data_dir, data_dir / HELEN_FOLDER]


class EventIndex:
    """The sources of some folders, opened as they appear."""

    def __init__(self, folders: Sequence[Path], catalogs: Sequence[SegmentCatalog]) -> None:
        self._folders = list(zip(folders, catalogs, strict=True))
        self._open: dict[Path, tuple[EventReader, str]] = {}
        """By folder: its own source, and the mark of its store."""
        self._logged: set[str] = set()

    def own(self) -> dict[str, EventReader]:
        """The sources with a journal here."""
        found: dict[str, EventReader] = {}
        for folder, catalog in self._folders:
            one = self._opened(folder, catalog)
            if one is not None and len(found) < MAX_SOURCES:
                found.setdefault(one.source, one)
        return found

    def all(self) -> dict[str, EventReader]:
        """All sources: those with a journal, and those with segments only."""
        found = self.own()
        for _, catalog in self._folders:
            for source in catalog.sources():
                if len(found) < MAX_SOURCES:
                    found.setdefault(source, EventReader(source, None, catalog))
        return found

    def ends(self) -> dict[str, int]:
        """The newest sequence number of every source with a journal."""
        return {source: end for source, one in self.own().items() if (end := self._last(one)) is not None}

    def read_next(self, position: Cursor, filters: Iterable[EventFilter]) -> NextEvents:
        """The next events after a cursor, for each filter.

        Sources are merged by time as far as all of them were read. A source that is not in the cursor is new, and is
        read from its first event on.
        """
        ranges: dict[str, EventRange] = {}
        lost: list[LostEvents] = []
        for source, one in self.own().items():
            try:
                found, gap = _next(one, position.get(source, 0), PAGE_EVENTS)
            except StoreError as error:
                self._warn_once(str(error))
                continue
            lost += [gap] if gap is not None else []
            if found is not None:
                ranges[source] = found
        return _merged(ranges, lost, filters)

    def close(self) -> None:
        for one, _ in self._open.values():
            one.close()
        self._open.clear()

    def _opened(self, folder: Path, catalog: SegmentCatalog) -> EventReader | None:
        """The folder's own source; None if it has no events yet. A store that was replaced is opened again."""
        note = read_export_state(folder)
        mark = journal_identity(folder, note)
        known = self._open.get(folder)
        if known is not None and known[1] == mark:
            return known[0]
        if known is not None:
            known[0].close()
            del self._open[folder]
        if not mark:
            return None
        journal = None
        try:
            journal = open_for_reading(folder, note)
            source = "" if journal is None else _name(note, journal)
        except StoreError as error:
            self._warn_once(str(error))
            source = ""
        if source:
            self._open[folder] = EventReader(source, journal, catalog), mark
            return self._open[folder][0]
        if journal is not None:
            journal.close()
        return None

    def _last(self, one: EventReader) -> int | None:
        try:
            return one.last()
        except StoreError as error:
            self._warn_once(str(error))
            return None

    def _warn_once(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning("cannot read events: %s", reason, extra=about())


def _name(note: ExportState | None, journal: JournalSource) -> str:
    """The source of a folder, from its newest event or its segment exporter; blank: it has no events yet."""
    _, last = journal.ends()
    rows = journal.after(last - 1) if last else []
    if rows:
        try:
            return arrow.source_of(rows[-1])
        except arrow.DamagedRow:
            pass
    return "" if note is None else note.source


def _next(one: EventReader, position: int, limit: int) -> tuple[EventRange | None, LostEvents | None]:
    """The events after a position, and those that are lost. At most the newest MAX_RESUME_EVENTS are delivered."""
    last = one.last()
    gap: LostEvents | None = None
    if last < position:
        gap, position = LostEvents(one.source, 1, position, "renumbered", 0), 0
    if last - position > MAX_RESUME_EVENTS:
        first, position = position + 1, last - MAX_RESUME_EVENTS
        limited = LostEvents(one.source, first, position, "limit", position)
        gap = limited if gap is None else gap._replace(position=position)
    found = one.after(position, limit)
    if found is not None and found.reason:
        first = found.first_seq if gap is None else gap.first_seq
        return found, LostEvents(one.source, first, found.last_seq, found.reason, found.last_seq)
    if found is None and gap is not None:
        found = EventRange(position + 1, position, empty())
    return found, gap


def _merged(ranges: dict[str, EventRange], lost: list[LostEvents], filters: Iterable[EventFilter]) -> NextEvents:
    """All ranges by time, up to the time to which all sources were read; later events are read again next time."""
    times = {source: one.table["time"].cast("int64").to_pylist() for source, one in ranges.items()}
    horizon = min((max(known) for known in times.values() if known), default=0)
    position: dict[str, int] = {}
    tables: list[pa.Table] = []
    for source, one in ranges.items():
        total = len(times[source])
        count = next((n for n, time_us in enumerate(times[source]) if time_us > horizon), total)
        position[source] = one.last_seq if count == total else one.first_seq + count - 1
        tables.append(one.table.slice(0, count))
    lines = {
        each: list(heapq.merge(*(lines_of(each.apply(table)) for table in tables), key=lambda line: line.time_us))
        for each in dict.fromkeys(filters)
    }
    return NextEvents(lines, lost, position)


def lines_of(table: pa.Table) -> list[OutgoingEvent]:
    return [
        OutgoingEvent(event["time"], event["source"], event["seq"], event_as_json(event)) for event in events_of(table)
    ]


def format_cursor(cursor: Cursor) -> str:
    """`source:number,source:number`, sorted by source."""
    return ",".join(f"{quote(source, safe=_UNQUOTED)}:{cursor[source]}" for source in sorted(cursor))


def parse_cursor(text: str) -> dict[str, int]:
    """The cursor of a text. Raises `InvalidCursor` for every text that `format_cursor` does not write."""
    if not text:
        return {}
    parts = text.split(",") if len(text) <= MAX_CURSOR_CHARS else []
    if not 1 <= len(parts) <= MAX_SOURCES:
        raise InvalidCursor("the position is too long, or names too many sources")
    found: dict[str, int] = {}
    for part in parts:
        match = _CURSOR_PART.fullmatch(part)
        if match is None or int(match[2]) > MAX_BIGINT:
            raise InvalidCursor("a position has the form source:number,source:number")
        found[unquote(match[1], errors="replace")] = int(match[2])
    if format_cursor(found) != text:
        raise InvalidCursor("a position names each source once, in order, in the encoding of an event's id")
    return found
