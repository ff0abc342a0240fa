"""kill -9 of the writer at every step of a segment: each event is in exactly one segment, or still in the journal.

Promise: SEG-1
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec
import pytest

from scale0.history.segments.settings import ExporterSettings
from scale0.history.segments.writer import FAILPOINTS, SegmentWriter
from tests.fakes.journals import journal_events
from tests.fakes.killed import kill_at, run_program
from tests.processes.segments.folders import Folder, everything, segment_events

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def main(settings: str, point: str, nth: int) -> None:
    """In a process that is killed at a failpoint: export the journal, and print what is safe, as the real one does."""
    decoded = msgspec.json.decode(settings.encode(), type=ExporterSettings)
    writer = SegmentWriter(decoded, failpoint=kill_at(point, nth))
    for done in writer.export(everything=True):
        os.write(1, f"{done.first_seq} {done.last_seq}\n".encode())


def export(folder: Folder, point: str = "never", nth: int = 1) -> int:
    """One run of a writer; its owner trims what it reported, as a broker does."""
    settings = msgspec.json.encode(folder.settings(events=20)).decode()
    done = run_program("tests.processes.segments.test_failpoints", settings, point, nth)
    for line in done.stdout.splitlines():
        folder.store.trim_journal(int(line.split()[1]))
    return done.returncode


def test_no_kill_at_any_step_loses_or_doubles_an_event(tmp_path):
    folder = Folder(tmp_path / "data")
    died = 0
    for nth in (1, 2):
        for point in FAILPOINTS:
            folder.fill(25, events=2)
            folder.restart()
            folder.fill(3)
            died += export(folder, point, nth) == -signal.SIGKILL
            assert everything(folder.path) == list(range(1, folder.last_seq + 1)), (point, nth)
    assert died == 2 * len(FAILPOINTS), "the test is not about nothing"
    assert export(folder) == 0
    assert journal_events(folder.path) == []
    assert [event["seq"] for event in segment_events(folder.path / "segments")] == list(range(1, folder.last_seq + 1))
    assert list((folder.path / "segments").rglob(".*")) == []
    folder.store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
