"""The journal of a SQLite store, read by another process than its owner; the connection is read-only.

Every read is a transaction of its own and ends before its result is used, so that no commit and no checkpoint waits for
a reader. The size of one read is bounded.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.history.events.audit import AuditStart, decode_start
from scale0.history.events.journal import JournalRow
from scale0.kernel.errors import StoreError
from scale0.storage.interface import AUDIT_HEAD, AUDIT_START
from scale0.storage.rows import MAX_INTEGER
from scale0.storage.sqlite.schema import check_owner
from scale0.storage.sqlite.store import DATABASE_NAME, connect_read_only

if TYPE_CHECKING:
    from pathlib import Path

PAGE_ROWS: Final = 2_000
PAGE_BYTES: Final = 8 * 1024 * 1024
"""The size of one read; a single row may be larger."""


class JournalStatements(NamedTuple):
    """Statements with named parameters, in the notation of one database."""

    ends: str
    sizes_after: str
    sizes_before: str
    rows: str
    setting: str


class JournalPages:
    """What the journals of all stores share: how they are read in pages. A subclass runs the statements."""

    def __init__(self, statements: JournalStatements) -> None:
        self._statements = statements
        self._connection: Any = None

    def ends(self) -> tuple[int, int]:
        """The first and the last seq; for an empty journal, the next seq and the one before it."""
        ((first, last, next_seq),) = self._all(self._statements.ends)
        return (next_seq, next_seq - 1) if first is None else (first, last)

    def after(self, seq: int) -> list[JournalRow]:
        """The next rows that contain events after `seq`, oldest first; as many as fit one read."""
        return self._fetch(self._all(self._statements.sizes_after, seq=min(seq, MAX_INTEGER), limit=PAGE_ROWS))

    def before(self, seq: int) -> list[JournalRow]:
        """The last rows that begin before `seq`, oldest first; as many as fit one read."""
        return self._fetch(self._all(self._statements.sizes_before, seq=min(seq, MAX_INTEGER), limit=PAGE_ROWS))

    def audit_head(self) -> str:
        """The hash of the newest audit event; blank: there is none."""
        return (self._setting(AUDIT_HEAD) or b"").decode()

    def audit_start(self) -> AuditStart | None:
        """Where the audit events begin; None: that is not recorded."""
        found = self._setting(AUDIT_START)
        return None if found is None else decode_start(found)

    def close(self) -> None:
        """Close the connection and release its locks; the next read opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _fetch(self, sizes: list[tuple[Any, ...]]) -> list[JournalRow]:
        """The first of these (first_seq, bytes) that fit one read; at least one."""
        first_seqs: list[int] = []
        left = PAGE_BYTES
        for first_seq, size in sizes:
            left -= size
            if first_seqs and left < 0:
                break
            first_seqs.append(first_seq)
        if not first_seqs:
            return []
        rows = self._all(self._statements.rows, first=min(first_seqs), last=max(first_seqs))
        return [JournalRow(*row) for row in rows]

    def _setting(self, key: str) -> bytes | None:
        found = self._all(self._statements.setting, key=key)
        return bytes(found[0][0]) if found else None

    def _all(self, statement: str, **values: int | str) -> list[tuple[Any, ...]]:
        raise NotImplementedError


# The row of an event is the last that begins at or before it: the key finds it without a scan.
_STATEMENTS: Final = JournalStatements(
    ends="""
        SELECT (SELECT first_seq FROM journal ORDER BY first_seq LIMIT 1),
            (SELECT last_seq FROM journal ORDER BY first_seq DESC LIMIT 1), (SELECT next_seq FROM tail)""",
    sizes_after="""
        SELECT first_seq, length(body) FROM journal
        WHERE first_seq >= coalesce((SELECT max(first_seq) FROM journal WHERE first_seq <= :seq), 0)
        AND last_seq > :seq ORDER BY first_seq LIMIT :limit""",
    sizes_before="""
        SELECT first_seq, length(body) FROM journal WHERE first_seq < :seq ORDER BY first_seq DESC LIMIT :limit""",
    rows="""
        SELECT first_seq, last_seq, boot, time_us, body FROM journal
        WHERE first_seq BETWEEN :first AND :last ORDER BY first_seq""",
    setting="SELECT value FROM settings WHERE key = :key",
)


class JournalFile(JournalPages):
    """The journal in one data directory; its owner may be running."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(_STATEMENTS)
        self._path = data_dir / DATABASE_NAME

    def _all(self, statement: str, **values: int | str) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            found: list[tuple[Any, ...]] = self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"cannot read the journal in {self._path}: {error}") from error
        return found

    def _connect(self) -> sqlite3.Connection:
        connection = connect_read_only(self._path)
        try:
            check_owner(connection)
        except BaseException:
            connection.close()
            raise
        return connection
