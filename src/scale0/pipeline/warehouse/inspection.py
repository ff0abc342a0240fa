"""Validates segments: reads every page with its checksum, and compares the rows with the file name.

A segment is valid as a whole or not at all. Memory holds one row group at a time. Counts and liveness samples are
computed on the way.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scale0.history.events.columns import COLUMNS
from scale0.history.segments.arrow import InvalidSegment, SegmentData, open_segment
from scale0.pipeline.warehouse.liveness import HourKinds, hour_kinds, liveness_samples
from scale0.pipeline.warehouse.records import WarehouseError
from scale0.pipeline.warehouse.segment_sources import ListedSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scale0.history.segments.names import Segment
    from scale0.pipeline.warehouse.segment_sources import SegmentSource
    from scale0.pipeline.warehouse.staging import StagingDirectory

WORKERS: Final = 2
"""Segments read concurrently."""
MAX_KINDS: Final = 1_000
"""Kinds of one segment: each is counted by name."""
MAX_TIME_US: Final = 253_402_300_800_000_000
"""The year 10000: the limit of Python and Spark."""

_KEYS: Final = tuple(column.name for column in COLUMNS if not column.nullable)
"""The first columns: `open_segment` has checked that the file's columns are a prefix of ours."""
_NUMBERS: Final = ("boot", "seq", "time", "at")


class Inspected(msgspec.Struct, frozen=True):
    """A segment in the staging directory, and the result of its inspection."""

    found: ListedSegment
    path: Path
    fault: str
    """Why it is damaged; empty if it is valid."""
    bytes: int = 0
    columns: int = 0
    hours: HourKinds = {}
    samples: pa.Table | None = None
    last_time_us: int = 0


class _Damaged(Exception):
    pass


def inspect_segments(
    segment_source: SegmentSource, found: Sequence[ListedSegment], staging: StagingDirectory
) -> list[Inspected]:
    """Fetch and read segments, in the given order. Segments that disappeared meanwhile are left out."""
    names = sorted({one.folder for one in found})
    folders = {name: staging.new_directory("events", name.partition("=")[2]) for name in names}
    with ThreadPoolExecutor(WORKERS) as pool:
        done = pool.map(
            lambda one: fetch_and_inspect(segment_source, one, folders[one.folder], staging.warehouse.reach), found
        )
        return [one for one in done if one is not None]


def fetch_and_inspect(
    segment_source: SegmentSource, found: ListedSegment, folder: Path, reach: Callable[[str], None]
) -> Inspected | None:
    """Inspect our own link or copy, so that the file cannot be exchanged afterwards."""
    path = folder / found.name
    try:
        segment_source.fetch(found.folder, found.name, path)
    except FileNotFoundError:
        return None
    except (PermissionError, IsADirectoryError) as error:
        return Inspected(found, path, f"{error.strerror}: it must be a file that this user may read")
    except (OSError, pa.ArrowException) as error:
        raise WarehouseError(
            f"cannot fetch {found.path}: {' '.join(str(error).split())}; fix this, then run again"
        ) from error
    reach("segment.fetched")
    return inspect(path, found)


def inspect(path: Path, found: ListedSegment) -> Inspected:
    try:
        return _inspect(path, found)
    except (_Damaged, InvalidSegment) as error:
        return Inspected(found, path, str(error))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        return Inspected(found, path, f"it cannot be read: {' '.join(str(error).split())}")


def _inspect(path: Path, found: ListedSegment) -> Inspected:
    segment = found.segment
    if path.stat().st_size == 0:
        raise _Damaged("it is empty")
    with open_segment(path) as file:
        columns = len(file.schema)
        if columns < len(_KEYS):
            raise _Damaged("columns that every event has are missing")
        if file.metadata.num_rows != segment.events:
            raise _Damaged(f"it has {file.metadata.num_rows} events, but its name says {segment.events}")
        kinds: dict[str, int] = {}
        groups = [_read_group(file, number, segment, kinds) for number in range(file.metadata.num_row_groups)]
    seq, time_us, at_us, codes = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    _check_rows(segment, seq, time_us, at_us)
    return Inspected(
        found,
        path,
        "",
        path.stat().st_size,
        columns,
        hour_kinds(at_us, codes, list(kinds)),
        liveness_samples(segment.source, segment.boot, seq, time_us),
        int(time_us[-1]),
    )


def _read_group(file: SegmentData, number: int, segment: Segment, kinds: dict[str, int]) -> tuple[Any, Any, Any, Any]:
    """seq, time, at and the kind's number of one row group; the other columns are read only for their checksums."""
    table = file.read_group(number, use_threads=False)
    for name in _KEYS:
        if table[name].null_count:
            raise _Damaged(f"an event has no {name}")
    numbers = {name: table[name].cast(pa.int64()).to_numpy() for name in _NUMBERS}
    if (numbers["boot"] != segment.boot).any() or not pc.all(pc.equal(table["source"], segment.source)).as_py():
        raise _Damaged("an event is from another source or boot than the file name says")
    encoded = table["kind"].combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(kinds) + len(names) > MAX_KINDS:
        raise _Damaged(f"it has more than {MAX_KINDS} kinds of events")
    own = np.array([kinds.setdefault(name, len(kinds)) for name in names], np.int64)
    ends: dict[str, tuple[Any, Any]] = {name: (values.min(), values.max()) for name, values in numbers.items()}
    ends["kind"] = (min(name.encode() for name in names), max(name.encode() for name in names))
    _check_statistics(file.metadata.row_group(number), ends)
    return numbers["seq"], numbers["time"], numbers["at"], own[encoded.indices.to_numpy()]


def _check_statistics(group: Any, ends: dict[str, tuple[Any, Any]]) -> None:
    """Check the statistics in the footer: no checksum covers it, and readers skip row groups by them."""
    for index in range(group.num_columns):
        column = group.column(index)
        actual = ends.get(column.path_in_schema)
        statistics = column.statistics
        if actual is None or statistics is None or not statistics.has_min_max:
            continue
        if (statistics.min_raw, statistics.max_raw) != actual or statistics.null_count:
            raise _Damaged(f"the statistics of its column {column.path_in_schema} are wrong")


def _check_rows(segment: Segment, seq: Any, time_us: Any, at_us: Any) -> None:
    if seq[0] != segment.first_seq or (seq[1:] != seq[:-1] + 1).any():
        raise _Damaged("its events are not numbered as the file name says")
    if (time_us[1:] < time_us[:-1]).any():
        raise _Damaged("its times are not in order")
    if (at_us > time_us).any():
        raise _Damaged("an event happened after it was recorded")
    if at_us.min() < 0 or time_us[-1] >= MAX_TIME_US:
        raise _Damaged("a time is before 1970 or after 9999")
