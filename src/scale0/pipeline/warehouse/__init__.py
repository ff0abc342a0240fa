"""The warehouse: what the pipeline keeps, and the one manifest that says what counts.

Reading order: `records` (what a manifest says), `warehouse` (the folder), `attempt` (files of one run), `draft` (an
edit of the newest manifest), `commit` (the fence), `places` and `listing` (which segments are new), `inspection`
(which are good), `adoption` and `overlap` (each event once), `compaction`, `merging`, `retention` and `collection`
(what goes).
Never here: Spark, or what a table means. Invariants: a reader sees all tables before a run or all tables after it; a
file that a manifest names is never changed; nothing of the segments' own folder is ever changed.
"""

from __future__ import annotations

from scale0.pipeline.warehouse.adoption import Taken, adopt, take_in
from scale0.pipeline.warehouse.attempt import Attempt
from scale0.pipeline.warehouse.compaction import compact, compact_events
from scale0.pipeline.warehouse.draft import Draft
from scale0.pipeline.warehouse.entries import Listed
from scale0.pipeline.warehouse.faults import Broken, Busy, Fenced, WarehouseError
from scale0.pipeline.warehouse.horizon import horizon
from scale0.pipeline.warehouse.inspection import inspect_segments
from scale0.pipeline.warehouse.listing import list_segments
from scale0.pipeline.warehouse.merging import compact_pulses, compact_slabs
from scale0.pipeline.warehouse.records import (
    Chapter,
    ChapterRef,
    EventsFile,
    FileEntry,
    Manifest,
    Problem,
    SlabInfo,
    TableInfo,
)
from scale0.pipeline.warehouse.retention import retention
from scale0.pipeline.warehouse.warehouse import FAILPOINTS, Warehouse

__all__ = [
    "FAILPOINTS",
    "Attempt",
    "Broken",
    "Busy",
    "Chapter",
    "ChapterRef",
    "Draft",
    "EventsFile",
    "Fenced",
    "FileEntry",
    "Listed",
    "Manifest",
    "Problem",
    "SlabInfo",
    "TableInfo",
    "Taken",
    "Warehouse",
    "WarehouseError",
    "adopt",
    "compact",
    "compact_events",
    "compact_pulses",
    "compact_slabs",
    "horizon",
    "inspect_segments",
    "list_segments",
    "retention",
    "take_in",
]
