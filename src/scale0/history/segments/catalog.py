"""Which segments there are, by source and number: listed day by day, from the newest, as far as somebody asks.

Lives here: `SegmentCatalog`. Never here: a journal, or what an event means. Invariants: who misses a number gets a
listing made after they asked, so that what has just left a journal is found; the days before yesterday are listed once.
Several threads may ask. If two segments hold a number, the one of the later boot counts: a store that was begun anew
counts from 1 again, and the numbers of the old one are past.
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
import pyarrow.parquet as pq

from scale0.history.segments import arrow
from scale0.history.segments.destination import SegmentDestination, open_destination
from scale0.history.segments.names import day_at, parse
from scale0.history.segments.reader import EventFilter, SegmentFile
from scale0.history.segments.settings import FOLDER, read_export_state

FRESH_SECONDS: Final = 1.0
"""How old a listing may be for who asks what there is at all."""

QUICK: Final = ("source", "seq", "time", "at", "kind", "identity", "service", "ref")
"""Columns that a choice looks at."""

Day = dict[str, list[SegmentFile]]
"""What was written on a day, by source."""


class BackwardScan(NamedTuple):
    """What a look back found: everything from `first_seq` on was looked at."""

    first_seq: int
    oldest_us: int
    table: pa.Table


class SegmentCatalog:
    """The segments of one data folder; `default` is where they are if their writer left no note."""

    def __init__(self, data_dir: Path, default: str = "", mono: Callable[[], float] = time.monotonic) -> None:
        self._data_dir = data_dir
        self._default = default or str(data_dir / FOLDER)
        self._mono = mono
        self._lock = threading.Lock()
        self._where = ""
        self._place: SegmentDestination | None = None
        self._days: dict[date, Day] = {}
        self._order: list[date] | None = None
        """Newest first; None: to be listed."""
        self._listed_mono = 0.0
        self._read: tuple[str, int, pa.Table] | None = None
        """The part of a segment that was read last: who pages through it need not decode it for each page."""

    def sources(self) -> list[str]:
        """Everybody who wrote here."""
        with self._lock:
            if self._mono() - self._listed_mono > FRESH_SECONDS:
                self._forget()
            return sorted({source for day in self._all_days() for source in day})

    def find(self, source: str, seq: int) -> SegmentFile | None:
        """The segment that holds an event."""
        return self._looked_up(source, lambda pieces: _holding(pieces, seq), seq)

    def following(self, source: str, seq: int) -> SegmentFile | None:
        """The first segment that begins after a number."""
        later = [piece for piece in self._down_to(source, seq) if piece.segment.first_seq > seq]
        return min(later, key=lambda piece: (piece.segment.first_seq, -piece.segment.boot), default=None)

    def preceding(self, source: str, seq: int) -> SegmentFile | None:
        """The last segment that ends before a number."""
        with self._lock:
            for day in self._all_days():
                earlier = [piece for piece in day.get(source, ()) if piece.segment.last_seq < seq]
                if earlier:
                    return max(earlier, key=lambda piece: (piece.segment.boot, piece.segment.last_seq))
        return None

    def newest(self, source: str) -> SegmentFile | None:
        """The last segment of a source."""
        with self._lock:
            if self._mono() - self._listed_mono > FRESH_SECONDS:
                self._forget()
            for day in self._all_days():
                if found := day.get(source):
                    return max(found, key=lambda piece: (piece.segment.boot, piece.segment.last_seq))
        return None

    def read(self, piece: SegmentFile, first_seq: int, most: int) -> pa.Table:
        """Events of a segment from a number on: at most so many, and at least one.

        FileNotFoundError if it is gone; NotASegment, ArrowException or OSError if it cannot be read.
        """
        start = first_seq - piece.segment.first_seq
        begin, table = self._part(piece, start)
        return table.slice(start - begin, most)

    def chosen_back(self, piece: SegmentFile, last_seq: int, choice: EventFilter, most: int) -> BackwardScan:
        """The last chosen events of a segment up to a number, as far back as one part of the file goes.

        Only what a choice asks for is decoded as long as nothing is chosen: most of what is looked for is rare.
        """
        index = last_seq - piece.segment.first_seq
        with self._opened(piece) as file:
            number, begin = _group_at(file, index)
            quick = file.read_row_group(number, columns=list(QUICK)).slice(0, index - begin + 1)
            oldest_us = pc.min(quick["time"]).cast("int64").as_py()
            seqs = choice.apply(quick)["seq"]
            first_seq = piece.segment.first_seq + begin
            if len(seqs) > most:
                seqs = seqs.slice(len(seqs) - most)
                first_seq = seqs[0].as_py()
            if not len(seqs):
                return BackwardScan(first_seq, oldest_us, arrow.SCHEMA.empty_table())
        _, table = self._part(piece, index)
        return BackwardScan(first_seq, oldest_us, table.take(pc.subtract(seqs, piece.segment.first_seq + begin)))

    def _part(self, piece: SegmentFile, index: int) -> tuple[int, pa.Table]:
        """The part of a segment that has its event of this index, and the index at which it begins."""
        found = self._read
        if found is not None and found[0] == piece.name and found[1] <= index < found[1] + found[2].num_rows:
            return found[1], found[2]
        with self._opened(piece) as file:
            number, begin = _group_at(file, index)
            table = file.read_row_group(number)
        self._read = piece.name, begin, table
        return begin, table

    def _opened(self, piece: SegmentFile) -> pq.ParquetFile:
        place = self._place
        if place is None:
            raise FileNotFoundError(piece.name)
        return arrow.open_segment(place.open(piece.day, piece.name))

    def forget(self) -> None:
        """List everything again: a segment was gone."""
        with self._lock:
            self._days.clear()
            self._order = None

    def _looked_up(
        self, source: str, choose: Callable[[list[SegmentFile]], SegmentFile | None], seq: int
    ) -> SegmentFile | None:
        found = choose(self._down_to(source, seq))
        if found is None:
            with self._lock:
                self._forget()
            found = choose(self._down_to(source, seq))
        return found

    def _down_to(self, source: str, seq: int) -> list[SegmentFile]:
        """Segments of a source, from the newest day to the one that has this number or less."""
        found: list[SegmentFile] = []
        with self._lock:
            for day in self._all_days():
                found += day.get(source, ())
                if any(piece.segment.first_seq <= seq for piece in day.get(source, ())):
                    break
        return found

    def _all_days(self) -> Iterator[Day]:
        if self._order is None:
            self._open()
            self._order = sorted(self._place.days(), reverse=True) if self._place is not None else []
            self._listed_mono = self._mono()
        for day in self._order:
            if day not in self._days:
                self._days[day] = self._list(day)
            yield self._days[day]

    def _list(self, day: date) -> Day:
        found: Day = {}
        for name in self._place.names(day) if self._place is not None else ():
            segment = parse(name)
            if segment is not None:
                found.setdefault(segment.source, []).append(SegmentFile(segment, day, name))
        return found

    def _forget(self) -> None:
        """What may have grown: the clocks of others may be a little behind."""
        self._order = None
        growing = day_at(time.time()) - timedelta(days=1)
        for day in [day for day in self._days if day >= growing]:
            del self._days[day]

    def _open(self) -> None:
        note = read_export_state(self._data_dir)
        where = note.place if note is not None else self._default
        if where != self._where:
            self._where = where
            self._place = open_destination(where, "reader", self._data_dir)
            self._days.clear()


def _holding(pieces: list[SegmentFile], seq: int) -> SegmentFile | None:
    held = [piece for piece in pieces if piece.segment.first_seq <= seq <= piece.segment.last_seq]
    return max(held, key=lambda piece: (piece.segment.boot, piece.segment.last_seq), default=None)


def _group_at(file: pq.ParquetFile, index: int) -> tuple[int, int]:
    """Which part of a file has the event of this index, and where that part begins."""
    begin = 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if index < begin + rows:
            return number, begin
        begin += rows
    raise arrow.InvalidSegment("it has not got what its name says")
