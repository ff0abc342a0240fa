"""Pages of tasks in PostgreSQL, newest first.

Lives here: `list_tasks`. Never here: what a machine waits for. Invariant: as in `sqlite_pages`, a page looks at no more
rows of a table than LIST_SCAN_ROWS, or than it may return where an index leads to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.storage import rows as writes
from scale0.storage.postgres.task_rows import ENDED_LISTED, OPEN_LISTED, ended_task, open_task
from scale0.storage.postgres.values import clean
from scale0.storage.sqlite.task_pages import Way, compose_page

if TYPE_CHECKING:
    import psycopg

    from scale0.storage.task_queries import ListTasks, TaskPage
    from scale0.storage.task_rows import EndedTask, OpenTask

_FILTERS: Final = """
    (%(status)s::bigint IS NULL OR status = %(status)s) AND (%(method)s::text IS NULL OR method = %(method)s)
    AND (%(client)s::text IS NULL OR client = %(client)s)"""

_ROWS: Final[dict[Way, tuple[str, str]]] = {
    "open": (OPEN_LISTED, "open_tasks o WHERE true"),
    "ended": (ENDED_LISTED, "ended_tasks e WHERE true"),
    "method": (ENDED_LISTED, "ended_tasks e WHERE method = %(method)s"),
    "status": (ENDED_LISTED, "ended_tasks e WHERE status <> 7000 AND status = %(status)s"),
}


def _floor(way: Way) -> str:
    return f"SELECT seq FROM {_ROWS[way][1]} AND seq < %(before)s ORDER BY seq DESC LIMIT 1 OFFSET %(scan)s - 1"


def _page(way: Way) -> str:
    columns, rows = _ROWS[way]
    return f"""SELECT {columns} FROM {rows} AND seq < %(before)s AND seq >= %(floor)s AND {_FILTERS}
        ORDER BY seq DESC LIMIT %(limit)s + 1"""


def list_tasks(connection: psycopg.Connection[Any], ask: ListTasks) -> TaskPage:
    """A page, from one moment: the caller holds a transaction that keeps its snapshot."""

    def walk(way: Way, filtered: bool, values: dict[str, Any]) -> tuple[list[tuple[Any, ...]], int | None]:
        floor = connection.execute(_floor(way), values).fetchone() if filtered else None
        lowest = -writes.MAX_INTEGER if floor is None else floor[0]
        rows = connection.execute(_page(way), {**values, "floor": lowest}, binary=True).fetchall()
        if len(rows) > values["limit"]:
            return rows, rows[-1][0]
        return rows, None if floor is None else lowest

    def task(way: Way, row: tuple[Any, ...]) -> OpenTask | EndedTask:
        return open_task(row) if way == "open" else ended_task(row)

    return compose_page(ask, walk, task, clean)
