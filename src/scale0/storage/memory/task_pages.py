"""Lists of tasks in memory, page by page.

Lives here: `list_tasks`, the twin of `sqlite_pages`. Never here: the tables themselves (`memory_tasks`). Invariant: its
pages begin and end where those of the twin do, also where that one looks at so many rows and no more.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scale0.storage import rows as limits
from scale0.storage.rows import bounded
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


def list_tasks(open_tasks: dict[int, OpenTask], ended_tasks: dict[int, EndedTask], ask: ListTasks) -> TaskPage:
    """A page of both tables, newest first."""
    limit = max(1, bounded(ask.limit))
    walks: list[tuple[list[Any], int | None]] = []
    if ask.status is None or ask.status in (SCHEDULED, QUEUED, ASSIGNED, RUNNING):
        walks.append(_walk(open_tasks, ask, limit, by=()))
    if ask.status is None or ask.status in (FINISHED, FAILED, CANCELLED):
        rare = ask.status is not None and ask.status != FINISHED
        walks.append(_walk(ended_tasks, ask, limit, by=("status",) if rare else ("method",)))
    low = max((stopped for _, stopped in walks if stopped is not None), default=None)
    whole = sorted(
        (task for tasks, _ in walks for task in tasks if low is None or task.seq >= low),
        key=lambda task: -task.seq,
    )
    page = tuple(_listed(task) for task in whole[:limit])
    return TaskPage(page, page[-1].seq if len(whole) > limit else low)


def _walk(table: dict[int, Any], ask: ListTasks, limit: int, by: tuple[str, ...]) -> tuple[list[Any], int | None]:
    """What is wanted of a table, one more than a page at most; and where the walk stopped, None at its end.

    The SQLite twin has an index for `by`: it does not pass the others. For the other filters it looks at few rows.
    """
    wanted = {name: value for name in ("status", "method", "client") if (value := getattr(ask, name)) is not None}
    indexed = {name: value for name, value in wanted.items() if name in by}
    seqs = sorted((seq for seq in table if ask.before_seq is None or seq < ask.before_seq), reverse=True)
    tasks = [table[seq] for seq in seqs if _fits(table[seq], indexed)]
    stopped = None
    if len(wanted) > len(indexed) and len(tasks) >= limits.LIST_SCAN_ROWS:
        tasks = tasks[: limits.LIST_SCAN_ROWS]
        stopped = tasks[-1].seq
    tasks = [task for task in tasks if _fits(task, wanted)]
    if len(tasks) > limit:
        return tasks[: limit + 1], tasks[limit].seq
    return tasks, stopped


def _fits(task: OpenTask | EndedTask, wanted: dict[str, Any]) -> bool:
    return all(getattr(task, name) == value for name, value in wanted.items())


def _listed(task: OpenTask | EndedTask) -> OpenTask | EndedTask:
    if isinstance(task, OpenTask):
        return msgspec.structs.replace(task, params=b"", options=b"")
    return msgspec.structs.replace(task, params=b"", options=b"", result=b"")
