"""Compaction: many small files of a closed day become few; events are sorted by (at, source, boot, seq).

A replacement must have the same counts by hour and kind (events) or the same rows and hash by part (data sets);
otherwise the old files stay. Every event is in exactly one file, even if a segment spans days. Memory holds about
SORT_ROWS events.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scale0.history.events.columns import COLUMNS
from scale0.history.segments.arrow import COMPRESSION, COMPRESSION_LEVEL, SCHEMA
from scale0.pipeline.time_ranges import DAY_US, HOUR_US
from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.errors import WarehouseError
from scale0.pipeline.warehouse.liveness import hour_kinds
from scale0.pipeline.warehouse.merging import compact_ledger, compact_pulses, compact_slabs
from scale0.pipeline.warehouse.overlap import dataset, read_events
from scale0.pipeline.warehouse.records import LEDGER, EventsFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scale0.pipeline.warehouse.transaction import Transaction

COMPACT_FILES: Final = 8
"""A day with more event or liveness files than this is compacted."""
COMPACT_SLAB_FILES: Final = 8
COMPACT_LEDGER_FILES: Final = 64
CLOSED_DAYS: Final = 1
"""A day is closed when the horizon is this many whole days after its end: late events mostly arrive before."""
SORT_ROWS: Final = 1_000_000
"""Events sorted at once."""
FILE_ROWS: Final = 5_000_000
"""Approximate number of events in one compacted file: readers parallelise by file."""

_ORDER: Final = [(name, "ascending") for name in ("at", "source", "boot", "seq")]

Counts = dict[int, dict[str, int]]


def compact(draft: Transaction, horizon_us: int, *, days: int = 4) -> list[int]:
    """Compact at most `days` closed days that have many files, the oldest first. Returns the days."""
    closed = horizon_us // DAY_US - CLOSED_DAYS
    done: list[int] = []
    for day in draft.days():
        if day >= closed or len(done) == days:
            break
        if _is_crowded(draft, day) and _compact_day(draft, day):
            done.append(day)
    # Not worth a commit of its own.
    if done and len(draft.entries(LEDGER)) > COMPACT_LEDGER_FILES:
        compact_ledger(draft)
    return done


def _is_crowded(draft: Transaction, day: int) -> bool:
    """True if a day may have too many files, according to its reference in the manifest."""
    ref = draft.base.chapters.get(day)
    return (
        ref is None
        or day in draft.chapters
        or max(ref.event_files, ref.pulse_files) > COMPACT_FILES
        or ref.slab_files > COMPACT_SLAB_FILES
    )


def _compact_day(draft: Transaction, day: int) -> bool:
    chapter = draft.chapter(day)
    changed = [slab for slab, entries in chapter.slabs.items() if len(entries) > COMPACT_SLAB_FILES]
    for slab in changed:
        compact_slabs(draft, slab, day)
    pulses = len(chapter.pulses) > COMPACT_FILES and compact_pulses(draft, day)
    events = len(chapter.events) > COMPACT_FILES and compact_events(draft, day)
    return bool(changed) or pulses or events


def compact_events(draft: Transaction, day: int) -> bool:
    """Replace all event files of a day by a few sorted ones; False if there is nothing to gain."""
    chapter = draft.chapter(day)
    old = {file.path for file in chapter.events}
    if len(old) < 2:
        return False
    expected = _counts(chapter.events)
    files = _write_sorted(draft, day, chapter.events)
    if _counts(files) != expected:
        raise WarehouseError(f"compaction of day {day} changed its events: a file is damaged; nothing was replaced")
    _move_rest(draft, day, chapter.events)
    draft.put(msgspec.structs.replace(draft.chapter(day), events=tuple(files)))
    return True


def _write_sorted(draft: Transaction, day: int, events: Sequence[EventsFile]) -> list[EventsFile]:
    files: list[EventsFile] = []
    with ExitStack() as stack:
        output: _Output | None = None
        for table in _sorted_tables(draft, events):
            if output is not None and output.rows >= FILE_ROWS:
                files.append(output.close(day, (day,)))
                output = None
            output = output or stack.enter_context(_Output(draft, f"day-{day}"))
            output.write(table)
        if output is not None:
            files.append(output.close(day, (day,)))
    return files


def _sorted_tables(draft: Transaction, events: Sequence[EventsFile]) -> Iterator[pa.Table]:
    """All rows in order, hour by hour, and in smaller slices where an hour has very many."""
    by_hour: dict[int, list[str]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    for file in events:
        for hour, kinds in file.hours.items():
            by_hour[hour].append(str(draft.warehouse.path(file.path)))
            counts[hour] += sum(kinds.values())
    for hour in sorted(by_hour):
        paths = by_hour[hour]
        cuts = [hour * HOUR_US, *_cuts(paths, hour, counts[hour]), (hour + 1) * HOUR_US]
        for first, end in itertools.pairwise(cuts):
            yield read_events(paths, _between(first, end)).sort_by(_ORDER)


def _cuts(paths: list[str], hour: int, count: int) -> list[int]:
    """Instants that divide an hour into slices of about SORT_ROWS."""
    if count <= SORT_ROWS:
        return []
    rows = read_events(paths, _between(hour * HOUR_US, (hour + 1) * HOUR_US), ["at"])
    at = np.sort(rows["at"].cast(pa.int64()).to_numpy())
    return sorted({int(us) for us in at[SORT_ROWS::SORT_ROWS]} - {hour * HOUR_US})


def _between(first_us: int, end_us: int) -> pc.Expression:
    kind = SCHEMA.field("at").type
    return (pc.field("at") >= pa.scalar(first_us, kind)) & (pc.field("at") < pa.scalar(end_us, kind))


def _move_rest(draft: Transaction, day: int, events: Sequence[EventsFile]) -> None:
    """Move rows of other days into files of their own: otherwise two days would list them."""
    others: dict[int, set[str]] = defaultdict(set)
    for file in events:
        for other in file.days:
            if other != day and other >= draft.floor_day:
                others[other].add(file.path)
    for other, paths in sorted(others.items()):
        chapter = draft.chapter(other)
        moved = [file for file in chapter.events if file.path in paths]
        with _Output(draft, f"day-{other}-rest") as output:
            for file in moved:
                rows = dataset([str(draft.warehouse.path(file.path))])
                output.write(rows.to_table(filter=_between(other * DAY_US, (other + 1) * DAY_US)).sort_by(_ORDER))
            rest = output.close(other, (other,))
        if _counts([rest]) != _counts(moved):
            raise WarehouseError(f"compaction of day {day} changed events of day {other}: nothing was replaced")
        stay = tuple(file for file in chapter.events if file.path not in paths)
        draft.put(msgspec.structs.replace(chapter, events=(*stay, rest)))


def _counts(events: Sequence[EventsFile]) -> Counts:
    total: Counts = {}
    for file in events:
        for hour, kinds in file.hours.items():
            counts = total.setdefault(hour, {})
            for kind, count in kinds.items():
                counts[kind] = counts.get(kind, 0) + count
    return total


class _Output:
    """An event file that is being written."""

    def __init__(self, draft: Transaction, stem: str) -> None:
        self.rows = 0
        self._draft = draft
        self._path: Path = draft.attempt.new_file("compacted", stem)
        self._hours: Counts = {}
        self._writer = pq.ParquetWriter(
            self._path,
            SCHEMA,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            write_page_checksum=True,
        )

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.cast(SCHEMA))
        self.rows += table.num_rows
        words = table["kind"].combine_chunks().dictionary_encode()
        at_us = table["at"].cast(pa.int64()).to_numpy()
        for hour, kinds in hour_kinds(at_us, words.indices.to_numpy(), words.dictionary.to_pylist()).items():
            counts = self._hours.setdefault(hour, {})
            for kind, count in kinds.items():
                counts[kind] = counts.get(kind, 0) + count

    def close(self, day: int, days: tuple[int, ...]) -> EventsFile:
        self._writer.close()
        durable_files.sync(self._path)
        path = self._draft.attempt.relative(self._path)
        return EventsFile(path, self._path.stat().st_size, "", 0, 0, 0, self._hours, days, len(COLUMNS))
