"""What SQLite answers about tasks.

Lives here: the statements that read, and the answers. Never here: a write (`sqlite_tasks`). Invariants: an answer is of
one moment; no ask walks through more rows than it may return, but those that say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.storage.rows import MAX_INTEGER, TaskAnswer, bounded, clamp
from scale0.storage.sqlite.task_pages import OPEN_STATUSES, list_tasks, open_task
from scale0.storage.task_queries import (
    ClaimedTask,
    ClaimTasks,
    CountTasks,
    FindTasks,
    ListTasks,
    LookUpSubmission,
    ReadDependents,
    ReadEndedDependencies,
    ReadExpiry,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
    SubmissionLookup,
    TaskQuery,
)
from scale0.storage.task_rows import EndedTask, OpenTask, TaskClient

if TYPE_CHECKING:
    import sqlite3

SELECT_OPEN: Final = """
    SELECT open_tasks.seq, id, client, method, params, priority, status, attempt, starts, node, submitted_us,
    runnable_us, started_us, waits, shelved, followed, key, options, info, history"""
_ENDED: Final = """
    SELECT ended_tasks.seq, id, client, method, params, priority, status, attempt, starts, node, submitted_us,
    started_us, ended_us, expires_us, key, options, result, info, history"""
_READ_QUEUE: Final = f"""{SELECT_OPEN} FROM open_tasks INDEXED BY shelf
    WHERE shelved = 1 AND status = 1000 AND method = ? AND priority = ? AND seq > ? ORDER BY seq LIMIT ?"""
_NEXT_PRIORITY: Final = """
    SELECT priority, seq FROM open_tasks INDEXED BY shelf
    WHERE shelved = 1 AND status = 1000 AND method = ? AND priority < ? ORDER BY priority DESC, seq DESC LIMIT 1"""
# Not (runnable_us, seq) > (?, ?): that would walk over all of one moment again.
_READ_MOMENT: Final = f"""{SELECT_OPEN} FROM open_tasks INDEXED BY schedule
    WHERE status = 500 AND waits = 0 AND runnable_us = ? AND seq > ? ORDER BY seq LIMIT ?"""
_READ_LATER: Final = f"""{SELECT_OPEN} FROM open_tasks INDEXED BY schedule
    WHERE status = 500 AND waits = 0 AND runnable_us > ? ORDER BY runnable_us, seq LIMIT ?"""
# CROSS JOIN: from the left to the right, in the order of the left one's key.
_READ_FOLLOWERS: Final = f"""{SELECT_OPEN} FROM follows CROSS JOIN open_tasks ON open_tasks.seq = follows.seq
    WHERE after_seq = ? AND follows.seq > ? ORDER BY follows.seq LIMIT ?"""
# It walks over all that waits for something, once in the life of a process.
_READ_SETTLED: Final = f"""{_ENDED} FROM follows CROSS JOIN ended_tasks ON ended_tasks.seq = after_seq
    GROUP BY after_seq ORDER BY after_seq LIMIT ?"""
_READ_EXPIRY: Final = "SELECT min(expires_us) FROM ended_tasks"
# It walks over all open tasks, for the sake of `look`. GROUP BY would sort them too.
_COUNT: Final = """
    SELECT count(*) FILTER (WHERE status = 500), count(*) FILTER (WHERE status = 1000),
        count(*) FILTER (WHERE status = 3000), count(*) FILTER (WHERE status = 5000) FROM open_tasks"""
_FIND: Final = "SELECT seq FROM task_ids WHERE id = ?"
_FIND_KEY: Final = "SELECT seq FROM task_keys WHERE client = ? AND key = ?"
_FIND_CLIENT: Final = "SELECT id, owner, heard_us FROM task_clients WHERE id = ?"
_FIND_LAST: Final = "SELECT max(id) FROM task_ids WHERE id >= ? AND id < ?"
_ONE_OPEN: Final = f"{SELECT_OPEN} FROM open_tasks WHERE seq = ?"
_ONE_ENDED: Final = f"{_ENDED} FROM ended_tasks WHERE seq = ?"


def answer_tasks(reader: sqlite3.Connection, ask: TaskQuery) -> TaskAnswer:
    """Answer from one moment: a task that ends meanwhile must not be in both tables, or in none."""
    reader.execute("BEGIN")
    try:
        return _answer(reader, ask)
    finally:
        reader.rollback()  # nothing to keep; and SQLite may have ended it already


def _answer(reader: sqlite3.Connection, ask: TaskQuery) -> TaskAnswer:
    match ask:
        case FindTasks(ids):
            return tuple(_by_name(reader, _FIND, (name,)) for name in ids)
        case ClaimTasks(ids):
            return tuple(ClaimedTask(_by_name(reader, _FIND, (name,))) for name in ids)
        case LookUpSubmission():
            return _find_new(reader, ask)
        case ReadQueue():
            return _read_queue(reader, ask)
        case ReadPriorities(method):
            return _read_priorities(reader, method)
        case ReadSchedule(after_us, after_seq, limit):
            moment = reader.execute(_READ_MOMENT, (clamp(after_us), clamp(after_seq), bounded(limit))).fetchall()
            later = reader.execute(_READ_LATER, (clamp(after_us), bounded(limit) - len(moment)))
            return (*map(open_task, moment), *map(open_task, later))
        case ReadDependents(after_seq, seq, limit):
            place = (clamp(after_seq), clamp(seq), bounded(limit))
            return tuple(map(open_task, reader.execute(_READ_FOLLOWERS, place)))
        case ReadEndedDependencies(limit):
            return tuple(EndedTask(*row) for row in reader.execute(_READ_SETTLED, (bounded(limit),)))
        case ReadExpiry():
            found: int | None = reader.execute(_READ_EXPIRY).fetchone()[0]
            return found
        case CountTasks():
            counts = zip(OPEN_STATUSES, reader.execute(_COUNT).fetchone(), strict=True)
            return {status: count for status, count in counts if count}
        case ListTasks():
            return list_tasks(reader, ask)
        case _:
            raise TypeError(f"{type(ask).__name__}: this store is not shared")


def _by_name(reader: sqlite3.Connection, find: str, name: tuple[str, ...]) -> OpenTask | EndedTask | None:
    seq = reader.execute(find, name).fetchone()
    if seq is None:
        return None
    row = reader.execute(_ONE_ENDED, seq).fetchone()
    if row is not None:
        return EndedTask(*row)
    return open_task(reader.execute(_ONE_OPEN, seq).fetchone())


def _find_new(reader: sqlite3.Connection, ask: LookUpSubmission) -> SubmissionLookup:
    client = reader.execute(_FIND_CLIENT, (ask.client,)).fetchone()
    last = None
    if ask.series is not None:
        # "/" is the letter behind ".".
        last = reader.execute(_FIND_LAST, (f"{ask.series}.", f"{ask.series}/")).fetchone()[0]
    return SubmissionLookup(
        client=None if client is None else TaskClient(*client),
        tasks=tuple(_by_name(reader, _FIND, (name,)) for name in ask.ids),
        keyed=None if ask.key is None else _by_name(reader, _FIND_KEY, (ask.client, ask.key)),
        last=last or "",
    )


def _read_queue(reader: sqlite3.Connection, ask: ReadQueue) -> tuple[OpenTask, ...]:
    place = (ask.method, clamp(ask.priority), clamp(ask.after_seq), bounded(ask.limit))
    cursor = reader.execute(_READ_QUEUE, place)
    tasks: list[OpenTask] = []
    size = 0
    for row in cursor:
        task = open_task(row)
        tasks.append(task)
        size += len(task.params)
        if size >= ask.max_bytes:
            break
    cursor.close()  # one that is left open would keep the log from being written back
    return tuple(tasks)


def _read_priorities(reader: sqlite3.Connection, method: str) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    below = MAX_INTEGER
    while (row := reader.execute(_NEXT_PRIORITY, (method, below)).fetchone()) is not None:
        found.append(row)
        below = row[0]
    return tuple(found)
