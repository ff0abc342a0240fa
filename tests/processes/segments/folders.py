"""Data folders with a journal, and where their events are.

`everything` reads segments and journal by itself, not with the code that it is to judge.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from scale0.history.events.audit import AuditStart
from scale0.history.events.columns import Event
from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.history.events.tasks import TaskSubmitted
from scale0.history.segments.settings import ExporterSettings
from scale0.history.segments.writer import SegmentWriter
from scale0.kernel.clock import Now
from scale0.storage.interface import AUDIT_HEAD, AUDIT_START
from scale0.storage.rows import PutSetting
from scale0.storage.sqlite.store import SqliteStore
from tests.fakes.journals import journal_events

NOON = 1_777_636_800.0
"""2026-05-01 12:00 UTC."""


class Folder:
    def __init__(self, path: Path, source: str = "east-1", wall: float = NOON) -> None:
        self.path = path
        self.source = source
        self.wall = wall
        self.open()

    def open(self) -> None:
        """As a broker does: another boot."""
        self.store = SqliteStore(self.path)
        opened = self.store.open()
        boot = max(int(self.wall * 1e6), opened.last_boot_us + 1)
        head = opened.settings.get(AUDIT_HEAD, b"").decode()
        self.journal = Journal(self.source, boot, opened.next_seq, opened.last_time_us, head)

    def restart(self) -> None:
        self.store.close()
        self.open()

    def enter(self, events: list[Event]) -> None:
        """One turn, a millisecond later."""
        self.wall += 0.001
        head = self.journal.audit_head
        row = self.journal.append(events, Now(0.0, self.wall))
        assert row is not None
        settings = [PutSetting(AUDIT_HEAD, self.journal.audit_head.encode())]
        if self.journal.audit_head and not head:
            settings.append(PutSetting(AUDIT_START, AuditStart("", self.source).encode()))
        self.store.commit([row, *settings])

    def fill(self, turns: int, events: int = 1) -> None:
        for _ in range(turns):
            first = self.journal.next_seq
            self.enter([TaskSubmitted(f"t{first + n}", "thumbs.make", "c", 4) for n in range(events)])

    def beat(self) -> None:
        self.enter([SourceAlive(self.source)])

    def export(self, *, trim: bool = True, **changes: Any) -> None:
        """All of the journal, by a writer of its own; what is in segments is trimmed, as a broker does."""
        with contextlib.closing(SegmentWriter(self.settings(**changes), wall=lambda: self.wall)) as writer:
            for done in writer.export(everything=True):
                if trim:
                    self.store.trim_journal(done.last_seq)

    def settings(self, **changes: Any) -> ExporterSettings:
        usual: dict[str, Any] = {
            "source": self.source,
            "data_dir": str(self.path),
            "destination": str(self.path / "segments"),
            "seconds": 60.0,
            "events": 250_000,
            "keep_days": 0,
        }
        return ExporterSettings(**{**usual, **changes})

    @property
    def last_seq(self) -> int:
        return self.journal.next_seq - 1


def segment_files(place: Path) -> list[Path]:
    """By boot and number."""
    files = place.glob("written=*/seg-*.parquet")
    return sorted(files, key=lambda path: [int(word) for word in path.stem.rsplit("-", 3)[1:]])


def segment_events(place: Path) -> list[dict[str, Any]]:
    return [event for path in segment_files(place) for event in pq.ParquetFile(path).read().to_pylist()]


def everything(data: Path, place: Path | None = None) -> list[int]:
    """The numbers of all events, those in segments and the rest of the journal; none is in two segments."""
    counted = Counter(event["seq"] for event in segment_events(place or data / "segments"))
    assert not [seq for seq, times in counted.items() if times > 1]
    return sorted(counted.keys() | {event["seq"] for event in journal_events(data)})
