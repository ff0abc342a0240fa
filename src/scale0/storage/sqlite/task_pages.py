"""Pages of tasks in SQLite, newest first.

Lives here: `list_tasks`, and how a row becomes an OpenTask. Never here: what a machine waits for. Invariant: a page
looks at no more rows of a table than LIST_SCAN_ROWS, or than it may return where an index leads to them; where it
stopped for that, the next page goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from scale0.storage import rows as writes
from scale0.storage.task_queries import ListTasks, TaskPage
from scale0.storage.task_rows import (
    ASSIGNED,
    CANCELLED,
    FAILED,
    FINISHED,
    QUEUED,
    RUNNING,
    SCHEDULED,
    EndedTask,
    OpenTask,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

Way = Literal["open", "ended", "method", "status"]
"""Through the open tasks, or through the ended ones: all of them, or by an index."""

OPEN_STATUSES: Final = (SCHEDULED, QUEUED, ASSIGNED, RUNNING)
_ENDED_STATUSES: Final = (FINISHED, FAILED, CANCELLED)

_OPEN: Final = """
    seq, id, client, method, x'', priority, status, attempt, starts, node, submitted_us, runnable_us, started_us,
    waits, shelved, followed, key, x'', info, history"""
_ENDED: Final = """
    seq, id, client, method, x'', priority, status, attempt, starts, node, submitted_us, started_us, ended_us,
    expires_us, key, x'', x'', info, history"""

_FILTERS: Final = """
    (:status IS NULL OR status = :status) AND (:method IS NULL OR method = :method)
    AND (:client IS NULL OR client = :client)"""


class Walk(msgspec.Struct, frozen=True):
    """One way through a table, from the newest row on, as its two statements."""

    floor: str
    """The last row that may be looked at."""
    page: str

    @staticmethod
    def of(columns: str, rows: str) -> Walk:
        """`rows` names the table, the way, and what the index of that way decides."""
        behind = f"FROM {rows} AND seq < :before"
        return Walk(
            floor=f"SELECT seq {behind} ORDER BY seq DESC LIMIT 1 OFFSET :scan - 1",
            page=f"SELECT {columns} {behind} AND seq >= :floor AND {_FILTERS} ORDER BY seq DESC LIMIT :limit + 1",
        )


_WALKS: Final[dict[Way, Walk]] = {
    "open": Walk.of(_OPEN, "open_tasks NOT INDEXED WHERE true"),
    "ended": Walk.of(_ENDED, "ended_tasks NOT INDEXED WHERE true"),
    "method": Walk.of(_ENDED, "ended_tasks INDEXED BY ended_method WHERE method = :method"),
    "status": Walk.of(_ENDED, "ended_tasks INDEXED BY ended_unfinished WHERE status <> 7000 AND status = :status"),
}


def list_tasks(reader: sqlite3.Connection, ask: ListTasks) -> TaskPage:
    """A page, from one moment: the caller holds a transaction."""

    def walk(way: Way, filtered: bool, values: dict[str, Any]) -> tuple[list[tuple[Any, ...]], int | None]:
        return _walk(reader, _WALKS[way], filtered, values)

    def task(way: Way, row: tuple[Any, ...]) -> OpenTask | EndedTask:
        return open_task(row) if way == "open" else EndedTask(*row)

    return compose_page(ask, walk, task, str)


def compose_page(
    ask: ListTasks,
    walk: Callable[[Way, bool, dict[str, Any]], tuple[list[tuple[Any, ...]], int | None]],
    task: Callable[[Way, tuple[Any, ...]], OpenTask | EndedTask],
    text: Callable[[str], str],
) -> TaskPage:
    """A page of whatever store can walk; PostgreSQL's does, too."""
    limit = max(1, writes.bounded(ask.limit))
    before = writes.MAX_INTEGER if ask.before_seq is None else ask.before_seq
    values = {
        "before": writes.clamp(before),
        "limit": limit,
        "scan": writes.LIST_SCAN_ROWS,
        "status": None if ask.status is None else writes.clamp(ask.status),
        "method": None if ask.method is None else text(ask.method),
        "client": None if ask.client is None else text(ask.client),
    }
    ways: list[tuple[Way, bool]] = []
    if ask.status is None or ask.status in OPEN_STATUSES:
        ways.append(("open", ask.status is not None or ask.method is not None or ask.client is not None))
    if ask.status is None or ask.status in _ENDED_STATUSES:
        ways.append(_choose(ask))
    tasks: list[OpenTask | EndedTask] = []
    low: int | None = None
    for way, filtered in ways:
        rows, stopped = walk(way, filtered, values)
        tasks += [task(way, row) for row in rows]
        if stopped is not None:
            low = stopped if low is None else max(low, stopped)
    # Below the place where one table's walk stopped, the other's rows would stand alone.
    whole = sorted((each for each in tasks if low is None or each.seq >= low), key=lambda each: -each.seq)
    if len(whole) > limit:
        return TaskPage(tuple(whole[:limit]), whole[limit - 1].seq)
    return TaskPage(tuple(whole), low)


def open_task(row: tuple[Any, ...]) -> OpenTask:
    """A row in the order of OpenTask's fields; SQLite has no truth values."""
    values = list(row)
    values[14] = row[14] == 1
    values[15] = row[15] == 1
    return OpenTask(*values)


def _choose(ask: ListTasks) -> tuple[Way, bool]:
    """The way through the ended tasks, and whether it passes rows that are not wanted."""
    if ask.status is not None and ask.status != FINISHED:
        return "status", ask.method is not None or ask.client is not None
    if ask.method is not None:
        return "method", ask.status is not None or ask.client is not None
    return "ended", ask.status is not None or ask.client is not None


def _walk(
    reader: sqlite3.Connection, walk: Walk, filtered: bool, values: dict[str, Any]
) -> tuple[list[tuple[Any, ...]], int | None]:
    """Rows, at most one more than a page, and the seq down to which there are no others; None: there are none left."""
    floor = reader.execute(walk.floor, values).fetchone() if filtered else None
    lowest = -writes.MAX_INTEGER if floor is None else floor[0]
    rows = reader.execute(walk.page, {**values, "floor": lowest}).fetchall()
    if len(rows) > values["limit"]:
        return rows, rows[-1][0]
    return rows, None if floor is None else lowest
