"""The segments of a data directory by source and seq: listed day by day, from the newest, as far as needed.

A lookup that fails is repeated with a new listing, so that an event that has just left a journal is found; days before
yesterday are listed once. Several threads may use it. If two segments contain a seq, the one of the later boot counts:
a new store starts at 1 again, and the seqs of the old one are obsolete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scale0.history.segments import arrow
from scale0.history.segments.destination import SegmentDestination, open_destination
from scale0.history.segments.names import day_at, parse
from scale0.history.segments.reader import EventFilter, SegmentFile
from scale0.history.segments.settings import FOLDER, read_export_state

FRESH_SECONDS: Final = 1.0
"""How old a listing may be for `sources` and `newest`."""

FILTER_COLUMNS: Final = ("source", "seq", "time", "at", "kind", "identity", "service", "ref")
"""The columns that an EventFilter reads."""

Day = dict[str, list[SegmentFile]]
"""The segments of a day, by source."""


class BackwardScan(NamedTuple):
    """Matching events; every event from `first_seq` on was read."""

    first_seq: int
    oldest_us: int
    table: pa.Table


class SegmentCatalog:
    """The segments of one data directory; `default` is their destination if there is no state file."""

    def __init__(self, data_dir: Path, default: str = "", mono: Callable[[], float] = time.monotonic) -> None:
        self._data_dir = data_dir
        self._default = default or str(data_dir / FOLDER)
        self._mono = mono
        self._lock = threading.Lock()
        self._location = ""
        self._destination: SegmentDestination | None = None
        self._days: dict[date, Day] = {}
        self._order: list[date] | None = None
        """Newest first; None: not listed yet."""
        self._listed_mono = 0.0
        self._read: tuple[str, int, pa.Table] | None = None
        """The row group that was read last, so that paging through it decodes it once."""

    def sources(self) -> list[str]:
        with self._lock:
            if self._mono() - self._listed_mono > FRESH_SECONDS:
                self._forget_recent()
            return sorted({source for day in self._all_days() for source in day})

    def find(self, source: str, seq: int) -> SegmentFile | None:
        """The segment that contains an event."""
        return self._find_fresh(source, lambda files: _holding(files, seq), seq)

    def following(self, source: str, seq: int) -> SegmentFile | None:
        """The first segment that begins after a seq."""
        later = [listed for listed in self._down_to(source, seq) if listed.segment.first_seq > seq]
        return min(later, key=lambda listed: (listed.segment.first_seq, -listed.segment.boot), default=None)

    def preceding(self, source: str, seq: int) -> SegmentFile | None:
        """The last segment that ends before a seq."""
        with self._lock:
            for day in self._all_days():
                earlier = [listed for listed in day.get(source, ()) if listed.segment.last_seq < seq]
                if earlier:
                    return max(earlier, key=lambda listed: (listed.segment.boot, listed.segment.last_seq))
        return None

    def newest(self, source: str) -> SegmentFile | None:
        with self._lock:
            if self._mono() - self._listed_mono > FRESH_SECONDS:
                self._forget_recent()
            for day in self._all_days():
                if files := day.get(source):
                    return max(files, key=lambda listed: (listed.segment.boot, listed.segment.last_seq))
        return None

    def read(self, listed: SegmentFile, first_seq: int, limit: int) -> pa.Table:
        """At most `limit` events of a segment from a seq on, and at least one.

        FileNotFoundError if it is missing; InvalidSegment, ArrowException or OSError if it cannot be read.
        """
        start = first_seq - listed.segment.first_seq
        begin, table = self._row_group(listed, start)
        return table.slice(start - begin, limit)

    def read_back(self, listed: SegmentFile, last_seq: int, event_filter: EventFilter, limit: int) -> BackwardScan:
        """The last matching events of a segment up to a seq, as far back as one row group goes.

        Only the columns of the filter are decoded as long as no event matches: most searches are for rare events.
        """
        index = last_seq - listed.segment.first_seq
        with self._opened(listed) as file:
            number, begin = _group_at(file, index)
            filtered = file.read_group(number, FILTER_COLUMNS).slice(0, index - begin + 1)
            oldest_us = pc.min(filtered["time"]).cast("int64").as_py()
            seqs = event_filter.apply(filtered)["seq"]
            first_seq = listed.segment.first_seq + begin
            if len(seqs) > limit:
                seqs = seqs.slice(len(seqs) - limit)
                first_seq = seqs[0].as_py()
            if not len(seqs):
                return BackwardScan(first_seq, oldest_us, arrow.SCHEMA.empty_table())
        _, table = self._row_group(listed, index)
        return BackwardScan(first_seq, oldest_us, table.take(pc.subtract(seqs, listed.segment.first_seq + begin)))

    def _row_group(self, listed: SegmentFile, index: int) -> tuple[int, pa.Table]:
        """The row group of a segment with the event of this index, and the index at which it begins."""
        last = self._read
        if last is not None and last[0] == listed.name and last[1] <= index < last[1] + last[2].num_rows:
            return last[1], last[2]
        with self._opened(listed) as file:
            number, begin = _group_at(file, index)
            table = file.read_group(number)
        self._read = listed.name, begin, table
        return begin, table

    def _opened(self, listed: SegmentFile) -> arrow.SegmentData:
        destination = self._destination
        if destination is None:
            raise FileNotFoundError(listed.name)
        return arrow.open_segment(destination.open(listed.day, listed.name))

    def forget(self) -> None:
        """List everything again, because a segment was missing."""
        with self._lock:
            self._days.clear()
            self._order = None

    def _find_fresh(
        self, source: str, choose: Callable[[list[SegmentFile]], SegmentFile | None], seq: int
    ) -> SegmentFile | None:
        file = choose(self._down_to(source, seq))
        if file is None:
            with self._lock:
                self._forget_recent()
            file = choose(self._down_to(source, seq))
        return file

    def _down_to(self, source: str, seq: int) -> list[SegmentFile]:
        """Segments of a source, from the newest day to the one that contains this seq or a smaller one."""
        found: list[SegmentFile] = []
        with self._lock:
            for day in self._all_days():
                found += day.get(source, ())
                if any(listed.segment.first_seq <= seq for listed in day.get(source, ())):
                    break
        return found

    def _all_days(self) -> Iterator[Day]:
        if self._order is None:
            self._open()
            self._order = sorted(self._destination.days(), reverse=True) if self._destination is not None else []
            self._listed_mono = self._mono()
        for day in self._order:
            if day not in self._days:
                self._days[day] = self._list(day)
            yield self._days[day]

    def _list(self, day: date) -> Day:
        found: Day = {}
        for name in self._destination.names(day) if self._destination is not None else ():
            segment = parse(name)
            if segment is not None:
                found.setdefault(segment.source, []).append(SegmentFile(segment, day, name))
        return found

    def _forget_recent(self) -> None:
        """Days that may get more segments: the clocks of others may be slightly behind."""
        self._order = None
        growing = day_at(time.time()) - timedelta(days=1)
        for day in [day for day in self._days if day >= growing]:
            del self._days[day]

    def _open(self) -> None:
        state = read_export_state(self._data_dir)
        location = state.destination if state is not None else self._default
        if location != self._location:
            self._location = location
            self._destination = open_destination(location, "reader", self._data_dir)
            self._days.clear()


def _holding(files: list[SegmentFile], seq: int) -> SegmentFile | None:
    held = [listed for listed in files if listed.segment.first_seq <= seq <= listed.segment.last_seq]
    return max(held, key=lambda listed: (listed.segment.boot, listed.segment.last_seq), default=None)


def _group_at(file: arrow.SegmentData, index: int) -> tuple[int, int]:
    """The row group of a file with the event of this index, and where it begins."""
    begin = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if index < begin + rows:
            return number, begin
        begin += rows
    raise arrow.InvalidSegment("it does not contain the events in its name")
