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
from scale0.pipeline.warehouse.deduplication import dataset, read_events
from scale0.pipeline.warehouse.ingestion import write_liveness
from scale0.pipeline.warehouse.liveness import HourKinds, add_hour_kinds, table_hour_kinds
from scale0.pipeline.warehouse.records import (
    LIVENESS,
    PART,
    RESTATEMENTS,
    EventsFile,
    FileEntry,
    WarehouseError,
    part_sums,
)
from scale0.pipeline.warehouse.transaction import listed_entries, with_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scale0.pipeline.warehouse.transaction import Transaction
    from scale0.pipeline.warehouse.warehouse import Warehouse

COMPACT_FILES: Final = 8
"""A day with more event or liveness files than this is compacted."""
COMPACT_DATA_FILES: Final = 8
COMPACT_RESTATEMENT_FILES: Final = 64
CLOSED_DAYS: Final = 1
"""A day is closed when the horizon is this many whole days after its end: late events mostly arrive before."""
SORT_ROWS: Final = 1_000_000
"""Events sorted at once."""
FILE_ROWS: Final = 5_000_000
"""Approximate number of events in one compacted file: readers parallelise by file."""

_ORDER: Final = [(name, "ascending") for name in ("at", "source", "boot", "seq")]


def compact(transaction: Transaction, horizon_us: int, *, days: int = 4) -> list[int]:
    """Compact at most `days` closed days that have many files, the oldest first. Returns the days."""
    closed = horizon_us // DAY_US - CLOSED_DAYS
    done: list[int] = []
    for day in transaction.days():
        if day >= closed or len(done) == days:
            break
        if _is_crowded(transaction, day) and _compact_day(transaction, day):
            done.append(day)
    # Not worth a commit of its own.
    if done and len(transaction.entries(RESTATEMENTS)) > COMPACT_RESTATEMENT_FILES:
        compact_restatements(transaction)
    return done


def _is_crowded(transaction: Transaction, day: int) -> bool:
    """True if a day may have too many files, according to its reference in the manifest."""
    ref = transaction.base.chapters.get(day)
    return (
        ref is None
        or day in transaction.day_manifests
        or max(ref.event_files, ref.pulse_files) > COMPACT_FILES
        or ref.slab_files > COMPACT_DATA_FILES
    )


def _compact_day(transaction: Transaction, day: int) -> bool:
    day_manifest = transaction.day_manifest(day)
    changed = [data_set for data_set, entries in day_manifest.slabs.items() if len(entries) > COMPACT_DATA_FILES]
    for data_set in changed:
        compact_data_set(transaction, data_set, day)
    liveness = len(day_manifest.pulses) > COMPACT_FILES and compact_liveness(transaction, day)
    events = len(day_manifest.events) > COMPACT_FILES and compact_events(transaction, day)
    return bool(changed) or liveness or events


def compact_events(transaction: Transaction, day: int) -> bool:
    """Replace all event files of a day by a few sorted ones; False if there is nothing to gain."""
    day_manifest = transaction.day_manifest(day)
    old = {file.path for file in day_manifest.events}
    if len(old) < 2:
        return False
    expected = _counts(day_manifest.events)
    files = _write_sorted(transaction, day, day_manifest.events)
    if _counts(files) != expected:
        raise WarehouseError(f"compaction of day {day} changed its events: a file is damaged; nothing was replaced")
    _move_rest(transaction, day, day_manifest.events)
    transaction.put(msgspec.structs.replace(transaction.day_manifest(day), events=tuple(files)))
    return True


def _write_sorted(transaction: Transaction, day: int, events: Sequence[EventsFile]) -> list[EventsFile]:
    files: list[EventsFile] = []
    with ExitStack() as stack:
        output: _Output | None = None
        for table in _sorted_tables(transaction, events):
            if output is not None and output.rows >= FILE_ROWS:
                files.append(output.close(day, (day,)))
                output = None
            output = output or stack.enter_context(_Output(transaction, f"day-{day}"))
            output.write(table)
        if output is not None:
            files.append(output.close(day, (day,)))
    return files


def _sorted_tables(transaction: Transaction, events: Sequence[EventsFile]) -> Iterator[pa.Table]:
    """All rows in order, hour by hour, and in smaller slices where an hour has very many."""
    by_hour: dict[int, list[str]] = defaultdict(list)
    counts: dict[int, int] = defaultdict(int)
    for file in events:
        for hour, kinds in file.hours.items():
            by_hour[hour].append(str(transaction.warehouse.path(file.path)))
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


def _move_rest(transaction: Transaction, day: int, events: Sequence[EventsFile]) -> None:
    """Move rows of other days into files of their own: otherwise two days would list them."""
    others: dict[int, set[str]] = defaultdict(set)
    for file in events:
        for other in file.days:
            if other != day and other >= transaction.floor_day:
                others[other].add(file.path)
    for other, paths in sorted(others.items()):
        day_manifest = transaction.day_manifest(other)
        moved = [file for file in day_manifest.events if file.path in paths]
        with _Output(transaction, f"day-{other}-rest") as output:
            for file in moved:
                rows = dataset([str(transaction.warehouse.path(file.path))])
                output.write(rows.to_table(filter=_between(other * DAY_US, (other + 1) * DAY_US)).sort_by(_ORDER))
            rest = output.close(other, (other,))
        if _counts([rest]) != _counts(moved):
            raise WarehouseError(f"compaction of day {day} changed events of day {other}: nothing was replaced")
        stay = tuple(file for file in day_manifest.events if file.path not in paths)
        transaction.put(msgspec.structs.replace(day_manifest, events=(*stay, rest)))


def _counts(events: Sequence[EventsFile]) -> HourKinds:
    total: HourKinds = {}
    for file in events:
        add_hour_kinds(total, file.hours)
    return total


class _Output:
    def __init__(self, transaction: Transaction, stem: str) -> None:
        self.rows = 0
        self._transaction = transaction
        self._path: Path = transaction.staging.new_file("compacted", stem)
        self._hours: HourKinds = {}
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
        add_hour_kinds(self._hours, table_hour_kinds(table))

    def close(self, day: int, days: tuple[int, ...]) -> EventsFile:
        self._writer.close()
        durable_files.sync(self._path)
        path = self._transaction.staging.relative(self._path)
        return EventsFile(path, self._path.stat().st_size, "", 0, 0, 0, self._hours, days, len(COLUMNS))


MAX_SORTED_ROWS: Final = 1_000_000
"""More rows than this are merged file by file instead of sorted by part: they would not fit in memory."""


def compact_data_set(transaction: Transaction, data_set: str, day: int) -> bool:
    """Merge a day's files of one data set; False if there are fewer than two, or their schemas differ."""
    day_manifest = transaction.day_manifest(day)
    before = listed_entries(day_manifest, data_set)
    if len(before) < 2 or not _of_one_shape(transaction.warehouse, before):
        return False
    path = transaction.staging.new_file(data_set, f"day-{day}")
    _merge(transaction.warehouse, before, path)
    after = transaction.staging.register(data_set, [path])
    _check_sums(data_set, before, after)
    transaction.put(with_entries(day_manifest, data_set, tuple(after)))
    return True


def compact_liveness(transaction: Transaction, day: int) -> bool:
    day_manifest = transaction.day_manifest(day)
    if len(day_manifest.pulses) < 2:
        return False
    entry = write_liveness(transaction, pa.concat_tables(_tables(transaction.warehouse, day_manifest.pulses)))
    _check_sums(LIVENESS, day_manifest.pulses, [entry])
    transaction.put(with_entries(day_manifest, LIVENESS, (entry,)))
    return True


def compact_restatements(transaction: Transaction) -> bool:
    """Merge all restatement files. Their `part` is an ordinary column."""
    before = transaction.entries(RESTATEMENTS)
    if len(before) < 2:
        return False
    rows = pa.concat_tables(
        pq.read_table(transaction.warehouse.path(entry.path), partitioning=None) for entry in before
    )
    total = part_sums(before)
    if rows.num_rows != sum(count for count, _ in total.values()):
        raise WarehouseError(
            "a file of the restatements has a different number of rows than were written: nothing was replaced"
        )
    path = transaction.staging.new_file(RESTATEMENTS, RESTATEMENTS)
    pq.write_table(rows, path, compression=COMPRESSION, write_page_checksum=True)
    durable_files.sync(path)
    transaction.set_restatements([FileEntry(transaction.staging.relative(path), path.stat().st_size, total)])
    return True


def _tables(warehouse: Warehouse, entries: Sequence[FileEntry]) -> Iterator[pa.Table]:
    for entry in entries:
        rows = dataset([str(warehouse.path(entry.path))], None)
        yield rows.to_table(filter=pc.field(PART).isin(sorted(entry.parts)) if entry.carved else None)


def _of_one_shape(warehouse: Warehouse, entries: Sequence[FileEntry]) -> bool:
    """False if an older program wrote some files with other columns: a reader must see which columns they lack."""
    shapes = [pq.read_schema(warehouse.path(entry.path)) for entry in entries]
    return all(shape.equals(shapes[0]) for shape in shapes)


def _merge(warehouse: Warehouse, entries: Sequence[FileEntry], path: Path) -> None:
    rows = sum(count for count, _ in part_sums(entries).values())
    tables = _tables(warehouse, entries)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema, compression=COMPRESSION, write_page_checksum=True) as writer:
        if rows <= MAX_SORTED_ROWS:
            whole = pa.concat_tables([first, *(table.cast(first.schema) for table in tables)])
            writer.write_table(whole.sort_by(PART))
        else:
            writer.write_table(first)
            for table in tables:
                writer.write_table(table.cast(first.schema))


def _check_sums(data_set: str, before: Sequence[FileEntry], after: Sequence[FileEntry]) -> None:
    if part_sums(before) != part_sums(after):
        raise WarehouseError(
            f"merging the files of {data_set} changed their rows: a file is damaged; nothing was replaced"
        )
