"""The store in SQLite: the default, one file in the data folder.

Lives here: `SqliteStore`. It touches files, and it alone outside `io` does. Never here: a decision about what to
store. Invariants: WAL with synchronous=FULL, one transaction per commit, so a commit that returned survives the loss
of power; after a commit that failed nothing is written any more.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage.check_rows import CheckQuery
from scale0.storage.data_dir import FILE_MODE, acquire_lock, make_directory, sync_directory
from scale0.storage.interface import CHECK_WRITES, OpenedStore, StoreFailed, StoreRefused, check_writes, hit_failpoint
from scale0.storage.rows import (
    MAX_INTEGER,
    Answer,
    DocumentRow,
    DropSetting,
    DropToken,
    PutDocument,
    PutSetting,
    PutToken,
    Query,
    ReadDocument,
    ReadDocuments,
    ReadJournal,
    TokenRow,
    Write,
    bounded,
)
from scale0.storage.sqlite.checks import answer_checks, apply_checks
from scale0.storage.sqlite.schema import migrate, refuse_strange
from scale0.storage.sqlite.task_queries import answer_tasks
from scale0.storage.sqlite.tasks import TASK_STATEMENTS, apply_writes, open_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DATABASE_NAME: Final = "scale0.db"

BUSY_SECONDS: Final = 5.0
"""How long a commit waits for somebody who looks at the database with another program."""

QUICK_CHECK_BYTES: Final = 256 * 1024 * 1024
"""A database up to this size is checked whole when it is opened; a larger one would keep its clients waiting."""

CHECKPOINT_PAGES: Final = 4_000
"""Of the log, 16 MiB, before it is written back: pages that change often are written back once, and commits that have
to wait for it are rare."""

MIN_SQLITE: Final = (3, 37)
"""The first that has STRICT tables."""

_STATEMENTS: Final[dict[type, str]] = {
    JournalRow: "INSERT INTO journal VALUES (?, ?, ?, ?, ?)",
    PutSetting: "INSERT INTO settings VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    DropSetting: "DELETE FROM settings WHERE key = ?",
    PutToken: "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?)",
    DropToken: "DELETE FROM tokens WHERE digest = ?",
    **TASK_STATEMENTS,
}
"""One statement per class whose fields are its parameters in order; documents need two."""

_PUT_DOCUMENT: Final = (
    "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (version, hash) DO UPDATE SET current = max(current, excluded.current)"
)

_CURRENT_DOCUMENT: Final = """
    SELECT version, hash, parent, body, time_us, current, author FROM documents WHERE current = 1"""
_NEWEST_DOCUMENTS: Final = """
    SELECT version, hash, parent, body, time_us, current, author FROM documents
    ORDER BY version DESC, hash DESC LIMIT ?"""
_OLDER_DOCUMENTS: Final = """
    SELECT version, hash, parent, body, time_us, current, author FROM documents
    WHERE (version, hash) < (?, ?) ORDER BY version DESC, hash DESC LIMIT ?"""
_ONE_DOCUMENT: Final = """
    SELECT version, hash, parent, body, time_us, current, author FROM documents
    WHERE version = :version AND (:hash IS NULL OR hash = :hash) ORDER BY current DESC, hash DESC LIMIT 1"""

# The row that holds an event is the last that begins at or before it: the key finds it without a scan.
_JOURNAL: Final = """
    SELECT first_seq, last_seq, boot, time_us, body FROM journal
    WHERE first_seq >= coalesce((SELECT max(first_seq) FROM journal WHERE first_seq <= :after), 0)
    AND last_seq > :after ORDER BY first_seq LIMIT :limit"""


class SqliteStore:
    """One data folder, held by one process. Commits, reads and looks have a connection each, and each any thread."""

    def __init__(self, data_dir: Path, failpoint: Callable[[str], None] | None = None) -> None:
        self._folder = data_dir
        self._path = data_dir / DATABASE_NAME
        self._failpoint = failpoint
        self._lock: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._looker: sqlite3.Connection | None = None
        self._next_seq = 0
        self._failed = False

    def open(self) -> OpenedStore:
        if self._lock is not None:
            raise StoreRefused("this store is open already")
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; use a Python with 3.37 or later")
        make_directory(self._folder)
        self._lock = acquire_lock(self._folder)
        try:
            self._prepare_file()
            self._writer = writer = self._connect()
            refuse_strange(writer)
            self._quick_check(writer)
            if writer.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StoreRefused(f"{self._path} cannot have a write-ahead log there; use a local disk")
            migrate(writer)
            opened = _open_tail(writer)
            self._reader = self._connect_to_read()
            self._looker = self._connect_to_read()
        except sqlite3.Error as error:
            self.close()
            raise self._unreadable(error) from error
        except OSError as error:
            self.close()
            raise StoreRefused(f"cannot write {self._path}: {error.strerror}; check who owns it") from error
        except BaseException:
            self.close()
            raise
        self._next_seq = opened.next_seq
        return opened

    def _prepare_file(self) -> None:
        """SQLite would make the file with the umask's mode; its companions take the mode of the file."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        os.close(descriptor)
        sync_directory(self._folder)

    def _connect(self) -> sqlite3.Connection:
        # The runner promises one thread at a time; isolation None because every BEGIN here is said.
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    def _connect_to_read(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _quick_check(self, connection: sqlite3.Connection) -> None:
        if self._path.stat().st_size > QUICK_CHECK_BYTES:
            return
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(" ".join(found.split()))

    def _unreadable(self, error: sqlite3.Error) -> StoreRefused:
        if isinstance(error, sqlite3.OperationalError):
            return StoreRefused(f"cannot use {self._path}: {error}; check the disk, its room and who owns the file")
        return StoreRefused(
            f"{self._path} is damaged: {error}; nothing was changed. Keep a copy of the folder, then bring back a"
            " backup of it, or start with another data_dir"
        )

    def commit(self, writes: Sequence[Write]) -> None:
        writer = self._writer
        if self._failed or writer is None:
            raise StoreFailed("the store is not open, or an earlier commit failed")
        next_seq = check_writes(writes, self._next_seq)
        try:
            hit_failpoint(self._failpoint, "before_begin")
            writer.execute("BEGIN IMMEDIATE")
            _apply_all(writer, writes)
            hit_failpoint(self._failpoint, "after_writes")
            hit_failpoint(self._failpoint, "before_commit")
            writer.execute("COMMIT")
        except BaseException as error:
            # Nothing is tried again: after a failed fsync the system may call lost pages clean.
            self._fail()
            if isinstance(error, sqlite3.Error | OverflowError):
                raise StoreFailed(
                    f"cannot commit to {self._path}: {error}; check the disk, then start again"
                ) from error
            raise
        self._next_seq = next_seq
        hit_failpoint(self._failpoint, "after_commit")

    def _fail(self) -> None:
        self._failed = True
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writer.rollback()

    def read(self, ask: Query) -> Answer:
        return self._ask(self._reader, ask)

    def read_all(self, asks: Sequence[Query]) -> list[Answer]:
        return [self.read(ask) for ask in asks]

    def scan(self, ask: Query) -> Answer:
        return self._ask(self._looker, ask)

    def _ask(self, reader: sqlite3.Connection | None, ask: Query) -> Answer:
        if reader is None:
            raise StoreRefused("the store is not open")
        try:
            return _answer(reader, ask)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def trim_journal(self, up_to_seq: int) -> None:
        writer = self._writer
        if self._failed or writer is None:
            raise StoreFailed("the store is not open, or an earlier commit failed")
        try:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(
                "UPDATE tail SET (next_seq, last_time_us, last_boot_us) = (last_seq + 1, time_us, boot)"
                " FROM (SELECT last_seq, time_us, boot FROM journal ORDER BY first_seq DESC LIMIT 1)"
            )
            # Rows do not overlap, so the order of the first numbers is that of the last: the key finds the end.
            writer.execute(
                "DELETE FROM journal WHERE first_seq <= ? AND last_seq <= ?",
                (up_to_seq, up_to_seq),
            )
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail()
            raise StoreFailed(f"cannot trim the journal in {self._path}: {error}; check the disk") from error

    def free_bytes(self) -> int:
        try:
            room = os.statvfs(self._folder)
        except OSError as error:
            raise StoreRefused(f"cannot look at the data folder {self._folder}: {error.strerror}") from error
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        for connection in (self._looker, self._reader, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._looker = self._reader = self._writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _open_tail(writer: sqlite3.Connection) -> OpenedStore:
    """Count this opening, put on the shelf what nobody holds any more, and read what a broker starts from."""
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE tail SET boots = boots + 1")
    next_task_seq, leased = open_tasks(writer)
    writer.execute("COMMIT")
    next_seq, last_time_us, last_boot_us, boots = writer.execute(
        "SELECT next_seq, last_time_us, last_boot_us, boots FROM tail"
    ).fetchone()
    last = writer.execute("SELECT last_seq + 1, time_us, boot FROM journal ORDER BY first_seq DESC LIMIT 1").fetchone()
    if last is not None:
        next_seq, last_time_us, last_boot_us = last
    document = writer.execute(_CURRENT_DOCUMENT).fetchone()
    return OpenedStore(
        settings=dict(writer.execute("SELECT key, value FROM settings")),
        document=None if document is None else _document(document),
        tokens=tuple(TokenRow(*row) for row in writer.execute("SELECT * FROM tokens ORDER BY digest")),
        next_seq=next_seq,
        last_time_us=last_time_us,
        last_boot_us=last_boot_us,
        boots=boots,
        next_task_seq=next_task_seq,
        leased=leased,
        open_tasks=writer.execute("SELECT count(*) FROM open_tasks").fetchone()[0],
    )


def _apply_all(writer: sqlite3.Connection, writes: Sequence[Write]) -> None:
    about_checks: Any = [write for write in writes if type(write) in CHECK_WRITES]
    if about_checks:
        apply_checks(writer, about_checks)
        writes = [write for write in writes if type(write) not in CHECK_WRITES]
    apply_writes(writer, writes, _apply)


def _apply(writer: sqlite3.Connection, kind: type, group: Any) -> None:
    """Write neighbours of one class together."""
    if kind is PutDocument:
        for write in group:
            if write.current:
                writer.execute("UPDATE documents SET current = 0 WHERE current = 1")
            writer.execute(_PUT_DOCUMENT, msgspec.structs.astuple(write))
    else:
        writer.executemany(_STATEMENTS[kind], map(msgspec.structs.astuple, group))


def _document(row: tuple[Any, ...]) -> DocumentRow:
    version, name, parent, body, time_us, current, author = row
    return DocumentRow(version, name, parent, body, time_us, bool(current), author)


def _answer(reader: sqlite3.Connection, ask: Query) -> Answer:
    match ask:
        case ReadDocuments(limit, before, name):
            if before is None or before > MAX_INTEGER:
                rows = reader.execute(_NEWEST_DOCUMENTS, (bounded(limit),))
            else:
                rows = reader.execute(_OLDER_DOCUMENTS, (max(before, 0), name, bounded(limit)))
            return tuple(map(_document, rows))
        case ReadDocument(version, exact):
            if not 0 <= version <= MAX_INTEGER:
                return None
            found = reader.execute(_ONE_DOCUMENT, {"version": version, "hash": exact}).fetchone()
            return None if found is None else _document(found)
        case ReadJournal(after_seq, limit):
            after_seq = max(0, min(after_seq, MAX_INTEGER))
            rows = reader.execute(_JOURNAL, {"after": after_seq, "limit": bounded(limit)})
            return tuple(JournalRow(*row) for row in rows)
        case _ if isinstance(ask, CheckQuery):
            return answer_checks(reader, ask)
        case _:
            return answer_tasks(reader, ask)
