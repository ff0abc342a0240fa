"""One source's events by their numbers, wherever they are now: in its journal, or in segments.

Lives here: `EventReader`, which reads on after a number, or back from one. Never here: a position; who reads keeps it.
Invariants: the journal is looked at before the segments, because a segment is there before the journal is trimmed; so
a stretch begins right where the last one ended, and numbers that nobody has any more are told, not passed over; what
one call brings is bounded.
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
"""Why events cannot be had: they were too old to be kept, cannot be read, are more than somebody may read at once, or
the store was begun anew."""

JOURNAL_EVENTS: Final = 5_000
"""Of a journal, looked at in one step back: most of them may not be chosen."""


def empty() -> pa.Table:
    """No events; made when it is needed, since the first table of a process brings pandas along."""
    return arrow.SCHEMA.empty_table()


class EventRange(NamedTuple):
    """Numbers without a gap, and their events; or why there are none."""

    first_seq: int
    last_seq: int
    table: pa.Table
    reason: Reason = ""


class SelectedEvents(NamedTuple):
    """Chosen events, and how far back was looked for them."""

    first_seq: int
    oldest_us: int | None
    """When the first of these numbers was recorded; None: nobody knows."""
    table: pa.Table
    reason: Reason = ""


class EventReader:
    """What one source recorded. `journal` is None where only segments of it are here."""

    def __init__(self, source: str, journal: JournalSource | None, shelf: SegmentCatalog) -> None:
        self.source = source
        self._journal = journal
        self._shelf = shelf

    def last(self) -> int:
        """The number of the newest event; 0: there is none."""
        if self._journal is not None:
            return self._journal.ends()[1]
        newest = self._shelf.newest(self.source)
        return 0 if newest is None else newest.segment.last_seq

    def after(self, seq: int, most: int) -> EventRange | None:
        """What follows a number: about `most` events; None: nothing does."""
        end = MAX_BIGINT
        while self._journal is not None:
            rows = self._journal.after(seq)
            if rows and rows[0].first_seq <= seq + 1:
                return _forwards(_first_rows(rows, seq, most), seq + 1)
            first, last = self._journal.ends()
            if rows or last < first:
                end = rows[0].first_seq - 1 if rows else last
                break
            if last <= seq:
                return None
            # It was recorded between the two reads.
        if end <= seq:
            return None
        piece = self._shelf.find(self.source, seq + 1)
        if piece is not None:
            here, end = piece, min(end, piece.segment.last_seq)
            return self._taken(seq + 1, end, lambda: self._shelf.read(here, seq + 1, min(most, end - seq)))
        piece = self._shelf.following(self.source, seq + 1)
        if piece is not None:
            end = min(end, piece.segment.first_seq - 1)
        return None if end == MAX_BIGINT else EventRange(seq + 1, end, empty(), "retention")

    def before(self, seq: int, choice: EventFilter, most: int) -> SelectedEvents | None:
        """The last chosen events before a number, as far back as one read goes; None: nothing is there."""
        if seq <= 1:
            return None
        if self._journal is not None:
            rows = self._journal.before(seq)
            if rows and rows[-1].last_seq >= seq - 1:
                return _backwards(_last_rows(rows, seq, max(most, JOURNAL_EVENTS)), seq - 1, choice, most)
        piece = self._shelf.find(self.source, seq - 1)
        if piece is None:
            piece = self._shelf.preceding(self.source, seq - 1)
            return None if piece is None else SelectedEvents(piece.segment.last_seq + 1, None, empty(), "retention")
        try:
            return SelectedEvents(*self._shelf.chosen_back(piece, seq - 1, choice, most))
        except FileNotFoundError:
            self._shelf.forget()
            return SelectedEvents(piece.segment.first_seq, None, empty(), "retention")
        except (arrow.InvalidSegment, pa.ArrowException, OSError):
            return SelectedEvents(piece.segment.first_seq, None, empty(), "damaged")

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()

    def _taken(self, first_seq: int, last_seq: int, read: Callable[[], pa.Table]) -> EventRange:
        """What a segment gives; all that was looked for, if it gives nothing."""
        try:
            table = read()
        except FileNotFoundError:
            self._shelf.forget()
            return EventRange(first_seq, last_seq, empty(), "retention")
        except (arrow.InvalidSegment, pa.ArrowException, OSError):
            return EventRange(first_seq, last_seq, empty(), "damaged")
        return EventRange(first_seq, first_seq + table.num_rows - 1, table)


def _forwards(rows: list[JournalRow], first_seq: int) -> EventRange:
    """The events of rows that follow each other, from a number on; up to a row that is damaged."""
    try:
        table = arrow.table_of(rows)
    except arrow.DamagedRow as error:
        good = [row for row in rows if row.first_seq < error.first_seq]
        return _forwards(good, first_seq) if good else EventRange(first_seq, rows[0].last_seq, empty(), "damaged")
    return EventRange(first_seq, rows[-1].last_seq, table.slice(first_seq - rows[0].first_seq))


def _backwards(rows: list[JournalRow], last_seq: int, choice: EventFilter, most: int) -> SelectedEvents:
    """The chosen events of rows that follow each other, up to a number; after the last row that is damaged."""
    first = rows[0].first_seq
    try:
        table = arrow.table_of(rows)
    except arrow.DamagedRow as error:
        good = [row for row in rows if row.first_seq > error.first_seq]
        if good:
            return _backwards(good, last_seq, choice, most)
        return SelectedEvents(rows[-1].first_seq, rows[-1].time_us, empty(), "damaged")
    table = choice.apply(table.slice(0, last_seq - first + 1))
    if table.num_rows <= most:
        return SelectedEvents(first, rows[0].time_us, table)
    table = table.slice(table.num_rows - most)
    return SelectedEvents(table["seq"][0].as_py(), table["time"].cast("int64")[0].as_py(), table)


def _first_rows(rows: list[JournalRow], seq: int, most: int) -> list[JournalRow]:
    """The first rows, with about `most` events after a number."""
    for number, row in enumerate(rows, 1):
        if row.last_seq - seq >= most:
            return rows[:number]
    return rows


def _last_rows(rows: list[JournalRow], seq: int, most: int) -> list[JournalRow]:
    """The last rows, with about `most` events before a number."""
    for number in range(len(rows) - 1, -1, -1):
        if seq - rows[number].first_seq >= most:
            return rows[number:]
    return rows
