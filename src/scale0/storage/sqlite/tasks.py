"""Tasks in SQLite: the statements that write them.

The writes about one task apply in their order, and a write that does not find its task fails the commit.

Three properties of the tools shape the frequent path. Python releases and acquires its lock for each statement, which
costs more than a row between two busy threads: so one statement takes many rows. Python's sqlite3 looks up an adapter
for each bytes, bool and None that it binds, but not for a bytearray or an int: so the rows of frequent writes consist
of these. And an INSERT ... SELECT prepares to undo itself alone, unless it has OR FAIL: here a commit fails as a whole.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage import task_rows
from scale0.storage.interface import Handlers, dispatch
from scale0.storage.rows import Write, bounded
from scale0.storage.sql_tasks import (
    ACCOUNT,
    BLOBS,
    CHANGE_FIELDS,
    END_FIELDS,
    ENDED_FIELDS,
    FLAGS,
    KEPT_SIZE,
    LEASE_FIELDS,
    OPEN_FIELDS,
    columns,
    expect_rows,
    reopened_columns,
    write_batches,
)
from scale0.storage.sqlite.task_queries import SELECT_LEASED, open_task
from scale0.storage.task_rows import LeaseTask, OpenTask, PutTask

if TYPE_CHECKING:
    import sqlite3

    ApplyOthers = Callable[[sqlite3.Connection, type, Any], None]


def placeholders(count: int) -> str:
    return f"({', '.join('?' * count)})"


def _assignments(fields: Sequence[str], value: Callable[[int], str]) -> str:
    """For SET: every field but the seq, by its position."""
    return ", ".join(f"{name} = {value(number)}" for number, name in enumerate(fields, 1) if name != "seq")


def _binder(fields: Sequence[str], unbound: Collection[str] = ()) -> Callable[[Any], list[Any]]:
    """A function that makes a row of a write's fields, without those `unbound`, in types that sqlite3 binds quickly."""
    blobs = [number for number, name in enumerate(fields) if name in BLOBS and name not in unbound]
    flags = [number for number, name in enumerate(fields) if name in FLAGS]
    dropped = [number for number, name in enumerate(fields) if name in unbound][::-1]

    def bind(write: Any) -> list[Any]:
        row = list(msgspec.structs.astuple(write))
        for number in blobs:
            row[number] = bytearray(row[number])
        for number in flags:
            row[number] = 1 if row[number] else 0
        for number in dropped:
            del row[number]
        return row

    return bind


_RARE: Final = {"key": "NULL", "info": "x''", "history": "x''"}
"""Fields of a put that most tasks do not have."""
_plain_row: Final = _binder(OPEN_FIELDS, unbound=_RARE)
_end_row: Final = _binder(END_FIELDS)

_INSERT_OPEN: Final = f"INSERT OR FAIL INTO open_tasks ({columns(OPEN_FIELDS)})"
_PUT: Final = f"{_INSERT_OPEN} VALUES {placeholders(len(OPEN_FIELDS))}"
_PUT_PLAIN: Final = f"{_INSERT_OPEN} VALUES {{rows}}"
_PUT_PLAIN_ROW: Final = f"({', '.join(_RARE.get(name, '?') for name in OPEN_FIELDS)})"
_PUT_IDS: Final = "INSERT OR FAIL INTO task_ids SELECT id, seq FROM open_tasks WHERE seq BETWEEN ? AND ?"
_PUT_ID: Final = """
    INSERT OR FAIL INTO task_ids SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM ended_tasks WHERE seq = ?2)"""
_ANY_ENDED: Final = "SELECT seq FROM ended_tasks WHERE seq BETWEEN ? AND ? LIMIT 1"
_PUT_KEY: Final = "INSERT OR FAIL INTO task_keys VALUES (?, ?, ?, ?)"
_COLUMN: Final = {name: f"column{number}" for number, name in enumerate(END_FIELDS, 1)}
"""The columns of VALUES have no other names."""
_ENDED: Final = {**_COLUMN, "seq": "seq", "params": f"iif({_COLUMN['status']} = 7000, x'', params)"}
_END: Final = f"""
    INSERT OR FAIL INTO ended_tasks ({columns(ENDED_FIELDS)})
    SELECT {columns(ENDED_FIELDS, _ENDED)} FROM (VALUES {{rows}}) CROSS JOIN open_tasks ON seq = {_COLUMN["seq"]}"""
_DROP_OPEN: Final = "DELETE FROM open_tasks WHERE seq IN (VALUES {rows})"
_DROP_RANGE: Final = "DELETE FROM open_tasks WHERE seq BETWEEN ? AND ?"
_HAS_DEPENDENTS: Final = "EXISTS (SELECT 1 FROM follows WHERE after_seq = ?1)"
_REOPEN: Final = f"""{_INSERT_OPEN} SELECT {reopened_columns("?2", _HAS_DEPENDENTS, "1", "x''")}
    FROM ended_tasks WHERE seq = ?1 AND status <> 7000"""
_DROP_ENDED: Final = "DELETE FROM ended_tasks WHERE seq = ?"

_LEASE: Final = f"""
    UPDATE open_tasks SET {_assignments(LEASE_FIELDS, "column{}".format)}, shelved = 0
    FROM (VALUES {{rows}}) WHERE seq = column{len(LEASE_FIELDS)}"""
_CHANGE: Final = f"UPDATE open_tasks SET {_assignments(CHANGE_FIELDS, lambda _: '?')} WHERE seq = ?"

_ADD_USAGE: Final = """
    INSERT INTO task_usage VALUES (?, ?, ?, ?, ?) ON CONFLICT (account) DO UPDATE SET tasks = tasks + excluded.tasks,
        bytes = bytes + excluded.bytes, delayed = delayed + excluded.delayed, kept = kept + excluded.kept"""
_DROP_USAGE: Final = "DELETE FROM task_usage WHERE account = ? AND tasks = 0 AND kept = 0"
_SWEPT_USAGE: Final = f"""
    SELECT {ACCOUNT}, {KEPT_SIZE} FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?"""
_REOPENED_USAGE: Final = f"SELECT {ACCOUNT}, {KEPT_SIZE} FROM ended_tasks WHERE seq = ? AND status <> 7000"
_DROP_DEPENDENCY: Final = "DELETE FROM follows WHERE after_seq = ? AND seq = ?"
_DROP_DEPENDENCIES: Final = "DELETE FROM follows WHERE after_seq = ?"

ROWS_AT_ONCE: Final = (200, 20, 1)
"""The numbers of rows that one statement takes: few sizes, so that few statements are prepared."""

TASK_STATEMENTS: Final[dict[type, str]] = {
    task_rows.PutDependency: "INSERT OR IGNORE INTO follows VALUES (?, ?)",
    task_rows.PutTaskClient: """
        INSERT INTO task_clients VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET heard_us = excluded.heard_us""",
    task_rows.DropTaskClient: "DELETE FROM task_clients WHERE id = ? AND heard_us <= ?",
}
"""For writes other than tasks: the statement whose parameters are the fields in order."""

# A sweep first stores the next seq, then deletes ids, keys and rows of the same tasks, the first expired first.
_STORE_NEXT_SEQ: Final = """
    UPDATE tail SET next_task_seq = max(next_task_seq,
        coalesce((SELECT max(seq) + 1 FROM open_tasks), 1), coalesce((SELECT max(seq) + 1 FROM ended_tasks), 1))
    WHERE one = 1"""
_SWEEPS: Final = (
    """DELETE FROM task_ids WHERE id IN (
        SELECT id FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?)""",
    """DELETE FROM task_keys WHERE (client, key, owner) IN (SELECT client, key, owner FROM (
        SELECT client, key, owner FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?)
        WHERE key IS NOT NULL)""",
    """DELETE FROM ended_tasks WHERE seq IN (
        SELECT seq FROM ended_tasks WHERE expires_us <= ? ORDER BY expires_us, seq LIMIT ?)""",
)


Freed = list[tuple[str, int]]
"""By account: bytes of ended tasks that were deleted or opened again."""


def apply_writes(writer: sqlite3.Connection, writes: Sequence[Write], others: ApplyOthers) -> Freed:
    """Apply a commit: each class of task writes in one statement, the rest by `others`, in runs of one class. Return
    what it freed."""
    freed: Freed = []
    for batch in write_batches(writes):
        if batch.puts:
            _put(writer, batch.puts)
        # A lease may precede or follow a change of its task: these two keep their order.
        for kind, group in itertools.groupby(batch.changes, type):
            rows = list(map(msgspec.structs.astuple, group))
            if kind is LeaseTask:
                _lease(writer, rows)
            else:
                expect_rows(writer.executemany(_CHANGE, rows).rowcount, len(rows), "change")
        if batch.ends:
            _end(writer, batch.ends)
        for kind, group in itertools.groupby(batch.others, type):
            if kind is task_rows.DropDependency:
                _drop_dependencies(writer, group)
            elif kind is task_rows.AddTaskUsage:
                _add_usage(writer, group)
            else:
                others(writer, kind, group)
        if batch.barrier is not None:
            freed += dispatch(_BARRIERS, writer, batch.barrier)
    return freed


def _drop_dependencies(writer: sqlite3.Connection, group: Iterable[task_rows.DropDependency]) -> None:
    for drop in group:
        if drop.seqs is None:
            writer.execute(_DROP_DEPENDENCIES, (drop.after_seq,))
        else:
            writer.executemany(_DROP_DEPENDENCY, [(drop.after_seq, seq) for seq in drop.seqs])


def _add_usage(writer: sqlite3.Connection, group: Iterable[task_rows.AddTaskUsage]) -> None:
    for write in group:
        writer.execute(_ADD_USAGE, msgspec.structs.astuple(write))
        writer.execute(_DROP_USAGE, (write.account,))


def execute_rows(writer: sqlite3.Connection, statement: str, row: str, rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement for many rows, in as few executions as possible; the number of rows that it changed."""
    changed = start = 0
    for size in ROWS_AT_ONCE:
        if len(rows) - start < size:
            continue
        many = statement.format(rows=", ".join([row] * size))
        while len(rows) - start >= size:
            values = list(itertools.chain.from_iterable(rows[start : start + size]))
            changed += writer.execute(many, values).rowcount
            start += size
    return changed


def _lease(writer: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    """A task may be leased twice in one commit, but UPDATE ... FROM applies one row for each, not always the last."""
    row = placeholders(len(LEASE_FIELDS))
    if len({values[-1] for values in rows}) == len(rows):
        changed = execute_rows(writer, _LEASE, row, rows)
    else:
        one = _LEASE.format(rows=row)
        changed = sum(writer.execute(one, values).rowcount for values in rows)
    expect_rows(changed, len(rows), "lease")


def _end(writer: sqlite3.Connection, ends: list[Any]) -> None:
    inserted = execute_rows(writer, _END, placeholders(len(END_FIELDS)), list(map(_end_row, ends)))
    expect_rows(inserted, len(ends), "end")
    seqs = [end.seq for end in ends]
    first, last = min(seqs), max(seqs)
    if last - first + 1 == len(seqs):  # a range without gaps
        writer.execute(_DROP_RANGE, (first, last))
    else:
        execute_rows(writer, _DROP_OPEN, "(?)", [(seq,) for seq in seqs])


def _put(writer: sqlite3.Connection, puts: list[PutTask]) -> None:
    plain = [_plain_row(put) for put in puts if put.key is None and not put.info and not put.history]
    execute_rows(writer, _PUT_PLAIN, _PUT_PLAIN_ROW, plain)
    if len(plain) < len(puts):
        full = [put for put in puts if put.key is not None or put.info or put.history]
        writer.executemany(_PUT, map(msgspec.structs.astuple, full))
        writer.executemany(_PUT_KEY, [(p.client, p.key, p.owner, p.seq) for p in full if p.key is not None])
    seqs = [put.seq for put in puts]
    first, last = min(seqs), max(seqs)
    if last - first + 1 == len(seqs):  # all are different, so they are a range without gaps
        expect_rows(len(writer.execute(_ANY_ENDED, (first, last)).fetchall()), 0, "put a second time")
        writer.execute(_PUT_IDS, (first, last))
    else:
        rows = [(put.id, put.seq) for put in puts]
        expect_rows(writer.executemany(_PUT_ID, rows).rowcount, len(rows), "put")


def _free(writer: sqlite3.Connection, freed: Freed) -> Freed:
    _add_usage(writer, [task_rows.AddTaskUsage(account, 0, 0, 0, -size) for account, size in freed])
    return freed


def _reopen(writer: sqlite3.Connection, write: task_rows.ReopenTask) -> Freed:
    freed = writer.execute(_REOPENED_USAGE, (write.seq,)).fetchall()
    expect_rows(writer.execute(_REOPEN, (write.seq, write.runnable_us)).rowcount, 1, "reopen")
    writer.execute(_DROP_ENDED, (write.seq,))
    return _free(writer, freed)


def _sweep(writer: sqlite3.Connection, write: task_rows.SweepTasks) -> Freed:
    writer.execute(_STORE_NEXT_SEQ)
    swept = (write.before_us, bounded(write.limit))
    freed: Counter[str] = Counter()
    for account, size in writer.execute(_SWEPT_USAGE, swept):
        freed[account] += size
    for statement in _SWEEPS:
        writer.execute(statement, swept)
    return _free(writer, list(freed.items()))


_BARRIERS: Final[Handlers] = {task_rows.ReopenTask: _reopen, task_rows.SweepTasks: _sweep}

# The index contains what the predecessor held in memory: a start does not scan the open tasks.
_HELD: Final = "INDEXED BY held"
_HELD_ONLY: Final = "(status > 1000 OR (status = 1000 AND shelved = 0))"
"""The condition of the index, without which SQLite does not use it; `status = 1000` would be put into it."""
_SHELVE: Final = f"UPDATE open_tasks {_HELD} SET shelved = 1 WHERE {_HELD_ONLY} AND status <= 1000"
_LEASED: Final = f"{SELECT_LEASED} FROM open_tasks {_HELD} WHERE {_HELD_ONLY} AND status > 1000 ORDER BY seq"
_USAGE: Final = "SELECT account, tasks, bytes, delayed, kept FROM task_usage ORDER BY account"
_NEXT_SEQ: Final = "SELECT next_task_seq FROM tail"


def start_tasks(writer: sqlite3.Connection) -> tuple[int, tuple[OpenTask, ...]]:
    """At the start of a process, within its transaction: the next seq, and the leased tasks without large params."""
    writer.execute(_SHELVE)
    writer.execute(_STORE_NEXT_SEQ)
    next_seq = int(writer.execute(_NEXT_SEQ).fetchone()[0])
    return next_seq, tuple(map(open_task, writer.execute(_LEASED)))


def read_usage(writer: sqlite3.Connection) -> tuple[task_rows.TaskUsage, ...]:
    return tuple(task_rows.TaskUsage(*row) for row in writer.execute(_USAGE))
