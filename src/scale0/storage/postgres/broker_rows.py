"""The rows of one broker in PostgreSQL: settings, tokens, documents and its journal.

Every row has the slot of its broker, and no statement touches the rows of another broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from scale0.history.events.journal import JournalRow
from scale0.storage import rows
from scale0.storage.interface import Handlers
from scale0.storage.rows import MAX_INTEGER, DocumentRow, TokenRow, bounded

if TYPE_CHECKING:
    import psycopg

_STATEMENTS: Final[dict[type, str]] = {
    JournalRow: "INSERT INTO journal VALUES (%s, %s, %s, %s, %s, %b)",
    rows.PutSetting: """
        INSERT INTO settings VALUES (%s, %s, %b) ON CONFLICT (broker, key) DO UPDATE SET value = excluded.value""",
    rows.DropSetting: "DELETE FROM settings WHERE broker = %s AND key = %s",
    rows.PutToken: """
        INSERT INTO tokens VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (broker, digest) DO UPDATE SET
        name = excluded.name, role = excluded.role, expires_us = excluded.expires_us, parent = excluded.parent""",
    rows.DropToken: "DELETE FROM tokens WHERE broker = %s AND digest = %s",
}
"""By class: the statement whose parameters are the slot and the fields in order; documents need two."""

_NOT_CURRENT: Final = "UPDATE documents SET current = false WHERE broker = %s AND current"
_PUT_DOCUMENT: Final = """
    INSERT INTO documents VALUES (%s, %s, %s, %s, %b, %s, %s, %s)
    ON CONFLICT (broker, version, hash) DO UPDATE SET current = documents.current OR excluded.current"""

_DOCUMENT: Final = f"SELECT {', '.join(DocumentRow.__struct_fields__)} FROM documents WHERE broker = %s"
_CURRENT: Final = f"{_DOCUMENT} AND current"
_NEWEST: Final = f"{_DOCUMENT} ORDER BY version DESC, hash DESC LIMIT %s"
_OLDER: Final = f"{_DOCUMENT} AND (version, hash) < (%s, %s) ORDER BY version DESC, hash DESC LIMIT %s"
_ONE: Final = f"""{_DOCUMENT} AND version = %s AND (%s::text IS NULL OR hash = %s)
    ORDER BY current DESC, hash DESC LIMIT 1"""

# The row of an event is the last that begins at or before it: the key finds it without a scan.
JOURNAL_FROM: Final = """
    FROM journal WHERE broker = %(broker)s AND last_seq > %(seq)s AND first_seq >= coalesce(
        (SELECT max(first_seq) FROM journal WHERE broker = %(broker)s AND first_seq <= %(seq)s), 0)
    ORDER BY first_seq LIMIT %(limit)s"""
_JOURNAL: Final = f"SELECT first_seq, last_seq, boot, time_us, body {JOURNAL_FROM}"
TRIM: Final = "DELETE FROM journal WHERE broker = %(broker)s AND first_seq <= %(up_to)s AND last_seq <= %(up_to)s"


class StoreSession(NamedTuple):
    """A connection, and the broker that uses it."""

    connection: psycopg.Connection[Any]
    slot: int
    identity: str


def _execute(session: StoreSession, write: Any) -> None:
    session.connection.execute(_STATEMENTS[type(write)], (session.slot, *msgspec.structs.astuple(write)), binary=True)


def _put_document(session: StoreSession, write: rows.PutDocument) -> None:
    if write.current:
        session.connection.execute(_NOT_CURRENT, (session.slot,))
    session.connection.execute(_PUT_DOCUMENT, (session.slot, *msgspec.structs.astuple(write)))


OWN_WRITES: Final[Handlers] = {**dict.fromkeys(_STATEMENTS, _execute), rows.PutDocument: _put_document}
"""Their state has a `connection` and a `slot`."""


def read_own(connection: psycopg.Connection[Any], slot: int) -> dict[str, Any]:
    """The part of an OpenedStore that is the broker's own."""
    document = connection.execute(_CURRENT, (slot,), binary=True).fetchone()
    settings = connection.execute("SELECT key, value FROM settings WHERE broker = %s", (slot,), binary=True)
    tokens = connection.execute(
        "SELECT digest, name, role, expires_us, parent FROM tokens WHERE broker = %s ORDER BY digest", (slot,)
    )
    return {
        "settings": dict(settings.fetchall()),
        "document": None if document is None else DocumentRow(*document),
        "tokens": tuple(TokenRow(*row) for row in tokens),
    }


def _read_documents(session: StoreSession, query: rows.ReadDocuments) -> tuple[DocumentRow, ...]:
    if query.before_version is None or query.before_version > MAX_INTEGER:
        found = session.connection.execute(_NEWEST, (session.slot, bounded(query.limit)), binary=True)
    else:
        values = (session.slot, max(query.before_version, 0), query.before_hash, bounded(query.limit))
        found = session.connection.execute(_OLDER, values, binary=True)
    return tuple(DocumentRow(*row) for row in found)


def _read_document(session: StoreSession, query: rows.ReadDocument) -> DocumentRow | None:
    if not 0 <= query.version <= MAX_INTEGER:
        return None
    values = (session.slot, query.version, query.hash, query.hash)
    row = session.connection.execute(_ONE, values, binary=True).fetchone()
    return None if row is None else DocumentRow(*row)


def _read_journal(session: StoreSession, query: rows.ReadJournal) -> tuple[JournalRow, ...]:
    after = max(0, min(query.after_seq, MAX_INTEGER))
    values = {"broker": session.slot, "seq": after, "limit": bounded(query.limit)}
    return tuple(JournalRow(*row) for row in session.connection.execute(_JOURNAL, values, binary=True))


OWN_ANSWERS: Final[Handlers] = {
    rows.ReadDocuments: _read_documents,
    rows.ReadDocument: _read_document,
    rows.ReadJournal: _read_journal,
}
