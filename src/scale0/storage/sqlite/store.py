"""The store in SQLite: the default, one file in the data directory.

It uses WAL with synchronous=FULL and one transaction per commit, so a commit that returned survives a power loss. After
a failed commit it writes nothing any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from scale0.history.events.journal import JournalRow, format_time_us
from scale0.kernel.log_context import about
from scale0.storage import rows
from scale0.storage.data_dir import FILE_MODE, DirectoryLock, free_bytes, make_directory, sync_directory
from scale0.storage.interface import (
    CHECK_WRITES,
    FIRST_SEQ,
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
from scale0.storage.sqlite.commit_mark import MARK_NAME, CommitMark, CommitNumbers, read_mark
from scale0.storage.sqlite.schema import check_owner, migrate
from scale0.storage.sqlite.task_queries import TASK_ANSWERS
from scale0.storage.sqlite.tasks import TASK_STATEMENTS, Freed, apply_writes, placeholders, read_usage, start_tasks
from scale0.storage.task_queries import TakeFreed

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("scale0.storage")

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
    rows.PutToken: "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?)",
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
    """One data directory, locked by one process. Commits, reads, scans and looks at the free space have a connection
    each, on any thread."""

    def __init__(self, data_dir: Path, failpoint: Callable[[str], None] | None = None) -> None:
        self._data_dir = data_dir
        self._path = data_dir / DATABASE_NAME
        self._failpoint = failpoint
        self._lock: DirectoryLock | None = None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._scanner: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self._mark: CommitMark | None = None
        self._next_seq = 0
        self._commits = 0
        self._failed = False
        self._freed: deque[tuple[str, int]] = deque()
        """For TakeFreed: commits append on their thread, reads take on theirs."""
        self._files: dict[Path, tuple[int, int]] = {}
        """Those that must stay in place, and their device and inode."""

    def open(self) -> OpenedStore:
        if self._lock is not None:
            raise StoreRefused("this store is already open")
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; use a Python with SQLite 3.37 or later")
        make_directory(self._data_dir)
        self._lock = DirectoryLock(self._data_dir)
        try:
            self._prepare_file()
            self._inspect()
            self._writer = writer = self._connect()
            if writer.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StoreRefused(f"{self._path} cannot have a write-ahead log on this file system; use a local disk")
            migrate(writer)
            numbers = read_numbers(writer)
            self._commits = numbers.commits
            self._mark = CommitMark(self._data_dir / MARK_NAME)
            self._mark.write(numbers.next_seq, self._commits)
            opened = _open(writer)
            self._reader = self._connect_to_read()
            self._scanner = self._connect_to_read()
            self._watcher = self._connect_to_read()
            names = (DATABASE_NAME, f"{DATABASE_NAME}-wal", MARK_NAME)
            self._files = {path: _identity(path) for path in map(self._data_dir.joinpath, names)}
        except sqlite3.Error as error:
            self.close()
            raise self._unreadable(error) from error
        except OSError as error:
            self.close()
            raise StoreRefused(
                f"cannot write {error.filename or self._data_dir}: {error.strerror}; check the disk,"
                " its free space, and the type and owner of the file"
            ) from error
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

    def _inspect(self) -> None:
        """Refuse a database that is foreign, damaged or incomplete, before a connection that may write changes it: the
        last one to close copies the write-ahead log into the database and deletes it."""
        # A crash before the first write-ahead log leaves a rollback journal, which only a writer can apply.
        rollback = self._path.with_name(f"{self._path.name}-journal").exists()
        connection = self._connect() if rollback else connect_read_only(self._path)
        with contextlib.closing(connection):
            check_owner(connection)
            self._quick_check(connection)
            mark = mark_beside(connection, self._data_dir)
            lost = lost_commits(connection, mark)
            if mark is None and had_mark(connection):
                log.warning(
                    "%s is missing, so commits that %s lacks would not be noticed. This is in order if the database was"
                    " restored from a copy; otherwise check that nothing else is missing",
                    self._data_dir / MARK_NAME,
                    self._path,
                    extra=about(file=str(self._data_dir / MARK_NAME)),
                )
        if lost is not None:
            raise StoreRefused(
                f"{self._path} lacks {lost}, which may have been acknowledged. Its write-ahead log was cut, damaged or"
                " deleted, or an older database was put in its place. Nothing was changed: restore the files, or run"
                f" `scale0 store accept-loss --data-dir {self._data_dir}` to continue without them"
            )

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
        writer, mark = self._writer, self._mark
        if self._failed or writer is None or mark is None:
            raise StoreFailed("the store is not open, or an earlier commit failed")
        next_seq = check_writes(writes, self._next_seq)
        try:
            hit_failpoint(self._failpoint, "before_begin")
            writer.execute("BEGIN IMMEDIATE")
            freed = _apply_all(writer, writes)
            if next_seq == self._next_seq:
                writer.execute(_COUNT_COMMIT)
            hit_failpoint(self._failpoint, "after_writes")
            hit_failpoint(self._failpoint, "before_commit")
            writer.execute("COMMIT")
        except BaseException as error:
            # There is no retry: after a failed fsync the kernel may consider lost pages clean.
            self._fail()
            if isinstance(error, sqlite3.Error | OverflowError):
                raise StoreFailed(f"cannot commit to {self._path}: {error}; check the disk, then restart") from error
            raise
        self._write_mark(mark, next_seq)
        self._next_seq = next_seq
        self._freed.extend(freed)
        hit_failpoint(self._failpoint, "after_commit")

    def _write_mark(self, mark: CommitMark, next_seq: int) -> None:
        if next_seq == self._next_seq:
            self._commits += 1
        try:
            mark.write(next_seq, self._commits)
        except OSError as error:
            self._fail()
            path = self._data_dir / MARK_NAME
            raise StoreFailed(f"cannot write {path}: {error.strerror}; check the disk, then restart") from error

    def _fail(self) -> None:
        self._failed = True
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writer.rollback()

    def read(self, query: Query) -> Answer:
        if type(query) is TakeFreed:
            return tuple(self._freed.popleft() for _ in range(len(self._freed)))
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
        """Free space of the disk, and free pages of the database: what was deleted leaves such pages, and the file
        never shrinks. They count up to the free space of the disk, which the write-ahead log needs."""
        for path, opened in self._files.items():
            if _identity(path) != opened:
                self._failed = True
                raise StoreFailed(
                    f"{path} was deleted or replaced while it was in use: what was stored since then is lost. Nothing"
                    " more is stored; restore the files of this directory together"
                )
        disk = free_bytes(self._data_dir)
        return disk + min(disk, self._free_page_bytes())

    def _free_page_bytes(self) -> int:
        watcher = self._watcher
        if watcher is None:
            return 0
        try:
            (pages,), (size,) = (watcher.execute(f"PRAGMA {one}").fetchone() for one in ("freelist_count", "page_size"))
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        return int(pages * size)

    def close(self) -> None:
        for connection in (self._watcher, self._scanner, self._reader, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._watcher = self._scanner = self._reader = self._writer = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


_COUNT_COMMIT: Final = "UPDATE tail SET commits = commits + 1 WHERE one = 1"
"""In a commit without events: the journal does not number it."""


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes neither the database nor its write-ahead log."""
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
    )
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


NO_COMMITS: Final = CommitNumbers(FIRST_SEQ, 0)


def read_numbers(connection: sqlite3.Connection) -> CommitNumbers:
    """Of a database as it is; none for one that is new, or of a version that did not count."""
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('tail')")]
    if "commits" not in columns:
        return NO_COMMITS
    next_seq, commits = connection.execute("SELECT next_seq, commits FROM tail").fetchone()
    last = connection.execute("SELECT last_seq + 1 FROM journal ORDER BY first_seq DESC LIMIT 1").fetchone()
    return CommitNumbers(next_seq if last is None else max(next_seq, last[0]), commits)


def mark_beside(connection: sqlite3.Connection, data_dir: Path) -> CommitNumbers | None:
    """What the file `commits` says. While a broker runs, read it before the transaction that it is compared with: the
    database has at least what the file says."""
    return read_mark(data_dir / MARK_NAME, read_numbers(connection) == NO_COMMITS)


def had_mark(connection: sqlite3.Connection) -> bool:
    """True if a start has made a file `commits` for this database."""
    counts = any(name == "commits" for (name,) in connection.execute("SELECT name FROM pragma_table_info('tail')"))
    return counts and bool(connection.execute("SELECT boots FROM tail").fetchone()[0])


def lost_commits(connection: sqlite3.Connection, mark: CommitNumbers | None) -> str | None:
    """What the database lacks, in words; None: it has every commit that is known to have returned."""
    found = read_numbers(connection)
    if mark is None or (mark.next_seq <= found.next_seq and mark.commits <= found.commits):
        return None
    lost = [f"the events {found.next_seq} to {mark.next_seq - 1}"] if mark.next_seq > found.next_seq else []
    lost += [f"{mark.commits - found.commits} commits without events"] if mark.commits > found.commits else []
    until = format_time_us(mark.time_us)
    return f"{' and '.join(lost)}, up to {until}, with the tasks and results of these commits"


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
        # After an accepted loss, the numbers of lost events are skipped.
        next_seq, last_time_us, last_boot_us = max(next_seq, last[0]), last[1], last[2]
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
        usage=read_usage(writer),
    )


def _apply_all(writer: sqlite3.Connection, writes: Sequence[Write]) -> Freed:
    check_rows: Any = [write for write in writes if type(write) in CHECK_WRITES]
    if check_rows:
        apply_checks(writer, check_rows)
        writes = [write for write in writes if type(write) not in CHECK_WRITES]
    return apply_writes(writer, writes, _apply)


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
