"""Loss of power at every write of the store: what was acknowledged is there, whole, and the database opens.

The writes are those of the real store, recorded by strace: a VFS of another SQLite library would record that library's
habits, not those of the one that brokers use.
"""

# Promise: TASK-11
from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0.kernel.errors import StoreError
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_queries import FindTasks
from scale0.storage.task_rows import ASSIGNED, FINISHED, QUEUED
from tests.fakes.processes import environment
from tests.processes.crash import written
from tests.processes.crash.disk import FOLDER, Op, crash_states, read_trace, strace

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

COMMITS = 60
STATES = 1_200
SEED = 20


def record(folder: Path, synchronous: str) -> list[Op]:
    """What the store does with its files in a short life."""
    log = folder / "trace"
    script = [sys.executable, written.__file__, str(folder / FOLDER), str(COMMITS), synchronous]
    done = subprocess.run([*strace(log), *script], capture_output=True, check=False, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return read_trace(log)


def recovered(folder: Path, files: dict[str, bytes]) -> int:
    """The last commit that a store opened on these files knows, and knows as a whole."""
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    store = SqliteStore(folder)
    opened = store.open()
    last = int(opened.settings.get("last", b"0"))
    assert opened.next_seq == last + 1
    assert opened.next_task_seq == last + 1
    rows: Any = store.read(FindTasks(tuple(f"t{n}" for n in range(1, last + 2))))
    store.close()
    statuses = [row.status for row in rows[:-1]]
    assert statuses == ([FINISHED] * (last - 2) + [ASSIGNED, QUEUED])[-last:] if last else not statuses
    assert all(row.result == b"%d" % row.seq for row in rows[: max(0, last - 2)])
    assert rows[-1] is None
    return last


def lost(ops: list[Op], folder: Path, most: int) -> Iterator[str]:
    """What is missing after a crash at every operation, and after `most` more by chance."""
    for acknowledged, files in crash_states(ops, most, random.Random(SEED)):
        try:
            last = recovered(folder, files)
        except (StoreError, AssertionError) as error:
            yield f"after {acknowledged}: {error}"
            continue
        if not acknowledged <= last <= acknowledged + 1:
            yield f"{acknowledged} was acknowledged, {last} is there"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Where a store is opened on what a crash left: in memory, since a slow disk adds nothing but time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def test_a_loss_of_power_at_any_write_loses_nothing_that_was_acknowledged(tmp_path, disk):
    ops = record(tmp_path, "FULL")
    assert sum(op.kind == "say" for op in ops) == COMMITS
    assert sum(op.kind == "write" and op.file == "scale0.db" for op in ops) > 50, "it has checkpoints"
    assert list(lost(ops, disk, STATES)) == []


@pytest.mark.extended
def test_the_test_sees_a_store_that_acknowledges_too_early(tmp_path, disk):
    """With synchronous=NORMAL the log is not synced at a commit: acknowledged commits are lost, and that is seen."""
    found = list(lost(record(tmp_path, "NORMAL"), disk, STATES // 4))
    assert len(found) > STATES // 40, found
    assert any("was acknowledged" in each for each in found)
