"""The tables of the SQLite store, as the steps that made them.

Lives here: the migrations. Never here: a connection that stays open. Invariant: a released migration never changes;
each runs in one transaction with its own row in `migrations`, so that a kill leaves it done or not begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.store.interface import StoreRefused

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID: Final = 0x5343_4C30
"""`SCL0`: tells our databases from others."""

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE settings (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID",
        """CREATE TABLE tokens (
            digest TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, expires_us INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE documents (
            version INTEGER NOT NULL, hash TEXT NOT NULL, parent TEXT NOT NULL, body BLOB NOT NULL,
            time_us INTEGER NOT NULL, current INTEGER NOT NULL, author TEXT NOT NULL, PRIMARY KEY (version, hash)
        ) STRICT""",
        "CREATE UNIQUE INDEX current_document ON documents (current) WHERE current = 1",
        """CREATE TABLE journal (
            first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, boot INTEGER NOT NULL,
            time_us INTEGER NOT NULL, body BLOB NOT NULL
        ) STRICT""",
        # What outlives trimming: where the journal was, and how often the store was opened.
        """CREATE TABLE tail (
            one INTEGER PRIMARY KEY CHECK (one = 1), next_seq INTEGER NOT NULL, last_time_us INTEGER NOT NULL,
            last_boot_us INTEGER NOT NULL, boots INTEGER NOT NULL
        ) STRICT""",
        "INSERT INTO tail VALUES (1, 1, 0, 0, 0)",
    ),
)
"""Version n is MIGRATIONS[n - 1]."""

STORE_VERSION: Final = len(MIGRATIONS)


def refuse_strange(connection: sqlite3.Connection) -> None:
    """Raise before anything is changed, if another program or a newer one made this database."""
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreRefused("the database belongs to another program; choose another data_dir")
    version = _version(connection)
    if version > STORE_VERSION:
        raise StoreRefused(
            f"the database has version {version}, this program knows {STORE_VERSION}; install the newer Scale0 again"
        )


def _version(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()[0]
    return int(found)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database, empty or ours, to STORE_VERSION."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY) STRICT")
    connection.execute("COMMIT")
    version = _version(connection)
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO migrations VALUES (?)", (number,))
        connection.execute("COMMIT")
