"""A process that commits and dies at a failpoint: `python killed.py FOLDER POINT NTH`.

It says each seq on stdout after the commit that holds it returned: what it said must be there afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.rows import PutSetting, PutToken, Write
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_rows import ASSIGNED
from tests.unit.storage.task_model import end, lease, put

COMMITS = 6


def main(folder: str, point: str, nth: int) -> None:
    hits = 0

    def die(name: str) -> None:
        nonlocal hits
        hits += name == point
        if hits == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqliteStore(Path(folder), failpoint=die)
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
