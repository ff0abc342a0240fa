"""The tables of the SQLite store, as migrations.

A released migration never changes. Each runs in one transaction with its own row in `migrations`, so that a kill leaves
it complete or not started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.storage.interface import StoreRefused

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID: Final = 0x5343_4C30
"""`SCL0`: identifies our databases."""

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
        # Survives trimming: the end of the journal, and how often the store was opened.
        """CREATE TABLE tail (
            one INTEGER PRIMARY KEY CHECK (one = 1), next_seq INTEGER NOT NULL, last_time_us INTEGER NOT NULL,
            last_boot_us INTEGER NOT NULL, boots INTEGER NOT NULL
        ) STRICT""",
        "INSERT INTO tail VALUES (1, 1, 0, 0, 0)",
    ),
    # Large columns are last in a row, so that a list that skips them need not read their pages.
    (
        """CREATE TABLE open_tasks (
            seq INTEGER PRIMARY KEY, status INTEGER NOT NULL, shelved INTEGER NOT NULL, waits INTEGER NOT NULL,
            followed INTEGER NOT NULL, priority INTEGER NOT NULL, attempt INTEGER NOT NULL, starts INTEGER NOT NULL,
            submitted_us INTEGER NOT NULL, runnable_us INTEGER NOT NULL, started_us INTEGER NOT NULL, id TEXT NOT NULL,
            client TEXT NOT NULL, method TEXT NOT NULL, node TEXT NOT NULL, key TEXT, options BLOB NOT NULL,
            info BLOB NOT NULL, history BLOB NOT NULL, params BLOB NOT NULL
        ) STRICT""",
        # Every index ends with the seq, because it is the rowid.
        "CREATE INDEX shelf ON open_tasks (method, priority) WHERE shelved = 1 AND status = 1000",
        "CREATE INDEX schedule ON open_tasks (runnable_us) WHERE status = 500 AND waits = 0",
        """CREATE TABLE ended_tasks (
            seq INTEGER PRIMARY KEY, status INTEGER NOT NULL, priority INTEGER NOT NULL, attempt INTEGER NOT NULL,
            starts INTEGER NOT NULL, submitted_us INTEGER NOT NULL, started_us INTEGER NOT NULL,
            ended_us INTEGER NOT NULL, expires_us INTEGER NOT NULL, id TEXT NOT NULL, client TEXT NOT NULL,
            method TEXT NOT NULL, node TEXT NOT NULL, key TEXT, options BLOB NOT NULL, info BLOB NOT NULL,
            history BLOB NOT NULL, params BLOB NOT NULL, result BLOB NOT NULL
        ) STRICT""",
        "CREATE INDEX ended_expiry ON ended_tasks (expires_us)",
        "CREATE INDEX ended_unfinished ON ended_tasks (status) WHERE status <> 7000",
        "CREATE INDEX ended_method ON ended_tasks (method)",
        # Open and ended tasks share these, so that a duplicate is found by the put, and ending a task changes neither.
        "CREATE TABLE task_ids (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        """CREATE TABLE task_keys (
            client TEXT NOT NULL, key TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (client, key)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE follows (
            after_seq INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (after_seq, seq)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE task_clients (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, heard_us INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        # Survives sweeping: the end of the task numbers.
        "ALTER TABLE tail ADD COLUMN next_task_seq INTEGER NOT NULL DEFAULT 1",
    ),
    # For a Helen.
    (
        "CREATE TABLE agents (identity TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT, WITHOUT ROWID",
        """CREATE TABLE check_states (
            agent TEXT NOT NULL, check_name TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (agent, check_name)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE spools (
            agent TEXT NOT NULL, spool TEXT NOT NULL, heard_us INTEGER NOT NULL, seen BLOB NOT NULL,
            PRIMARY KEY (agent, spool)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE incidents (
            id TEXT PRIMARY KEY, agent TEXT NOT NULL, check_name TEXT NOT NULL, opened_us INTEGER NOT NULL,
            closed_us INTEGER, body BLOB NOT NULL
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX incidents_opened ON incidents (opened_us, id)",
        "CREATE INDEX incidents_open ON incidents (opened_us, id) WHERE closed_us IS NULL",
        "CREATE INDEX incidents_closed ON incidents (closed_us, id) WHERE closed_us IS NOT NULL",
        "CREATE TABLE notices (id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT, WITHOUT ROWID",
    ),
    # Tasks, leases and idempotency keys belong to public keys; empty: not known. The tables are copied, because a
    # column that is added later would come after the large ones.
    (
        "ALTER TABLE open_tasks RENAME TO former_open_tasks",
        """CREATE TABLE open_tasks (
            seq INTEGER PRIMARY KEY, status INTEGER NOT NULL, shelved INTEGER NOT NULL, waits INTEGER NOT NULL,
            followed INTEGER NOT NULL, priority INTEGER NOT NULL, attempt INTEGER NOT NULL, starts INTEGER NOT NULL,
            submitted_us INTEGER NOT NULL, runnable_us INTEGER NOT NULL, started_us INTEGER NOT NULL, id TEXT NOT NULL,
            client TEXT NOT NULL, owner TEXT NOT NULL, method TEXT NOT NULL, node TEXT NOT NULL,
            node_owner TEXT NOT NULL, key TEXT, options BLOB NOT NULL, info BLOB NOT NULL, history BLOB NOT NULL,
            params BLOB NOT NULL
        ) STRICT""",
        """INSERT INTO open_tasks SELECT seq, status, shelved, waits, followed, priority, attempt, starts, submitted_us,
            runnable_us, started_us, id, client, '', method, node, '', key, options, info, history, params
            FROM former_open_tasks""",
        "DROP TABLE former_open_tasks",
        "CREATE INDEX shelf ON open_tasks (method, priority) WHERE shelved = 1 AND status = 1000",
        "CREATE INDEX schedule ON open_tasks (runnable_us) WHERE status = 500 AND waits = 0",
        "ALTER TABLE ended_tasks RENAME TO former_ended_tasks",
        """CREATE TABLE ended_tasks (
            seq INTEGER PRIMARY KEY, status INTEGER NOT NULL, priority INTEGER NOT NULL, attempt INTEGER NOT NULL,
            starts INTEGER NOT NULL, submitted_us INTEGER NOT NULL, started_us INTEGER NOT NULL,
            ended_us INTEGER NOT NULL, expires_us INTEGER NOT NULL, id TEXT NOT NULL, client TEXT NOT NULL,
            owner TEXT NOT NULL, method TEXT NOT NULL, node TEXT NOT NULL, node_owner TEXT NOT NULL, key TEXT,
            options BLOB NOT NULL, info BLOB NOT NULL, history BLOB NOT NULL, params BLOB NOT NULL, result BLOB NOT NULL
        ) STRICT""",
        """INSERT INTO ended_tasks SELECT seq, status, priority, attempt, starts, submitted_us, started_us, ended_us,
            expires_us, id, client, '', method, node, '', key, options, info, history, params, result
            FROM former_ended_tasks""",
        "DROP TABLE former_ended_tasks",
        "CREATE INDEX ended_expiry ON ended_tasks (expires_us)",
        "CREATE INDEX ended_unfinished ON ended_tasks (status) WHERE status <> 7000",
        "CREATE INDEX ended_method ON ended_tasks (method)",
        "ALTER TABLE task_keys RENAME TO former_task_keys",
        """CREATE TABLE task_keys (
            client TEXT NOT NULL, key TEXT NOT NULL, owner TEXT NOT NULL, seq INTEGER NOT NULL,
            PRIMARY KEY (client, key, owner)
        ) STRICT, WITHOUT ROWID""",
        "INSERT INTO task_keys SELECT client, key, '', seq FROM former_task_keys",
        "DROP TABLE former_task_keys",
    ),
    # What a start needs, without a scan of the open tasks: those that the predecessor held, and sums by account.
    (
        "CREATE INDEX held ON open_tasks (status) WHERE status > 1000 OR (status = 1000 AND shelved = 0)",
        """CREATE TABLE task_usage (
            account TEXT PRIMARY KEY, tasks INTEGER NOT NULL, bytes INTEGER NOT NULL, delayed INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        """INSERT INTO task_usage
            SELECT client, count(*), sum(length(params)), sum(status = 500) FROM open_tasks GROUP BY client""",
    ),
    # Submitters take turns: the backlog of each is read by itself.
    ("CREATE INDEX shelf_owner ON open_tasks (method, priority, client) WHERE shelved = 1 AND status = 1000",),
    # Checksums, 0 for older rows; and the number of commits without events (commit_mark).
    (
        "ALTER TABLE open_tasks ADD COLUMN params_sum INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE ended_tasks ADD COLUMN params_sum INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE ended_tasks ADD COLUMN result_sum INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tail ADD COLUMN commits INTEGER NOT NULL DEFAULT 0",
    ),
    # Accounts take turns: all client ids of a key are one.
    (
        "DROP INDEX shelf_owner",
        """CREATE INDEX shelf_account ON open_tasks (method, priority, coalesce(nullif(owner, ''), client))
            WHERE shelved = 1 AND status = 1000""",
    ),
    # The token that made a session; empty: none, or not known.
    ("ALTER TABLE tokens ADD COLUMN parent TEXT NOT NULL DEFAULT ''",),
    # What ended tasks keep counts for their accounts until they are deleted.
    (
        "ALTER TABLE task_usage ADD COLUMN kept INTEGER NOT NULL DEFAULT 0",
        """INSERT INTO task_usage
            SELECT coalesce(nullif(owner, ''), client), 0, 0, 0,
                sum(1024 + length(params) + length(result) + length(info) + length(history))
            FROM ended_tasks WHERE true GROUP BY 1 ON CONFLICT (account) DO UPDATE SET kept = excluded.kept""",
    ),
)
"""Version n is MIGRATIONS[n - 1]."""

STORE_VERSION: Final = len(MIGRATIONS)


def check_owner(connection: sqlite3.Connection) -> None:
    """Raise, before anything is changed, if another program or a newer version created this database."""
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreRefused("the database belongs to another program; choose another data_dir")
    version = stored_version(connection)
    if version > STORE_VERSION:
        raise StoreRefused(
            f"the database has version {version}, this program supports {STORE_VERSION}; install the newer Scale0 again"
        )


def stored_version(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()[0]
    return int(found)


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate an empty database, or one of ours, to STORE_VERSION."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY) STRICT")
    connection.execute("COMMIT")
    version = stored_version(connection)
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO migrations VALUES (?)", (number,))
        connection.execute("COMMIT")
