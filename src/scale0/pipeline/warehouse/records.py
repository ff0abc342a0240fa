"""The records of a manifest, as stored in JSON, the arithmetic on them, and the warehouse's errors.

A day manifest lists everything of one day (UTC), so the manifest stays small as history grows. Paths are relative to
the warehouse. A part that is in a file but not in its entry is ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from scale0.history.events.columns import COLUMNS
from scale0.kernel.errors import Scale0Error
from scale0.pipeline.time_ranges import Period

RESTORE: Final = (
    "restore it from a backup; or move the whole warehouse away and run again: it is rebuilt from the segments, which"
    " are kept for `segments_keep_days` (90 by default)"
)
"""Advice when the warehouse lost a list of its files. A backfill does not help: it reads the same list."""


class WarehouseError(Scale0Error):
    pass


class WarehouseBusy(WarehouseError):
    """Another process holds the lock; `purpose` is what it wrote into the lock file, or empty."""

    def __init__(self, message: str, purpose: str = "") -> None:
        super().__init__(message)
        self.purpose = purpose


class WarehouseFenced(WarehouseError):
    """Another driver committed first: this run was discarded."""


class WarehouseDamaged(WarehouseError):
    """A manifest or a day manifest differs from what was written."""


FORMAT: Final = 1
"""Version of manifests and day manifests; newer ones are refused."""

PART: Final = "part"
"""int: hours, days or months since 1970 (`time_ranges.py`)."""
ROW_HASH: Final = "row_hash"
"""xxhash64 of the row's other columns, bigint. The engine adds it when it writes."""

LIVENESS: Final = "pulses"
"""Liveness samples: computed by ingestion, listed apart from the data sets."""
EVENTS: Final = "events"
RESTATEMENTS: Final = "restatements"
"""The append-only data set of changes to closed parts."""

Sum = tuple[int, int]
"""Rows of a part, and the XOR of their hashes as a signed 64-bit number: both independent of order."""
Range = tuple[int, int, int]
"""(boot, first seq, last seq) of one source."""


class FileEntry(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    parts: dict[int, Sum]
    carved: bool = False
    """True if the file holds parts that are not listed: readers must filter by `part`."""


class EventsFile(msgspec.Struct, frozen=True):
    """An event file in one day manifest. All of its rows are valid, each on its own day."""

    path: str
    bytes: int
    source: str
    """Empty, with the numbers 0, for a compacted file of several segments."""
    boot: int
    first_seq: int
    last_seq: int
    hours: dict[int, dict[str, int]]
    """Events by hour of `at` and by kind: only hours of this day."""
    days: tuple[int, ...]
    """All days of its events: each of their day manifests lists it."""
    columns: int = len(COLUMNS)
    """How many of COLUMNS it has: older segments have fewer, and the rest is null."""


class DayManifest(msgspec.Struct, frozen=True):
    day: int
    events: tuple[EventsFile, ...] = ()
    pulses: tuple[FileEntry, ...] = ()
    slabs: dict[str, tuple[FileEntry, ...]] = {}


class Ref(msgspec.Struct, frozen=True):
    """A JSON file of the warehouse, and its checksum."""

    path: str
    bytes: int
    sha256: str


class DayManifestRef(msgspec.Struct, frozen=True):
    """The file of a day manifest, and how many files that lists: compaction need not open it."""

    path: str
    bytes: int
    sha256: str
    event_files: int = 0
    pulse_files: int = 0
    slab_files: int = 0
    """Of the data set with most files."""


class DataSetInfo(msgspec.Struct, frozen=True):
    period: Period
    hidden: tuple[str, ...] = ()


class TableInfo(msgspec.Struct, frozen=True):
    columns: dict[str, str]
    """Names in order, with Spark's type names (`bigint`, `array<struct<bucket:int,count:bigint>>`)."""
    slabs: dict[str, DataSetInfo]


class SegmentProblem(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["damaged", "rejected", "foreign"]
    why: str
    """The cause, and what to do."""


class SeenSegments(msgspec.Struct, frozen=True):
    """The segments of one `written=` directory that were processed: they are not read again."""

    names: dict[str, tuple[Range, ...]]

    def pairs(self) -> set[tuple[str, Range]]:
        return {(source, one) for source, ranges in self.names.items() for one in ranges}


class Manifest(msgspec.Struct, frozen=True):
    """The whole warehouse at one instant."""

    number: int
    format: int
    attempt: str
    """The staging directory of the run that wrote it."""
    written_us: int
    """By the driver's clock: used by garbage collection only."""
    horizon_us: int
    parameters: dict[str, Any]
    code_version: str
    newest_us: int = 0
    """The newest covered `time`."""
    floor_day: int = 0
    """Retention dropped the days before it."""
    covered: dict[str, tuple[Range, ...]] = {}
    chapters: dict[int, DayManifestRef] = {}
    open: dict[str, tuple[FileEntry, ...]] = {}
    months: dict[str, tuple[FileEntry, ...]] = {}
    ledger: tuple[FileEntry, ...] = ()
    periods: dict[str, Period] = {}
    """By data set, including internal ones."""
    tables: dict[str, TableInfo] = {}
    problems: tuple[SegmentProblem, ...] = ()
    listings: dict[str, dict[str, int]] = {}
    """By URL of a segment source: its directories, with the stamp at which everything in them was processed; 0: not
    yet.
    """
    seen: dict[str, Ref] = {}
    """By `written=` directory: the processed segments."""


class Sealed(msgspec.Struct, frozen=True):
    """A manifest file: the manifest and its hash."""

    sha256: str
    manifest: msgspec.Raw


class ListedFile(NamedTuple):
    path: str
    """Absolute."""
    parts: frozenset[int]
    """The valid parts among the requested ones."""
    carved: bool
    """True if the file holds other parts too: filter by `part`."""


def restrict(entry: FileEntry, wanted: Callable[[int], bool]) -> FileEntry | None:
    """The entry restricted to the wanted parts; None if none is left."""
    parts = {part: total for part, total in entry.parts.items() if wanted(part)}
    if len(parts) == len(entry.parts):
        return entry
    return msgspec.structs.replace(entry, parts=parts, carved=True) if parts else None


def restrict_all(entries: Iterable[FileEntry], wanted: Callable[[int], bool]) -> tuple[FileEntry, ...]:
    return tuple(left for entry in entries if (left := restrict(entry, wanted)) is not None)


def part_sums(entries: Iterable[FileEntry]) -> dict[int, Sum]:
    total: dict[int, Sum] = {}
    for entry in entries:
        for part, (rows, mixed) in entry.parts.items():
            before = total.get(part, (0, 0))
            total[part] = (before[0] + rows, before[1] ^ mixed)
    return total


def merge_entries(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Merge entries of several day manifests into one per file."""
    by_path: dict[str, FileEntry] = {}
    for entry in entries:
        other = by_path.get(entry.path)
        if other is not None:
            entry = FileEntry(entry.path, entry.bytes, {**other.parts, **entry.parts}, True)
        by_path[entry.path] = entry
    return list(by_path.values())


class Coverage:
    """The events that the warehouse has, as sorted seq ranges that neither overlap nor touch within a boot."""

    def __init__(self, covered: Mapping[str, tuple[Range, ...]]) -> None:
        self._ranges: dict[str, list[Range]] = {source: list(ranges) for source, ranges in covered.items()}

    def add(self, source: str, boot: int, first: int, last: int) -> None:
        ranges = self._ranges.setdefault(source, [])
        start, end = self._touching(ranges, boot, first - 1, last + 1)
        if start < end:
            first = min(first, ranges[start][1])
            last = max(last, ranges[end - 1][2])
        ranges[start:end] = [(boot, first, last)]

    def within(self, source: str, boot: int, first: int, last: int) -> list[tuple[int, int]]:
        """The covered parts of a range."""
        ranges = self._ranges.get(source, [])
        start, end = self._touching(ranges, boot, first, last)
        return [(max(first, low), min(last, high)) for _, low, high in ranges[start:end]]

    def holds(self, source: str, boot: int, first: int, last: int) -> bool:
        return self.within(source, boot, first, last) == [(first, last)]

    def frozen(self) -> dict[str, tuple[Range, ...]]:
        return {source: tuple(ranges) for source, ranges in sorted(self._ranges.items())}

    @staticmethod
    def _touching(ranges: list[Range], boot: int, first: int, last: int) -> tuple[int, int]:
        """The ranges [start, end) of this boot that intersect [first, last]."""
        start = bisect_left(ranges, (boot, first, first))
        if start > 0 and ranges[start - 1][0] == boot and ranges[start - 1][2] >= first:
            start -= 1
        end = start
        while end < len(ranges) and ranges[end][0] == boot and ranges[end][1] <= last:
            end += 1
        return start, end
