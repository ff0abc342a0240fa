"""What is a broker's own in PostgreSQL: settings, tokens, documents and its journal.

Lives here: the statements about them. Never here: a task. Invariant: every row has the slot of its broker, and no
statement reaches another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage.rows import (
    MAX_INTEGER,
    Answer,
    DocumentRow,
    DropSetting,
    DropToken,
    PutDocument,
    PutSetting,
    PutToken,
    ReadDocument,
    ReadDocuments,
    ReadJournal,
    TokenRow,
    bounded,
)

if TYPE_CHECKING:
    import psycopg

OWN_STATEMENTS: Final[dict[type, str]] = {
    JournalRow: "INSERT INTO journal VALUES (%s, %s, %s, %s, %s, %b)",
    PutSetting: """
        INSERT INTO settings VALUES (%s, %s, %b) ON CONFLICT (broker, key) DO UPDATE SET value = excluded.value""",
    DropSetting: "DELETE FROM settings WHERE broker = %s AND key = %s",
    PutToken: """
        INSERT INTO tokens VALUES (%s, %s, %s, %s, %s) ON CONFLICT (broker, digest) DO UPDATE
        SET name = excluded.name, role = excluded.role, expires_us = excluded.expires_us""",
    DropToken: "DELETE FROM tokens WHERE broker = %s AND digest = %s",
}
"""One statement per class: the slot and its fields are the parameters in order; documents need two."""

_NOT_CURRENT: Final = "UPDATE documents SET current = false WHERE broker = %s AND current"
_PUT_DOCUMENT: Final = """
    INSERT INTO documents VALUES (%s, %s, %s, %s, %b, %s, %s, %s)
    ON CONFLICT (broker, version, hash) DO UPDATE SET current = documents.current OR excluded.current"""

_DOCUMENT: Final = "SELECT version, hash, parent, body, time_us, current, author FROM documents WHERE broker = %s"
_CURRENT: Final = f"{_DOCUMENT} AND current"
_NEWEST: Final = f"{_DOCUMENT} ORDER BY version DESC, hash DESC LIMIT %s"
_OLDER: Final = f"{_DOCUMENT} AND (version, hash) < (%s, %s) ORDER BY version DESC, hash DESC LIMIT %s"
_ONE: Final = f"""{_DOCUMENT} AND version = %s AND (%s::text IS NULL OR hash = %s)
    ORDER BY current DESC, hash DESC LIMIT 1"""

# The row that holds an event is the last that begins at or before it: the key finds it without a scan.
JOURNAL_FROM: Final = """
    FROM journal WHERE broker = %(broker)s AND last_seq > %(after)s AND first_seq >= coalesce(
        (SELECT max(first_seq) FROM journal WHERE broker = %(broker)s AND first_seq <= %(after)s), 0)
    ORDER BY first_seq LIMIT %(limit)s"""
_JOURNAL: Final = f"SELECT first_seq, last_seq, boot, time_us, body {JOURNAL_FROM}"
TRIM: Final = "DELETE FROM journal WHERE broker = %s AND first_seq <= %s AND last_seq <= %s"


def apply_own(connection: psycopg.Connection[Any], slot: int, write: Any) -> None:
    """One write that is not about tasks."""
    values = (slot, *msgspec.structs.astuple(write))
    if type(write) is PutDocument:
        if write.current:
            connection.execute(_NOT_CURRENT, (slot,))
        connection.execute(_PUT_DOCUMENT, values)
    else:
        connection.execute(OWN_STATEMENTS[type(write)], values, binary=True)


def read_own(connection: psycopg.Connection[Any], slot: int) -> dict[str, Any]:
    """What an Opened holds of it."""
    document = connection.execute(_CURRENT, (slot,), binary=True).fetchone()
    settings = connection.execute("SELECT key, value FROM settings WHERE broker = %s", (slot,), binary=True)
    tokens = connection.execute(
        "SELECT digest, name, role, expires_us FROM tokens WHERE broker = %s ORDER BY digest", (slot,)
    )
    return {
        "settings": dict(settings.fetchall()),
        "document": None if document is None else DocumentRow(*document),
        "tokens": tuple(TokenRow(*row) for row in tokens),
    }


def answer_own(connection: psycopg.Connection[Any], slot: int, ask: Any) -> Answer:
    """Documents and journal rows."""
    match ask:
        case ReadDocuments(limit, before, name):
            if before is None or before > MAX_INTEGER:
                rows = connection.execute(_NEWEST, (slot, bounded(limit)), binary=True)
            else:
                rows = connection.execute(_OLDER, (slot, max(before, 0), name, bounded(limit)), binary=True)
            return tuple(DocumentRow(*row) for row in rows)
        case ReadDocument(version, exact):
            if not 0 <= version <= MAX_INTEGER:
                return None
            found = connection.execute(_ONE, (slot, version, exact, exact), binary=True).fetchone()
            return None if found is None else DocumentRow(*found)
        case ReadJournal(after_seq, limit):
            place = {"broker": slot, "after": max(0, min(after_seq, MAX_INTEGER)), "limit": bounded(limit)}
            return tuple(JournalRow(*row) for row in connection.execute(_JOURNAL, place, binary=True))
        case _:
            raise TypeError(type(ask).__name__)
