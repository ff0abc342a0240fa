"""The journal of a SQLite store, read by another process than its owner; the connection is read-only.

Every read is a transaction of its own and ends before its result is used, so that no commit and no checkpoint waits for
a reader. The size of one read is bounded.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from scale0.history.events.journal import JournalRow
from scale0.kernel.errors import StoreError
from scale0.storage.rows import MAX_INTEGER
from scale0.storage.sqlite.schema import check_owner
from scale0.storage.sqlite.store import BUSY_SECONDS, DATABASE_NAME

if TYPE_CHECKING:
    from pathlib import Path

PAGE_ROWS: Final = 2_000
PAGE_BYTES: Final = 8 * 1024 * 1024
"""The size of one read; a single row may be larger."""

# The row of an event is the last that begins at or before it: the key finds it without a scan.
_SIZES: Final = """
    SELECT first_seq, length(body) FROM journal
    WHERE first_seq >= coalesce((SELECT max(first_seq) FROM journal WHERE first_seq <= :after), 0)
    AND last_seq > :after ORDER BY first_seq LIMIT :limit"""
_SIZES_BEFORE: Final = """
    SELECT first_seq, length(body) FROM journal WHERE first_seq < :before ORDER BY first_seq DESC LIMIT :limit"""
_ROWS: Final = """
    SELECT first_seq, last_seq, boot, time_us, body FROM journal
    WHERE first_seq BETWEEN ? AND ? ORDER BY first_seq"""
_ENDS: Final = """
    SELECT (SELECT first_seq FROM journal ORDER BY first_seq LIMIT 1),
           (SELECT last_seq FROM journal ORDER BY first_seq DESC LIMIT 1), (SELECT next_seq FROM tail)"""


def within_page(sizes: list[tuple[Any, ...]]) -> list[int]:
    """The first of these (first_seq, bytes) that fit one read; at least one."""
    first_seqs: list[int] = []
    left = PAGE_BYTES
    for first_seq, size in sizes:
        left -= size
        if first_seqs and left < 0:
            break
        first_seqs.append(first_seq)
    return first_seqs


class JournalFile:
    """The journal in one data directory; its owner may be running."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / DATABASE_NAME
        self._connection: sqlite3.Connection | None = None

    def ends(self) -> tuple[int, int]:
        """The first and the last seq; for an empty journal, the next seq and the one before it."""
        ((first, last, next_seq),) = self._all(_ENDS, ())
        return (next_seq, next_seq - 1) if first is None else (first, last)

    def after(self, seq: int) -> list[JournalRow]:
        """The next rows that contain events after `seq`, oldest first; as many as fit one read."""
        sizes = self._all(_SIZES, {"after": min(seq, MAX_INTEGER), "limit": PAGE_ROWS})
        return self._fetch(sizes)

    def before(self, seq: int) -> list[JournalRow]:
        """The last rows that begin before `seq`, oldest first; as many as fit one read."""
        sizes = self._all(_SIZES_BEFORE, {"before": min(seq, MAX_INTEGER), "limit": PAGE_ROWS})
        return self._fetch(sizes)

    def close(self) -> None:
        """Close the connection; the next read opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _fetch(self, sizes: list[tuple[Any, ...]]) -> list[JournalRow]:
        first_seqs = within_page(sizes)
        if not first_seqs:
            return []
        return [JournalRow(*row) for row in self._all(_ROWS, (min(first_seqs), max(first_seqs)))]

    def _all(self, statement: str, values: tuple[int, ...] | dict[str, int]) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"cannot read the journal in {self._path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            check_owner(connection)
        except BaseException:
            connection.close()
            raise
        return connection
