"""The brokers of a group in PostgreSQL: who is who, who lives, and until when.

Lives here: the statements about brokers. Never here: a task, but that what a dead broker held is nobody's. Invariants:
every change is made under the lock of one's own row, in one's own epoch; to end another's epoch takes the lock of its
row, so that none of its transactions is on its way; the database's clock alone judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage.interface import MAX_SLOT, StoreFailed, StoreFenced, StoreRefused
from scale0.storage.postgres.schema import LOCK_MIGRATE
from scale0.storage.task_queries import StoreHeartbeat, StoreHeartbeatResult

if TYPE_CHECKING:
    import psycopg

OPENING_LEASE_US: Final = 10_000_000
"""How long a broker that has just opened the store may take until its first Beat."""

FENCED: Final = "other brokers took this one for dead, and went on without it"

_KNOW: Final = """
    INSERT INTO brokers (slot, identity, epoch, commits, asks, counter, opened, ended, next_seq, last_time_us,
        last_boot_us, boots)
    SELECT coalesce(max(slot) + 1, 0), %s, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0 FROM brokers
    HAVING coalesce(max(slot), -1) < %s ON CONFLICT (identity) DO NOTHING"""
_LOOK: Final = """
    SELECT slot, epoch, alive_until_us, alive_until_us - clock_us() FROM brokers WHERE identity = %s FOR UPDATE"""
_BEGIN: Final = """
    UPDATE brokers SET epoch = epoch + 1, boots = boots + 1, alive_until_us = clock_us() + %s, gone_us = NULL
    WHERE slot = %s RETURNING epoch, commits, asks, counter, next_seq, last_time_us, last_boot_us, boots"""
_LET_GO: Final = """
    UPDATE open_tasks SET holder = NULL, shelved = shelved OR status = 1000,
        orphaned_us = CASE WHEN status IN (3000, 5000) THEN clock_us() END
    WHERE holder = ANY(%s::smallint[])"""
_GIVE_UP: Final = """
    UPDATE brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = clock_us() WHERE slot = %s AND epoch = %s"""

_STATE: Final = "SELECT epoch, commits, asks FROM brokers WHERE slot = %s FOR UPDATE"
"""Locked: a transaction of ours whose connection is gone may still be on its way."""

_BEAT: Final = """
    WITH me AS (SELECT alive_until_us, clock_us() AS now FROM brokers WHERE slot = %(slot)s FOR UPDATE)
    UPDATE brokers SET asks = %(number)s, alive_until_us = me.now + %(lease)s FROM me
    WHERE slot = %(slot)s AND epoch = %(epoch)s AND asks = %(number)s - 1
    RETURNING me.alive_until_us < me.now, me.now"""
# One whose row is locked is at work in this moment: it is judged another time.
_JUDGE: Final = """
    UPDATE brokers SET epoch = epoch + 1, alive_until_us = NULL, gone_us = %(now)s WHERE slot IN (
        SELECT slot FROM brokers WHERE alive_until_us < %(now)s AND slot <> %(slot)s FOR UPDATE SKIP LOCKED)
    RETURNING slot, identity"""
_ALIVE: Final = "SELECT identity FROM brokers WHERE alive_until_us IS NOT NULL AND slot <> %s ORDER BY identity"
_OPEN_TASKS: Final = "SELECT coalesce(sum(opened - ended), 0)::bigint FROM brokers"


class BrokerEpoch(msgspec.Struct, frozen=True):
    """A broker in one of its epochs."""

    slot: int
    epoch: int


class Tail(msgspec.Struct, frozen=True):
    """What a broker's row remembers."""

    epoch: int
    commits: int
    asks: int
    counter: int
    next_seq: int
    last_time_us: int
    last_boot_us: int
    boots: int


class Predecessor(msgspec.Struct, frozen=True):
    """Another process has this identity, and its time is not over."""

    epoch: int
    alive_until_us: int
    left_us: int


def join(connection: psycopg.Connection[Any], identity: str) -> tuple[BrokerEpoch, Tail] | Predecessor:
    """Begin a life, and a new epoch; or say who is in the way."""
    with connection.transaction():
        # Slots are given one after the other.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_MIGRATE,))
        connection.execute(_KNOW, (identity, MAX_SLOT))
        found = connection.execute(_LOOK, (identity,)).fetchone()
        if found is None:
            raise StoreRefused(f"{MAX_SLOT + 1} brokers have used this database; start with another")
        slot, epoch, alive_until_us, left_us = found
        if alive_until_us is not None and left_us > 0:
            return Predecessor(epoch, alive_until_us, left_us)
        connection.execute(_LET_GO, ([slot],))
        row = connection.execute(_BEGIN, (OPENING_LEASE_US, slot)).fetchone()
        if row is None:
            raise AssertionError("its row is locked")
        tail = Tail(*row)
        return BrokerEpoch(slot, tail.epoch), tail


def give_up(connection: psycopg.Connection[Any], life: BrokerEpoch) -> None:
    """End one's own epoch: a successor need not wait, and others may take what was held."""
    with connection.transaction():
        if connection.execute(_GIVE_UP, (life.slot, life.epoch)).rowcount:
            connection.execute(_LET_GO, ([life.slot],))


def is_done(
    connection: psycopg.Connection[Any], life: BrokerEpoch, commit: int | None = None, ask: int | None = None
) -> bool:
    """Whether what has this number was committed; StoreFenced if it does not matter any more."""
    row = connection.execute(_STATE, (life.slot,)).fetchone()
    if row is None:
        raise StoreFailed("this broker is not in the database any more; was an old backup brought back?")
    epoch, commits, asks = row
    if epoch != life.epoch:
        raise StoreFenced(FENCED)
    number, reached = (commit, commits) if commit is not None else (ask, asks)
    if number is None or reached not in (number - 1, number):
        raise StoreFailed(f"the database is at {reached}, this broker at {number}; was an old backup brought back?")
    return bool(reached == number)


def count_open(connection: psycopg.Connection[Any]) -> int:
    """Tasks that have not ended, nearly."""
    row = connection.execute(_OPEN_TASKS).fetchone()
    return 0 if row is None else int(row[0])


def beat(
    connection: psycopg.Connection[Any], fence: psycopg.Cursor[Any], life: BrokerEpoch, number: int, ask: StoreHeartbeat
) -> StoreHeartbeatResult | None:
    """Within a transaction: who is alive; None if this epoch is over, and `fence` changed no row."""
    place = {"slot": life.slot, "epoch": life.epoch, "number": number, "lease": ask.lease_us}
    row = fence.execute(_BEAT, place).fetchone()
    if row is None:
        return None
    late, now = row
    died: list[tuple[int, str]] = []
    if ask.judges and not late:
        died = connection.execute(_JUDGE, {"slot": life.slot, "now": now}).fetchall()
    if died:
        connection.execute(_LET_GO, ([slot for slot, _ in died],))
    alive = connection.execute(_ALIVE, (life.slot,)).fetchall()
    return StoreHeartbeatResult(
        open_tasks=count_open(connection),
        died=tuple(sorted(identity for _, identity in died)),
        alive=tuple(identity for (identity,) in alive),
    )
