"""The events of one source by their seq, from its journal or from segments.

The journal is read before the segments, because a segment is durable before the journal is trimmed. So a range begins
exactly where the previous one ended, and missing events are reported, not skipped. The size of one read is bounded. The
caller keeps the position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from scale0.history.events.columns import MAX_BIGINT
from scale0.history.events.journal import JournalRow
from scale0.history.segments import arrow
from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.journals import JournalSource
from scale0.history.segments.reader import EventFilter

Reason = Literal["", "retention", "damaged", "limit", "renumbered"]
"""Why events are missing: they are beyond the retention, cannot be read, are more than one reader may read at once, or
the store was replaced."""

JOURNAL_EVENTS: Final = 5_000
"""The number of journal events that one backward step reads: most of them may not match."""


def empty() -> pa.Table:
    """No events; made when needed, because the first table of a process imports pandas."""
    return arrow.SCHEMA.empty_table()


class EventRange(NamedTuple):
    """Consecutive seqs and their events; or why these are missing."""

    first_seq: int
    last_seq: int
    table: pa.Table
    reason: Reason = ""


class SelectedEvents(NamedTuple):
    """Matching events, and how far back was searched."""

    first_seq: int
    oldest_us: int | None
    """When the first of these seqs was recorded; None: unknown."""
    table: pa.Table
    reason: Reason = ""


class EventReader:
    """The events of one source. `journal` is None if only its segments are here."""

    def __init__(self, source: str, journal: JournalSource | None, catalog: SegmentCatalog) -> None:
        self.source = source
        self._journal = journal
        self._catalog = catalog

    def last(self) -> int:
        """The seq of the newest event; 0: there is none."""
        if self._journal is not None:
            return self._journal.ends()[1]
        newest = self._catalog.newest(self.source)
        return 0 if newest is None else newest.segment.last_seq

    def after(self, seq: int, limit: int) -> EventRange | None:
        """About `limit` events after a seq; None: there are none."""
        end = MAX_BIGINT
        while self._journal is not None:
            rows = self._journal.after(seq)
            if rows and rows[0].first_seq <= seq + 1:
                return _forwards(_first_rows(rows, seq, limit), seq + 1)
            first, last = self._journal.ends()
            if rows or last < first:
                end = rows[0].first_seq - 1 if rows else last
                break
            if last <= seq:
                return None
            # An event was recorded between the two reads.
        if end <= seq:
            return None
        listed = self._catalog.find(self.source, seq + 1)
        if listed is not None:
            here, end = listed, min(end, listed.segment.last_seq)
            return self._read_segment(seq + 1, end, lambda: self._catalog.read(here, seq + 1, min(limit, end - seq)))
        listed = self._catalog.following(self.source, seq + 1)
        if listed is not None:
            end = min(end, listed.segment.first_seq - 1)
        return None if end == MAX_BIGINT else EventRange(seq + 1, end, empty(), "retention")

    def before(self, seq: int, event_filter: EventFilter, limit: int) -> SelectedEvents | None:
        """The last matching events before a seq, as far back as one read goes; None: there are none."""
        if seq <= 1:
            return None
        if self._journal is not None:
            rows = self._journal.before(seq)
            if rows and rows[-1].last_seq >= seq - 1:
                return _backwards(_last_rows(rows, seq, max(limit, JOURNAL_EVENTS)), seq - 1, event_filter, limit)
        listed = self._catalog.find(self.source, seq - 1)
        if listed is None:
            listed = self._catalog.preceding(self.source, seq - 1)
            return None if listed is None else SelectedEvents(listed.segment.last_seq + 1, None, empty(), "retention")
        try:
            return SelectedEvents(*self._catalog.read_back(listed, seq - 1, event_filter, limit))
        except FileNotFoundError:
            self._catalog.forget()
            return SelectedEvents(listed.segment.first_seq, None, empty(), "retention")
        except (arrow.InvalidSegment, pa.ArrowException, OSError):
            return SelectedEvents(listed.segment.first_seq, None, empty(), "damaged")

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _read_segment(self, first_seq: int, last_seq: int, read: Callable[[], pa.Table]) -> EventRange:
        """The events of a segment; if it cannot be read, the whole range with the reason."""
        try:
            table = read()
        except FileNotFoundError:
            self._catalog.forget()
            return EventRange(first_seq, last_seq, empty(), "retention")
        except (arrow.InvalidSegment, pa.ArrowException, OSError):
            return EventRange(first_seq, last_seq, empty(), "damaged")
        return EventRange(first_seq, first_seq + table.num_rows - 1, table)


def _forwards(rows: list[JournalRow], first_seq: int) -> EventRange:
    """The events of consecutive rows, from a seq on, up to a damaged row."""
    try:
        table = arrow.table_of(rows)
    except arrow.DamagedRow as error:
        good = [row for row in rows if row.first_seq < error.first_seq]
        return _forwards(good, first_seq) if good else EventRange(first_seq, rows[0].last_seq, empty(), "damaged")
    return EventRange(first_seq, rows[-1].last_seq, table.slice(first_seq - rows[0].first_seq))


def _backwards(rows: list[JournalRow], last_seq: int, event_filter: EventFilter, limit: int) -> SelectedEvents:
    """The matching events of consecutive rows, up to a seq, after the last damaged row."""
    first = rows[0].first_seq
    try:
        table = arrow.table_of(rows)
    except arrow.DamagedRow as error:
        good = [row for row in rows if row.first_seq > error.first_seq]
        if good:
            return _backwards(good, last_seq, event_filter, limit)
        return SelectedEvents(rows[-1].first_seq, rows[-1].time_us, empty(), "damaged")
    table = event_filter.apply(table.slice(0, last_seq - first + 1))
    if table.num_rows <= limit:
        return SelectedEvents(first, rows[0].time_us, table)
    table = table.slice(table.num_rows - limit)
    return SelectedEvents(table["seq"][0].as_py(), table["time"].cast("int64")[0].as_py(), table)


def _first_rows(rows: list[JournalRow], seq: int, limit: int) -> list[JournalRow]:
    """The first rows, with about `limit` events after a seq."""
    for number, row in enumerate(rows, 1):
        if row.last_seq - seq >= limit:
            return rows[:number]
    return rows


def _last_rows(rows: list[JournalRow], seq: int, limit: int) -> list[JournalRow]:
    """The last rows, with about `limit` events before a seq."""
    for number in range(len(rows) - 1, -1, -1):
        if seq - rows[number].first_seq >= limit:
            return rows[number:]
    return rows
