"""Merges small data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from scale0.history.segments.arrow import COMPRESSION
from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.entries import sums
from scale0.pipeline.warehouse.errors import WarehouseError
from scale0.pipeline.warehouse.ingestion import write_pulses
from scale0.pipeline.warehouse.records import LEDGER, PART, PULSES, FileEntry
from scale0.pipeline.warehouse.transaction import listed, with_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scale0.pipeline.warehouse.transaction import Transaction
    from scale0.pipeline.warehouse.warehouse import Warehouse

MAX_SORTED_ROWS: Final = 1_000_000
"""More rows than this are merged file by file instead of sorted by part: they would not fit in memory."""


def compact_slabs(draft: Transaction, slab: str, day: int) -> bool:
    """Merge a day's files of one data set; False if there are fewer than two, or their schemas differ."""
    chapter = draft.chapter(day)
    before = listed(chapter, slab)
    if len(before) < 2 or not _of_one_shape(draft.warehouse, before):
        return False
    path = draft.attempt.new_file(slab, f"day-{day}")
    _merge(draft.warehouse, before, path)
    after = draft.attempt.register(slab, [path])
    _check(slab, before, after)
    draft.put(with_entries(chapter, slab, tuple(after)))
    return True


def compact_pulses(draft: Transaction, day: int) -> bool:
    """Merge a day's liveness files."""
    chapter = draft.chapter(day)
    if len(chapter.pulses) < 2:
        return False
    entry = write_pulses(draft, pa.concat_tables(_tables(draft.warehouse, chapter.pulses)))
    _check(PULSES, chapter.pulses, [entry])
    draft.put(with_entries(chapter, PULSES, (entry,)))
    return True


def compact_ledger(draft: Transaction) -> bool:
    """Merge all restatement files. Their `part` is an ordinary column."""
    before = draft.entries(LEDGER)
    if len(before) < 2:
        return False
    rows = pa.concat_tables(pq.read_table(draft.warehouse.path(entry.path), partitioning=None) for entry in before)
    total = sums(before)
    if rows.num_rows != sum(count for count, _ in total.values()):
        raise WarehouseError(
            "a file of the restatements has a different number of rows than were written: nothing was replaced"
        )
    path = draft.attempt.new_file(LEDGER, LEDGER)
    pq.write_table(rows, path, compression=COMPRESSION, write_page_checksum=True)
    durable_files.sync(path)
    draft.set_ledger([FileEntry(draft.attempt.relative(path), path.stat().st_size, total)])
    return True


def _tables(warehouse: Warehouse, entries: Sequence[FileEntry]) -> Iterator[pa.Table]:
    """The valid rows, file by file."""
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    for entry in entries:
        rows = ds.dataset([str(warehouse.path(entry.path))], format=form, partitioning=None)
        yield rows.to_table(filter=pc.field(PART).isin(sorted(entry.parts)) if entry.carved else None)


def _of_one_shape(warehouse: Warehouse, entries: Sequence[FileEntry]) -> bool:
    """False if an older program wrote some files with other columns: a reader must see which columns they lack."""
    shapes = [pq.read_schema(warehouse.path(entry.path)) for entry in entries]
    return all(shape.equals(shapes[0]) for shape in shapes)


def _merge(warehouse: Warehouse, entries: Sequence[FileEntry], path: Path) -> None:
    rows = sum(count for count, _ in sums(entries).values())
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


def _check(slab: str, before: Sequence[FileEntry], after: Sequence[FileEntry]) -> None:
    if sums(before) != sums(after):
        raise WarehouseError(f"merging the files of {slab} changed their rows: a file is damaged; nothing was replaced")
