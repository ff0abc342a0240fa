"""Tasks in PostgreSQL: how asks become statements, and rows become answers.

Lives here: asks that read, and asks that take; `postgres_find` has those that reserve. Never here: a transaction.
Invariants: what is taken was nobody's, and two brokers never take the same (FOR UPDATE SKIP LOCKED); no ask walks
through more rows than it may return, but those that say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.storage.postgres.task_pages import list_tasks
from scale0.storage.postgres.task_rows import ENDED, JOINED, NAMED, OPEN, NamedTask, ended_task, named, open_task
from scale0.storage.postgres.values import clean
from scale0.storage.rows import TaskAnswer, bounded, clamp
from scale0.storage.task_queries import (
    ClaimedTask,
    ClaimTasks,
    CountTasks,
    FindEnded,
    FindTasks,
    ListTasks,
    PeekBacklog,
    PeekQueue,
    ReadDependents,
    ReadEndedDependencies,
    ReadExpiry,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
    TakeDue,
    TakeOrphans,
    TakeTaskCommands,
    TaskQuery,
)
from scale0.storage.task_rows import OpenTask, PutTaskCommand

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

_SHELF: Final = "shelved AND status = 1000 AND method = {method}"

_FIND_ENDED: Final = f"""
    SELECT {ENDED} FROM task_ids n JOIN ended_tasks e ON e.seq = n.seq WHERE n.id = ANY(%s::text[])"""
_FIND: Final = f"SELECT n.id, {NAMED} FROM task_ids n {JOINED} WHERE n.id = ANY(%s::text[])"

_NEXT_PRIORITY: Final = """
    SELECT priority FROM open_tasks WHERE {shelf} {below} ORDER BY priority DESC LIMIT 1"""
_EACH_PRIORITY: Final = """
    WITH RECURSIVE p AS (({first}) UNION ALL SELECT n.priority FROM p, LATERAL ({next}) n)"""


def _each_priority(method: str) -> str:
    """The priorities on the shelf, from the highest, one step in the index for each."""
    shelf = _SHELF.format(method=method)
    first = _NEXT_PRIORITY.format(shelf=shelf, below="")
    following = _NEXT_PRIORITY.format(shelf=shelf, below="AND priority < p.priority")
    return _EACH_PRIORITY.format(first=first, next=following)


_PRIORITIES: Final = f"""{_each_priority("%(method)s")}
    SELECT p.priority, (SELECT max(seq) FROM open_tasks WHERE {_SHELF.format(method="%(method)s")}
        AND priority = p.priority) FROM p"""
_PEEK_SHELF: Final = f"""
    SELECT m.name, p.priority FROM unnest(%s::text[]) AS m (name)
    CROSS JOIN LATERAL ({_each_priority("m.name")} SELECT priority FROM p) p"""
_PEEK_QUEUE: Final = f"""
    SELECT id FROM open_tasks WHERE {_SHELF.format(method="%s")} ORDER BY priority DESC, seq LIMIT %s"""
_SCHEDULE: Final = f"""
    SELECT {OPEN} FROM open_tasks o WHERE status = 500 AND waits = 0 AND (runnable_us, seq) > (%s, %s)
    ORDER BY runnable_us, seq LIMIT %s"""
# It walks over all that waits for something.
_SETTLED: Final = f"""
    SELECT {ENDED} FROM (SELECT DISTINCT after_seq FROM follows) f JOIN ended_tasks e ON e.seq = f.after_seq
    ORDER BY e.seq LIMIT %s"""
_EXPIRY: Final = "SELECT min(expires_us) FROM ended_tasks"
# It walks over all open tasks, for the sake of `look`.
_COUNT: Final = "SELECT status, count(*) FROM open_tasks GROUP BY status"

_TAKE: Final = f"""
    UPDATE open_tasks o SET holder = %(slot)s, shelved = false, orphaned_us = NULL FROM t
    WHERE o.seq = t.seq RETURNING {OPEN}"""

_TAKE_QUEUE: Final = f"""
    WITH c AS (SELECT seq, length(params) AS size FROM open_tasks
        WHERE {_SHELF.format(method="%(method)s")} AND priority = %(priority)s AND seq > %(after)s
        ORDER BY seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
    s AS (SELECT seq, row_number() OVER w AS place, sum(size) OVER w - size AS before FROM c
        WINDOW w AS (ORDER BY seq)),
    t AS (SELECT seq FROM s WHERE place = 1 OR before < %(max_bytes)s)
    {_TAKE}"""
_TAKE_FOLLOWERS: Final = f"""
    WITH t AS (SELECT o.seq FROM follows f JOIN open_tasks o ON o.seq = f.seq
        WHERE f.after_seq = %(after)s AND f.seq > %(seq)s AND (o.holder IS NULL OR o.holder = %(slot)s)
        ORDER BY f.seq LIMIT %(limit)s FOR UPDATE OF o SKIP LOCKED),
    u AS (UPDATE open_tasks SET holder = %(slot)s FROM t WHERE open_tasks.seq = t.seq AND status = 500)
    SELECT {OPEN} FROM open_tasks o JOIN t ON t.seq = o.seq"""
_TAKE_DUE: Final = f"""
    WITH t AS (SELECT seq FROM open_tasks
        WHERE status = 500 AND waits = 0 AND runnable_us <= %(now)s AND holder IS NULL
        ORDER BY runnable_us, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    {_TAKE}"""
_TAKE_ORPHANS: Final = f"""
    WITH t AS (SELECT seq, orphaned_us FROM open_tasks WHERE orphaned_us <= clock_us() - %(patience)s
        ORDER BY orphaned_us, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
    {_TAKE}, t.orphaned_us"""
_TAKE_NODES: Final = f"""
    WITH t AS (SELECT seq FROM open_tasks WHERE orphaned_us IS NOT NULL AND node = ANY(%(nodes)s::text[])
        ORDER BY seq FOR UPDATE SKIP LOCKED)
    {_TAKE}"""
# Here one waits for another: the answer must say who has it.
_CLAIM: Final = f"""
    WITH t AS (SELECT seq FROM open_tasks WHERE holder IS NULL AND seq IN (
        SELECT seq FROM task_ids WHERE id = ANY(%(ids)s::text[])) ORDER BY seq FOR UPDATE)
    {_TAKE}"""
_TAKE_ERRANDS: Final = """
    DELETE FROM errands WHERE number IN (SELECT number FROM errands WHERE receiver = %s ORDER BY number LIMIT %s)
    RETURNING number, receiver, kind, id, body"""


def answer_tasks(connection: Connection, ask: TaskQuery) -> TaskAnswer:
    """An ask that changes nothing."""
    match ask:
        case FindTasks(ids):
            found = find(connection, ids)
            return tuple(found[name].task if name in found else None for name in ids)
        case FindEnded(ids):
            rows = connection.execute(_FIND_ENDED, (list(map(clean, ids)),), binary=True)
            return tuple(map(ended_task, rows))
        case ReadPriorities(method):
            return tuple(connection.execute(_PRIORITIES, {"method": clean(method)}).fetchall())
        case PeekBacklog(methods):
            return tuple(connection.execute(_PEEK_SHELF, (sorted(set(map(clean, methods))),)).fetchall())
        case PeekQueue(method, limit):
            return tuple(name for (name,) in connection.execute(_PEEK_QUEUE, (clean(method), bounded(limit))))
        case ReadSchedule(after_us, after_seq, limit):
            place = (clamp(after_us), clamp(after_seq), bounded(limit))
            return tuple(map(open_task, connection.execute(_SCHEDULE, place, binary=True)))
        case ReadEndedDependencies(limit):
            return tuple(map(ended_task, connection.execute(_SETTLED, (bounded(limit),), binary=True)))
        case ReadExpiry():
            row = connection.execute(_EXPIRY).fetchone()
            return None if row is None or row[0] is None else int(row[0])
        case CountTasks():
            return dict(connection.execute(_COUNT).fetchall())
        case ListTasks():
            return list_tasks(connection, ask)
        case _:
            raise TypeError(type(ask).__name__)


def find(connection: Connection, ids: tuple[str, ...]) -> dict[str, NamedTask]:
    """What ids lead to, all from one moment."""
    if not ids:
        return {}
    cleaned = {clean(name): name for name in ids}
    rows = connection.execute(_FIND, (list(cleaned),), binary=True).fetchall()
    return {cleaned[row[0]]: named(row[1:]) for row in rows}


class ClaimAll(msgspec.Struct, frozen=True):
    """Several ClaimTasks at one go: their answers, in their order."""

    claims: tuple[ClaimTasks, ...]


def take_tasks(connection: Connection, slot: int, identity: str, ask: TaskQuery | ClaimAll) -> Any:
    """An ask that takes, within a transaction that has the lock of its broker's row."""
    match ask:
        case ReadQueue(method, priority, after_seq, limit, max_bytes):
            place = {"method": clean(method), "priority": clamp(priority), "after": clamp(after_seq)}
            return _taken(
                connection, _TAKE_QUEUE, slot, {**place, "limit": bounded(limit), "max_bytes": clamp(max_bytes)}
            )
        case ReadDependents(after_seq, seq, limit):
            place = {"after": clamp(after_seq), "seq": clamp(seq), "limit": bounded(limit)}
            return _taken(connection, _TAKE_FOLLOWERS, slot, place)
        case TakeDue(now_us, limit):
            due = _taken(connection, _TAKE_DUE, slot, {"now": clamp(now_us), "limit": bounded(limit)})
            return tuple(sorted(due, key=lambda task: (task.runnable_us, task.seq)))
        case TakeOrphans(patience_us, limit):
            values = {"slot": slot, "patience": clamp(patience_us), "limit": bounded(limit)}
            rows = connection.execute(_TAKE_ORPHANS, values, binary=True).fetchall()
            rows.sort(key=lambda row: (row[-1], row[0]))
            return tuple(open_task(row[:-1]) for row in rows)
        case ClaimTasks():
            return _claim(connection, slot, identity, (ask,))[0]
        case ClaimAll(claims):
            return _claim(connection, slot, identity, claims)
        case TakeTaskCommands(limit):
            rows = connection.execute(_TAKE_ERRANDS, (identity, bounded(limit)), binary=True).fetchall()
            return tuple(PutTaskCommand(*row[1:]) for row in sorted(rows))
        case _:
            raise TypeError(type(ask).__name__)


def _taken(connection: Connection, statement: str, slot: int, place: dict[str, Any]) -> tuple[OpenTask, ...]:
    rows = connection.execute(statement, {"slot": slot, **place}, binary=True)
    return tuple(sorted(map(open_task, rows), key=lambda task: task.seq))


def _claim(
    connection: Connection, slot: int, identity: str, claims: tuple[ClaimTasks, ...]
) -> tuple[tuple[ClaimedTask, ...], ...]:
    ids = tuple(dict.fromkeys(name for claim in claims for name in claim.ids))
    if ids:
        connection.execute(_CLAIM, {"slot": slot, "ids": list(map(clean, ids))})
    found = find(connection, ids)
    nodes = sorted({clean(claim.node) for claim in claims if claim.node is not None})
    orphans: dict[str, list[ClaimedTask]] = {}
    for task in _taken(connection, _TAKE_NODES, slot, {"nodes": nodes}) if nodes else ():
        orphans.setdefault(task.node, []).append(ClaimedTask(task))
    # If a node is named twice, the first claim has what was its.
    return tuple(
        (*(_claimed(found.get(name), identity) for name in claim.ids), *orphans.pop(claim.node or "", ()))
        for claim in claims
    )


def _claimed(each: NamedTask | None, identity: str) -> ClaimedTask:
    if each is None:
        return ClaimedTask(None)
    return ClaimedTask(each.task, "" if each.holder == identity else each.holder)
