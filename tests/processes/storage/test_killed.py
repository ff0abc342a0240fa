"""kill -9 at every step of a commit: what was acknowledged is there, whole, and nothing is there twice."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from scale0.history.events.journal import Journal, JournalRow, read
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.interface import FAILPOINTS, OpenedStore
from scale0.storage.rows import PutSetting, PutToken, ReadJournal, Write
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_queries import ListTasks, TaskPage
from scale0.storage.task_rows import ASSIGNED, FINISHED, QUEUED
from tests.fakes.killed import kill_at, run_program
from tests.unit.storage.task_model import end, lease, put

COMMITS = 6


def main(folder: str, point: str, nth: int) -> None:
    """In a process that is killed at a failpoint: print each seq after the commit that holds it returned."""
    store = SqliteStore(Path(folder), failpoint=kill_at(point, nth))
    opened = store.open()
    journal = Journal("east-1", opened.last_boot_us + 1, opened.next_seq, opened.last_time_us)
    for _ in range(COMMITS):
        entry = journal.append([SourceAlive("east-1"), SourceAlive("east-1")], Now(0.0, 1000.0))
        assert entry is not None
        last = entry.last_seq
        tasks: list[Write] = [put(last), put(last + 1, status=ASSIGNED)]
        if last > 2:
            tasks += [end(last - 2, history=b"[%d]" % last), lease(last - 1, attempt=last)]
        store.commit([PutSetting("last", b"%d" % last), PutToken(f"t{last}", "n", "frontend", last), entry, *tasks])
        os.write(1, b"%d\n" % last)


def run_and_die(folder: Path, point: str, nth: int) -> list[int]:
    """The seqs that were acknowledged before the process died."""
    child = run_program("tests.processes.storage.test_killed", folder, point, nth)
    assert child.returncode == -signal.SIGKILL, child.stderr
    return [int(line) for line in child.stdout.split()]


def recovered(folder: Path) -> tuple[OpenedStore, list[JournalRow], TaskPage]:
    store = SqliteStore(folder)
    opened = store.open()
    rows = store.read(ReadJournal(0, 1000))
    tasks = store.scan(ListTasks(1000))
    store.close()
    assert isinstance(rows, tuple)
    assert isinstance(tasks, TaskPage)
    return opened, [row for row in rows if isinstance(row, JournalRow)], tasks


def as_committed(lasts: list[int]) -> dict[int, tuple[int, int, bytes]]:
    """The status, attempt and history of each task, if these commits were made and no other."""
    out: dict[int, tuple[int, int, bytes]] = {}
    for last in lasts:
        out |= {last: (QUEUED, 0, b""), last + 1: (ASSIGNED, 0, b"")}
        if last > 2:
            out |= {last - 2: (FINISHED, 1, b"[%d]" % last), last - 1: (ASSIGNED, last, b"")}
    return out


# Promise: STORE-1
@pytest.mark.processes
@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", FAILPOINTS)
def test_what_was_acknowledged_survives_kill_9_at_every_failpoint(tmp_path, point, nth):
    folder = tmp_path / "data"
    last_acknowledged = 0
    for boot in (1, 2):  # it dies, and dies again after a recovery
        acknowledged = run_and_die(folder, point, nth)
        last_acknowledged = acknowledged[-1] if acknowledged else last_acknowledged
        opened, rows, page = recovered(folder)
        seqs = [event["seq"] for row in rows for event in read(row.body)]
        assert seqs == list(range(1, opened.next_seq))
        assert opened.next_seq - 1 >= last_acknowledged
        # Only the commit in flight may be there without an acknowledgement.
        expected = last_acknowledged + (2 if point == "after_commit" else 0)
        assert opened.next_seq - 1 == expected
        # The rest of each commit is there with its journal row, and of no other.
        lasts = [row.last_seq for row in rows]
        assert opened.settings == ({"last": b"%d" % lasts[-1]} if lasts else {})
        assert {token.expires_us for token in opened.tokens} == set(lasts)
        assert {task.seq: (task.status, task.attempt, task.history) for task in page.tasks} == as_committed(lasts)
        assert opened.next_task_seq == (lasts[-1] + 2 if lasts else 1)
        assert [task.seq for task in opened.leased] == [last + 1 for last in lasts]
        assert opened.boots == 2 * boot
        last_acknowledged = opened.next_seq - 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
