"""Tasks in PostgreSQL: queries that read and queries that take; `task_lookup` has those that reserve.

A taken task was held by nobody, and two brokers never take the same one (FOR UPDATE SKIP LOCKED). No query scans more
rows than it may return, except where a comment says so.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.storage import task_queries as queries
from scale0.storage.interface import Handlers
from scale0.storage.postgres.broker_rows import StoreSession
from scale0.storage.postgres.task_rows import (
    ENDED_BRIEF,
    ENDED_LISTED,
    JOINED,
    LEASED,
    NAMED,
    NAMED_BRIEF,
    OPEN,
    OPEN_BRIEF,
    OPEN_LISTED,
    NamedTask,
    clean,
    ended_task,
    integers,
    named_task,
    open_task,
)
from scale0.storage.rows import bounded, clamp
from scale0.storage.sql_tasks import Access, PageStatements, list_tasks, page_statements
from scale0.storage.task_rows import ACCOUNT, EndedTask, OpenTask, PutTaskCommand

_BACKLOG: Final = "shelved AND status = 1000 AND method = {method}"

_FIND_ENDED: Final = f"""
    SELECT {ENDED_BRIEF} FROM task_ids n JOIN ended_tasks e ON e.seq = n.seq WHERE n.id = ANY(%s::text[])"""
# octet_length does not read a result that is stored apart from its row.
_RESULTS: Final = """
    WITH s AS (SELECT v.seq, v.number, sum(coalesce(octet_length(e.result), 0)) OVER (ORDER BY v.number) AS size
        FROM unnest(%(seqs)s::bigint[]) WITH ORDINALITY AS v (seq, number) LEFT JOIN ended_tasks e ON e.seq = v.seq)
    SELECT e.status, e.result, e.result_sum FROM s LEFT JOIN ended_tasks e ON e.seq = s.seq
    WHERE s.number = 1 OR s.size <= %(max_bytes)s ORDER BY s.number"""
_FIND: Final = f"SELECT n.id, {NAMED} FROM task_ids n {JOINED} WHERE n.id = ANY(%s::text[])"
_FIND_BRIEF: Final = f"SELECT n.id, {NAMED_BRIEF} FROM task_ids n {JOINED} WHERE n.id = ANY(%s::text[])"

_NEXT_PRIORITY: Final = """
    SELECT priority FROM open_tasks WHERE {backlog} {below} ORDER BY priority DESC LIMIT 1"""
_EACH_PRIORITY: Final = """
    WITH RECURSIVE p AS (({first}) UNION ALL SELECT n.priority FROM p, LATERAL ({next}) n)"""


def _each_priority(method: str) -> str:
    """The priorities in the backlog, from the highest, with one index lookup for each."""
    backlog = _BACKLOG.format(method=method)
    first = _NEXT_PRIORITY.format(backlog=backlog, below="")
    following = _NEXT_PRIORITY.format(backlog=backlog, below="AND priority < p.priority")
    return _EACH_PRIORITY.format(first=first, next=following)


_PRIORITIES: Final = f"""{_each_priority("%(method)s")}
    SELECT p.priority, (SELECT max(seq) FROM open_tasks WHERE {_BACKLOG.format(method="%(method)s")}
        AND priority = p.priority) FROM p"""
_PEEK_BACKLOG: Final = f"""
    SELECT m.name, p.priority FROM unnest(%s::text[]) AS m (name)
    CROSS JOIN LATERAL ({_each_priority("m.name")} SELECT priority FROM p) p"""
_PEEK_QUEUES: Final = f"""
    SELECT m.name, t.id, t.owner FROM unnest(%s::text[]) AS m (name)
    CROSS JOIN LATERAL (SELECT id, owner, priority, seq FROM open_tasks
        WHERE {_BACKLOG.format(method="m.name")} ORDER BY priority DESC, seq LIMIT %s) t
    ORDER BY m.name, t.priority DESC, t.seq"""
_SCHEDULE: Final = f"""
    SELECT {OPEN_BRIEF} FROM open_tasks o WHERE status = 500 AND waits = 0 AND (runnable_us, seq) > (%s, %s)
    ORDER BY runnable_us, seq LIMIT %s"""
# It scans all dependencies.
_ENDED_DEPENDENCIES: Final = f"""
    SELECT {ENDED_BRIEF} FROM (SELECT DISTINCT after_seq FROM follows) f JOIN ended_tasks e ON e.seq = f.after_seq
    ORDER BY e.seq LIMIT %s"""
_EXPIRY: Final = "SELECT min(expires_us) FROM ended_tasks"
_LAST_EXPIRY: Final = "SELECT max(expires_us) FROM ended_tasks"
# Both scan, on the connection of `scan`.
_COUNT_CLIENTS: Final = "SELECT owner, count(*) FROM task_clients GROUP BY owner"
_UNUSED_CLIENTS: Final = """
    SELECT id FROM task_clients WHERE heard_us <= %s AND id NOT IN (SELECT client FROM open_tasks)
        AND id NOT IN (SELECT client FROM ended_tasks) ORDER BY id LIMIT %s"""
# It scans all open tasks, on the connection of `scan`.
_COUNT: Final = "SELECT status, count(*) FROM open_tasks GROUP BY status"

_TAKE: Final = f"""
    UPDATE open_tasks o SET holder = %(slot)s, shelved = false, orphaned_us = NULL FROM t
    WHERE o.seq = t.seq RETURNING {OPEN}"""
_TAKE_LEASED: Final = _TAKE.replace(OPEN, LEASED)

_SHELF: Final = _BACKLOG.format(method="%(method)s") + " AND priority = %(priority)s AND seq > %(after)s"


def _accounts(name: str, first: str, limit: str = "true") -> str:
    """The accounts in the backlog, in order, with one index lookup for each."""
    lookup = f"SELECT {ACCOUNT} AS account FROM open_tasks WHERE {_SHELF} AND {{beyond}} ORDER BY {ACCOUNT} LIMIT 1"
    following = lookup.format(beyond=f"{ACCOUNT} > {name}.account")
    return f"""{name} (account, number) AS ((SELECT account, 1 FROM ({lookup.format(beyond=first)}) f)
        UNION ALL SELECT n.account, {name}.number + 1 FROM {name}, LATERAL ({following}) n
        WHERE {name}.number < %(accounts)s AND {limit})"""


# The accounts behind `owner`, then those up to it, if these are not enough.
_NOT_ENOUGH: Final = "n.account <= %(owner)s AND u.number < %(accounts)s - (SELECT count(*) FROM b)"
_TAKE_PARTS: Final = f"""
    WITH RECURSIVE {_accounts("b", f"{ACCOUNT} > %(owner)s")},
    w AS (SELECT * FROM (WITH RECURSIVE {_accounts("u", f"{ACCOUNT} <= %(owner)s", _NOT_ENOUGH)}
        SELECT account, number FROM u) x),
    a AS (SELECT account FROM (SELECT account, 0 AS part, number FROM b UNION ALL SELECT account, 1, number FROM w) x
        ORDER BY part, number LIMIT %(accounts)s),
    c AS (SELECT a.account, l.seq, l.size FROM a CROSS JOIN LATERAL (
        SELECT seq, length(params) AS size FROM open_tasks WHERE {_SHELF} AND {ACCOUNT} = a.account
        ORDER BY seq LIMIT (SELECT %(limit)s / count(*) FROM a) FOR UPDATE SKIP LOCKED) l),
    r AS (SELECT seq, size, row_number() OVER (PARTITION BY account ORDER BY seq) AS turn FROM c),
    s AS (SELECT seq, row_number() OVER w AS number, sum(size) OVER w - size AS before FROM r
        WINDOW w AS (ORDER BY turn, seq)),
    t AS (SELECT seq FROM s WHERE number = 1 OR before < %(max_bytes)s)
    {_TAKE}"""
_TAKE_OLDEST: Final = f"""
    WITH c AS (SELECT seq, length(params) AS size FROM open_tasks
        WHERE {_SHELF}
        ORDER BY seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
    s AS (SELECT seq, row_number() OVER w AS number, sum(size) OVER w - size AS before FROM c
        WINDOW w AS (ORDER BY seq)),
    t AS (SELECT seq FROM s WHERE number = 1 OR before < %(max_bytes)s)
    {_TAKE}"""
_TAKE_DEPENDENTS: Final = f"""
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
    {_TAKE_LEASED}, t.orphaned_us"""
_TAKE_NODES: Final = f"""
    WITH t AS (SELECT seq FROM open_tasks WHERE orphaned_us IS NOT NULL AND node = ANY(%(nodes)s::text[])
        ORDER BY seq FOR UPDATE SKIP LOCKED)
    {_TAKE_LEASED}"""
# Without SKIP LOCKED: the answer must name the holder.
_CLAIM: Final = f"""
    WITH t AS (SELECT seq FROM open_tasks WHERE holder IS NULL AND seq IN (
        SELECT seq FROM task_ids WHERE id = ANY(%(ids)s::text[])) ORDER BY seq FOR UPDATE)
    {_TAKE}"""
_TAKE_COMMANDS: Final = """
    DELETE FROM errands WHERE number IN (SELECT number FROM errands WHERE receiver = %s ORDER BY number LIMIT %s)
    RETURNING number, receiver, kind, id, body"""


_TYPED: Final = {"status": "::bigint", "method": "::text", "client": "::text"}
_PARAMETERS: Final = {
    name: f"%({name})s{_TYPED.get(name, '')}"
    for name in ("before", "scan", "floor", "limit", "status", "method", "client")
}
_BY_STATUS: Final = "ended_tasks e WHERE status <> 7000 AND status = %(status)s"
_PAGES: Final[dict[Access, PageStatements]] = {
    "open": page_statements(OPEN_LISTED, "open_tasks o WHERE true", _PARAMETERS),
    "ended": page_statements(ENDED_LISTED, "ended_tasks e WHERE true", _PARAMETERS),
    "method": page_statements(ENDED_LISTED, "ended_tasks e WHERE method = %(method)s", _PARAMETERS),
    "status": page_statements(ENDED_LISTED, _BY_STATUS, _PARAMETERS),
}

# ---- queries that read


def _find(session: StoreSession, ids: tuple[str, ...], brief: bool = False) -> dict[str, NamedTask]:
    if not ids:
        return {}
    cleaned = {clean(name): name for name in ids}
    rows = session.connection.execute(_FIND_BRIEF if brief else _FIND, (list(cleaned),), binary=True).fetchall()
    return {cleaned[row[0]]: named_task(row[1:]) for row in rows}


def _find_tasks(session: StoreSession, query: queries.FindTasks) -> tuple[OpenTask | EndedTask | None, ...]:
    named = _find(session, query.ids, query.brief)
    return tuple(named[name].task if name in named else None for name in query.ids)


def _read_results(session: StoreSession, query: queries.ReadResults) -> tuple[tuple[int, bytes, int] | None, ...]:
    values = {"seqs": integers(map(clamp, query.seqs)), "max_bytes": clamp(query.max_bytes)}
    rows = session.connection.execute(_RESULTS, values, binary=True).fetchall()
    return tuple(None if row[0] is None else row for row in rows)


def _find_ended(session: StoreSession, query: queries.FindEnded) -> tuple[EndedTask, ...]:
    rows = session.connection.execute(_FIND_ENDED, (list(map(clean, query.ids)),), binary=True)
    return tuple(map(ended_task, rows))


def _read_priorities(session: StoreSession, query: queries.ReadPriorities) -> tuple[tuple[int, int], ...]:
    return tuple(session.connection.execute(_PRIORITIES, {"method": clean(query.method)}).fetchall())


def _peek_backlog(session: StoreSession, query: queries.PeekBacklog) -> tuple[tuple[str, int], ...]:
    return tuple(session.connection.execute(_PEEK_BACKLOG, (sorted(set(map(clean, query.methods))),)).fetchall())


def _peek_queues(session: StoreSession, query: queries.PeekQueues) -> tuple[tuple[str, str, str], ...]:
    values = (sorted(set(map(clean, query.methods))), bounded(query.limit))
    return tuple(session.connection.execute(_PEEK_QUEUES, values).fetchall())


def _read_schedule(session: StoreSession, query: queries.ReadSchedule) -> tuple[OpenTask, ...]:
    values = (clamp(query.after_us), clamp(query.after_seq), bounded(query.limit))
    return tuple(map(open_task, session.connection.execute(_SCHEDULE, values, binary=True)))


def _read_ended_dependencies(session: StoreSession, query: queries.ReadEndedDependencies) -> tuple[EndedTask, ...]:
    rows = session.connection.execute(_ENDED_DEPENDENCIES, (bounded(query.limit),), binary=True)
    return tuple(map(ended_task, rows))


def _read_expiry(session: StoreSession, query: queries.ReadExpiry) -> int | None:
    row = session.connection.execute(_LAST_EXPIRY if query.last else _EXPIRY).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def _count_task_clients(session: StoreSession, _: queries.CountTaskClients) -> dict[str, int]:
    return dict(session.connection.execute(_COUNT_CLIENTS).fetchall())


def _read_unused_clients(session: StoreSession, query: queries.ReadUnusedClients) -> tuple[str, ...]:
    values = (clamp(query.heard_us), bounded(query.limit))
    return tuple(row[0] for row in session.connection.execute(_UNUSED_CLIENTS, values))


def _count_tasks(session: StoreSession, _: queries.CountTasks) -> dict[int, int]:
    return dict(session.connection.execute(_COUNT).fetchall())


def _list_tasks(session: StoreSession, query: queries.ListTasks) -> queries.TaskPage:
    def run(statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        return session.connection.execute(statement, values, binary=True).fetchall()

    names = {name: clean(value) for name in ("method", "client") if (value := getattr(query, name)) is not None}
    with session.connection.transaction():
        # All statements see one snapshot.
        session.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return list_tasks(msgspec.structs.replace(query, **names), _PAGES, run, open_task, ended_task)


TASK_ANSWERS: Final[Handlers] = {
    queries.FindTasks: _find_tasks,
    queries.ReadResults: _read_results,
    queries.FindEnded: _find_ended,
    queries.ReadPriorities: _read_priorities,
    queries.PeekBacklog: _peek_backlog,
    queries.PeekQueues: _peek_queues,
    queries.ReadSchedule: _read_schedule,
    queries.ReadEndedDependencies: _read_ended_dependencies,
    queries.ReadExpiry: _read_expiry,
    queries.CountTaskClients: _count_task_clients,
    queries.ReadUnusedClients: _read_unused_clients,
    queries.CountTasks: _count_tasks,
    queries.ListTasks: _list_tasks,
}

# ---- queries that take, within a transaction that has locked its broker's row


class ClaimAll(msgspec.Struct, frozen=True):
    """Several ClaimTasks in one transaction: their answers, in their order."""

    claims: tuple[queries.ClaimTasks, ...]


def _take(session: StoreSession, statement: str, **values: Any) -> tuple[OpenTask, ...]:
    rows = session.connection.execute(statement, {"slot": session.slot, **values}, binary=True)
    return tuple(sorted(map(open_task, rows), key=lambda task: task.seq))


def _take_queue(session: StoreSession, query: queries.ReadQueue) -> tuple[OpenTask, ...]:
    limit, max_bytes = bounded(query.limit), clamp(query.max_bytes)
    place = {"method": clean(query.method), "priority": clamp(query.priority), "after": clamp(query.after_seq)}
    values = {"owner": clean(query.owner or ""), "accounts": queries.claim_accounts(limit)}
    tasks = _take(session, _TAKE_PARTS, limit=limit, max_bytes=max_bytes, **place, **values) if limit > 0 else ()
    left, left_bytes = limit - len(tasks), max_bytes - sum(len(task.params) for task in tasks)
    if left > 0 and (left_bytes > 0 or not tasks):
        tasks += _take(session, _TAKE_OLDEST, limit=left, max_bytes=left_bytes, **place)
    return tuple(sorted(tasks, key=lambda task: task.seq))


def _take_dependents(session: StoreSession, query: queries.ReadDependents) -> tuple[OpenTask, ...]:
    after, seq = clamp(query.after_seq), clamp(query.seq)
    return _take(session, _TAKE_DEPENDENTS, after=after, seq=seq, limit=bounded(query.limit))


def _take_due(session: StoreSession, query: queries.TakeDue) -> tuple[OpenTask, ...]:
    due = _take(session, _TAKE_DUE, now=clamp(query.now_us), limit=bounded(query.limit))
    return tuple(sorted(due, key=lambda task: (task.runnable_us, task.seq)))


def _take_orphans(session: StoreSession, query: queries.TakeOrphans) -> tuple[OpenTask, ...]:
    values = {"slot": session.slot, "patience": clamp(query.patience_us), "limit": bounded(query.limit)}
    rows = session.connection.execute(_TAKE_ORPHANS, values, binary=True).fetchall()
    rows.sort(key=lambda row: (row[-1], row[0]))
    return tuple(open_task(row[:-1]) for row in rows)


def _take_commands(session: StoreSession, query: queries.TakeTaskCommands) -> tuple[PutTaskCommand, ...]:
    values = (session.identity, bounded(query.limit))
    rows = session.connection.execute(_TAKE_COMMANDS, values, binary=True).fetchall()
    return tuple(PutTaskCommand(*row[1:]) for row in sorted(rows))


def _claim_all(session: StoreSession, query: ClaimAll) -> tuple[tuple[queries.ClaimedTask, ...], ...]:
    ids = tuple(dict.fromkeys(name for claim in query.claims for name in claim.ids))
    if ids:
        session.connection.execute(_CLAIM, {"slot": session.slot, "ids": list(map(clean, ids))})
    named = _find(session, ids)
    nodes = sorted({clean(claim.node) for claim in query.claims if claim.node is not None})
    orphans: dict[str, list[queries.ClaimedTask]] = {}
    for task in _take(session, _TAKE_NODES, nodes=nodes) if nodes else ():
        orphans.setdefault(task.node, []).append(queries.ClaimedTask(task))

    def claimed(name: str) -> queries.ClaimedTask:
        known = named.get(name)
        if known is None:
            return queries.ClaimedTask(None)
        return queries.ClaimedTask(known.task, "" if known.holder == session.identity else known.holder)

    # If a node is named twice, the first claim gets its orphans.
    return tuple((*map(claimed, claim.ids), *orphans.pop(claim.node or "", ())) for claim in query.claims)


def _claim(session: StoreSession, query: queries.ClaimTasks) -> tuple[queries.ClaimedTask, ...]:
    return _claim_all(session, ClaimAll((query,)))[0]


TASK_CLAIMS: Final[Handlers] = {
    queries.ReadQueue: _take_queue,
    queries.ReadDependents: _take_dependents,
    queries.TakeDue: _take_due,
    queries.TakeOrphans: _take_orphans,
    queries.TakeTaskCommands: _take_commands,
    queries.ClaimTasks: _claim,
    ClaimAll: _claim_all,
}
