"""Tasks: list, show, retry and cancel. The parameters and results of tasks are not shown."""

from __future__ import annotations

from typing import Any, Final, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery

from scale0.broker.admin.access import OPERATOR, VIEWER
from scale0.http.auth.authorization import ROLE
from scale0.http.request_context import DEFAULT_ROWS, After, Context, Limit, ListPage, Text

TASKS: Final = "/api/v1/tasks"
STATUSES = Literal["scheduled", "queued", "assigned", "running", "finished", "failed", "cancelled"]


@get(TASKS, opt={ROLE: VIEWER}, summary="Tasks, the newest first")
async def tasks(
    context: Context,
    status: FromQuery[STATUSES | None] = None,
    method: Text = None,
    client: Text = None,
    limit: Limit = DEFAULT_ROWS,
    after: After = None,
) -> ListPage:
    """Rows of `scale0 task list --all --json`."""
    return await context.page("list_tasks", limit, after, status=status, method=method, client=client)


@get(TASKS + "/{task_id:str}", opt={ROLE: VIEWER}, summary="One task")
async def task(context: Context, task_id: FromPath[str]) -> dict[str, Any]:
    """Everything but its parameters and result."""
    return await context.read("show_task", task_id=task_id)


@post(TASKS + "/{task_id:str}/retry", opt={ROLE: OPERATOR}, status_code=200, summary="Run a failed task again")
async def retry(context: Context, task_id: FromPath[str]) -> dict[str, Any]:
    """Queue it again, with its full number of attempts."""
    return await context.change("retry_task", task_id=task_id)


@post(TASKS + "/{task_id:str}/cancel", opt={ROLE: OPERATOR}, status_code=200, summary="Cancel a task")
async def cancel(context: Context, task_id: FromPath[str]) -> dict[str, Any]:
    """A running task is asked to stop."""
    return await context.change("cancel_task", task_id=task_id)


HANDLERS: Final[list[HTTPRouteHandler]] = [tasks, task, retry, cancel]
