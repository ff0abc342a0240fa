"""Segments and journal as one history: every event once, in order, while both change.

Lives here: `HistoryReader`. Never here: output. Invariants: an event that is in the journal and in a segment, or in two
segments, comes once; one that leaves the journal while we read comes from its segment, because a segment is there
before the journal is trimmed; no more than a few parts of segments are in memory at once.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from scale0.history.events.columns import MAX_BIGINT
from scale0.history.events.journal import JournalRow
from scale0.history.segments import arrow
from scale0.history.segments.destination import SegmentDestination, open_destination
from scale0.history.segments.journals import JournalSource, open_for_reading
from scale0.history.segments.names import Segment, day_at, folder_of, parse
from scale0.history.segments.settings import FOLDER, ExportState, read_export_state
from scale0.kernel.errors import StoreError

BATCH_EVENTS: Final = 65_536
"""Of a segment, in memory at once."""

Event = dict[str, Any]
"""All columns; times in microseconds, the rest as `history.events.journal.read` has it."""
Report = Callable[[str], None]
"""Told of what cannot be read."""


GLOBBED: Final = ("source", "kind", "identity", "service")
"""Columns that are chosen by globs; `ref` is chosen by itself."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """All of it must hold; blank and None choose everything."""

    source: str = ""
    kind: str = ""
    kinds: tuple[str, ...] = ()
    """One of these, each by itself."""
    identity: str = ""
    service: str = ""
    ref: str = ""
    clock: Literal["time", "at"] = "time"
    """What the two below are about: when it was recorded, or when it happened."""
    since_us: int | None = None
    until_us: int | None = None
    """Not included."""

    def apply(self, table: pa.Table) -> pa.Table:
        """The events of a table that are chosen, in their order."""
        for name in GLOBBED:
            if glob := getattr(self, name):
                table = table.filter(_matching(table[name], glob))
        if self.kinds:
            table = table.filter(pc.is_in(table["kind"], value_set=pa.array(self.kinds, pa.string())))
        if self.ref:
            table = table.filter(pc.equal(table["ref"], self.ref))
        for bound, compare in ((self.since_us, pc.greater_equal), (self.until_us, pc.less)):
            if bound is not None:
                moment = pa.scalar(bound, pa.timestamp("us", tz="UTC"))
                table = table.filter(compare(table[self.clock], moment))
        return table


def _matching(column: pa.ChunkedArray, glob: str) -> Any:
    wanted = [text for text in column.unique().to_pylist() if text is not None and fnmatchcase(text, glob)]
    return pc.is_in(column, value_set=pa.array(wanted, column.type))


class SegmentFile(NamedTuple):
    """A segment, and the day on which it was written."""

    segment: Segment
    day: date
    name: str


class HistoryReader:
    """What one data folder, or one place of segments, remembers."""

    def __init__(
        self, place: SegmentDestination | None, journal: JournalSource | None, source: str, tell: Report
    ) -> None:
        self._place = place
        self._source = source
        """Of the journal; blank: unknown."""
        self._journal = journal
        self._tell = tell
        self._opened = day_at(time.time()) - timedelta(days=1)
        """What is written from now on is in the folders of these days: the clocks of others may be a little behind."""
        self._cursor: int | None = None
        """The last event of the journal that was read; None: nothing was yet."""
        self._read: dict[tuple[str, int], list[Segment]] = {}
        """By source and boot: segments that were listed, so that the journal's copies are left out."""

    @property
    def live(self) -> bool:
        """True if there is a journal that can be followed."""
        return self._journal is not None

    def list_segments(self, since: date | None) -> dict[str, list[SegmentFile]]:
        """All segments that were written on or after a day, by source, in order."""
        # In this order: what leaves the journal after we looked at it is then missed by neither.
        if self._cursor is None and self._journal is not None:
            self._cursor = self._journal.ends()[0] - 1
        found: dict[str, list[SegmentFile]] = {}
        for piece in self._list(since):
            found.setdefault(piece.segment.source, []).append(piece)
            self._read.setdefault(piece.segment[:2], []).append(piece.segment)
        return {source: sorted(found[source]) for source in sorted(found)}

    def read_segments(self, pieces: list[SegmentFile], choice: EventFilter) -> Iterator[pa.Table]:
        """The chosen events of one source's segments, in order; what two of them hold comes once."""
        seen: dict[int, int] = {}
        for piece in pieces:
            segment = piece.segment
            after = seen.get(segment.boot, 0)
            if segment.last_seq > after:
                yield from map(choice.apply, self._open(piece, after))
                seen[segment.boot] = segment.last_seq

    def read_journal(self, choice: EventFilter) -> Iterator[pa.Table]:
        """What is in the journal now and was not read yet; also what has left it since the segments were listed."""
        while self._journal is not None:
            after = self._cursor or 0
            rows = self._journal.after(after)
            if not rows:
                first, last = self._journal.ends()
                if last < first and after < last and self._source:
                    self._cursor = last
                    yield from self._overtaken(self._source, after, first, choice)
                elif last < first or last <= after:
                    return
                continue
            if self._cursor is not None and rows[0].first_seq > after + 1:
                yield from self._overtaken(self._source_of(rows[0]), after, rows[0].first_seq, choice)
            self._cursor = rows[-1].last_seq
            fresh = [row for row in rows if not self._is_listed(row)]
            if fresh:
                yield choice.apply(self._table(fresh))

    def last(self, count: int, choice: EventFilter) -> list[Event]:
        """The newest `count` chosen events, oldest first; the rest of the journal then goes on behind them."""
        newest = Newest(count)
        before, bound = MAX_BIGINT, MAX_BIGINT
        if self._journal is not None:
            self._cursor = self._journal.ends()[1]
        while self._journal is not None and not newest.has_all_after(bound):
            rows = self._journal.before(before)
            if not rows:
                break
            if before == MAX_BIGINT:
                self._cursor = rows[-1].last_seq
            newest.take(choice.apply(self._table(rows)))
            before, bound = rows[0].first_seq, rows[0].time_us
        # Only now: what has left the journal meanwhile is in a segment already.
        queues = {source: (MAX_BIGINT, pieces) for source, pieces in self._by_source().items()}
        while queues:
            source = max(queues, key=lambda one: queues[one][0])
            bound, pieces = queues.pop(source)
            if newest.has_all_after(bound):
                break
            for table in self._open(pieces.pop(), 0):
                bound = min(bound, pc.min(table["time"]).cast(pa.int64()).as_py() or bound)
                newest.take(choice.apply(table))
            if pieces:
                queues[source] = bound, pieces
        return newest.events()

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()

    def _by_source(self) -> dict[str, list[SegmentFile]]:
        found: dict[str, list[SegmentFile]] = {}
        for piece in self._list(None):
            found.setdefault(piece.segment.source, []).append(piece)
        return {source: sorted(pieces) for source, pieces in found.items()}

    def _list(self, since: date | None) -> Iterator[SegmentFile]:
        if self._place is None:
            return
        for day in self._place.days():
            if since is None or day >= since:
                for name in self._place.names(day):
                    segment = parse(name)
                    if segment is not None:
                        yield SegmentFile(segment, day, name)

    def _open(self, piece: SegmentFile, after: int) -> Iterator[pa.Table]:
        """A segment's events after a number, in parts; one that cannot be read is told, and the others come."""
        if self._place is None:
            return
        try:
            with arrow.open_segment(self._place.open(piece.day, piece.name)) as file:
                for batch in file.iter_batches(BATCH_EVENTS):
                    table = pa.Table.from_batches([batch])
                    yield table.filter(pc.greater(table["seq"], after)) if after >= piece.segment.first_seq else table
        except FileNotFoundError:
            return  # it was too old to be kept
        except (arrow.InvalidSegment, pa.ArrowException, OSError) as error:
            self._tell(f"{folder_of(piece.day)}/{piece.name}: {' '.join(str(error).split())}")

    def _table(self, rows: list[JournalRow]) -> pa.Table:
        """The rows' events; one that cannot be read is told, and the others come."""
        while True:
            try:
                return arrow.table_of(rows)
            except arrow.DamagedRow as error:
                self._tell(str(error))
                rows = [row for row in rows if row.first_seq != error.first_seq]

    def _is_listed(self, row: JournalRow) -> bool:
        known = self._read.get((self._source_of(row), row.boot), ())
        return any(one.first_seq <= row.first_seq and row.last_seq <= one.last_seq for one in known)

    def _source_of(self, row: JournalRow) -> str:
        try:
            return arrow.source_of(row)
        except arrow.DamagedRow:
            return self._source

    def _overtaken(self, source: str, after: int, before: int, choice: EventFilter) -> Iterator[pa.Table]:
        """Events between those that we read and those that the journal still has: they are in new segments."""
        known = {one for listed in self._read.values() for one in listed}
        new = sorted(
            piece
            for piece in self._list(self._opened)
            if piece.segment.source == source and piece.segment not in known
            if piece.segment.last_seq > after and piece.segment.first_seq < before
        )
        for piece in new:
            self._read.setdefault(piece.segment[:2], []).append(piece.segment)
            for table in self._open(piece, after):
                yield choice.apply(table)


class Newest:
    """The newest of all events that it is given."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[tuple[int, str, int, int], Event]] = []
        self._keys: set[tuple[int, str, int, int]] = set()

    def has_all_after(self, time_us: int) -> bool:
        """True if nothing that was recorded until then can be one of them any more."""
        return len(self._heap) >= self._count and self._heap[0][0][0] > time_us

    def take(self, table: pa.Table) -> None:
        """Look at these, too."""
        for event in events_of(table.slice(max(0, table.num_rows - self._count))):
            key = key_of(event)
            if key in self._keys:
                continue
            self._keys.add(key)
            heapq.heappush(self._heap, (key, event))
            if len(self._heap) > self._count:
                self._keys.discard(heapq.heappop(self._heap)[0])

    def events(self) -> list[Event]:
        """Oldest first."""
        return [event for _, event in sorted(self._heap, key=lambda pair: pair[0])]


def key_of(event: Event) -> tuple[int, str, int, int]:
    """By what events of several sources are put in order."""
    return event["time"], event["source"], event["boot"], event["seq"]


def events_of(table: pa.Table) -> list[Event]:
    """A table as events."""
    for name in ("time", "at"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    found: list[Event] = table.to_pylist()
    return found


def open_history(data_dir: Path | None, segments: str | None, tell: Report) -> HistoryReader:
    """What a data folder remembers; `segments` is where they are, if the folder does not say so."""
    if data_dir is None and segments is None:
        raise StoreError("neither a data folder nor a place of segments")
    journal: JournalSource | None = None
    where, source = segments, ""
    if data_dir is not None:
        note = read_export_state(data_dir)
        journal = open_reachable_journal(data_dir, note, tell)
        source = note.source if note is not None else ""
        where = segments or (note.place if note is not None else str(data_dir / FOLDER))
    place = open_destination(where, "reader", data_dir or Path()) if where else None
    return HistoryReader(place, journal, source, tell)


def open_reachable_journal(data_dir: Path, note: ExportState | None, tell: Report) -> JournalSource | None:
    """The journal; a database that is away is told, and what the segments have is read."""
    if note is None or not note.database:
        return open_for_reading(data_dir, note)
    journal = None
    try:
        journal = open_for_reading(data_dir, note)
        if journal is not None:
            journal.ends()
    except StoreError as error:
        if journal is not None:
            journal.close()
        tell(str(error))
        return None
    return journal


def read_all_events(data_dir: Path, choice: EventFilter, tell: Report) -> list[Event]:
    """All that a data folder remembers of these events: in segments, and in what its journal has left."""
    history = open_history(data_dir, None, tell)
    try:
        found = [
            table for pieces in history.list_segments(None).values() for table in history.read_segments(pieces, choice)
        ]
        found += history.read_journal(choice)
    finally:
        history.close()
    return [event for table in found for event in events_of(table)]
