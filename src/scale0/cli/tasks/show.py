"""`scale0 task show`: everything about anybody's task but what it was given and what it gave.

Lives here: the command. Never here: what a submitter asks (`task`), who needs no right.
"""

from __future__ import annotations

import json
from typing import Any

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.admin_client import managed
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, watched
from scale0.cli.tasks.connection import check_ids

COLOURS = {"finished": "green", "failed": "red", "cancelled": "yellow"}
BELOW = ("attempts", "error")
"""What stands under the facts, in more than a line."""
TIMES = ("submitted", "started", "finished", "runnable", "expires")


@click.command()
@click.argument("task_id", metavar="ID", shell_complete=completion_values.tasks)
@joins
@json_option
@authentication.commands
@watched
def show(task_id: str, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Show all that the broker knows of a task, whoever submitted it; its arguments and its result stay unseen.

    \b
    With --json, an object: as a row of `scale0 task list --json`, and
      key, timeout, max_attempts, backoff, result_ttl   what it was submitted with
      attempts                     those that have ended: attempt, node, state, started, ended, error
      error, info                  why it failed, and what its worker said last
      params_bytes, result_bytes   how long they are
      runnable, expires            not before, and not known after (seconds since the epoch)

    \b
    Examples:
      scale0 task show 0f3a9c
      scale0 task show 0f3a9c --json | jq .error
    """
    from scale0.errors import NoSuchService

    check_ids((task_id,))
    try:
        found = managed(join, authority, "show_task", task_id=task_id)
    except NoSuchService as error:
        raise errors.CommandError(f"no task {task_id} is known", "`scale0 task list` shows what there is") from error
    if wants_json:
        output.say(output.as_json(found))
        return
    output.facts(lines_of(found), {"status": COLOURS.get(found["status"], "cyan")})
    show_attempts(found["attempts"])
    if found["error"]:
        output.say(f"\n{output.clean(told(found['error']))}")
    if found["status"] in ("failed", "cancelled"):
        output.note(f"  next: `scale0 task retry {task_id}`; `scale0 explain {task_id}` tells its story")


def lines_of(found: dict[str, Any]) -> list[tuple[str, object]]:
    """One thing on a line; what is not there is left out."""
    lines: list[tuple[str, object]] = []
    for name, value in found.items():
        if value in (None, "", [], {}) or name in BELOW:
            continue
        text = output.moment(value) if name in TIMES else value
        lines.append((name.replace("_", " "), text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)))
    return lines


def show_attempts(attempts: list[dict[str, Any]]) -> None:
    """A row for each that has ended."""
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


def told(error: dict[str, Any]) -> str:
    """Why it failed: the worker's traceback, or at least its words."""
    data = error.get("data")
    trace = data.get("traceback") if isinstance(data, dict) else None
    return str(trace or f"{error.get('message', '')} ({error.get('code', '')})").rstrip()
