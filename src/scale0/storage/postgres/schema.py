"""The tables of the store in PostgreSQL, as migrations, in a schema of their own.

A released migration never changes. All migrations run in one transaction under a database-wide lock, so that brokers
that start together find them complete or not started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.storage.interface import StoreRefused

if TYPE_CHECKING:
    import psycopg

SCHEMA: Final = "scale0"
LOCK_MIGRATE: Final = 0x5343_4C30_0000_0001
"""The number of an advisory lock: SCL0, then its purpose."""
LOCK_JOURNAL: Final = 0x5343_4C31
"""With the slot of the broker: only one exporter reads its journal."""

# Rows of busy tables come and go: dead rows must be vacuumed early, or every index scan passes over them.
_BUSY: Final = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0"
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # The only clock that decides.
        """CREATE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE
            AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint'""",
        """CREATE TABLE brokers (
            slot smallint PRIMARY KEY, identity text COLLATE "C" NOT NULL UNIQUE, epoch bigint NOT NULL,
            alive_until_us bigint, commits bigint NOT NULL, asks bigint NOT NULL, counter bigint NOT NULL,
            opened bigint NOT NULL, ended bigint NOT NULL, next_seq bigint NOT NULL, last_time_us bigint NOT NULL,
            last_boot_us bigint NOT NULL, boots bigint NOT NULL, gone_us bigint
        ) WITH (fillfactor = 50)""",
        """CREATE TABLE settings (
            broker smallint NOT NULL, key text COLLATE "C" NOT NULL, value bytea NOT NULL, PRIMARY KEY (broker, key)
        )""",
        """CREATE TABLE tokens (
            broker smallint NOT NULL, digest text COLLATE "C" NOT NULL, name text NOT NULL, role text NOT NULL,
            expires_us bigint NOT NULL, PRIMARY KEY (broker, digest)
        )""",
        """CREATE TABLE documents (
            broker smallint NOT NULL, version bigint NOT NULL, hash text COLLATE "C" NOT NULL, parent text NOT NULL,
            body bytea NOT NULL, time_us bigint NOT NULL, current boolean NOT NULL, author text NOT NULL,
            PRIMARY KEY (broker, version, hash)
        )""",
        "CREATE UNIQUE INDEX current_document ON documents (broker) WHERE current",
        f"""CREATE TABLE journal (
            broker smallint NOT NULL, first_seq bigint NOT NULL, last_seq bigint NOT NULL, boot bigint NOT NULL,
            time_us bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (broker, first_seq)
        ) WITH ({_BUSY})""",
        # holder: the slot of a broker; orphaned_us: since when a lease has no holder.
        f"""CREATE TABLE open_tasks (
            seq bigint PRIMARY KEY, status smallint NOT NULL, shelved boolean NOT NULL, followed boolean NOT NULL,
            holder smallint, orphaned_us bigint, priority bigint NOT NULL, waits bigint NOT NULL,
            attempt bigint NOT NULL, starts bigint NOT NULL, submitted_us bigint NOT NULL, runnable_us bigint NOT NULL,
            started_us bigint NOT NULL, id text COLLATE "C" NOT NULL, client text COLLATE "C" NOT NULL,
            method text COLLATE "C" NOT NULL, node text COLLATE "C" NOT NULL, key text COLLATE "C",
            options bytea NOT NULL, info bytea NOT NULL, history bytea NOT NULL, params bytea NOT NULL
        ) WITH (fillfactor = 70, {_BUSY})""",
        "CREATE INDEX shelf ON open_tasks (method, priority DESC, seq) WHERE shelved AND status = 1000",
        "CREATE INDEX schedule ON open_tasks (runnable_us, seq) WHERE status = 500 AND waits = 0",
        "CREATE INDEX held ON open_tasks (holder) WHERE holder IS NOT NULL",
        "CREATE INDEX orphans ON open_tasks (orphaned_us, seq) WHERE orphaned_us IS NOT NULL",
        "CREATE INDEX orphans_of_nodes ON open_tasks (node, seq) WHERE orphaned_us IS NOT NULL",
        f"""CREATE TABLE ended_tasks (
            seq bigint PRIMARY KEY, status smallint NOT NULL, priority bigint NOT NULL, attempt bigint NOT NULL,
            starts bigint NOT NULL, submitted_us bigint NOT NULL, started_us bigint NOT NULL, ended_us bigint NOT NULL,
            expires_us bigint NOT NULL, id text COLLATE "C" NOT NULL, client text COLLATE "C" NOT NULL,
            method text COLLATE "C" NOT NULL, node text COLLATE "C" NOT NULL, key text COLLATE "C",
            options bytea NOT NULL, info bytea NOT NULL, history bytea NOT NULL, params bytea NOT NULL,
            result bytea NOT NULL
        ) WITH ({_BUSY})""",
        "CREATE INDEX ended_expiry ON ended_tasks (expires_us, seq)",
        "CREATE INDEX ended_unfinished ON ended_tasks (status, seq) WHERE status <> 7000",
        "CREATE INDEX ended_method ON ended_tasks (method, seq)",
        # Without a seq: reserved by a broker in one of its epochs, and not put yet.
        f"""CREATE TABLE task_ids (
            id text COLLATE "C" PRIMARY KEY, seq bigint, broker smallint, epoch bigint
        ) WITH (fillfactor = 70, {_BUSY})""",
        f"""CREATE TABLE task_keys (
            client text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, seq bigint, broker smallint, epoch bigint,
            PRIMARY KEY (client, key)
        ) WITH (fillfactor = 70, {_BUSY})""",
        "CREATE TABLE follows (after_seq bigint NOT NULL, seq bigint NOT NULL, PRIMARY KEY (after_seq, seq))",
        "CREATE INDEX follows_seq ON follows (seq)",
        """CREATE TABLE task_clients (
            id text COLLATE "C" PRIMARY KEY, owner text NOT NULL, heard_us bigint NOT NULL
        ) WITH (fillfactor = 70)""",
        """CREATE TABLE errands (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, receiver text COLLATE "C" NOT NULL,
            kind text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, body bytea NOT NULL,
            UNIQUE (receiver, kind, id)
        )""",
    ),
    # Tasks, leases and idempotency keys belong to public keys; empty: not known.
    (
        *(
            f"""ALTER TABLE {table} ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '',
            ADD COLUMN node_owner text COLLATE "C" NOT NULL DEFAULT ''"""
            for table in ("open_tasks", "ended_tasks")
        ),
        """ALTER TABLE task_keys ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '',
            DROP CONSTRAINT task_keys_pkey, ADD PRIMARY KEY (client, key, owner)""",
    ),
    # Sums by account and by the broker that added: so brokers do not wait for each other, and one may be negative.
    (
        """CREATE TABLE task_usage (
            account text COLLATE "C" NOT NULL, slot smallint NOT NULL, tasks bigint NOT NULL, bytes bigint NOT NULL,
            delayed bigint NOT NULL, PRIMARY KEY (account, slot)
        ) WITH (fillfactor = 50)""",
        """INSERT INTO task_usage SELECT client, 0, count(*), sum(octet_length(params)), count(*) FILTER (
            WHERE status = 500) FROM open_tasks GROUP BY client""",
    ),
    # Checksums, 0 for older rows.
    (
        "ALTER TABLE open_tasks ADD COLUMN params_sum bigint NOT NULL DEFAULT 0",
        """ALTER TABLE ended_tasks ADD COLUMN params_sum bigint NOT NULL DEFAULT 0,
            ADD COLUMN result_sum bigint NOT NULL DEFAULT 0""",
    ),
    # Accounts take turns: each has a part of a claim.
    (
        """CREATE INDEX shelf_account ON open_tasks (method, priority, coalesce(nullif(owner, ''), client), seq)
            WHERE shelved AND status = 1000""",
    ),
    # The token that made a session; empty: none, or not known.
    ("""ALTER TABLE tokens ADD COLUMN parent text COLLATE "C" NOT NULL DEFAULT ''""",),
    # What ended tasks keep counts for their accounts until they are deleted.
    (
        "ALTER TABLE task_usage ADD COLUMN kept bigint NOT NULL DEFAULT 0",
        """INSERT INTO task_usage
            SELECT coalesce(nullif(owner, ''), client), 0, 0, 0, 0,
                sum(1024 + length(params) + length(result) + length(info) + length(history))
            FROM ended_tasks GROUP BY 1 ON CONFLICT (account, slot) DO UPDATE SET kept = excluded.kept""",
    ),
)
"""Version n is MIGRATIONS[n - 1]."""

STORE_VERSION: Final = len(MIGRATIONS)


def migrate(connection: psycopg.Connection[Any]) -> None:
    """Migrate the schema to STORE_VERSION; refuse one of another program or a newer version before any change."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_MIGRATE,))
        version = _version(connection)
        if version == 0:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            connection.execute(f"CREATE TABLE {SCHEMA}.migrations (version integer PRIMARY KEY)")
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements:
                connection.execute(statement.encode())
            connection.execute("INSERT INTO migrations VALUES (%s)", (number,))


def check_version(connection: psycopg.Connection[Any]) -> None:
    """For a reader: refuse a schema of another version."""
    if _version(connection) != STORE_VERSION:
        raise StoreRefused(
            f"the schema {SCHEMA} of the database is missing or of another version; start a broker first"
        )


def _version(connection: psycopg.Connection[Any]) -> int:
    """0: the schema is empty or missing."""
    names = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'v', 'S')",
        (SCHEMA,),
    ).fetchall()
    if not names:
        return 0
    if ("migrations",) not in names or ("brokers",) not in names:
        raise StoreRefused(
            f"the schema {SCHEMA} of the database belongs to another program; use another database for Scale0"
        )
    found = connection.execute(f"SELECT coalesce(max(version), 0) FROM {SCHEMA}.migrations").fetchone()
    version = 0 if found is None else int(found[0])
    if version > STORE_VERSION:
        raise StoreRefused(
            f"the database has version {version}, this program supports {STORE_VERSION}; install the newer Scale0 again"
        )
    return version
