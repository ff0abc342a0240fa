"""A process that commits, to be watched: `python written.py FOLDER COMMITS SYNCHRONOUS`.

It says each number on stdout after the commit that holds it returned. Commit n puts task n, hands task n - 1 out, ends
task n - 2 and keeps n as a setting, so that every state but a whole one can be told from it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.rows import PutSetting
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_rows import ASSIGNED, FINISHED, QUEUED, EndTask, LeaseTask, PutTask

CHECKPOINT_PAGES = 60
"""Of the log: small, so that a short run has several checkpoints."""
BIG_BYTES = 9_000
"""Params of every fifth task: they need pages of their own."""


def writes_of(n: int) -> list[object]:
    big = b'"%b"' % (b"x" * (BIG_BYTES if n % 5 == 0 else 10))
    numbers = (0, 0, "", n, n, 0, 0, True, False)
    writes: list[object] = [PutTask(n, f"t{n}", "c", "m", big, 4, QUEUED, *numbers, f"k{n}", b"", b"", b"")]
    if n > 1:
        writes.append(LeaseTask(ASSIGNED, 1, 0, "w", "", 0, n - 1))
    if n > 2:
        writes.append(EndTask(FINISHED, 1, 1, "w", "", 1, n, 1 << 60, b"%d" % (n - 2), b"", b"", n - 2))
    return [*writes, PutSetting("last", b"%d" % n)]


def main(folder: str, commits: int, synchronous: str) -> None:
    store = SqliteStore(Path(folder))
    opened = store.open()
    assert store._writer is not None
    store._writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    store._writer.execute(f"PRAGMA synchronous = {synchronous}")
    journal = Journal("b", opened.last_boot_us + 1, opened.next_seq, opened.last_time_us)
    for n in range(1, commits + 1):
        row = journal.append([SourceAlive("b")], Now(0.0, 1_000.0 + n))
        writes = [*writes_of(n), row]
        store.commit(writes)  # type: ignore[arg-type]
        os.write(1, b"%d\n" % n)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
