"""The brokers of a group in PostgreSQL: identities, slots, epochs and leases.

Every change is made under the lock of the broker's own row, in its own epoch. Ending the epoch of another broker
requires the lock of its row, so that none of its transactions is in progress. Only the database's clock decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage.interface import MAX_SLOT, StoreFailed, StoreFenced, StoreRefused
from scale0.storage.postgres.schema import LOCK_MIGRATE
from scale0.storage.task_queries import MAX_USAGE, StoreHeartbeat, StoreHeartbeatResult
from scale0.storage.task_rows import TaskUsage

if TYPE_CHECKING:
    import psycopg

OPENING_LEASE_US: Final = 10_000_000
"""How long a broker that has just opened the store may take until its first heartbeat."""

FENCED: Final = "other brokers declared this broker dead and took over its work; restart it"

_REGISTER: Final = """
    INSERT INTO brokers (slot, identity, epoch, commits, asks, counter, opened, ended, next_seq, last_time_us,
        last_boot_us, boots)
    SELECT coalesce(max(slot) + 1, 0), %s, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0 FROM brokers
    HAVING coalesce(max(slot), -1) < %s ON CONFLICT (identity) DO NOTHING"""
_LOCK_BROKER: Final = """
    SELECT slot, epoch, alive_until_us, alive_until_us - clock_us() FROM brokers WHERE identity = %s FOR UPDATE"""
_START_EPOCH: Final = """
    UPDATE brokers SET epoch = epoch + 1, boots = boots + 1, alive_until_us = clock_us() + %s, gone_us = NULL
    WHERE slot = %s RETURNING epoch, commits, asks, counter, next_seq, last_time_us, last_boot_us, boots"""
_RELEASE_TASKS: Final = """
    UPDATE open_tasks SET holder = NULL, shelved = shelved OR status = 1000,
        orphaned_us = CASE WHEN status IN (3000, 5000) THEN clock_us() END
    WHERE holder = ANY(%s::smallint[])"""
_END_EPOCH: Final = """
    UPDATE brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = clock_us() WHERE slot = %s AND epoch = %s"""

_STATE: Final = "SELECT epoch, commits, asks FROM brokers WHERE slot = %s FOR UPDATE"
"""FOR UPDATE: a transaction whose connection was lost may still be in progress."""

_HEARTBEAT: Final = """
    WITH me AS (SELECT alive_until_us, clock_us() AS now FROM brokers WHERE slot = %(slot)s FOR UPDATE)
    UPDATE brokers SET asks = %(number)s, alive_until_us = me.now + %(lease)s FROM me
    WHERE slot = %(slot)s AND epoch = %(epoch)s AND asks = %(number)s - 1
    RETURNING me.alive_until_us < me.now, me.now"""
# A broker whose row is locked is active at this moment: the next heartbeat decides.
_DECLARE_DEAD: Final = """
    UPDATE brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = %(now)s WHERE slot IN (
        SELECT slot FROM brokers WHERE alive_until_us < %(now)s AND slot <> %(slot)s FOR UPDATE SKIP LOCKED)
    RETURNING slot, identity"""
_ALIVE: Final = "SELECT identity FROM brokers WHERE alive_until_us IS NOT NULL AND slot <> %s ORDER BY identity"
_USAGE: Final = """
    SELECT account, sum(tasks)::bigint, sum(bytes)::bigint, sum(delayed)::bigint, sum(kept)::bigint
    FROM task_usage GROUP BY account HAVING sum(tasks) <> 0 OR sum(kept) <> 0
    ORDER BY 1024 * sum(tasks) + sum(bytes) + sum(kept) DESC, account LIMIT %s"""
_TOTAL_USAGE: Final = """
    SELECT coalesce(sum(tasks), 0)::bigint, coalesce(sum(bytes), 0)::bigint, coalesce(sum(delayed), 0)::bigint,
        coalesce(sum(kept), 0)::bigint
    FROM task_usage"""
# The sums of brokers that cancel each other out. Only locked rows are deleted, by their values under the lock: what
# another broker adds meanwhile is in a row of its own afterwards.
_DROP_USAGE: Final = """
    WITH l AS (SELECT * FROM task_usage WHERE account IN (SELECT account FROM task_usage GROUP BY account
            HAVING sum(tasks) = 0 AND sum(bytes) = 0 AND sum(delayed) = 0 AND sum(kept) = 0)
        ORDER BY account, slot FOR UPDATE),
    z AS (SELECT account FROM l GROUP BY account
        HAVING sum(tasks) = 0 AND sum(bytes) = 0 AND sum(delayed) = 0 AND sum(kept) = 0)
    DELETE FROM task_usage u USING l, z WHERE u.account = l.account AND u.slot = l.slot AND l.account = z.account"""


class BrokerEpoch(msgspec.Struct, frozen=True):
    """A broker in one of its epochs."""

    slot: int
    epoch: int


class BrokerRow(msgspec.Struct, frozen=True):
    """The stored counters of a broker."""

    epoch: int
    commits: int
    asks: int
    counter: int
    next_seq: int
    last_time_us: int
    last_boot_us: int
    boots: int


class Predecessor(msgspec.Struct, frozen=True):
    """Another process has this identity, and its lease has not expired."""

    epoch: int
    alive_until_us: int
    left_us: int


def join(connection: psycopg.Connection[Any], identity: str) -> tuple[BrokerEpoch, BrokerRow] | Predecessor:
    """Start a new epoch, or return the predecessor that prevents it."""
    with connection.transaction():
        # The lock serializes the assignment of slots.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_MIGRATE,))
        connection.execute(_REGISTER, (identity, MAX_SLOT))
        known = connection.execute(_LOCK_BROKER, (identity,)).fetchone()
        if known is None:
            raise StoreRefused(f"{MAX_SLOT + 1} brokers have used this database, the maximum; use another database")
        slot, epoch, alive_until_us, left_us = known
        if alive_until_us is not None and left_us > 0:
            return Predecessor(epoch, alive_until_us, left_us)
        connection.execute(_RELEASE_TASKS, ([slot],))
        row = connection.execute(_START_EPOCH, (OPENING_LEASE_US, slot)).fetchone()
        if row is None:
            raise AssertionError("the row of the broker is locked and cannot be missing")
        started = BrokerRow(*row)
        return BrokerEpoch(slot, started.epoch), started


def end_epoch(connection: psycopg.Connection[Any], epoch: BrokerEpoch) -> None:
    """End the broker's own epoch: a successor need not wait, and others may take its tasks."""
    with connection.transaction():
        if connection.execute(_END_EPOCH, (epoch.slot, epoch.epoch)).rowcount:
            connection.execute(_RELEASE_TASKS, ([epoch.slot],))


def was_committed(
    connection: psycopg.Connection[Any], epoch: BrokerEpoch, commit: int | None = None, claim: int | None = None
) -> bool:
    """Whether the commit or claim of this number is in the database; StoreFenced if the epoch has ended."""
    row = connection.execute(_STATE, (epoch.slot,)).fetchone()
    if row is None:
        raise StoreFailed("this broker is missing in the database; was an old backup restored?")
    current, commits, claims = row
    if current != epoch.epoch:
        raise StoreFenced(FENCED)
    number, reached = (commit, commits) if commit is not None else (claim, claims)
    if number is None or reached not in (number - 1, number):
        raise StoreFailed(f"the database is at commit {reached}, this broker at {number}; was an old backup restored?")
    return bool(reached == number)


def read_usage(connection: psycopg.Connection[Any]) -> tuple[TaskUsage, ...]:
    """What the open tasks of the largest accounts use."""
    found = [TaskUsage(*row) for row in connection.execute(_USAGE, (MAX_USAGE,)).fetchall()]
    return tuple(sorted(found, key=lambda usage: usage.account))


def _total_usage(connection: psycopg.Connection[Any]) -> TaskUsage:
    row = connection.execute(_TOTAL_USAGE).fetchone() or (0, 0, 0, 0)
    return TaskUsage("", *row)


def drop_unused(connection: psycopg.Connection[Any]) -> None:
    """Delete the usage of accounts without tasks."""
    connection.execute(_DROP_USAGE)


def heartbeat(
    connection: psycopg.Connection[Any],
    fence: psycopg.Cursor[Any],
    epoch: BrokerEpoch,
    number: int,
    query: StoreHeartbeat,
) -> StoreHeartbeatResult | None:
    """Within a transaction: which brokers are alive; None if the epoch has ended, then `fence` changed no row."""
    values = {"slot": epoch.slot, "epoch": epoch.epoch, "number": number, "lease": query.lease_us}
    row = fence.execute(_HEARTBEAT, values).fetchone()
    if row is None:
        return None
    late, now = row
    died: list[tuple[int, str]] = []
    if query.declares_dead and not late:
        died = connection.execute(_DECLARE_DEAD, {"slot": epoch.slot, "now": now}).fetchall()
    if died:
        connection.execute(_RELEASE_TASKS, ([slot for slot, _ in died],))
    alive = connection.execute(_ALIVE, (epoch.slot,)).fetchall()
    return StoreHeartbeatResult(
        usage=read_usage(connection),
        total=_total_usage(connection),
        died=tuple(sorted(identity for _, identity in died)),
        alive=tuple(identity for (identity,) in alive),
        now_us=now,
    )
