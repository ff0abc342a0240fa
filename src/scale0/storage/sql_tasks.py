"""What the SQL stores share about tasks: columns from the row classes, the order of writes, and pages of tasks.

The fields of the classes in `task_rows` are the only list of columns: every column list, placeholder list and
conversion in `sqlite` and `postgres` is built from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from scale0.storage import rows
from scale0.storage.interface import StoreFailed
from scale0.storage.rows import Write
from scale0.storage.task_queries import ListTasks, TaskPage
from scale0.storage.task_rows import (
    ENDED_STATUSES,
    FINISHED,
    KEPT_ROW_BYTES,
    OPEN_STATUSES,
    ChangeTask,
    EndedTask,
    EndTask,
    LeaseTask,
    OpenTask,
    PutTask,
    ReleaseTask,
    ReopenTask,
    SweepTasks,
)

OPEN_FIELDS: Final = PutTask.__struct_fields__
ENDED_FIELDS: Final = EndedTask.__struct_fields__
LEASE_FIELDS: Final = LeaseTask.__struct_fields__
CHANGE_FIELDS: Final = ChangeTask.__struct_fields__
END_FIELDS: Final = EndTask.__struct_fields__

FLAGS: Final = ("shelved", "followed")
BLOBS: Final = ("params", "options", "result", "info", "history")
UNLISTED: Final = ("params", "options", "result")
"""The columns that a page does not return: they may be large."""
LARGE: Final = ("params", "result")
"""The columns that a brief row does not return: each may be as large as a message."""


def columns(fields: Sequence[str], changed: Mapping[str, str] | None = None, prefix: str = "") -> str:
    """A column list, in which `changed` replaces some columns by expressions."""
    changed = changed or {}
    return ", ".join(changed.get(name, f"{prefix}{name}") for name in fields)


KEPT_SIZE: Final = f"{KEPT_ROW_BYTES} + length(params) + length(result) + length(info) + length(history)"
"""`kept_bytes` of a row of ended_tasks."""
ACCOUNT: Final = "coalesce(nullif(owner, ''), client)"
"""`account_name` of a row."""


def reopened_columns(runnable_us: str, has_dependents: str, true: str, no_bytes: str) -> str:
    """The columns of an ended task as `ReopenTask` opens it; `task_rows.reopened` is the same in Python."""
    changed = {"status": "1000", "starts": "0", "node": "''", "node_owner": "''", "runnable_us": runnable_us}
    changed |= {"started_us": "0"}
    changed |= {"waits": "0", "shelved": true, "followed": has_dependents, "info": no_bytes}
    return columns(OPEN_FIELDS, changed)


def expect_rows(count: int, expected: int, verb: str) -> None:
    """Fail the commit if a statement changed another number of tasks than it should."""
    if count != expected:
        raise StoreFailed(f"tasks to {verb}: expected {expected}, changed {count}. Please report this.")


# ---- the order of writes


class WriteBatch(NamedTuple):
    """Writes that may be applied class by class, and the write after them that may not be moved."""

    puts: list[Any]
    changes: list[Any]
    ends: list[Any]
    others: list[Any]
    barrier: Write | None


def write_batches(writes: Sequence[Write]) -> Iterator[WriteBatch]:
    """The writes of a commit in few batches; the last one has no barrier.

    A task is put, then changed, then ended, so each class can be applied in one statement. Only reopening reverses that
    order, only sweeping frees an id, and only a release gives up a lease: these are barriers. A change of a task that
    ended before in the same commit fails, as in a store that applies one write after the other.
    """
    puts: list[Any] = []
    changes: list[Any] = []
    ends: list[Any] = []
    others: list[Any] = []
    ended: set[int] = set()
    for write in writes:
        if isinstance(write, PutTask):
            puts.append(write)
        elif isinstance(write, EndTask):
            ends.append(write)
            ended.add(write.seq)
        elif isinstance(write, LeaseTask | ChangeTask):
            if write.seq in ended:
                raise StoreFailed(f"task {write.seq} changes after its end in one commit. Please report this.")
            changes.append(write)
        elif isinstance(write, ReopenTask | SweepTasks | ReleaseTask):
            yield WriteBatch(puts, changes, ends, others, write)
            puts, changes, ends, others = [], [], [], []
            ended.clear()
        else:
            others.append(write)
    yield WriteBatch(puts, changes, ends, others, None)


# ---- pages of tasks

Access = Literal["open", "ended", "method", "status"]
"""Through the open tasks, or through the ended ones: all of them, or by an index."""


class PageStatements(NamedTuple):
    """The two statements that scan one table from the newest row on."""

    floor: str
    """The last row that may be scanned."""
    page: str


def page_statements(columns: str, source: str, parameter: Mapping[str, str]) -> PageStatements:
    """`source` is the table and what its index decides; `parameter` is the database's notation of each parameter."""
    source = f"FROM {source} AND seq < {{before}}"
    filters = " AND ".join(f"({{{name}}} IS NULL OR {name} = {{{name}}})" for name in ("status", "method", "client"))
    floor = f"SELECT seq {source} ORDER BY seq DESC LIMIT 1 OFFSET {{scan}} - 1"
    page = f"SELECT {columns} {source} AND seq >= {{floor}} AND {filters} ORDER BY seq DESC LIMIT {{limit}} + 1"
    return PageStatements(floor.format_map(parameter), page.format_map(parameter))


def list_tasks(
    query: ListTasks,
    statements: Mapping[Access, PageStatements],
    run: Callable[[str, dict[str, Any]], list[tuple[Any, ...]]],
    open_task: Callable[[tuple[Any, ...]], OpenTask],
    ended_task: Callable[[tuple[Any, ...]], EndedTask],
) -> TaskPage:
    """A page of open and ended tasks, newest first; the caller holds a transaction with one snapshot.

    A page scans at most LIST_SCAN_ROWS rows of each table; where it stops early, the next page continues.
    """
    limit = max(1, rows.bounded(query.limit))
    values = {
        "before": rows.clamp(rows.MAX_INTEGER if query.before_seq is None else query.before_seq),
        "limit": limit,
        "scan": rows.LIST_SCAN_ROWS,
        "status": None if query.status is None else rows.clamp(query.status),
        "method": query.method,
        "client": query.client,
    }
    tasks: list[OpenTask | EndedTask] = []
    lowest: int | None = None
    for access, filtered in _accesses(query):
        found, stopped = _scan(statements[access], filtered, values, run)
        tasks += map(open_task if access == "open" else ended_task, found)
        if stopped is not None:
            lowest = stopped if lowest is None else max(lowest, stopped)
    # Below the row where the scan of one table stopped, the rows of the other would be alone.
    page = sorted((task for task in tasks if lowest is None or task.seq >= lowest), key=lambda task: -task.seq)
    if len(page) > limit:
        return TaskPage(tuple(page[:limit]), page[limit - 1].seq)
    return TaskPage(tuple(page), lowest)


def _accesses(query: ListTasks) -> Iterator[tuple[Access, bool]]:
    """How to scan each table, and whether the scan passes rows that the query does not select."""
    by_status, by_method, by_client = query.status is not None, query.method is not None, query.client is not None
    if query.status is None or query.status in OPEN_STATUSES:
        yield "open", by_status or by_method or by_client
    if query.status is None or query.status in ENDED_STATUSES:
        if query.status is not None and query.status != FINISHED:
            yield "status", by_method or by_client
        elif by_method:
            yield "method", by_status or by_client
        else:
            yield "ended", by_status or by_client


def _scan(
    statements: PageStatements,
    filtered: bool,
    values: dict[str, Any],
    run: Callable[[str, dict[str, Any]], list[tuple[Any, ...]]],
) -> tuple[list[tuple[Any, ...]], int | None]:
    """Rows, at most one more than a page, and the seq where the scan stopped; None: it reached the end."""
    floor = run(statements.floor, values) if filtered else []
    lowest = floor[0][0] if floor else -rows.MAX_INTEGER
    found = run(statements.page, {**values, "floor": lowest})
    if len(found) > values["limit"]:
        return found, found[-1][0]
    return found, lowest if floor else None
