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


def dataset(paths: Sequence[str], schema: pa.Schema | None = SCHEMA) -> ds.Dataset:
    """The files as one data set, with checksum verification. None: the schema of the files."""
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    return ds.dataset(list(paths), format=form, schema=schema, partitioning=None)


def verdicts_of(rows: pa.Table, known_events: pa.Table, covered: Sequence[tuple[int, int]], floor_day: int) -> Any:
    """The verdict for each row: TAKEN, DUPLICATE or REJECTED. `rows` ascend by seq, `held` are the known events of that
    boot.
    """
    seq = rows["seq"].to_numpy()
    verdict = np.full(len(seq), TAKEN, np.int8)
    for first, last in covered:
        verdict[(seq >= first) & (seq <= last)] = REJECTED
    again = np.flatnonzero(verdict == REJECTED)
    known_events = known_events.sort_by("seq")
    known_seq = known_events["seq"].to_numpy()
    at = np.searchsorted(known_seq, seq[again])
    known = at < len(known_seq)
    known[known] = known_seq[at[known]] == seq[again][known]
    new_rows = rows.take(pa.array(again[known])).combine_chunks()
    known_rows = known_events.take(pa.array(at[known])).combine_chunks()
    verdict[again[known][_equal_rows(new_rows, known_rows)]] = DUPLICATE
    # Rows that retention dropped cannot be compared; they were covered, so they are duplicates.
    dropped = rows["at"].cast(pa.int64()).to_numpy()[again] // DAY_US < floor_day
    verdict[again[dropped]] = DUPLICATE
    return verdict


def _equal_rows(new_rows: pa.Table, known_rows: pa.Table) -> Any:
    """Which rows are equal, by bisection: mostly all are, and whole columns are compared at once."""
    equal = np.zeros(new_rows.num_rows, np.bool_)
    open_ends = [(0, new_rows.num_rows)] if new_rows.num_rows else []
    while open_ends:
        first, end = open_ends.pop()
        if new_rows.slice(first, end - first).equals(known_rows.slice(first, end - first)):
            equal[first:end] = True
        elif end - first > 1:
            middle = (first + end) // 2
            open_ends += [(first, middle), (middle, end)]
    return equal


def segment_filter(segment: Segment, first: int, last: int) -> pc.Expression:
    """The rows of a segment's boot with these seqs."""
    return (
        (pc.field("source") == segment.source)
        & (pc.field("boot") == segment.boot)
        & (pc.field("seq") >= first)
        & (pc.field("seq") <= last)
    )
