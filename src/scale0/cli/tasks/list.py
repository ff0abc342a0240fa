"""`scale0 task list`, `retry` and `cancel`: everybody's tasks.

Lives here: what needs the rights of management, or falls back to them. Never here: what a submitter asks (`task`).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, watched
from scale0.cli.network.listing import DISCOVERY_SECONDS
from scale0.cli.tasks.connection import check_ids, own_id, task_client

if TYPE_CHECKING:
    from scale0.client.client import Client

DEFAULT_ROWS: Final = 50
PAGE_ROWS: Final = 1_000
"""As many as a broker gives at once."""
WIDE_COLUMNS: Final = 130
"""From here on a terminal has room for whose and where."""
STATUSES: Final = ("scheduled", "queued", "assigned", "running", "finished", "failed", "cancelled")

ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion_values.tasks)


@click.command("list")
@joins
@json_option
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@click.option("--method", metavar="NAME", help="Only those of this method.", shell_complete=completion_values.services)
@click.option("--client", metavar="ID", help="Only those of this client.")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--limit", type=click.IntRange(1), default=DEFAULT_ROWS, help=f"At most so many ({DEFAULT_ROWS}).")
@click.option("--all", "everything", is_flag=True, help="All of them, whatever --limit says.")
@authentication.commands
@watched
def list_tasks(
    join: str,
    wants_json: bool,
    limit: int,
    everything: bool,
    mine: bool,
    authority: authentication.GivenCredentials,
    **only: Any,
) -> None:
    """Show the broker's tasks, newest first: everybody's, ended ones as long as their results are kept.

    \b
    With --json, an array of objects:
      task_id, client_id, method  which, whose and what
      status, priority            scheduled, queued, assigned, running, finished, failed or cancelled
      attempt, starts             how often it was handed out, and how often it began
      node_id                     who has it, or had it last
      submitted, started, finished

    \b
    Examples:
      scale0 task list --status failed
      scale0 task list --method thumbs.make --all --json | jq length
    """
    if mine:
        only["client"] = own_id(join)
    asked = {name: value for name, value in only.items() if value is not None}
    most = sys.maxsize if everything else limit
    rows: list[dict[str, Any]] = []
    more = False
    for row in listed(join, authority, asked, min(most, PAGE_ROWS)):
        if len(rows) >= most:
            more = True
            break
        rows.append(row)
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        show_none(asked)
    else:
        show_rows(rows)
        if more:
            output.note(f"the newest {len(rows)}; --limit N or --all shows more")


def listed(
    join: str, given: authentication.GivenCredentials, asked: dict[str, Any], page_rows: int
) -> Iterator[dict[str, Any]]:
    """The rows, page by page; a page may be empty and not the last."""
    credentials = authentication.need(given, join)
    with connect(join, DISCOVERY_SECONDS) as client:
        token = authentication.log_in(client, credentials)
        after: dict[str, Any] = {}
        while True:
            page = client.manage("list_tasks", limit=page_rows, **asked, **after, **token)
            yield from page["items"]
            if page["next"] is None:
                return
            after = {"after": page["next"]}


def show_none(asked: dict[str, Any]) -> None:
    """What to type when there is nothing."""
    if asked:
        said = ", ".join(f"{name} {value}" for name, value in asked.items())
        output.say(f"No task of {said}. `scale0 task list` shows all that there are.")
    else:
        output.say("No tasks yet. Submit one of a service that a worker offers:\n")
        output.say("    scale0 services\n    scale0 task submit SERVICE ARGS...")


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """A table that fits: whose and where only if there is room."""
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
    """How long its last attempt ran."""
    return output.span(row["finished"] - row["started"]) if row["finished"] and row["started"] else "-"


@click.command()
@ids_argument
@joins
@json_option
@authentication.commands
def retry(ids: tuple[str, ...], join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Queue failed or cancelled tasks again, as if none of their attempts had been.

    \b
    With --json, an array of objects: task_id and status, or error {code, message}

    \b
    Example:
      scale0 task list --status failed --json | jq -r '.[].task_id' | xargs -r scale0 task retry
    """
    check_ids(ids)
    finish(retried(ids, join, authority), wants_json, lambda row: f"{row['task_id']} is {row['status']} again")


def retried(ids: Sequence[str], join: str, given: authentication.GivenCredentials) -> list[dict[str, Any]]:
    """What came of each."""
    credentials = authentication.need(given, join)
    with connect(join, DISCOVERY_SECONDS) as client:
        token = authentication.log_in(client, credentials)
        return [commanded(client, "retry_task", one, token) for one in ids]


@click.command()
@ids_argument
@joins
@json_option
@authentication.commands
def cancel(ids: tuple[str, ...], join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Have tasks not run, or not run on. Your own need no token; with one, anybody's are cancelled.

    \b
    With --json, an array of objects: task_id and cancelled, or error {code, message}

    \b
    Example:
      scale0 task cancel 0f3a9c
    """
    check_ids(ids)
    finish(cancelled(ids, join, authority), wants_json, cancelled_words)


def cancelled(ids: Sequence[str], join: str, given: authentication.GivenCredentials) -> list[dict[str, Any]]:
    """What came of each: our own by ourselves, others by management."""
    from scale0.errors import NoSuchTask

    rows: list[dict[str, Any]] = []
    token: authentication.Credentials | None = None
    with task_client(join) as client:
        for id_ in ids:
            try:
                own = client.task_of(id_)
                own.cancel()
                rows.append({"task_id": id_, "cancelled": own.status().status == "cancelled"})
            except NoSuchTask:
                credentials = authentication.find(given, join)
                if credentials is None:
                    raise
                token = token or authentication.log_in(client, credentials)
                rows.append(commanded(client, "cancel_task", id_, token))
    return rows


def cancelled_words(row: dict[str, Any]) -> str:
    """One line for one task."""
    return f"{row['task_id']} is cancelled" if row["cancelled"] else f"{row['task_id']} had ended before"


def commanded(client: Client, command: str, id_: str, token: authentication.Credentials) -> dict[str, Any]:
    """A management command for one of several tasks: a refusal is its own, and the others go on."""
    from scale0.errors import Conflict, NoSuchService

    try:
        done: dict[str, Any] = client.manage(command, task_id=id_, **token)
    except (NoSuchService, Conflict) as error:
        return {"task_id": id_, "error": {"code": error.code, "message": error.message}}
    return done


def finish(rows: Sequence[dict[str, Any]], wants_json: bool, words: Callable[[dict[str, Any]], str]) -> None:
    """Say what came of each; exit code 1 if any was a no."""
    if wants_json:
        output.say(output.as_json(rows))
    for row in rows:
        if "error" in row and not wants_json:
            output.note(f"scale0: {output.clean(row['error']['message'])}")
        elif not wants_json:
            output.say(words(row))
    if any("error" in row for row in rows):
        if not wants_json:
            output.note("  next: `scale0 task list` shows what there is, and how it is")
        sys.exit(errors.NO)
    if not all(row.get("cancelled", True) for row in rows):
        sys.exit(errors.NO)
