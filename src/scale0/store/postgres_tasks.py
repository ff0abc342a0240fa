"""Tasks in PostgreSQL: how asks become statements, and rows become answers.

Lives here: asks that read, and asks that take; `postgres_find` has those that reserve. Never here: a transaction.
Invariants: what is taken was nobody's, and two brokers never take the same (FOR UPDATE SKIP LOCKED); no ask walks
through more rows than it may return, but those that say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.store.postgres_pages import list_tasks
from scale0.store.postgres_rows import ENDED, JOINED, NAMED, OPEN, Named, ended_task, named, open_task
from scale0.store.postgres_text import clean
from scale0.store.sharing import (
    Claimed,
    ClaimTasks,
    FindEnded,
    PeekQueue,
    PeekShelf,
    PutErrand,
    TakeDue,
    TakeErrands,
    TakeOrphans,
)
from scale0.store.tasks import (
    CountTasks,
    FindTasks,
    ListTasks,
    OpenTask,
    ReadExpiry,
    ReadFollowers,
    ReadPriorities,
    ReadQueue,
    ReadSchedule,
    ReadSettled,
    TaskAsk,
)
from scale0.store.writes import TaskAnswer, bounded, fit

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
_TAKE_NODE: Final = f"""
    WITH t AS (SELECT seq FROM open_tasks WHERE orphaned_us IS NOT NULL AND node = %(node)s
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


def answer_tasks(connection: Connection, ask: TaskAsk) -> TaskAnswer:
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
        case PeekShelf(methods):
            return tuple(connection.execute(_PEEK_SHELF, (sorted(set(map(clean, methods))),)).fetchall())
        case PeekQueue(method, limit):
            return tuple(name for (name,) in connection.execute(_PEEK_QUEUE, (clean(method), bounded(limit))))
        case ReadSchedule(after_us, after_seq, limit):
            place = (fit(after_us), fit(after_seq), bounded(limit))
            return tuple(map(open_task, connection.execute(_SCHEDULE, place, binary=True)))
        case ReadSettled(limit):
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


def find(connection: Connection, ids: tuple[str, ...]) -> dict[str, Named]:
    """What ids lead to, all from one moment."""
    if not ids:
        return {}
    cleaned = {clean(name): name for name in ids}
    rows = connection.execute(_FIND, (list(cleaned),), binary=True).fetchall()
    return {cleaned[row[0]]: named(row[1:]) for row in rows}


def take_tasks(connection: Connection, slot: int, identity: str, ask: TaskAsk) -> TaskAnswer:
    """An ask that takes, within a transaction that has the lock of its broker's row."""
    match ask:
        case ReadQueue(method, priority, after_seq, limit, max_bytes):
            place = {"method": clean(method), "priority": fit(priority), "after": fit(after_seq)}
            return _taken(
                connection, _TAKE_QUEUE, slot, {**place, "limit": bounded(limit), "max_bytes": fit(max_bytes)}
            )
        case ReadFollowers(after_seq, seq, limit):
            place = {"after": fit(after_seq), "seq": fit(seq), "limit": bounded(limit)}
            return _taken(connection, _TAKE_FOLLOWERS, slot, place)
        case TakeDue(now_us, limit):
            due = _taken(connection, _TAKE_DUE, slot, {"now": fit(now_us), "limit": bounded(limit)})
            return tuple(sorted(due, key=lambda task: (task.runnable_us, task.seq)))
        case TakeOrphans(patience_us, limit):
            values = {"slot": slot, "patience": fit(patience_us), "limit": bounded(limit)}
            rows = connection.execute(_TAKE_ORPHANS, values, binary=True).fetchall()
            rows.sort(key=lambda row: (row[-1], row[0]))
            return tuple(open_task(row[:-1]) for row in rows)
        case ClaimTasks(ids, node):
            return _claim(connection, slot, identity, ids, node)
        case TakeErrands(limit):
            rows = connection.execute(_TAKE_ERRANDS, (identity, bounded(limit)), binary=True).fetchall()
            return tuple(PutErrand(*row[1:]) for row in sorted(rows))
        case _:
            raise TypeError(type(ask).__name__)


def _taken(connection: Connection, statement: str, slot: int, place: dict[str, Any]) -> tuple[OpenTask, ...]:
    rows = connection.execute(statement, {"slot": slot, **place}, binary=True)
    return tuple(sorted(map(open_task, rows), key=lambda task: task.seq))


def _claim(
    connection: Connection, slot: int, identity: str, ids: tuple[str, ...], node: str | None
) -> tuple[Claimed, ...]:
    if ids:
        connection.execute(_CLAIM, {"slot": slot, "ids": list(map(clean, ids))})
    found = find(connection, ids)
    claimed = []
    for name in ids:
        each = found.get(name)
        if each is None:
            claimed.append(Claimed(None))
        else:
            claimed.append(Claimed(each.task, "" if each.holder == identity else each.holder))
    if node is not None:
        claimed += map(Claimed, _taken(connection, _TAKE_NODE, slot, {"node": clean(node)}))
    return tuple(claimed)
