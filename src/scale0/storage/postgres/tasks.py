"""Tasks in PostgreSQL: the statements of a commit.

The writes about one task apply in their order. Only the broker that holds a task writes it, and a write that does not
find its task fails the commit. Each class of writes is one statement, unless its bytes are more than one statement
should carry. Statements are sent without waiting (pipeline mode), so their row counts are checked before COMMIT.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage import task_rows
from scale0.storage.interface import Handlers, dispatch
from scale0.storage.postgres.broker_rows import OWN_WRITES
from scale0.storage.postgres.task_rows import arrays, clean, integers, unnested
from scale0.storage.rows import Write, bounded
from scale0.storage.sql_tasks import (
    ACCOUNT,
    BLOBS,
    CHANGE_FIELDS,
    END_FIELDS,
    ENDED_FIELDS,
    KEPT_SIZE,
    LEASE_FIELDS,
    OPEN_FIELDS,
    columns,
    expect_rows,
    reopened_columns,
    write_batches,
)
from scale0.storage.task_rows import OWN_IDS, LeaseTask, PutTask

if TYPE_CHECKING:
    import psycopg

    from scale0.storage.postgres.brokers import BrokerEpoch

# The writer holds a task while it is leased, or queued and not in the stored backlog.
_HOLDER: Final = "CASE WHEN {status} IN (3000, 5000) OR ({status} = 1000 AND NOT {shelved}) THEN %(slot)s::smallint END"
# What this commit itself wrote belongs to this broker, even if nobody holds it by now.
# Written so that only the index of the seq fits: the index of the holder would lead through all that it holds.
_HELD: Final = "coalesce(o.holder = %(slot)s, o.seq = ANY(%(written)s::bigint[]))"


def _assignments(fields: Sequence[str]) -> str:
    return ", ".join(f"{name} = v.{name}" for name in fields if name != "seq")


_PUT: Final = f"""
    INSERT INTO open_tasks ({columns(OPEN_FIELDS)}, holder)
    SELECT v.*, {_HOLDER.format(status="v.status", shelved="v.shelved")} FROM {unnested(OPEN_FIELDS)}
    WHERE NOT EXISTS (SELECT 1 FROM ended_tasks WHERE seq = v.seq)"""
# One condition that PostgreSQL cannot consider selective: it has no statistics of a table that was empty a moment ago,
# and would scan all of it for each name.
_RESERVED: Final = "coalesce(n.seq IS NULL AND n.broker = %(slot)s AND n.epoch = %(epoch)s, false)"
_USE_IDS: Final = f"""
    UPDATE task_ids n SET seq = v.seq, broker = NULL, epoch = NULL
    FROM unnest(%(id)s::text[], %(seq)s::bigint[]) AS v (id, seq)
    WHERE n.id = v.id AND {_RESERVED}"""
# Only this broker makes such ids, so they need no reservation; but they may have one.
_PUT_IDS: Final = f"""
    INSERT INTO task_ids AS n (id, seq) SELECT * FROM unnest(%(id)s::text[], %(seq)s::bigint[])
    ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, broker = NULL, epoch = NULL WHERE {_RESERVED}"""
_USE_KEYS: Final = f"""
    UPDATE task_keys n SET seq = v.seq, broker = NULL, epoch = NULL
    FROM unnest(%(client)s::text[], %(key)s::text[], %(owner)s::text[], %(seq)s::bigint[])
        AS v (client, key, owner, seq)
    WHERE n.client = v.client AND n.key = v.key AND n.owner = v.owner AND {_RESERVED}"""

_LEASE: Final = f"""
    UPDATE open_tasks o SET {_assignments(LEASE_FIELDS)}, shelved = false, orphaned_us = NULL,
        holder = {_HOLDER.format(status="v.status", shelved="false")}
    FROM {unnested(LEASE_FIELDS)} WHERE o.seq = v.seq AND {_HELD}"""
_CHANGE: Final = f"""
    UPDATE open_tasks o SET {_assignments(CHANGE_FIELDS)}, orphaned_us = NULL,
        holder = {_HOLDER.format(status="v.status", shelved="v.shelved")}
    FROM {unnested(CHANGE_FIELDS)} WHERE o.seq = v.seq AND {_HELD}"""
_ENDED: Final = {name: f"v.{name}" for name in END_FIELDS} | {
    "params": "CASE WHEN v.status = 7000 THEN ''::bytea ELSE o.params END"
}
# The CTE returns the columns of both sides: a second join would compare each row with each.
_END: Final = f"""
    WITH e AS (DELETE FROM open_tasks o USING {unnested(END_FIELDS)} WHERE o.seq = v.seq AND {_HELD}
        RETURNING {columns(ENDED_FIELDS, _ENDED, "o.")})
    INSERT INTO ended_tasks ({columns(ENDED_FIELDS)}) SELECT * FROM e"""
_DROP_ALL_DEPENDENCIES_OF: Final = "DELETE FROM follows WHERE seq = ANY(%s::bigint[])"

_RELEASE: Final = f"""
    UPDATE open_tasks o SET holder = NULL, orphaned_us = clock_us()
    WHERE o.seq = ANY(%(seq)s::bigint[]) AND o.status IN (3000, 5000) AND {_HELD}"""
# Another broker may have reopened it first, or it was swept: then there is nothing to do.
_HAS_DEPENDENTS: Final = "EXISTS (SELECT 1 FROM follows WHERE after_seq = %(seq)s)"
_FREE: Final = f"""
    INSERT INTO task_usage AS u SELECT {ACCOUNT}, %(slot)s, 0, 0, 0, -sum(size) FROM e GROUP BY 1
    ON CONFLICT (account, slot) DO UPDATE SET kept = u.kept + excluded.kept"""
_REOPEN: Final = f"""
    WITH e AS (DELETE FROM ended_tasks WHERE seq = %(seq)s AND status <> 7000 RETURNING *, {KEPT_SIZE} AS size),
    f AS ({_FREE})
    INSERT INTO open_tasks ({columns(OPEN_FIELDS)})
    SELECT {reopened_columns("%(runnable_us)s", _HAS_DEPENDENTS, "true", "''")} FROM e"""
_SWEEP: Final = f"""
    WITH e AS (DELETE FROM ended_tasks WHERE seq IN (
            SELECT seq FROM ended_tasks WHERE expires_us <= %(before)s ORDER BY expires_us, seq LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED)
        RETURNING id, client, key, owner, {KEPT_SIZE} AS size),
    f AS ({_FREE}),
    i AS (DELETE FROM task_ids n USING e WHERE n.id = e.id)
    DELETE FROM task_keys n USING e WHERE n.client = e.client AND n.key = e.key AND n.owner = e.owner"""

_STATEMENTS: Final[dict[type, str]] = {
    task_rows.PutDependency: "INSERT INTO follows VALUES (%s, %s) ON CONFLICT DO NOTHING",
    task_rows.PutTaskClient: """
        INSERT INTO task_clients VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET heard_us = excluded.heard_us""",
    task_rows.DropTaskClient: "DELETE FROM task_clients WHERE id = %s AND heard_us <= %s",
    task_rows.PutTaskCommand: """
        INSERT INTO errands (receiver, kind, id, body) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING""",
}
"""For writes other than tasks: the statement whose parameters are the fields in order."""
_ADD_USAGE: Final = """
    INSERT INTO task_usage AS u VALUES (%(account)s, %(slot)s, %(tasks)s, %(bytes)s, %(delayed)s, %(kept)s)
    ON CONFLICT (account, slot) DO UPDATE SET tasks = u.tasks + excluded.tasks,
        bytes = u.bytes + excluded.bytes, delayed = u.delayed + excluded.delayed, kept = u.kept + excluded.kept"""
_DROP_USAGE: Final = """
    DELETE FROM task_usage
    WHERE account = %(account)s AND slot = %(slot)s AND tasks = 0 AND bytes = 0 AND delayed = 0 AND kept = 0"""
_DROP_DEPENDENCY: Final = "DELETE FROM follows WHERE after_seq = %s AND seq = ANY(%s::bigint[])"
_DROP_DEPENDENCIES: Final = "DELETE FROM follows WHERE after_seq = %s"
_FREE_ID: Final = "DELETE FROM task_ids WHERE id = %s AND seq IS NULL AND broker = %s"
_FREE_KEY: Final = """
    DELETE FROM task_keys WHERE client = %s AND key = %s AND owner = %s AND seq IS NULL AND broker = %s"""

MAX_STATEMENT_BYTES: Final = 64 * 1024 * 1024
"""The bytes of params, results and other blobs in one statement, unless its first row alone has more."""


class TaskCommit:
    """The statements of one commit."""

    def __init__(self, connection: psycopg.Connection[Any], epoch: BrokerEpoch) -> None:
        self.connection = connection
        self.slot = epoch.slot
        self._epoch = {"slot": epoch.slot, "epoch": epoch.epoch}
        self._written: set[int] = set()
        """The tasks that this commit put, changed or reopened."""
        self._expected: list[tuple[psycopg.Cursor[Any], int, str]] = []

    def send(self, writes: Sequence[Write]) -> None:
        """Each class of task writes in one statement, the rest one by one."""
        for batch in write_batches(writes):
            for rows in _chunks(batch.puts):
                self._put(rows)
            # A lease may precede or follow a change of its task: these two keep their order.
            for kind, group in itertools.groupby(batch.changes, type):
                for rows in itertools.chain.from_iterable(map(_chunks, _distinct(list(group)))):
                    statement, verb = (_LEASE, "lease") if kind is LeaseTask else (_CHANGE, "change")
                    self._expect(statement, {**arrays(rows), **self._held(rows)}, len(rows), verb)
                    self._written.update(row.seq for row in rows)
            for rows in _chunks(batch.ends):
                self._expect(_END, {**arrays(rows), **self._held(rows)}, len(rows), "end")
                self.connection.execute(_DROP_ALL_DEPENDENCIES_OF, (integers(end.seq for end in rows),))
            for write in batch.others:
                dispatch(_OTHERS, self, write)
            if batch.barrier is not None:
                dispatch(_BARRIERS, self, batch.barrier)

    def check(self) -> None:
        """After all results have arrived: StoreFailed if a task was not found."""
        for cursor, expected, verb in self._expected:
            expect_rows(cursor.rowcount, expected, verb)

    def _expect(self, statement: str, values: dict[str, Any], expected: int, verb: str) -> None:
        self._expected.append((self.connection.execute(statement, values), expected, verb))

    def _held(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The parameters of _HELD."""
        return {"slot": self.slot, "written": integers(self._written.intersection(row.seq for row in rows))}

    def _put(self, puts: list[PutTask]) -> None:
        self._expect(_PUT, {**arrays(puts), **self._epoch}, len(puts), "put")
        self._written.update(put.seq for put in puts)
        reserved = [put for put in puts if not put.id.startswith(OWN_IDS)]
        own = [put for put in puts if put.id.startswith(OWN_IDS)]
        for group, statement, verb in (
            (reserved, _USE_IDS, "put under a reserved id"),
            (own, _PUT_IDS, "put"),
        ):
            if group:
                values = {"id": [put.id for put in group], "seq": integers(put.seq for put in group), **self._epoch}
                self._expect(statement, values, len(group), verb)
        keyed = [put for put in puts if put.key is not None]
        if keyed:
            values = {
                "client": [put.client for put in keyed],
                "key": [clean(put.key or "") for put in keyed],
                "owner": [put.owner for put in keyed],
                "seq": integers(put.seq for put in keyed),
                **self._epoch,
            }
            self._expect(_USE_KEYS, values, len(keyed), "put under a reserved key")

    def _reopen(self, write: task_rows.ReopenTask) -> None:
        integers((write.seq, write.runnable_us))
        self.connection.execute(_REOPEN, {**msgspec.structs.asdict(write), "slot": self.slot})
        self._written.add(write.seq)

    def _release(self, write: task_rows.ReleaseTask) -> None:
        self._expect(_RELEASE, {"seq": integers((write.seq,)), **self._held([write])}, 1, "release")
        self._written.add(write.seq)

    def _sweep(self, write: task_rows.SweepTasks) -> None:
        integers((write.before_us,))
        values = {"before": write.before_us, "limit": bounded(write.limit), "slot": self.slot}
        self.connection.execute(_SWEEP, values)

    def _drop_dependency(self, write: task_rows.DropDependency) -> None:
        if write.seqs is None:
            self.connection.execute(_DROP_DEPENDENCIES, (write.after_seq,))
        else:
            self.connection.execute(_DROP_DEPENDENCY, (write.after_seq, integers(write.seqs)))

    def _add_usage(self, write: task_rows.AddTaskUsage) -> None:
        values = {**msgspec.structs.asdict(write), "account": clean(write.account), "slot": self.slot}
        integers((write.tasks, write.bytes, write.delayed, write.kept))
        self.connection.execute(_ADD_USAGE, values)
        self.connection.execute(_DROP_USAGE, values)

    def _free_reservation(self, write: task_rows.FreeReservation) -> None:
        if write.id is not None:
            self.connection.execute(_FREE_ID, (clean(write.id), self.slot))
        if write.key is not None:
            self.connection.execute(_FREE_KEY, (write.client, clean(write.key), write.owner, self.slot))

    def _execute(self, write: Any) -> None:
        self.connection.execute(_STATEMENTS[type(write)], msgspec.structs.astuple(write))


_BARRIERS: Final[Handlers] = {
    task_rows.ReopenTask: TaskCommit._reopen,
    task_rows.ReleaseTask: TaskCommit._release,
    task_rows.SweepTasks: TaskCommit._sweep,
}
_OTHERS: Final[Handlers] = {
    task_rows.DropDependency: TaskCommit._drop_dependency,
    task_rows.FreeReservation: TaskCommit._free_reservation,
    task_rows.AddTaskUsage: TaskCommit._add_usage,
    **dict.fromkeys(_STATEMENTS, TaskCommit._execute),
    **OWN_WRITES,
}


def _distinct(rows: list[Any]) -> Iterable[list[Any]]:
    """A task may be written twice in one commit, but an UPDATE applies one row for each, not always the last."""
    if len({row.seq for row in rows}) == len(rows):
        yield rows
    else:
        for row in rows:
            yield [row]


def _chunks(rows: list[Any]) -> Iterable[list[Any]]:
    """All rows, in as few statements as PostgreSQL takes: one array holds less than a gigabyte."""
    chunk: list[Any] = []
    size = 0
    for row in rows:
        more = sum(len(getattr(row, name, b"")) for name in BLOBS)
        if chunk and size + more > MAX_STATEMENT_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += more
    if chunk:
        yield chunk
