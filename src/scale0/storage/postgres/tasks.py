"""How the writes of a commit become statements of PostgreSQL.

Lives here: the statements about tasks, and their order. Never here: a transaction, or an answer that is waited for.
Invariants: the writes about one task count in their order; a task is written only by the broker that holds it, and a
write that does not find its task fails the commit; each kind is one statement, however many rows
it has, unless their bytes are more than a statement should carry.

Statements are sent without waiting (pipeline), so what they found is checked at the end, before COMMIT is said.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage.interface import StoreFailed
from scale0.storage.postgres.broker_rows import apply_own
from scale0.storage.postgres.values import clean, integers, truths
from scale0.storage.rows import Write, bounded
from scale0.storage.task_rows import (
    OWN_IDS,
    DropDependency,
    DropTaskClient,
    EndTask,
    FreeReservation,
    LeaseTask,
    PutDependency,
    PutTask,
    PutTaskClient,
    PutTaskCommand,
    ReleaseTask,
    ReopenTask,
    SweepTasks,
)
from scale0.storage.write_order import stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

    from scale0.storage.postgres.brokers import BrokerEpoch

# A task belongs to its writer while it is leased, or queued and not on the shelf.
_HOLDER: Final = "CASE WHEN {status} IN (3000, 5000) OR ({status} = 1000 AND NOT {shelved}) THEN %(slot)s::smallint END"
_ORPHANED: Final = "orphaned_us = NULL"
# What this commit itself wrote is this broker's, though it may be nobody's by now.
# Written so that no index but that of the seq fits: the one of the holder would lead through all that it holds.
_HELD: Final = "coalesce(o.holder = %(slot)s, o.seq = ANY(%(ours)s::bigint[]))"

_PUT: Final = f"""
    INSERT INTO open_tasks (seq, id, client, method, params, priority, status, attempt, starts, node, submitted_us,
        runnable_us, started_us, waits, shelved, followed, key, options, info, history, holder)
    SELECT v.*, {_HOLDER.format(status="v.status", shelved="v.shelved")}
    FROM unnest(%(seq)s::bigint[], %(id)s::text[], %(client)s::text[], %(method)s::text[], %(params)b::bytea[],
        %(priority)s::bigint[], %(status)s::smallint[], %(attempt)s::bigint[], %(starts)s::bigint[], %(node)s::text[],
        %(submitted_us)s::bigint[], %(runnable_us)s::bigint[], %(started_us)s::bigint[], %(waits)s::bigint[],
        %(shelved)s::boolean[], %(followed)s::boolean[], %(key)s::text[], %(options)b::bytea[], %(info)b::bytea[],
        %(history)b::bytea[]) AS v (seq, id, client, method, params, priority, status, attempt, starts, node,
        submitted_us, runnable_us, started_us, waits, shelved, followed, key, options, info, history)
    WHERE NOT EXISTS (SELECT 1 FROM ended_tasks WHERE seq = v.seq)"""
# One condition that PostgreSQL cannot take for choosy: it knows nothing of a table that was empty a moment ago, and
# would walk through all of it for each of the names.
_RESERVED: Final = "coalesce(n.seq IS NULL AND n.broker = %(slot)s AND n.epoch = %(epoch)s, false)"
_USE_IDS: Final = f"""
    UPDATE task_ids n SET seq = v.seq, broker = NULL, epoch = NULL
    FROM unnest(%(id)s::text[], %(seq)s::bigint[]) AS v (id, seq)
    WHERE n.id = v.id AND {_RESERVED}"""
# Nobody else makes such ids, so that they need no reservation; but one may have it.
_PUT_IDS: Final = f"""
    INSERT INTO task_ids AS n (id, seq) SELECT * FROM unnest(%(id)s::text[], %(seq)s::bigint[])
    ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, broker = NULL, epoch = NULL WHERE {_RESERVED}"""
_USE_KEYS: Final = f"""
    UPDATE task_keys n SET seq = v.seq, broker = NULL, epoch = NULL
    FROM unnest(%(client)s::text[], %(key)s::text[], %(seq)s::bigint[]) AS v (client, key, seq)
    WHERE n.client = v.client AND n.key = v.key AND {_RESERVED}"""

_LEASE: Final = f"""
    UPDATE open_tasks o SET status = v.status, attempt = v.attempt, starts = v.starts, node = v.node,
        started_us = v.started_us, shelved = false, {_ORPHANED},
        holder = {_HOLDER.format(status="v.status", shelved="false")}
    FROM unnest(%(status)s::smallint[], %(attempt)s::bigint[], %(starts)s::bigint[], %(node)s::text[],
        %(started_us)s::bigint[], %(seq)s::bigint[]) AS v (status, attempt, starts, node, started_us, seq)
    WHERE o.seq = v.seq AND {_HELD}"""
_CHANGE: Final = f"""
    UPDATE open_tasks o SET status = v.status, attempt = v.attempt, starts = v.starts, node = v.node,
        runnable_us = v.runnable_us, started_us = v.started_us, waits = v.waits, shelved = v.shelved,
        followed = v.followed, info = v.info, history = v.history, {_ORPHANED},
        holder = {_HOLDER.format(status="v.status", shelved="v.shelved")}
    FROM unnest(%(status)s::smallint[], %(attempt)s::bigint[], %(starts)s::bigint[], %(node)s::text[],
        %(runnable_us)s::bigint[], %(started_us)s::bigint[], %(waits)s::bigint[], %(shelved)s::boolean[],
        %(followed)s::boolean[], %(info)b::bytea[], %(history)b::bytea[], %(seq)s::bigint[])
        AS v (status, attempt, starts, node, runnable_us, started_us, waits, shelved, followed, info, history, seq)
    WHERE o.seq = v.seq AND {_HELD}"""
# The CTE returns what both sides have: a second join would compare each with each.
_END: Final = f"""
    WITH e AS (DELETE FROM open_tasks o USING unnest(%(status)s::smallint[], %(attempt)s::bigint[],
            %(starts)s::bigint[], %(node)s::text[], %(started_us)s::bigint[], %(ended_us)s::bigint[],
            %(expires_us)s::bigint[], %(result)b::bytea[], %(info)b::bytea[], %(history)b::bytea[], %(seq)s::bigint[])
            AS v (status, attempt, starts, node, started_us, ended_us, expires_us, result, info, history, seq)
        WHERE o.seq = v.seq AND {_HELD}
        RETURNING o.seq, o.id, o.client, o.method, CASE WHEN v.status = 7000 THEN ''::bytea ELSE o.params END,
            o.priority, v.status, v.attempt, v.starts, v.node, o.submitted_us, v.started_us, v.ended_us, v.expires_us,
            o.key, o.options, v.result, v.info, v.history)
    INSERT INTO ended_tasks (seq, id, client, method, params, priority, status, attempt, starts, node, submitted_us,
        started_us, ended_us, expires_us, key, options, result, info, history) SELECT * FROM e"""
_WAIT_NO_MORE: Final = "DELETE FROM follows WHERE seq = ANY(%s::bigint[])"

_RELEASE: Final = f"""
    UPDATE open_tasks o SET holder = NULL, orphaned_us = clock_us()
    WHERE o.seq = ANY(%(seq)s::bigint[]) AND o.status IN (3000, 5000) AND {_HELD}"""
# Another broker may have been first, or it was swept: then there is nothing to do.
_REOPEN: Final = """
    WITH e AS (DELETE FROM ended_tasks WHERE seq = %(seq)s AND status <> 7000 RETURNING *)
    INSERT INTO open_tasks (seq, id, client, method, params, priority, status, attempt, starts, node, submitted_us,
        runnable_us, started_us, waits, shelved, followed, key, options, info, history)
    SELECT seq, id, client, method, params, priority, 1000, attempt, 0, '', submitted_us, %(runnable_us)s, 0, 0, true,
        EXISTS (SELECT 1 FROM follows WHERE after_seq = %(seq)s), key, options, '', history
    FROM e"""
_COUNT_OPENED: Final = "UPDATE brokers SET opened = opened + %s WHERE slot = %s"
_SWEEP: Final = """
    WITH e AS (DELETE FROM ended_tasks WHERE seq IN (
            SELECT seq FROM ended_tasks WHERE expires_us <= %(before)s ORDER BY expires_us, seq LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED)
        RETURNING id, client, key),
    i AS (DELETE FROM task_ids n USING e WHERE n.id = e.id)
    DELETE FROM task_keys n USING e WHERE n.client = e.client AND n.key = e.key"""

_BESIDE: Final[dict[type, str]] = {
    PutDependency: "INSERT INTO follows VALUES (%s, %s) ON CONFLICT DO NOTHING",
    PutTaskClient: """
        INSERT INTO task_clients VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET heard_us = excluded.heard_us""",
    DropTaskClient: "DELETE FROM task_clients WHERE id = %s",
    PutTaskCommand: """
        INSERT INTO errands (receiver, kind, id, body) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING""",
}
"""Their fields are the parameters in order."""
_DROP_FOLLOW: Final = "DELETE FROM follows WHERE after_seq = %s AND seq = ANY(%s::bigint[])"
_DROP_FOLLOWS: Final = "DELETE FROM follows WHERE after_seq = %s"
_FREE_ID: Final = "DELETE FROM task_ids WHERE id = %s AND seq IS NULL AND broker = %s"
_FREE_KEY: Final = "DELETE FROM task_keys WHERE client = %s AND key = %s AND seq IS NULL AND broker = %s"

MAX_STATEMENT_BYTES: Final = 64 * 1024 * 1024
"""Of params, results and their like in one statement, beyond its first row."""

_TEXTS: Final = frozenset(("id", "client", "method", "node"))
_BYTES: Final = frozenset(("params", "options", "info", "history", "result"))
_TRUTHS: Final = frozenset(("shelved", "followed"))


class TaskCommit:
    """One commit on its way to the database."""

    def __init__(self, connection: psycopg.Connection[Any], life: BrokerEpoch) -> None:
        self._connection = connection
        self._life = life
        self._ours: set[int] = set()
        """What was put, changed or opened again by this commit."""
        self._checks: list[tuple[psycopg.Cursor[Any], int, str]] = []
        self._reopens: list[psycopg.Cursor[Any]] = []

    def send(self, writes: Sequence[Write]) -> None:
        """Each kind of task write at one go, the rest one by one."""
        for puts, changes, ends, rest, turn in stretches(writes):
            self._flush(puts, changes, ends, rest)
            if turn is not None:
                self._turn_back(turn)

    def check(self) -> int:
        """Once all has arrived: StoreFailed if something was not found; how many were opened again."""
        for cursor, expected, verb in self._checks:
            if cursor.rowcount != expected:
                raise StoreFailed(f"tasks to {verb}: {expected}, but found {cursor.rowcount}: please report this")
        return sum(cursor.rowcount for cursor in self._reopens)

    def count_opened(self, count: int) -> None:
        """Tasks that were opened again are open."""
        self._connection.execute(_COUNT_OPENED, (count, self._life.slot))

    def _must(self, statement: str, values: dict[str, Any], expected: int, verb: str) -> None:
        self._checks.append((self._connection.execute(statement, values), expected, verb))

    def _flush(self, puts: list[Any], changes: list[Any], ends: list[Any], rest: list[Any]) -> None:
        for rows in _pieces(puts):
            self._put(rows)
        # A lease may stand before or behind a change of its task: these two keep their order.
        for kind, group in itertools.groupby(changes, type):
            for rows in itertools.chain.from_iterable(map(_pieces, _apart(list(group)))):
                statement, verb = (_LEASE, "lease") if kind is LeaseTask else (_CHANGE, "change")
                self._must(statement, self._held(kind, rows), len(rows), verb)
                self._ours.update(row.seq for row in rows)
        for rows in _pieces(ends):
            self._must(_END, self._held(EndTask, rows), len(rows), "end")
            self._connection.execute(_WAIT_NO_MORE, (integers(end.seq for end in rows),))
        for write in rest:
            self._beside(write)

    def _held(self, kind: type, rows: list[Any]) -> dict[str, Any]:
        ours = self._ours and self._ours.intersection(row.seq for row in rows)
        return {**_columns(kind, rows), "slot": self._life.slot, "ours": integers(ours)}

    def _put(self, puts: list[PutTask]) -> None:
        life = {"slot": self._life.slot, "epoch": self._life.epoch}
        self._must(_PUT, {**_columns(PutTask, puts), **life}, len(puts), "put")
        self._ours.update(put.seq for put in puts)
        named = [put for put in puts if not put.id.startswith(OWN_IDS)]
        if named:
            values = {"id": [put.id for put in named], "seq": integers(put.seq for put in named), **life}
            self._must(_USE_IDS, values, len(named), "put under a reserved id")
        if len(named) < len(puts):
            own = [put for put in puts if put.id.startswith(OWN_IDS)]
            values = {"id": [put.id for put in own], "seq": integers(put.seq for put in own), **life}
            self._must(_PUT_IDS, values, len(own), "put")
        keyed = [put for put in puts if put.key is not None]
        if keyed:
            values = {
                "client": [put.client for put in keyed],
                "key": [clean(put.key or "") for put in keyed],
                "seq": integers(put.seq for put in keyed),
                **life,
            }
            self._must(_USE_KEYS, values, len(keyed), "put under a reserved key")

    def _turn_back(self, write: Write) -> None:
        match write:
            case ReopenTask(seq, runnable_us):
                integers((seq, runnable_us))
                self._reopens.append(self._connection.execute(_REOPEN, {"seq": seq, "runnable_us": runnable_us}))
                self._ours.add(seq)
            case ReleaseTask(seq):
                ours = integers(self._ours.intersection((seq,)))
                values = {"seq": integers((seq,)), "slot": self._life.slot, "ours": ours}
                self._must(_RELEASE, values, 1, "release")
                self._ours.add(seq)
            case SweepTasks(before_us, limit):
                integers((before_us,))
                self._connection.execute(_SWEEP, {"before": before_us, "limit": bounded(limit)})
            case _:
                raise TypeError(type(write).__name__)

    def _beside(self, write: Any) -> None:
        """What is not about an open task itself."""
        connection = self._connection
        match write:
            case DropDependency(after_seq, None):
                connection.execute(_DROP_FOLLOWS, (after_seq,))
            case DropDependency(after_seq, seqs):
                connection.execute(_DROP_FOLLOW, (after_seq, integers(seqs or ())))
            case FreeReservation(id_, client, key):
                if id_ is not None:
                    connection.execute(_FREE_ID, (clean(id_), self._life.slot))
                if key is not None:
                    connection.execute(_FREE_KEY, (client, clean(key), self._life.slot))
            case _ if type(write) in _BESIDE:
                connection.execute(_BESIDE[type(write)], msgspec.structs.astuple(write))
            case _:
                apply_own(connection, self._life.slot, write)


def _apart(rows: list[Any]) -> Iterable[list[Any]]:
    """A task may be written twice in one commit, but an UPDATE takes one row for each, and not surely the last."""
    if len({row.seq for row in rows}) == len(rows):
        yield rows
    else:
        for row in rows:
            yield [row]


def _pieces(rows: list[Any]) -> Iterable[list[Any]]:
    """All rows, in as few statements as PostgreSQL takes: an array of it holds less than a gigabyte."""
    piece: list[Any] = []
    size = 0
    for row in rows:
        more = sum(len(getattr(row, name, b"")) for name in _BYTES)
        if piece and size + more > MAX_STATEMENT_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += more
    if piece:
        yield piece


def _columns(kind: type, rows: list[Any]) -> dict[str, Any]:
    """The fields of writes of one class, each as an array."""
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    out: dict[str, Any] = {}
    for name, values in zip(names, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True):
        if name in _TEXTS or name in _BYTES:
            out[name] = list(values)
        elif name in _TRUTHS:
            out[name] = truths(values)
        elif name == "key":
            out[name] = [None if value is None else clean(value) for value in values]
        else:
            out[name] = integers(values)
    return out
