"""The store in SQLite: the default, one file in the data directory.

It uses WAL with synchronous=FULL and one transaction per commit, so a commit that returned survives a power loss. After
a failed commit it writes nothing any more.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage import rows
from scale0.storage.data_dir import FILE_MODE, acquire_lock, free_bytes, make_directory, sync_directory
from scale0.storage.interface import (
    CHECK_WRITES,
    Handlers,
    OpenedStore,
    StoreFailed,
    StoreRefused,
    check_writes,
    dispatch,
    hit_failpoint,
)
from scale0.storage.rows import MAX_INTEGER, Answer, DocumentRow, Query, TokenRow, Write, bounded
from scale0.storage.sqlite.checks import CHECK_ANSWERS, apply_checks
from scale0.storage.sqlite.schema import check_owner, migrate
from scale0.storage.sqlite.task_queries import TASK_ANSWERS
from scale0.storage.sqlite.tasks import TASK_STATEMENTS, apply_writes, placeholders, start_tasks

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_NAME: Final = "scale0.db"

BUSY_SECONDS: Final = 5.0
"""How long a commit waits for another program that reads the database."""

QUICK_CHECK_BYTES: Final = 256 * 1024 * 1024
"""A database up to this size is checked completely when it is opened; for a larger one the start would take long."""

CHECKPOINT_PAGES: Final = 4_000
"""The size of the write-ahead log, 16 MiB, before a checkpoint: pages that change often are written once, and few
commits wait for a checkpoint."""

MIN_SQLITE: Final = (3, 37)
"""The first version with STRICT tables."""

_STATEMENTS: Final[dict[type, str]] = {
    JournalRow: "INSERT INTO journal VALUES (?, ?, ?, ?, ?)",
    rows.PutSetting: "INSERT INTO settings VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    rows.DropSetting: "DELETE FROM settings WHERE key = ?",
    rows.PutToken: "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?)",
    rows.DropToken: "DELETE FROM tokens WHERE digest = ?",
    **TASK_STATEMENTS,
}
"""By class: the statement whose parameters are the fields in order; documents need two."""

_PUT_DOCUMENT: Final = f"""
    INSERT INTO documents VALUES {placeholders(len(DocumentRow.__struct_fields__))}
    ON CONFLICT (version, hash) DO UPDATE SET current = max(current, excluded.current)"""

_DOCUMENT: Final = f"SELECT {', '.join(DocumentRow.__struct_fields__)} FROM documents"
_CURRENT_DOCUMENT: Final = f"{_DOCUMENT} WHERE current = 1"
_NEWEST_DOCUMENTS: Final = f"{_DOCUMENT} ORDER BY version DESC, hash DESC LIMIT ?"
_OLDER_DOCUMENTS: Final = f"{_DOCUMENT} WHERE (version, hash) < (?, ?) ORDER BY version DESC, hash DESC LIMIT ?"
_ONE_DOCUMENT: Final = f"""{_DOCUMENT}
    WHERE version = :version AND (:hash IS NULL OR hash = :hash) ORDER BY current DESC, hash DESC LIMIT 1"""

# The row of an event is the last that begins at or before it: the key finds it without a scan.
_JOURNAL: Final = """
    SELECT first_seq, last_seq, boot, time_us, body FROM journal
    WHERE first_seq >= coalesce((SELECT max(first_seq) FROM journal WHERE first_seq <= :after), 0)
    AND last_seq > :after ORDER BY first_seq LIMIT :limit"""


class SqliteStore:
    """One data directory, locked by one process. Commits, reads and scans have a connection each, on any thread."""

    def __init__(self, data_dir: Path, failpoint: Callable[[str], None] | None = None) -> None:
        self._data_dir = data_dir
        self._path = data_dir / DATABASE_NAME
        self._failpoint = failpoint
        self._lock: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._scanner: sqlite3.Connection | None = None
        self._next_seq = 0
        self._failed = False

    def open(self) -> OpenedStore:
        if self._lock is not None:
            raise StoreRefused("this store is already open")
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; use a Python with SQLite 3.37 or later")
        make_directory(self._data_dir)
        self._lock = acquire_lock(self._data_dir)
        try:
            self._prepare_file()
            self._writer = writer = self._connect()
            check_owner(writer)
            self._quick_check(writer)
            if writer.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StoreRefused(f"{self._path} cannot have a write-ahead log on this file system; use a local disk")
            migrate(writer)
            opened = _open(writer)
            self._reader = self._connect_to_read()
            self._scanner = self._connect_to_read()
        except sqlite3.Error as error:
            self.close()
            raise self._unreadable(error) from error
        except OSError as error:
            self.close()
            raise StoreRefused(f"cannot write {self._path}: {error.strerror}; check its owner") from error
        except BaseException:
            self.close()
            raise
        self._next_seq = opened.next_seq
        return opened

    def _prepare_file(self) -> None:
        """SQLite would create the file with the mode of the umask; its companion files take the mode of the file."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        os.close(descriptor)
        sync_directory(self._data_dir)

    def _connect(self) -> sqlite3.Connection:
        # The caller uses one thread at a time; with isolation_level None every BEGIN is explicit.
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
            return StoreRefused(
                f"cannot use {self._path}: {error}; check the disk, its free space and the owner of the file"
            )
        return StoreRefused(
            f"{self._path} is damaged: {error}; nothing was changed. Copy the data directory, then restore a"
            " backup, or start with another data_dir"
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
            # There is no retry: after a failed fsync the kernel may consider lost pages clean.
            self._fail()
            if isinstance(error, sqlite3.Error | OverflowError):
                raise StoreFailed(f"cannot commit to {self._path}: {error}; check the disk, then restart") from error
            raise
        self._next_seq = next_seq
        hit_failpoint(self._failpoint, "after_commit")

    def _fail(self) -> None:
        self._failed = True
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writer.rollback()

    def read(self, query: Query) -> Answer:
        return self._answer(self._reader, query)

    def read_all(self, queries: Sequence[Query]) -> list[Answer]:
        return [self.read(query) for query in queries]

    def scan(self, query: Query) -> Answer:
        return self._answer(self._scanner, query)

    def _answer(self, reader: sqlite3.Connection | None, query: Query) -> Answer:
        if reader is None:
            raise StoreRefused("the store is not open")
        try:
            reader.execute("BEGIN")
            try:
                answer: Answer = dispatch(_ANSWERS, reader, query)
                return answer
            finally:
                reader.rollback()  # SQLite may have ended the transaction already
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
            # Rows do not overlap, so both columns have the same order, and the key finds the end.
            writer.execute(
                "DELETE FROM journal WHERE first_seq <= ? AND last_seq <= ?",
                (up_to_seq, up_to_seq),
            )
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail()
            raise StoreFailed(f"cannot trim the journal in {self._path}: {error}; check the disk") from error

    def free_bytes(self) -> int:
        return free_bytes(self._data_dir)

    def close(self) -> None:
        for connection in (self._scanner, self._reader, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._scanner = self._reader = self._writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _open(writer: sqlite3.Connection) -> OpenedStore:
    """Count this start, move unheld tasks to the stored backlog, and read what a broker starts from."""
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE tail SET boots = boots + 1")
    next_task_seq, leased = start_tasks(writer)
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
    check_rows: Any = [write for write in writes if type(write) in CHECK_WRITES]
    if check_rows:
        apply_checks(writer, check_rows)
        writes = [write for write in writes if type(write) not in CHECK_WRITES]
    apply_writes(writer, writes, _apply)


def _apply(writer: sqlite3.Connection, kind: type, group: Any) -> None:
    """Apply consecutive writes of one class together."""
    if kind is rows.PutDocument:
        for write in group:
            if write.current:
                writer.execute("UPDATE documents SET current = 0 WHERE current = 1")
            writer.execute(_PUT_DOCUMENT, msgspec.structs.astuple(write))
    else:
        writer.executemany(_STATEMENTS[kind], map(msgspec.structs.astuple, group))


def _document(row: tuple[Any, ...]) -> DocumentRow:
    document = DocumentRow(*row)
    return msgspec.structs.replace(document, current=bool(document.current))


def _read_documents(reader: sqlite3.Connection, query: rows.ReadDocuments) -> tuple[DocumentRow, ...]:
    if query.before_version is None or query.before_version > MAX_INTEGER:
        rows = reader.execute(_NEWEST_DOCUMENTS, (bounded(query.limit),))
    else:
        values = (max(query.before_version, 0), query.before_hash, bounded(query.limit))
        rows = reader.execute(_OLDER_DOCUMENTS, values)
    return tuple(map(_document, rows))


def _read_document(reader: sqlite3.Connection, query: rows.ReadDocument) -> DocumentRow | None:
    if not 0 <= query.version <= MAX_INTEGER:
        return None
    row = reader.execute(_ONE_DOCUMENT, {"version": query.version, "hash": query.hash}).fetchone()
    return None if row is None else _document(row)


def _read_journal(reader: sqlite3.Connection, query: rows.ReadJournal) -> tuple[JournalRow, ...]:
    after_seq = max(0, min(query.after_seq, MAX_INTEGER))
    rows = reader.execute(_JOURNAL, {"after": after_seq, "limit": bounded(query.limit)})
    return tuple(JournalRow(*row) for row in rows)


_ANSWERS: Final[Handlers] = {
    rows.ReadDocuments: _read_documents,
    rows.ReadDocument: _read_document,
    rows.ReadJournal: _read_journal,
    **CHECK_ANSWERS,
    **TASK_ANSWERS,
}
