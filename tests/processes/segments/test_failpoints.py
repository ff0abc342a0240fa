"""kill -9 of the writer at every step of a segment: each event is in exactly one segment, or still in the journal.

Promise: SEG-1
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from scale0.history.segments.writer import FAILPOINTS
from tests.fakes.journals import journal_events
from tests.processes.segments import doomed
from tests.processes.segments.folders import Folder, everything, segment_events

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def export(folder: Folder, point: str = "never", nth: int = 1) -> int:
    """One life of a writer; its owner trims what it said, as a broker does."""
    settings = msgspec.json.encode(folder.settings(events=20)).decode()
    done = subprocess.run(
        [sys.executable, doomed.__file__, settings, point, str(nth)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    for line in done.stdout.decode().splitlines():
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
