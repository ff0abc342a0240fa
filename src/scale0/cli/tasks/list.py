"""`scale0 task list`, `show`, `retry` and `cancel`: the tasks of all clients, which needs credentials."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import AdminAccess, Credentials, admin_options, log_in
from scale0.cli.common.connection import admin_client, list_all, manage
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.tasks.connection import check_ids, own_id, task_client

if TYPE_CHECKING:
    from scale0.client.client import Client

DEFAULT_ROWS: Final = 50
WIDE_COLUMNS: Final = 130
"""From this width on, a terminal has room for node and client."""
STATUSES: Final = ("scheduled", "queued", "assigned", "running", "finished", "failed", "cancelled")
COLOURS: Final = {"finished": "green", "failed": "red", "cancelled": "yellow"}
BELOW: Final = ("attempts", "error")
"""Keys that are shown below the others, on several lines."""
TIMES: Final = ("submitted", "started", "finished", "runnable", "expires")

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion_values.tasks)


@click.command("list")
@json_option
@click.option("--status", type=click.Choice(STATUSES), help="Only tasks with this status.")
@click.option("--method", metavar="NAME", help="Only tasks of this method.", shell_complete=completion_values.services)
@click.option("--client", metavar="ID", help="Only tasks of this client.")
@click.option("--mine", is_flag=True, help="Only your own tasks.")
@click.option("--limit", type=click.IntRange(1), default=DEFAULT_ROWS, help=f"The maximum number ({DEFAULT_ROWS}).")
@click.option("--all", "everything", is_flag=True, help="All tasks, without a limit.")
@admin_options
@with_watch
def list_tasks(
    wants_json: bool,
    limit: int,
    everything: bool,
    mine: bool,
    access: AdminAccess,
    **only: Any,
) -> None:
    """List the tasks of all clients, the newest first; ended ones while their results are kept.

    \b
    With --json, an array of objects:
      task_id, client_id, method  the task, its client and its method
      status, priority            scheduled, queued, assigned, running, finished, failed or cancelled
      attempt, starts             how often it was assigned, and how often it started
      node_id                     the node that has it, or had it last
      submitted, started, finished

    \b
    Examples:
      scale0 task list --status failed
      scale0 task list --method thumbs.make --all --json | jq length
    """
    if mine:
        only["client"] = own_id(access.join)
    query = {name: value for name, value in only.items() if value is not None}
    found = list_all(access, "list_tasks", query, None if everything else limit + 1)
    rows = found if everything else found[:limit]
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        show_none(query)
    else:
        show_rows(rows)
        if len(found) > len(rows):
            output.note(f"the newest {len(rows)}; --limit N or --all shows more")


def show_none(query: dict[str, Any]) -> None:
    if query:
        filters = ", ".join(f"{name} {value}" for name, value in query.items())
        output.say(f"No task matches {filters}. `scale0 task list` lists all tasks.")
    else:
        output.say("There are no tasks yet. Submit one for a service that a worker offers:\n")
        output.say("    scale0 services\n    scale0 task submit SERVICE ARGS...")


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """A table that fits: node and client only if there is room."""
    now = time.time()
    heads = ["TASK", "METHOD", "STATUS", "TRY", "AGE"]
    cells: list[list[object]] = [
        [row["task_id"], row["method"], row["status"], row["attempt"], output.span(now - row["submitted"])]
        for row in rows
    ]
    if not output.on_terminal() or shutil.get_terminal_size().columns >= WIDE_COLUMNS:
        heads += ["TOOK", "NODE", "CLIENT"]
        for line, row in zip(cells, rows, strict=True):
            line += [took(row), row["node_id"] or "-", row["client_id"]]
    output.table(heads, cells, numbers=("TRY", "AGE", "TOOK"))


def took(row: dict[str, Any]) -> str:
    return output.span(row["finished"] - row["started"]) if row["finished"] and row["started"] else "-"


@click.command()
@ids_argument
@json_option
@admin_options
def retry(ids: tuple[str, ...], wants_json: bool, access: AdminAccess) -> None:
    """Queue failed or cancelled tasks again, with all of their attempts.

    \b
    With --json, an array of objects: task_id and status, or error {code, message}

    \b
    Example:
      scale0 task list --status failed --json | jq -r '.[].task_id' | xargs -r scale0 task retry
    """
    check_ids(ids)
    finish(retried(ids, access), wants_json, lambda row: f"{row['task_id']} is {row['status']} again")


def retried(ids: Sequence[str], access: AdminAccess) -> list[dict[str, Any]]:
    with admin_client(access) as (client, token):
        return [commanded(client, "retry_task", one, token) for one in ids]


@click.command()
@ids_argument
@json_option
@admin_options
def cancel(ids: tuple[str, ...], wants_json: bool, access: AdminAccess) -> None:
    """Cancel tasks. Your own need no token; with one, those of any client.

    \b
    With --json, an array of objects: task_id and cancelled, or error {code, message}

    \b
    Example:
      scale0 task cancel 0f3a9c
    """
    check_ids(ids)
    finish(cancelled(ids, access), wants_json, cancelled_line)


def cancelled(ids: Sequence[str], access: AdminAccess) -> list[dict[str, Any]]:
    """The outcome for each task: our own by the task protocol, others by management."""
    from scale0.errors import NoSuchTask

    rows: list[dict[str, Any]] = []
    token: Credentials | None = None
    with task_client(access.join) as client:
        for id_ in ids:
            try:
                own = client.task_of(id_)
                own.cancel()
                rows.append({"task_id": id_, "cancelled": own.status().status == "cancelled"})
            except NoSuchTask:
                credentials = access.find()
                if credentials is None:
                    raise
                token = token or log_in(client, credentials)
                rows.append(commanded(client, "cancel_task", id_, token))
    return rows


def cancelled_line(row: dict[str, Any]) -> str:
    return f"{row['task_id']} is cancelled" if row["cancelled"] else f"{row['task_id']} had already ended"


def commanded(client: Client, command: str, id_: str, token: Credentials) -> dict[str, Any]:
    """A management command for one of several tasks; a refusal does not stop the others."""
    from scale0.errors import Conflict, NoSuchService

    try:
        done: dict[str, Any] = client.manage(command, task_id=id_, **token)
    except (NoSuchService, Conflict) as error:
        return {"task_id": id_, "error": {"code": error.code, "message": error.message}}
    return done


def finish(rows: Sequence[dict[str, Any]], wants_json: bool, line_of: Callable[[dict[str, Any]], str]) -> None:
    """Print the outcome of each; exit code 1 if one was refused."""
    if wants_json:
        output.say(output.as_json(rows))
    for row in rows:
        if "error" in row and not wants_json:
            output.note(f"scale0: {output.clean(row['error']['message'])}")
        elif not wants_json:
            output.say(line_of(row))
    if any("error" in row for row in rows):
        if not wants_json:
            output.note("  next: `scale0 task list` lists the tasks and their states")
        sys.exit(errors.NO)
    if not all(row.get("cancelled", True) for row in rows):
        sys.exit(errors.NO)


@click.command()
@click.argument("task_id", metavar="ID", shell_complete=completion_values.tasks)
@json_option
@admin_options
@with_watch
def show(task_id: str, wants_json: bool, access: AdminAccess) -> None:
    """Show all that the broker knows about a task of any client, except for its arguments and result.

    \b
    With --json, an object: as a row of `scale0 task list --json`, and
      key, timeout, max_attempts, backoff, result_ttl   its options
      attempts                     those that have ended: attempt, node, state, started, ended, error
      error, info                  why it failed, and the last report of its worker
      params_bytes, result_bytes   their sizes
      runnable, expires            when it may run, and when it is deleted (seconds since the epoch)
      owner                        the public key that submitted it; null without keys

    \b
    Examples:
      scale0 task show 0f3a9c
      scale0 task show 0f3a9c --json | jq .error
    """
    from scale0.errors import NoSuchService

    check_ids((task_id,))
    try:
        found = manage(access, "show_task", task_id=task_id)
    except NoSuchService as error:
        raise errors.CommandError(f"there is no task {task_id}", "`scale0 task list` lists the tasks") from error
    if wants_json:
        output.say(output.as_json(found))
        return
    output.facts(fact_lines(found), {"status": COLOURS.get(found["status"], "cyan")})
    show_attempts(found["attempts"])
    if found["error"]:
        output.say(f"\n{output.clean(error_text(found['error']))}")
    if found["status"] in ("failed", "cancelled"):
        output.note(f"  next: `scale0 task retry {task_id}`; `scale0 explain {task_id}` shows its history")


def fact_lines(found: dict[str, Any]) -> list[tuple[str, object]]:
    """One value on each line; missing ones are left out."""
    lines: list[tuple[str, object]] = []
    for name, value in found.items():
        if value in (None, "", [], {}) or name in BELOW:
            continue
        text = output.moment(value) if name in TIMES else value
        lines.append((name.replace("_", " "), text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)))
    return lines


def show_attempts(attempts: list[dict[str, Any]]) -> None:
    if not attempts:
        return
    output.say("")
    shown = [
        (
            row["attempt"],
            row["state"],
            output.span(row["ended"] - row["started"]) if row.get("started") else "-",
            row["node"] or "-",
            (row.get("error") or {}).get("message", "-"),
        )
        for row in attempts
    ]
    output.table(("TRY", "STATE", "TOOK", "NODE", "ERROR"), shown, numbers=("TRY", "TOOK"), cut="ERROR")


def error_text(error: dict[str, Any]) -> str:
    data = error.get("data")
    trace = data.get("traceback") if isinstance(data, dict) else None
    return str(trace or f"{error.get('message', '')} ({error.get('code', '')})").rstrip()
