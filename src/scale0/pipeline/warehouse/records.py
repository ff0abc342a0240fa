"""What a manifest says: plain frozen records, as JSON has them.

Lives here: the shapes of a manifest, a chapter and a list of seen segments. Never here: a file, or an edit. Invariants:
a chapter lists everything of one day (UTC), so a manifest stays small as history grows; a path is relative to the
warehouse; a part that a file holds and no entry lists does not count.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from scale0.history.events.columns import COLUMNS
from scale0.pipeline.time_ranges import Period

FORMAT: Final = 1
"""Of manifests and chapters; one that is newer is refused."""

PART: Final = "part"
ROW_HASH: Final = "row_hash"
"""The two columns that every file of a slab has besides its own (`slab.py` says the same, and needs Spark)."""

PULSES: Final = "pulses"
"""What the driver itself takes from segments, listed apart from the slabs."""
EVENTS: Final = "events"
LEDGER: Final = "restatements"
"""The slab that only grows: what changed after it was settled."""

Sum = tuple[int, int]
"""Rows of a part, and the exclusive or of their hashes as a signed 64-bit number: both free of order."""
Range = tuple[int, int, int]
"""(boot, first seq, last seq) of one source."""


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a slab, and the parts of it that count."""

    path: str
    bytes: int
    parts: dict[int, Sum]
    carved: bool = False
    """True once a part that the file holds is not listed: who reads it must filter by `part`."""


class EventsFile(msgspec.Struct, frozen=True):
    """A file of events as one day's chapter sees it. All of its rows count, each in the chapter of its day."""

    path: str
    bytes: int
    source: str
    """Empty, and the numbers 0, for a compacted file of several segments."""
    boot: int
    first_seq: int
    last_seq: int
    hours: dict[int, dict[str, int]]
    """Events by hour of `at` and by kind: only the hours of this chapter's day."""
    days: tuple[int, ...]
    """All days that it has events of: those chapters list it too."""
    columns: int = len(COLUMNS)
    """How many of COLUMNS it has: an older segment has fewer, and the rest reads as null."""


class DayManifest(msgspec.Struct, frozen=True):
    """Everything of one day."""

    day: int
    events: tuple[EventsFile, ...] = ()
    pulses: tuple[FileEntry, ...] = ()
    slabs: dict[str, tuple[FileEntry, ...]] = {}


class Ref(msgspec.Struct, frozen=True):
    """A JSON file of the warehouse, and what it must hold."""

    path: str
    bytes: int
    sha256: str


class DayManifestRef(msgspec.Struct, frozen=True):
    """A chapter's file, and how many files it lists: what compaction asks without opening it."""

    path: str
    bytes: int
    sha256: str
    event_files: int = 0
    pulse_files: int = 0
    slab_files: int = 0
    """Of the slab that has most."""


class DataSetInfo(msgspec.Struct, frozen=True):
    """One slab of a table."""

    period: Period
    hidden: tuple[str, ...] = ()


class TableInfo(msgspec.Struct, frozen=True):
    """A table as readers see it."""

    columns: dict[str, str]
    """Names in order, with their types in Spark's words (`bigint`, `array<struct<bucket:int,count:bigint>>`)."""
    slabs: dict[str, DataSetInfo]


class SegmentProblem(msgspec.Struct, frozen=True):
    """A file of the segments' folder with which something is wrong."""

    name: str
    kind: Literal["damaged", "rejected", "foreign"]
    why: str
    """What it is, and what to do."""


class SeenSegments(msgspec.Struct, frozen=True):
    """The segments of one `written=` folder that are done with: they are not read again."""

    names: dict[str, tuple[Range, ...]]


class Manifest(msgspec.Struct, frozen=True):
    """The whole warehouse at one instant."""

    number: int
    format: int
    attempt: str
    """The folder of the attempt that made it."""
    written_us: int
    """When, by the driver's clock: collection alone reads it."""
    horizon_us: int
    parameters: dict[str, Any]
    code_version: str
    newest_us: int = 0
    """The newest `time` that is covered."""
    floor_day: int = 0
    """Days before it were dropped by retention."""
    covered: dict[str, tuple[Range, ...]] = {}
    chapters: dict[int, DayManifestRef] = {}
    open: dict[str, tuple[FileEntry, ...]] = {}
    months: dict[str, tuple[FileEntry, ...]] = {}
    ledger: tuple[FileEntry, ...] = ()
    periods: dict[str, Period] = {}
    """By slab, also of those that no table shows."""
    tables: dict[str, TableInfo] = {}
    problems: tuple[SegmentProblem, ...] = ()
    listings: dict[str, dict[str, int]] = {}
    """By URL of segments: its folders, with the stamp at which everything in them had been seen; 0: not yet."""
    seen: dict[str, Ref] = {}
    """By `written=` folder: the segments that are done with."""


class Sealed(msgspec.Struct, frozen=True):
    """A manifest's file: its bytes, and their hash."""

    sha256: str
    manifest: msgspec.Raw
