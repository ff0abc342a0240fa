"""`scale0 queues` and `scale0 error-clients`: who waits for whom, and who is ignored.

Lives here: both lists, and the one change that belongs to them: to forgive. Never here: how a queue works.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Final

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.admin_client import managed, rows_of
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, watched

SHOWN_LINE: Final = 3
"""Backends of a queue that are named in the table."""


@click.command()
@joins
@json_option
@click.option("--match", metavar="GLOB", help="Only these services.", shell_complete=completion_values.services)
@click.option("--busy", is_flag=True, help="Only those in which something waits.")
@authentication.commands
@watched
def queues(
    join: str, wants_json: bool, match: str | None, busy: bool, authority: authentication.GivenCredentials
) -> None:
    """Show the queue of every service: what waits, since when, and which backend is handed work next.

    \b
    With --json, an array of objects:
      service                    its name
      waiting, oldest_seconds    requests that wait for a slot, and how long the first one has
      backends                   how many offer it here
      lru                        of them {identity, slots, busy}, who is handed work next first (100)
      tasks_queued, tasks_more   tasks in memory that wait; the store has more

    \b
    Examples:
      scale0 queues
      scale0 queues --busy --watch
      scale0 queues --match 'thumbs.*' --json | jq '.[].lru[0].identity'
    """
    rows = [
        row for row in rows_of(join, authority, "list_queues") if match is None or fnmatchcase(row["service"], match)
    ]
    if busy:
        rows = [row for row in rows if row["waiting"] or row["tasks_queued"]]
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("Nothing waits." if busy or match else "There is no queue: nobody offers a service yet.")
        output.note("  next: `scale0 services` shows who offers what")
    else:
        heads = ("SERVICE", "WAITING", "OLDEST", "TASKS", "BACKENDS", "NEXT")
        shown = [
            (
                row["service"],
                row["waiting"],
                output.span(row["oldest_seconds"]),
                tasks_of(row),
                row["backends"],
                line_of(row["lru"]),
            )
            for row in rows
        ]
        output.table(heads, shown, numbers=heads[1:5], cut="NEXT")


def tasks_of(row: dict[str, Any]) -> str:
    """How many tasks wait, as far as it is known."""
    count = row.get("tasks_queued")
    return "-" if count is None else f"{count}{'+' if row.get('tasks_more') else ''}"


def line_of(line: list[dict[str, Any]]) -> str:
    """The first few who are handed work, with how busy they are."""
    names = [f"{one['identity']} {one['busy']}/{one['slots']}" for one in line[:SHOWN_LINE]]
    return ", ".join(names) + (f" +{len(line) - SHOWN_LINE}" if len(line) > SHOWN_LINE else "") or "-"


@click.group("error-clients", invoke_without_command=True)
@joins
@json_option
@authentication.commands
@watched
@click.pass_context
def error_clients(
    context: click.Context, join: str, wants_json: bool, authority: authentication.GivenCredentials
) -> None:
    """Show clients that are ignored for a while because they sent nonsense; `forgive` takes one back.

    \b
    With --json, an array of objects:
      client     its name, for `forgive`
      socket     where it came from: frontend, backend or peer
      ends_in    seconds until it is heard again by itself
      bad        what it has on its account

    \b
    Examples:
      scale0 error-clients
      scale0 error-clients --watch
      scale0 error-clients forgive frontend/1f2e3d4c5b
    """
    if context.invoked_subcommand is not None:
        return
    rows = rows_of(join, authority, "list_error_clients")
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("No client is ignored.")
    else:
        shown = [(row["client"], row["socket"], row["bad"], output.span(row["ends_in"])) for row in rows]
        output.table(("CLIENT", "SOCKET", "BAD", "HEARD AGAIN IN"), shown, numbers=("BAD", "HEARD AGAIN IN"))
        output.note("  next: `scale0 error-clients forgive CLIENT` takes one back at once")


@error_clients.command()
@click.argument("names", metavar="CLIENT...", nargs=-1, required=True, shell_complete=completion_values.error_clients)
@joins
@json_option
@authentication.commands
def forgive(names: tuple[str, ...], join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Hear CLIENT again at once.

    \b
    With --json, an array of objects: client, forgiven (connections)

    \b
    Example:
      scale0 error-clients forgive frontend/1f2e3d4c5b
    """
    from scale0.errors import NoSuchService

    done = []
    for name in names:
        try:
            done.append({"client": name, **managed(join, authority, "forgive", client=name)})
        except NoSuchService as error:
            what = f"{name} is not ignored"
            raise errors.CommandError(what, "`scale0 error-clients` shows those that are") from error
    if wants_json:
        output.say(output.as_json(done))
    else:
        for row in done:
            output.say(f"{row['client']} is heard again")
