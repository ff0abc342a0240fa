"""Deduplication of a segment that overlaps covered events: is a row the same event, or another one with its key?

The row that came first wins. Only rows of covered ranges are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from scale0.history.segments.arrow import SCHEMA
from scale0.pipeline.time_ranges import DAY_US
from scale0.pipeline.warehouse.liveness import DUPLICATE, REJECTED, TAKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.history.segments.names import Segment


def read_events(paths: Sequence[str], where: pc.Expression | None = None, columns: list[str] | None = None) -> pa.Table:
    """Events of these files with all columns; columns that an older segment lacks are null."""
    if not paths:
        return SCHEMA.empty_table() if columns is None else SCHEMA.empty_table().select(columns)
    return dataset(paths).to_table(filter=where, columns=columns)


def dataset(paths: Sequence[str]) -> ds.Dataset:
    """The files as one data set, with checksum verification."""
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    return ds.dataset(list(paths), format=form, schema=SCHEMA, partitioning=None)


def fates(rows: pa.Table, held: pa.Table, covered: Sequence[tuple[int, int]], floor_day: int) -> Any:
    """The verdict for each row: TAKEN, DUPLICATE or REJECTED. `rows` ascend by seq, `held` are the known events of that
    boot.
    """
    seq = rows["seq"].to_numpy()
    fate = np.full(len(seq), TAKEN, np.int8)
    for first, last in covered:
        fate[(seq >= first) & (seq <= last)] = REJECTED
    again = np.flatnonzero(fate == REJECTED)
    held = held.sort_by("seq")
    held_seq = held["seq"].to_numpy()
    at = np.searchsorted(held_seq, seq[again])
    known = at < len(held_seq)
    known[known] = held_seq[at[known]] == seq[again][known]
    mine = rows.take(pa.array(again[known])).combine_chunks()
    theirs = held.take(pa.array(at[known])).combine_chunks()
    fate[again[known][_equal_rows(mine, theirs)]] = DUPLICATE
    # Rows that retention dropped cannot be compared; they were covered, so they are duplicates.
    gone = rows["at"].cast(pa.int64()).to_numpy()[again] // DAY_US < floor_day
    fate[again[gone]] = DUPLICATE
    return fate


def _equal_rows(mine: pa.Table, theirs: pa.Table) -> Any:
    """Which rows are equal, by bisection: mostly all are, and whole columns are compared at once."""
    equal = np.zeros(mine.num_rows, np.bool_)
    open_ends = [(0, mine.num_rows)] if mine.num_rows else []
    while open_ends:
        first, end = open_ends.pop()
        if mine.slice(first, end - first).equals(theirs.slice(first, end - first)):
            equal[first:end] = True
        elif end - first > 1:
            middle = (first + end) // 2
            open_ends += [(first, middle), (middle, end)]
    return equal


def of_segment(segment: Segment, first: int, last: int) -> pc.Expression:
    """The rows of a segment's boot with these seqs."""
    return (
        (pc.field("source") == segment.source)
        & (pc.field("boot") == segment.boot)
        & (pc.field("seq") >= first)
        & (pc.field("seq") <= last)
    )
