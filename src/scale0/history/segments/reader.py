"""Segments and journal as one history: every event once and in order, while both change; and filters for events.

An event in the journal and in a segment, or in two segments, is returned once. An event that leaves the journal during
a read comes from its segment, because a segment is durable before the journal is trimmed. Only a few row groups of
segments are in memory at once.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from scale0.history.events.audit import AuditChain
from scale0.history.events.columns import MAX_BIGINT
from scale0.history.events.journal import JournalRow
from scale0.history.segments import arrow
from scale0.history.segments.destination import SegmentDestination, open_destination
from scale0.history.segments.journals import JournalSource, open_for_reading
from scale0.history.segments.names import Segment, day_at, folder_of, parse
from scale0.history.segments.settings import FOLDER, ExportState, read_export_state
from scale0.kernel.errors import StoreError

BATCH_EVENTS: Final = 65_536
"""The number of events of a segment that are in memory at once."""

Event = dict[str, Any]
"""All columns as `history.events.journal.read` returns them; times in microseconds."""
Report = Callable[[str], None]
"""Called with a text about what cannot be read."""


GLOB_COLUMNS: Final = ("source", "kind", "identity", "service")
"""Columns that are filtered by globs; `ref` must be equal."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """All conditions must hold; blank and None match everything. A glob is matched once against each distinct text."""

    source: str = ""
    kind: str = ""
    kinds: tuple[str, ...] = ()
    """One of these, without globs."""
    identity: str = ""
    service: str = ""
    ref: str = ""
    clock: Literal["time", "at"] = "time"
    """The column of the two limits below: when it was recorded, or when it happened."""
    since_us: int | None = None
    until_us: int | None = None
    """Exclusive."""

    def apply(self, table: pa.Table) -> pa.Table:
        """The matching events of a table, in their order."""
        for name in GLOB_COLUMNS:
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
    """The history in one data directory, or in one destination of segments."""

    def __init__(
        self, destination: SegmentDestination | None, journal: JournalSource | None, source: str, report: Report
    ) -> None:
        self._destination = destination
        self._source = source
        """The source of the journal; blank: unknown."""
        self._journal = journal
        self._report = report
        self._opened = day_at(time.time()) - timedelta(days=1)
        """New segments are in the directories of this day or later: the clocks of others may be slightly behind."""
        self._cursor: int | None = None
        """The last seq of the journal that was read; None: nothing yet."""
        self._read: dict[tuple[str, int], list[Segment]] = {}
        """By source and boot: the listed segments, whose events are skipped in the journal."""

    @property
    def live(self) -> bool:
        return self._journal is not None

    def check_audit(self, event_filter: EventFilter) -> dict[str, AuditChain]:
        """The audit chain of each source, as far as it follows."""
        # The head is read first: what is recorded later comes after it.
        head = self._journal.audit_head() if self._journal is not None else ""
        recorded = self._audit_starts()
        chains: dict[str, AuditChain] = {}
        tables = [self.read_segments(files, event_filter) for files in self.list_segments(None).values()]
        for table in itertools.chain(*tables, self.read_journal(event_filter)):
            for event in events_of(table):
                chains.setdefault(event["source"], AuditChain()).add(event)
        is_whole = event_filter.since_us is None
        if is_whole and head and (self._source or not chains):
            chains.setdefault(self._source, AuditChain())
        own = [chains[self._source]] if self._source in chains else list(chains.values())
        if is_whole:
            # The retention may have removed more meanwhile.
            recorded |= self._audit_starts()
            for chain in chains.values():
                chain.judge_beginning(*((recorded, head) if own == [chain] else (set(), "")))
        if own and not any(chain.broken or chain.holds(head) for chain in own):
            own[0].cut_off()
        return chains

    def _audit_starts(self) -> set[str]:
        """What its store has recorded for the source of the journal."""
        start = self._journal.audit_start() if self._journal is not None else None
        return {start.after} if start is not None and self._source in ("", start.source) else set()

    def list_segments(self, since: date | None) -> dict[str, list[SegmentFile]]:
        """All segments that were written since a day, by source, in order."""
        # In this order, so that an event that leaves the journal in between is not missed.
        if self._cursor is None and self._journal is not None:
            self._cursor = self._journal.ends()[0] - 1
        by_source: dict[str, list[SegmentFile]] = {}
        for listed in self._list(since):
            by_source.setdefault(listed.segment.source, []).append(listed)
            self._read.setdefault(listed.segment[:2], []).append(listed.segment)
        return {source: sorted(by_source[source]) for source in sorted(by_source)}

    def read_segments(self, files: list[SegmentFile], event_filter: EventFilter) -> Iterator[pa.Table]:
        """The matching events of one source's segments, in order, without duplicates."""
        seen: dict[int, int] = {}
        for listed in files:
            segment = listed.segment
            after = seen.get(segment.boot, 0)
            if segment.last_seq > after:
                yield from map(event_filter.apply, self._open(listed, after))
                seen[segment.boot] = segment.last_seq

    def read_journal(self, event_filter: EventFilter) -> Iterator[pa.Table]:
        """The matching events of the journal that were not read yet, also those that left it since the listing."""
        while self._journal is not None:
            after = self._cursor or 0
            rows = self._journal.after(after)
            if not rows:
                first, last = self._journal.ends()
                if last < first and after < last and self._source:
                    self._cursor = last
                    yield from self._overtaken(self._source, after, first, event_filter)
                elif last < first or last <= after:
                    return
                continue
            if self._cursor is not None and rows[0].first_seq > after + 1:
                yield from self._overtaken(self._source_of(rows[0]), after, rows[0].first_seq, event_filter)
            self._cursor = rows[-1].last_seq
            fresh = [row for row in rows if not self._is_listed(row)]
            if fresh:
                yield event_filter.apply(self._table(fresh))

    def last(self, count: int, event_filter: EventFilter) -> list[Event]:
        """The newest `count` matching events, oldest first; `read_journal` continues after them."""
        newest = NewestEvents(count)
        before, bound = MAX_BIGINT, MAX_BIGINT
        if self._journal is not None:
            self._cursor = self._journal.ends()[1]
        while self._journal is not None and not newest.has_all_after(bound):
            rows = self._journal.before(before)
            if not rows:
                break
            if before == MAX_BIGINT:
                self._cursor = rows[-1].last_seq
            newest.add(event_filter.apply(self._table(rows)))
            before, bound = rows[0].first_seq, rows[0].time_us
        # Only now, because what has left the journal in the meantime is in a segment.
        queues = {source: (MAX_BIGINT, files) for source, files in self._by_source().items()}
        while queues:
            source = max(queues, key=lambda one: queues[one][0])
            bound, files = queues.pop(source)
            if newest.has_all_after(bound):
                break
            for table in self._open(files.pop(), 0):
                bound = min(bound, pc.min(table["time"]).cast(pa.int64()).as_py() or bound)
                newest.add(event_filter.apply(table))
            if files:
                queues[source] = bound, files
        return newest.events()

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _by_source(self) -> dict[str, list[SegmentFile]]:
        by_source: dict[str, list[SegmentFile]] = {}
        for listed in self._list(None):
            by_source.setdefault(listed.segment.source, []).append(listed)
        return {source: sorted(files) for source, files in by_source.items()}

    def _list(self, since: date | None) -> Iterator[SegmentFile]:
        if self._destination is None:
            return
        for day in self._destination.days():
            if since is None or day >= since:
                for name in self._destination.names(day):
                    segment = parse(name)
                    if segment is not None:
                        yield SegmentFile(segment, day, name)

    def _open(self, listed: SegmentFile, after: int) -> Iterator[pa.Table]:
        """The events of a segment after a seq, in batches; an unreadable segment is reported and skipped."""
        if self._destination is None:
            return
        try:
            with arrow.open_segment(self._destination.open(listed.day, listed.name)) as file:
                for table in file.batches(BATCH_EVENTS):
                    yield table.filter(pc.greater(table["seq"], after)) if after >= listed.segment.first_seq else table
        except FileNotFoundError:
            return  # it was beyond the retention
        except (arrow.InvalidSegment, pa.ArrowException, OSError) as error:
            self._report(f"{folder_of(listed.day)}/{listed.name}: {' '.join(str(error).split())}")

    def _table(self, rows: list[JournalRow]) -> pa.Table:
        """The events of rows; an unreadable row is reported and skipped."""
        while True:
            try:
                return arrow.table_of(rows)
            except arrow.DamagedRow as error:
                self._report(str(error))
                rows = [row for row in rows if row.first_seq != error.first_seq]

    def _is_listed(self, row: JournalRow) -> bool:
        known = self._read.get((self._source_of(row), row.boot), ())
        return any(one.first_seq <= row.first_seq and row.last_seq <= one.last_seq for one in known)

    def _source_of(self, row: JournalRow) -> str:
        try:
            return arrow.source_of(row)
        except arrow.DamagedRow:
            return self._source

    def _overtaken(self, source: str, after: int, before: int, event_filter: EventFilter) -> Iterator[pa.Table]:
        """Events between those that we read and those that the journal still has: they are in new segments."""
        known = {one for listed in self._read.values() for one in listed}
        new = sorted(
            listed
            for listed in self._list(self._opened)
            if listed.segment.source == source and listed.segment not in known
            if listed.segment.last_seq > after and listed.segment.first_seq < before
        )
        for listed in new:
            self._read.setdefault(listed.segment[:2], []).append(listed.segment)
            for table in self._open(listed, after):
                yield event_filter.apply(table)


class NewestEvents:
    """The newest of all events that were added."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[tuple[int, str, int, int], Event]] = []
        self._keys: set[tuple[int, str, int, int]] = set()

    def has_all_after(self, time_us: int) -> bool:
        """True if no event that was recorded until then can be one of them."""
        return len(self._heap) >= self._count and self._heap[0][0][0] > time_us

    def add(self, table: pa.Table) -> None:
        for event in events_of(table.slice(max(0, table.num_rows - self._count))):
            key = key_of(event)
            if key in self._keys:
                continue
            self._keys.add(key)
            heapq.heappush(self._heap, (key, event))
            if len(self._heap) > self._count:
                self._keys.discard(heapq.heappop(self._heap)[0])

    def events(self) -> list[Event]:
        return [event for _, event in sorted(self._heap, key=lambda pair: pair[0])]


def key_of(event: Event) -> tuple[int, str, int, int]:
    """The order of events of several sources."""
    return event["time"], event["source"], event["boot"], event["seq"]


def events_of(table: pa.Table) -> list[Event]:
    for name in ("time", "at"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    events: list[Event] = table.to_pylist()
    return events


def open_history(data_dir: Path | None, segments: str | None, report: Report) -> HistoryReader:
    """The history of a data directory; `segments` is their destination, if the directory does not record it."""
    if data_dir is None and segments is None:
        raise StoreError("neither a data directory nor a destination of segments was given")
    journal: JournalSource | None = None
    destination, source = segments, ""
    if data_dir is not None:
        state = read_export_state(data_dir)
        journal = open_reachable_journal(data_dir, state, report)
        source = state.source if state is not None else ""
        destination = segments or (state.destination if state is not None else str(data_dir / FOLDER))
    opened = open_destination(destination, "reader", data_dir or Path()) if destination else None
    return HistoryReader(opened, journal, source, report)


def open_reachable_journal(data_dir: Path, state: ExportState | None, report: Report) -> JournalSource | None:
    """The journal; an unreachable database is reported, and only the segments are read."""
    if state is None or not state.database:
        return open_for_reading(data_dir, state)
    journal = None
    try:
        journal = open_for_reading(data_dir, state)
        if journal is not None:
            journal.ends()
    except StoreError as error:
        if journal is not None:
            journal.close()
        report(str(error))
        return None
    return journal


def read_all_events(data_dir: Path, event_filter: EventFilter, report: Report) -> list[Event]:
    """All matching events of a data directory, from segments and journal."""
    history = open_history(data_dir, None, report)
    try:
        tables: list[pa.Table] = []
        for files in history.list_segments(None).values():
            tables += history.read_segments(files, event_filter)
        tables += history.read_journal(event_filter)
    finally:
        history.close()
    return [event for table in tables for event in events_of(table)]
