"""Tasks in SQLite: the statements that read them, and the answers to queries.

No query scans more rows than it may return, except where a comment says so. The caller holds a transaction, because a
task that ends during a query must be in exactly one of the two tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.storage import task_queries as queries
from scale0.storage.interface import Handlers
from scale0.storage.rows import MAX_INTEGER, bounded, clamp
from scale0.storage.sql_tasks import (
    ENDED_FIELDS,
    FLAGS,
    LARGE,
    OPEN_FIELDS,
    UNLISTED,
    Access,
    PageStatements,
    columns,
    list_tasks,
    page_statements,
)
from scale0.storage.task_rows import ACCOUNT, KEPT_PARAMS_BYTES, OPEN_STATUSES, EndedTask, OpenTask, TaskClient

if TYPE_CHECKING:
    import sqlite3

_FLAG_INDEXES: Final = tuple(OPEN_FIELDS.index(name) for name in FLAGS)

# The length is in the head of the row: SQLite does not read the params for it.
_SIZE: Final = "length(open_tasks.params)"
SELECT_OPEN: Final = f"SELECT {columns(OPEN_FIELDS, prefix='open_tasks.')}, {_SIZE}"
_SELECT_ENDED: Final = f"SELECT {columns(ENDED_FIELDS, prefix='ended_tasks.')}"
_NO_LARGE: Final = dict.fromkeys(LARGE, "x''")
_SELECT_OPEN_BRIEF: Final = f"SELECT {columns(OPEN_FIELDS, _NO_LARGE, 'open_tasks.')}, {_SIZE}"
_SMALL_PARAMS: Final = {"params": f"CASE WHEN {_SIZE} <= {KEPT_PARAMS_BYTES} THEN open_tasks.params ELSE x'' END"}
SELECT_LEASED: Final = f"SELECT {columns(OPEN_FIELDS, _SMALL_PARAMS, 'open_tasks.')}, {_SIZE}"
_SELECT_ENDED_BRIEF: Final = f"SELECT {columns(ENDED_FIELDS, _NO_LARGE, 'ended_tasks.')}"
_READ_QUEUE: Final = f"""{SELECT_OPEN} FROM open_tasks INDEXED BY shelf
    WHERE shelved = 1 AND status = 1000 AND method = ? AND priority = ? AND seq > ? ORDER BY seq LIMIT ?"""
_READ_QUEUE_OF: Final = f"""{SELECT_OPEN} FROM open_tasks INDEXED BY shelf_account
    WHERE shelved = 1 AND status = 1000 AND method = ? AND priority = ? AND seq > ? AND {ACCOUNT} = ?
    ORDER BY seq LIMIT ?"""
_NEXT_OWNER: Final = f"""
    SELECT {ACCOUNT}, max(seq) FROM open_tasks INDEXED BY shelf_account
    WHERE shelved = 1 AND status = 1000 AND method = ? AND priority = ? AND {ACCOUNT} = (
        SELECT {ACCOUNT} FROM open_tasks INDEXED BY shelf_account
        WHERE shelved = 1 AND status = 1000 AND method = ? AND priority = ? AND {ACCOUNT} {{beyond}} ?
        ORDER BY {ACCOUNT} LIMIT 1)"""
_FIRST_OWNER: Final = _NEXT_OWNER.format(beyond=">=")
_LATER_OWNER: Final = _NEXT_OWNER.format(beyond=">")
_NEXT_PRIORITY: Final = """
    SELECT priority, seq FROM open_tasks INDEXED BY shelf
    WHERE shelved = 1 AND status = 1000 AND method = ? AND priority < ? ORDER BY priority DESC, seq DESC LIMIT 1"""
# Not (runnable_us, seq) > (?, ?): that would scan all rows of one moment again.
_READ_MOMENT: Final = f"""{_SELECT_OPEN_BRIEF} FROM open_tasks INDEXED BY schedule
    WHERE status = 500 AND waits = 0 AND runnable_us = ? AND seq > ? ORDER BY seq LIMIT ?"""
_READ_LATER: Final = f"""{_SELECT_OPEN_BRIEF} FROM open_tasks INDEXED BY schedule
    WHERE status = 500 AND waits = 0 AND runnable_us > ? ORDER BY runnable_us, seq LIMIT ?"""
# CROSS JOIN: SQLite reads the left table first, in the order of its key.
_READ_DEPENDENTS: Final = f"""{SELECT_OPEN} FROM follows CROSS JOIN open_tasks ON open_tasks.seq = follows.seq
    WHERE after_seq = ? AND follows.seq > ? ORDER BY follows.seq LIMIT ?"""
# It scans all dependencies, once per process.
_READ_ENDED_DEPENDENCIES: Final = f"""{_SELECT_ENDED_BRIEF}
    FROM follows CROSS JOIN ended_tasks ON ended_tasks.seq = after_seq GROUP BY after_seq ORDER BY after_seq LIMIT ?"""
_READ_EXPIRY: Final = "SELECT min(expires_us) FROM ended_tasks"
_READ_LAST_EXPIRY: Final = "SELECT max(expires_us) FROM ended_tasks"
# Both scan, on the connection of `scan`.
_COUNT_CLIENTS: Final = "SELECT owner, count(*) FROM task_clients GROUP BY owner"
_UNUSED_CLIENTS: Final = """
    SELECT id FROM task_clients WHERE heard_us <= ? AND id NOT IN (SELECT client FROM open_tasks)
        AND id NOT IN (SELECT client FROM ended_tasks) ORDER BY id LIMIT ?"""
# It scans all open tasks, on the connection of `scan`. GROUP BY would also sort them.
_COUNT: Final = """
    SELECT count(*) FILTER (WHERE status = 500), count(*) FILTER (WHERE status = 1000),
        count(*) FILTER (WHERE status = 3000), count(*) FILTER (WHERE status = 5000) FROM open_tasks"""
_FIND: Final = "SELECT seq FROM task_ids WHERE id = ?"
_FIND_KEY: Final = """
    SELECT seq FROM task_keys WHERE client = ? AND key = ? AND owner IN (?, '') ORDER BY owner DESC LIMIT 1"""
_FIND_CLIENT: Final = "SELECT id, owner, heard_us FROM task_clients WHERE id = ?"
_FIND_LAST: Final = "SELECT max(id) FROM task_ids WHERE id >= ? AND id < ?"
_ONE_OPEN: Final = f"{SELECT_OPEN} FROM open_tasks WHERE seq = ?"
_ONE_ENDED: Final = f"{_SELECT_ENDED} FROM ended_tasks WHERE seq = ?"
_BRIEF_OPEN: Final = f"{_SELECT_OPEN_BRIEF} FROM open_tasks WHERE seq = ?"
_BRIEF_ENDED: Final = f"{_SELECT_ENDED_BRIEF} FROM ended_tasks WHERE seq = ?"
# The length is in the head of the row: SQLite does not read the result for it.
_RESULT_SIZE: Final = "SELECT length(result) FROM ended_tasks WHERE seq = ?"
_RESULT: Final = "SELECT status, result, result_sum FROM ended_tasks WHERE seq = ?"


_NO_BYTES: Final = dict.fromkeys(UNLISTED, "x''")
_PARAMETERS: Final = {name: f":{name}" for name in ("before", "scan", "floor", "limit", "status", "method", "client")}
_OPEN_LISTED: Final = f"{columns(OPEN_FIELDS, _NO_BYTES)}, {_SIZE}"
_ENDED_LISTED: Final = columns(ENDED_FIELDS, _NO_BYTES)
_BY_STATUS: Final = "ended_tasks INDEXED BY ended_unfinished WHERE status <> 7000 AND status = :status"
_BY_METHOD: Final = "ended_tasks INDEXED BY ended_method WHERE method = :method"
_PAGES: Final[dict[Access, PageStatements]] = {
    "open": page_statements(_OPEN_LISTED, "open_tasks NOT INDEXED WHERE true", _PARAMETERS),
    "ended": page_statements(_ENDED_LISTED, "ended_tasks NOT INDEXED WHERE true", _PARAMETERS),
    "method": page_statements(_ENDED_LISTED, _BY_METHOD, _PARAMETERS),
    "status": page_statements(_ENDED_LISTED, _BY_STATUS, _PARAMETERS),
}


def open_task(row: tuple[Any, ...]) -> OpenTask:
    """A row in the order of OpenTask's fields; SQLite has no booleans."""
    values = list(row)
    for index in _FLAG_INDEXES:
        values[index] = row[index] == 1
    return OpenTask(*values)


def _ended_task(row: tuple[Any, ...]) -> EndedTask:
    return EndedTask(*row)


def _find_one(
    reader: sqlite3.Connection, find: str, name: tuple[str, ...], brief: bool = False
) -> OpenTask | EndedTask | None:
    seq = reader.execute(find, name).fetchone()
    if seq is None:
        return None
    row = reader.execute(_BRIEF_ENDED if brief else _ONE_ENDED, seq).fetchone()
    if row is not None:
        return EndedTask(*row)
    return open_task(reader.execute(_BRIEF_OPEN if brief else _ONE_OPEN, seq).fetchone())


def _find_tasks(reader: sqlite3.Connection, query: queries.FindTasks) -> tuple[OpenTask | EndedTask | None, ...]:
    return tuple(_find_one(reader, _FIND, (name,), query.brief) for name in query.ids)


def _read_results(reader: sqlite3.Connection, query: queries.ReadResults) -> tuple[tuple[int, bytes, int] | None, ...]:
    results: list[tuple[int, bytes, int] | None] = []
    size = 0
    for seq in query.seqs:
        found = reader.execute(_RESULT_SIZE, (clamp(seq),)).fetchone()
        size += 0 if found is None else found[0]
        if results and size > query.max_bytes:
            break
        results.append(reader.execute(_RESULT, (clamp(seq),)).fetchone())
    return tuple(results)


def _claim_tasks(reader: sqlite3.Connection, query: queries.ClaimTasks) -> tuple[queries.ClaimedTask, ...]:
    return tuple(queries.ClaimedTask(_find_one(reader, _FIND, (name,))) for name in query.ids)


def _look_up_submission(reader: sqlite3.Connection, query: queries.LookUpSubmission) -> queries.SubmissionLookup:
    client = reader.execute(_FIND_CLIENT, (query.client,)).fetchone()
    last = None
    if query.series is not None:
        # "/" is the character after ".".
        last = reader.execute(_FIND_LAST, (f"{query.series}.", f"{query.series}/")).fetchone()[0]
    key = None if query.key is None else (query.client, query.key, query.owner)
    return queries.SubmissionLookup(
        client=None if client is None else TaskClient(*client),
        tasks=tuple(_find_one(reader, _FIND, (name,), brief=True) for name in query.ids),
        keyed=None if key is None else _find_one(reader, _FIND_KEY, key, brief=True),
        last=last or "",
    )


def _read_queue(reader: sqlite3.Connection, query: queries.ReadQueue) -> tuple[OpenTask, ...]:
    values: list[Any] = [query.method, clamp(query.priority), clamp(query.after_seq)]
    values += [bounded(query.limit)] if query.owner is None else [query.owner, bounded(query.limit)]
    cursor = reader.execute(_READ_QUEUE if query.owner is None else _READ_QUEUE_OF, values)
    tasks: list[OpenTask] = []
    size = 0
    for row in cursor:
        task = open_task(row)
        tasks.append(task)
        size += len(task.params)
        if size >= query.max_bytes:
            break
    cursor.close()  # an open cursor would prevent a checkpoint
    return tuple(tasks)


def _read_priorities(reader: sqlite3.Connection, query: queries.ReadPriorities) -> tuple[tuple[int, int], ...]:
    priorities: list[tuple[int, int]] = []
    below = MAX_INTEGER
    while (row := reader.execute(_NEXT_PRIORITY, (query.method, below)).fetchone()) is not None:
        priorities.append(row)
        below = row[0]
    return tuple(priorities)


def _read_owners(reader: sqlite3.Connection, query: queries.ReadOwners) -> tuple[tuple[int, str, int], ...]:
    """One or two index lookups for each submitter."""
    found: list[tuple[int, str, int]] = []
    for priority, _ in _read_priorities(reader, queries.ReadPriorities(query.method)):
        place = (query.method, priority)
        row = reader.execute(_FIRST_OWNER, (*place, *place, "")).fetchone()
        while row[0] is not None:
            found.append((priority, *row))
            row = reader.execute(_LATER_OWNER, (*place, *place, row[0])).fetchone()
    return tuple(found)


def _read_schedule(reader: sqlite3.Connection, query: queries.ReadSchedule) -> tuple[OpenTask, ...]:
    after_us, limit = clamp(query.after_us), bounded(query.limit)
    moment = reader.execute(_READ_MOMENT, (after_us, clamp(query.after_seq), limit)).fetchall()
    later = reader.execute(_READ_LATER, (after_us, limit - len(moment)))
    return (*map(open_task, moment), *map(open_task, later))


def _read_dependents(reader: sqlite3.Connection, query: queries.ReadDependents) -> tuple[OpenTask, ...]:
    values = (clamp(query.after_seq), clamp(query.seq), bounded(query.limit))
    return tuple(map(open_task, reader.execute(_READ_DEPENDENTS, values)))


def _read_ended_dependencies(reader: sqlite3.Connection, query: queries.ReadEndedDependencies) -> tuple[EndedTask, ...]:
    return tuple(map(_ended_task, reader.execute(_READ_ENDED_DEPENDENCIES, (bounded(query.limit),))))


def _read_expiry(reader: sqlite3.Connection, query: queries.ReadExpiry) -> int | None:
    expiry: int | None = reader.execute(_READ_LAST_EXPIRY if query.last else _READ_EXPIRY).fetchone()[0]
    return expiry


def _count_task_clients(reader: sqlite3.Connection, _: queries.CountTaskClients) -> dict[str, int]:
    return dict(reader.execute(_COUNT_CLIENTS).fetchall())


def _read_unused_clients(reader: sqlite3.Connection, query: queries.ReadUnusedClients) -> tuple[str, ...]:
    values = (clamp(query.heard_us), bounded(query.limit))
    return tuple(row[0] for row in reader.execute(_UNUSED_CLIENTS, values))


def _count_tasks(reader: sqlite3.Connection, _: queries.CountTasks) -> dict[int, int]:
    counts = zip(OPEN_STATUSES, reader.execute(_COUNT).fetchone(), strict=True)
    return {status: count for status, count in counts if count}


def _list_tasks(reader: sqlite3.Connection, query: queries.ListTasks) -> queries.TaskPage:
    def run(statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        return reader.execute(statement, values).fetchall()

    return list_tasks(query, _PAGES, run, open_task, _ended_task)


TASK_ANSWERS: Final[Handlers] = {
    queries.FindTasks: _find_tasks,
    queries.ReadResults: _read_results,
    queries.ClaimTasks: _claim_tasks,
    queries.LookUpSubmission: _look_up_submission,
    queries.ReadQueue: _read_queue,
    queries.ReadOwners: _read_owners,
    queries.ReadPriorities: _read_priorities,
    queries.ReadSchedule: _read_schedule,
    queries.ReadDependents: _read_dependents,
    queries.ReadEndedDependencies: _read_ended_dependencies,
    queries.ReadExpiry: _read_expiry,
    queries.CountTaskClients: _count_task_clients,
    queries.ReadUnusedClients: _read_unused_clients,
    queries.CountTasks: _count_tasks,
    queries.ListTasks: _list_tasks,
}
