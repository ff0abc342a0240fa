"""Check the database of a data directory, and continue without commits that it lost."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Final

from scale0.storage.check import Show, StoreReport, check_store
from scale0.storage.data_dir import DirectoryLock
from scale0.storage.interface import StoreRefused
from scale0.storage.sqlite.commit_mark import MARK_NAME, CommitMark, CommitNumbers, MarkDamaged
from scale0.storage.sqlite.schema import STORE_VERSION, check_owner, migrate, stored_version
from scale0.storage.sqlite.store import DATABASE_NAME, connect_read_only, lost_commits, mark_beside, read_numbers

if TYPE_CHECKING:
    from pathlib import Path

LOST_SEQS: Final = 2**32
"""Numbers of tasks that are skipped after a loss: a lost task may have had any of them."""
MAX_PAGE_ERRORS: Final = 100

_JOURNAL: Final = "SELECT 0, first_seq, last_seq, body FROM journal ORDER BY first_seq"
_SKIP: Final = f"""
    UPDATE tail SET commits = max(commits, ?), next_seq = max(next_seq, ?),
        next_task_seq = {LOST_SEQS} + max(next_task_seq,
        coalesce((SELECT max(seq) FROM open_tasks), 0), coalesce((SELECT max(seq) FROM ended_tasks), 0))"""


def check_database(data_dir: Path, show: Show) -> StoreReport:
    """Check everything; the broker may be running."""
    report = StoreReport()
    path = data_dir / DATABASE_NAME
    try:
        with contextlib.closing(connect_read_only(path)) as connection:
            check_owner(connection)
            if stored_version(connection) != STORE_VERSION:
                raise StoreRefused(f"{path} is of another version: start its broker with this version first")
            mark = None
            try:
                mark = mark_beside(connection, data_dir)  # before the snapshot: the file goes on with each commit
            except MarkDamaged as error:
                report.add("database", "-", str(error))
            connection.execute("BEGIN")
            for (problem,) in connection.execute(f"PRAGMA integrity_check({MAX_PAGE_ERRORS})"):
                if problem != "ok":
                    report.add("database", "-", " ".join(problem.split()))
            lost = lost_commits(connection, mark)
            if lost is not None:
                report.add("database", "-", f"it lacks {lost}")
            check_store(connection.execute, _JOURNAL, report, show)
    except sqlite3.Error as error:
        # What damaged pages hide cannot be read any further.
        report.add("database", "-", f"{path} cannot be read: {error}")
    return report


def accept_loss(data_dir: Path) -> str | None:
    """Let the next start continue without the commits that are missing: what they are; None: nothing is missing."""
    path = data_dir / DATABASE_NAME
    lock = DirectoryLock(data_dir)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            check_owner(connection)
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise StoreRefused(f"{path} is empty: restore it, or delete {data_dir / MARK_NAME} to begin anew")
            lost, mark = _lost(connection, data_dir)
            if lost is None or mark is None:
                return None
            migrate(connection)  # the loss may include migrations
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SKIP, (mark.commits, mark.next_seq))
            connection.execute("COMMIT")
            # The numbers are in the database now: a damaged file is of no use any more.
            (data_dir / MARK_NAME).unlink()
            CommitMark(data_dir / MARK_NAME).close()
    except sqlite3.Error as error:
        raise StoreRefused(f"cannot change {path}: {error}") from error
    except OSError as error:
        raise StoreRefused(f"cannot change {error.filename or data_dir}: {error.strerror}") from error
    finally:
        lock.close()
    return lost


def _lost(connection: sqlite3.Connection, data_dir: Path) -> tuple[str | None, CommitNumbers | None]:
    """What the database lacks, in words, and the numbers after it."""
    try:
        mark = mark_beside(connection, data_dir)
    except MarkDamaged:
        return "the commits that it lacks, if any: their number is not known", read_numbers(connection)
    return lost_commits(connection, mark), mark
