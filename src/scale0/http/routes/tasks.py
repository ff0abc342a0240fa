"""Tasks: list, look at, retry, cancel.

Lives here: the broker's own commands for tasks. Never here: a task's params or result: those are its client's.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import DEFAULT_ROWS, After, At, Limit, ListPage, Text

TASKS: Final = "/api/v1/tasks"
STATUSES = Literal["scheduled", "queued", "assigned", "running", "finished", "failed", "cancelled"]


@get(TASKS, opt={ROLE: VIEWER}, summary="Tasks, the newest first")
async def tasks(
    desk: At,
    status: FromQuery[STATUSES | None] = None,
    method: Text = None,
    client: Text = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> ListPage:
    """Rows of `scale0 task list --all --json`."""
    return await desk.page("list_tasks", limit, after, status=status, method=method, client=client)


@get(TASKS + "/{task_id:str}", opt={ROLE: VIEWER}, summary="One task")
async def task(desk: At, task_id: FromPath[str]) -> dict[str, Any]:
    """All that there is to know of it, but its params and result."""
    found: dict[str, Any] = await desk.read("show_task", task_id=task_id)
    return found


@post(TASKS + "/{task_id:str}/retry", opt={ROLE: OPERATOR}, status_code=200, summary="Run a failed task again")
async def retry(desk: At, task_id: FromPath[str]) -> dict[str, Any]:
    """Queue it again, with all of its attempts."""
    return await desk.change("retry_task", task_id=task_id)


@post(TASKS + "/{task_id:str}/cancel", opt={ROLE: OPERATOR}, status_code=200, summary="Cancel a task")
async def cancel(desk: At, task_id: FromPath[str]) -> dict[str, Any]:
    """End it; one that runs is told to stop."""
    return await desk.change("cancel_task", task_id=task_id)


HANDLERS: Final[list[HTTPRouteHandler]] = [tasks, task, retry, cancel]
