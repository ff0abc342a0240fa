"""Data folders that a test writes to, and reading them through a subscriber."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from scale0.history.segments.reader import EventFilter
from scale0.history.segments.writer import SegmentWriter
from scale0.http.events.stream import StreamItem, StreamSubscriber
from tests.fakes.waiting import PATIENCE_SECONDS
from tests.processes.segments.folders import Folder

ALL = EventFilter()


def folder_at(path: Path, source: str = "east-1") -> Folder:
    return Folder(path, source, wall=time.time())


def export(folder: Folder, trim: bool = True, events: int = 40) -> None:
    writer = SegmentWriter(folder.settings(events=events), wall=lambda: folder.wall)
    for done in writer.export(everything=True):
        if trim:
            folder.store.trim_journal(done.last_seq)
    writer.close()


async def taken(subscriber: StreamSubscriber, count: int) -> list[StreamItem]:
    found: list[StreamItem] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and not subscriber.is_over:
        assert time.monotonic() < until, f"{len(found)} of {count} came"
        found += await subscriber.take(1.0)
    return found


async def rest_of(subscriber: StreamSubscriber, folders: list[Folder]) -> list[StreamItem]:
    """Everything up to the newest event of all folders."""
    found: list[StreamItem] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while (
        any(subscriber.queued_position.get(one.source, 0) < one.last_seq for one in folders) or not subscriber.is_live
    ):
        assert time.monotonic() < until, subscriber.id
        found += await subscriber.take(0.1)
    return found + await subscriber.take(0.0)


def seqs(items: list[StreamItem], source: str | None = None) -> list[int]:
    found: list[dict[str, Any]] = [json.loads(one.data) for one in items if one.kind == "event"]
    return [event["seq"] for event in found if source is None or event["source"] == source]
