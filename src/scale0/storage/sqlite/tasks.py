"""Tasks in SQLite: how their writes become statements.

Lives here: the statements that change tasks. Never here: a transaction of the writer's, a file, or an ask
(`sqlite_task_asks`). Invariants: the writes about one task count in their order; a write that does not find its task
fails the commit.

Three habits of the tools shape the quick path. Python gives up its lock and takes it again for each statement that it
runs, and between two busy threads that costs more than the row: so many rows go in one statement. Python's sqlite3
looks up an adapter for each bytes, bool and None that it binds, and none for a bytearray or an int: the rows of the
frequent writes are made of these. And an INSERT ... SELECT notes how to undo itself alone, unless it is told that it
need not (OR FAIL): here a commit fails as a whole.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage.interface import StoreFailed
from scale0.storage.rows import Write, bounded
from scale0.storage.sqlite.task_pages import open_task
from scale0.storage.sqlite.task_queries import SELECT_OPEN
from scale0.storage.task_rows import (
    DropDependency,
    DropTaskClient,
    EndTask,
    LeaseTask,
    OpenTask,
    PutDependency,
    PutTask,
    PutTaskClient,
    ReopenTask,
    SweepTasks,
)
from scale0.storage.write_order import stretches

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    Other = Callable[[sqlite3.Connection, type, Any], None]

_PUT: Final = """
    INSERT OR FAIL INTO open_tasks (seq, id, client, method, params, priority, status, attempt, starts, node,
        submitted_us, runnable_us, started_us, waits, shelved, followed, key, options, info, history)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_PUT_PLAIN: Final = """
    INSERT OR FAIL INTO open_tasks (seq, id, client, method, params, priority, status, attempt, starts, node,
        submitted_us, runnable_us, started_us, waits, shelved, followed, key, options, info, history)
    VALUES {rows}"""
_PUT_PLAIN_ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, x'', x'')"
_PUT_IDS: Final = "INSERT OR FAIL INTO task_ids SELECT id, seq FROM open_tasks WHERE seq BETWEEN ? AND ?"
_PUT_ID: Final = """
    INSERT OR FAIL INTO task_ids SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM ended_tasks WHERE seq = ?2)"""
_ANY_ENDED: Final = "SELECT seq FROM ended_tasks WHERE seq BETWEEN ? AND ? LIMIT 1"
_PUT_KEY: Final = "INSERT OR FAIL INTO task_keys VALUES (?, ?, ?)"
_END: Final = """
    INSERT OR FAIL INTO ended_tasks (seq, id, client, method, params, priority, status, attempt, starts, node,
        submitted_us, started_us, ended_us, expires_us, key, options, result, info, history)
    SELECT seq, id, client, method, iif(column1 = 7000, x'', params), priority, column1, column2, column3, column4,
        submitted_us, column5, column6, column7, key, options, column8, column9, column10
    FROM (VALUES {rows}) CROSS JOIN open_tasks ON seq = column11"""
_END_ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_DROP_OPEN: Final = "DELETE FROM open_tasks WHERE seq IN (VALUES {rows})"
_DROP_OPEN_ROW: Final = "(?)"
_DROP_RANGE: Final = "DELETE FROM open_tasks WHERE seq BETWEEN ? AND ?"
_REOPEN: Final = """
    INSERT OR FAIL INTO open_tasks (seq, id, client, method, params, priority, status, attempt, starts, node,
        submitted_us, runnable_us, started_us, waits, shelved, followed, key, options, info, history)
    SELECT seq, id, client, method, params, priority, 1000, attempt, 0, '',
        submitted_us, ?2, 0, 0, 1, EXISTS (SELECT 1 FROM follows WHERE after_seq = ?1), key, options, x'', history
    FROM ended_tasks WHERE seq = ?1 AND status <> 7000"""
_DROP_ENDED: Final = "DELETE FROM ended_tasks WHERE seq = ?"

_LEASE: Final = """
    UPDATE open_tasks SET status = column1, attempt = column2, starts = column3, node = column4, started_us = column5,
        shelved = 0
    FROM (VALUES {rows}) WHERE seq = column6"""
_LEASE_ROW: Final = "(?, ?, ?, ?, ?, ?)"
_CHANGE: Final = """
    UPDATE open_tasks SET status = ?, attempt = ?, starts = ?, node = ?, runnable_us = ?, started_us = ?,
        waits = ?, shelved = ?, followed = ?, info = ?, history = ?
    WHERE seq = ?"""

_DROP_FOLLOW: Final = "DELETE FROM follows WHERE after_seq = ? AND seq = ?"
_DROP_FOLLOWS: Final = "DELETE FROM follows WHERE after_seq = ?"

ROWS_AT_ONCE: Final = (200, 20, 1)
"""How many rows one statement takes: as many as there are, in as few statements as these allow."""

TASK_STATEMENTS: Final[dict[type, str]] = {
    PutDependency: "INSERT OR IGNORE INTO follows VALUES (?, ?)",
    PutTaskClient: """
        INSERT INTO task_clients VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET heard_us = excluded.heard_us""",
    DropTaskClient: "DELETE FROM task_clients WHERE id = ?",
}
"""The writes beside the tasks themselves: their fields are the parameters in order."""

# Before a sweep: where the numbers were. Then names and rows of the same tasks, in the order in which their time ended.
_NOTE_SEQ: Final = """
    UPDATE tail SET next_task_seq = max(next_task_seq,
        coalesce((SELECT max(seq) + 1 FROM open_tasks), 1), coalesce((SELECT max(seq) + 1 FROM ended_tasks), 1))
    WHERE one = 1"""
_SWEEPS: Final = (
    """DELETE FROM task_ids WHERE id IN (
        SELECT id FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?)""",
    """DELETE FROM task_keys WHERE (client, key) IN (SELECT client, key FROM (
        SELECT client, key FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?)
        WHERE key IS NOT NULL)""",
    """DELETE FROM ended_tasks WHERE seq IN (
        SELECT seq FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?)""",
)

_NO_BYTES: Final = bytearray()


def apply_writes(writer: sqlite3.Connection, writes: Sequence[Write], other: Other) -> None:
    """Write all of a commit: each kind of task write at one go, the rest by `other`, in runs of one class."""
    for puts, changes, ends, rest, turn in stretches(writes):
        _flush(writer, puts, changes, ends, rest, other)
        if turn is not None:
            _turn_back(writer, turn)


def _flush(
    writer: sqlite3.Connection,
    puts: list[Any],
    changes: list[Any],
    ends: list[Any],
    rest: list[Any],
    other: Other,
) -> None:
    if puts:
        _put(writer, puts)
    # A lease may stand before or behind a change of its task: these two keep their order.
    for kind, group in itertools.groupby(changes, type):
        rows = list(map(msgspec.structs.astuple, group))
        if kind is LeaseTask:
            _lease(writer, rows)
        else:
            _must(writer.executemany(_CHANGE, rows).rowcount, len(rows), "change")
    if ends:
        _must(at_once(writer, _END, _END_ROW, list(map(_end_row, ends))), len(ends), "end")
        seqs = [end.seq for end in ends]
        first, last = min(seqs), max(seqs)
        if last - first + 1 == len(seqs):  # all that is in between
            writer.execute(_DROP_RANGE, (first, last))
        else:
            at_once(writer, _DROP_OPEN, _DROP_OPEN_ROW, [(seq,) for seq in seqs])
    for kind, group in itertools.groupby(rest, type):
        if kind is DropDependency:
            _drop_follows(writer, group)
        else:
            other(writer, kind, group)


def _drop_follows(writer: sqlite3.Connection, group: Iterable[DropDependency]) -> None:
    for drop in group:
        if drop.seqs is None:
            writer.execute(_DROP_FOLLOWS, (drop.after_seq,))
        else:
            writer.executemany(_DROP_FOLLOW, [(drop.after_seq, seq) for seq in drop.seqs])


def at_once(writer: sqlite3.Connection, statement: str, row: str, rows: list[tuple[Any, ...]]) -> int:
    """Run a statement for many rows, in as few goes as may be; how many rows it changed."""
    found = place = 0
    for size in ROWS_AT_ONCE:
        if len(rows) - place < size:
            continue
        many = statement.format(rows=", ".join([row] * size))
        while len(rows) - place >= size:
            values = list(itertools.chain.from_iterable(rows[place : place + size]))
            found += writer.execute(many, values).rowcount
            place += size
    return found


def _lease(writer: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    """A task may be leased twice in one commit: an UPDATE ... FROM takes one row for each, and not surely the last."""
    if len({row[-1] for row in rows}) == len(rows):
        _must(at_once(writer, _LEASE, _LEASE_ROW, rows), len(rows), "lease")
    else:
        one = _LEASE.format(rows=_LEASE_ROW)
        _must(sum(writer.execute(one, row).rowcount for row in rows), len(rows), "lease")


def _put(writer: sqlite3.Connection, puts: list[PutTask]) -> None:
    plain = [_plain_row(put) for put in puts if put.key is None and not put.info and not put.history]
    at_once(writer, _PUT_PLAIN, _PUT_PLAIN_ROW, plain)
    if len(plain) < len(puts):
        full = [put for put in puts if put.key is not None or put.info or put.history]
        writer.executemany(_PUT, map(msgspec.structs.astuple, full))
        writer.executemany(_PUT_KEY, [(put.client, put.key, put.seq) for put in full if put.key is not None])
    seqs = [put.seq for put in puts]
    first, last = min(seqs), max(seqs)
    if last - first + 1 == len(seqs):  # they are all different, so they are all that is in between
        _must(len(writer.execute(_ANY_ENDED, (first, last)).fetchall()), 0, "put a second time")
        writer.execute(_PUT_IDS, (first, last))
    else:
        rows = [(put.id, put.seq) for put in puts]
        _must(writer.executemany(_PUT_ID, rows).rowcount, len(rows), "put")


def _plain_row(put: PutTask) -> tuple[Any, ...]:
    return (
        put.seq,
        put.id,
        put.client,
        put.method,
        bytearray(put.params),
        put.priority,
        put.status,
        put.attempt,
        put.starts,
        put.node,
        put.submitted_us,
        put.runnable_us,
        put.started_us,
        put.waits,
        1 if put.shelved else 0,
        1 if put.followed else 0,
        bytearray(put.options) if put.options else _NO_BYTES,
    )


def _end_row(end: EndTask) -> tuple[Any, ...]:
    return (
        end.status,
        end.attempt,
        end.starts,
        end.node,
        end.started_us,
        end.ended_us,
        end.expires_us,
        bytearray(end.result),
        bytearray(end.info) if end.info else _NO_BYTES,
        bytearray(end.history) if end.history else _NO_BYTES,
        end.seq,
    )


def _turn_back(writer: sqlite3.Connection, write: Write) -> None:
    match write:
        case ReopenTask(seq, runnable_us):
            _must(writer.execute(_REOPEN, (seq, runnable_us)).rowcount, 1, "reopen")
            writer.execute(_DROP_ENDED, (seq,))
        case SweepTasks(before_us, limit):
            writer.execute(_NOTE_SEQ)
            for statement in _SWEEPS:
                writer.execute(statement, (before_us, bounded(limit)))
        case _:
            raise TypeError(type(write).__name__)


def _must(found: int, expected: int, verb: str) -> None:
    if found != expected:
        raise StoreFailed(f"tasks to {verb}: {expected}, but found {found}: please report this")


# At the start of a process one walk over the open tasks is cheaper than an index that each of them would pay for.
_SHELVE: Final = "UPDATE open_tasks SET shelved = 1 WHERE status = 1000 AND shelved = 0"
_LEASED: Final = f"{SELECT_OPEN} FROM open_tasks WHERE status IN (3000, 5000) ORDER BY seq"
_NEXT_SEQ: Final = "SELECT next_task_seq FROM tail"


def open_tasks(writer: sqlite3.Connection) -> tuple[int, tuple[OpenTask, ...]]:
    """For a process that begins, within its transaction: the next seq, and what is handed out."""
    writer.execute(_SHELVE)
    writer.execute(_NOTE_SEQ)
    next_seq = int(writer.execute(_NEXT_SEQ).fetchone()[0])
    return next_seq, tuple(map(open_task, writer.execute(_LEASED)))
