"""The journal of one broker in PostgreSQL, read by another process than its owner.

Every read is a statement of its own, and its size is bounded. Only one exporter at a time reads a broker's journal. The
only write is the trimming of what a dead broker left.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from scale0.kernel.errors import StoreError
from scale0.storage.postgres.broker_rows import JOURNAL_FROM, TRIM
from scale0.storage.postgres.connection import check_url, connect, describe_error
from scale0.storage.postgres.schema import LOCK_JOURNAL, check_version
from scale0.storage.sqlite.journal import JournalPages, JournalStatements

DEAD_US: Final = 60_000_000
"""How long a broker is dead before another exports its journal: it may come back."""

_SLOT: Final = "SELECT slot FROM brokers WHERE identity = %s"
_STATEMENTS: Final = JournalStatements(
    ends="""
        SELECT (SELECT min(first_seq) FROM journal WHERE broker = slot),
            (SELECT last_seq FROM journal WHERE broker = slot ORDER BY first_seq DESC LIMIT 1), next_seq
        FROM brokers WHERE slot = %(broker)s""",
    sizes_after=f"SELECT first_seq, length(body) {JOURNAL_FROM}",
    sizes_before="""
        SELECT first_seq, length(body) FROM journal
        WHERE broker = %(broker)s AND first_seq < %(seq)s ORDER BY first_seq DESC LIMIT %(limit)s""",
    rows="""
        SELECT first_seq, last_seq, boot, time_us, body FROM journal
        WHERE broker = %(broker)s AND first_seq BETWEEN %(first)s AND %(last)s ORDER BY first_seq""",
    setting="SELECT value FROM settings WHERE broker = %(broker)s AND key = %(key)s",
)
_LOCK: Final = "SELECT pg_try_advisory_lock(%s, %s)"
_DEAD_WITH_ROWS: Final = """
    SELECT slot, identity FROM brokers WHERE alive_until_us IS NULL AND gone_us <= clock_us() - %s
    AND EXISTS (SELECT 1 FROM journal WHERE broker = slot) ORDER BY slot"""


class JournalTable(JournalPages):
    """The journal of one broker, which may be running. An exporter takes a lock; a reader needs none."""

    def __init__(self, url: str, source: str, exports: bool = True) -> None:
        check_url(url)
        super().__init__(_STATEMENTS)
        self._exports = exports
        self._url = url
        self._source = source
        self._slot = 0

    def trim(self, up_to_seq: int) -> None:
        """Delete rows of a dead broker that another has exported."""
        self._all(f"{TRIM} RETURNING first_seq", up_to=up_to_seq)

    def _all(self, statement: str, **values: int | str) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.execute(statement, {**values, "broker": self._slot}, binary=True)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        except psycopg.Error as error:
            self.close()
            raise StoreError(f"cannot read the journal in the database: {describe_error(error, self._url)}") from None
        return found

    def _connect(self) -> psycopg.Connection[Any]:
        connection = connect(self._url, index_only=True)
        try:
            check_version(connection)
            row = connection.execute(_SLOT, (self._source,)).fetchone()
            if row is None:
                raise StoreError(f"the database has no broker {self._source}")
            self._slot = row[0]
            if self._exports:
                self._lock(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        locked = connection.execute(_LOCK, (LOCK_JOURNAL, self._slot)).fetchone()
        if locked is None or not locked[0]:
            raise StoreError(f"another process exports the journal of {self._source} now")


def dead_brokers_with_rows(url: str) -> list[str]:
    """The brokers that have been dead for DEAD_US, and whose journal has rows."""
    try:
        with connect(url, index_only=False) as connection:
            check_version(connection)
            return [identity for _, identity in connection.execute(_DEAD_WITH_ROWS, (DEAD_US,)).fetchall()]
    except psycopg.Error as error:
        raise StoreError(f"cannot read the database: {describe_error(error, url)}") from None
