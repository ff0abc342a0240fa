"""The records of a manifest, as stored in JSON, the arithmetic on them, and the warehouse's errors.

A day manifest lists everything of one day (UTC), so the manifest stays small as history grows. Paths are relative to
the warehouse. A part that is in a file but not in its entry is ignored.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from scale0.history.events.columns import COLUMNS
from scale0.pipeline.time_ranges import Period

FORMAT: Final = 1
"""Version of manifests and day manifests; newer ones are refused."""

PART: Final = "part"
ROW_HASH: Final = "row_hash"
"""The two extra columns of every data file (the same as in `schemas.py`, which needs Spark)."""

PULSES: Final = "pulses"
"""Liveness samples: computed by ingestion, listed apart from the data sets."""
EVENTS: Final = "events"
LEDGER: Final = "restatements"
"""The append-only data set of changes to closed parts."""

Sum = tuple[int, int]
"""Rows of a part, and the XOR of their hashes as a signed 64-bit number: both independent of order."""
Range = tuple[int, int, int]
"""(boot, first seq, last seq) of one source."""


class FileEntry(msgspec.Struct, frozen=True):
    """A data file, and its valid parts."""

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
    """A problem with a file in a segment directory."""

    name: str
    kind: Literal["damaged", "rejected", "foreign"]
    why: str
    """The cause, and what to do."""


class SeenSegments(msgspec.Struct, frozen=True):
    """The segments of one `written=` directory that were processed: they are not read again."""

    names: dict[str, tuple[Range, ...]]


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
