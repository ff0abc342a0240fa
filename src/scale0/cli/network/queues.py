"""`scale0 queues` and `scale0 error-clients`: what waits, and which clients are ignored."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.connection import list_all, manage
from scale0.cli.common.options import json_option, with_watch

MAX_BACKENDS: Final = 3
"""Shown for each queue in the table."""


@click.command()
@json_option
@click.option(
    "--match", metavar="GLOB", help="Only queues of these services.", shell_complete=completion_values.services
)
@click.option("--busy", is_flag=True, help="Only queues that are not empty.")
@admin_options
@with_watch
def queues(wants_json: bool, match: str | None, busy: bool, access: AdminAccess) -> None:
    """List the queue of every service.

    \b
    With --json, an array of objects:
      service                    its name
      waiting, oldest_seconds    requests in the queue, and the age of the first one
      backends                   how many backends offer it here
      lru                        at most 100 {identity, slots, busy}, the next one first
      tasks_queued, tasks_more   queued tasks in memory; whether the store has more

    \b
    Examples:
      scale0 queues
      scale0 queues --busy --watch
      scale0 queues --match 'thumbs.*' --json | jq '.[].lru[0].identity'
    """
    rows = [row for row in list_all(access, "list_queues") if match is None or fnmatchcase(row["service"], match)]
    if busy:
        rows = [row for row in rows if row["waiting"] or row["tasks_queued"]]
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("No queue matches." if busy or match else "There is no queue: no worker offers a service yet.")
        output.note("  next: `scale0 services` lists the services")
    else:
        heads = ("SERVICE", "WAITING", "OLDEST", "TASKS", "BACKENDS", "NEXT")
        shown = [
            (
                row["service"],
                row["waiting"],
                output.span(row["oldest_seconds"]),
                tasks_of(row),
                row["backends"],
                next_backends(row["lru"], row["backends"]),
            )
            for row in rows
        ]
        output.table(heads, shown, numbers=heads[1:5], cut="NEXT")


def tasks_of(row: dict[str, Any]) -> str:
    """The number of queued tasks, as far as it is known."""
    count = row.get("tasks_queued")
    return "-" if count is None else f"{count}{'+' if row.get('tasks_more') else ''}"


def next_backends(lru: list[dict[str, Any]], backends: int) -> str:
    names = [f"{one['identity']} {one['busy']}/{one['slots']}" for one in lru[:MAX_BACKENDS]]
    return ", ".join(names) + (f" +{backends - len(names)}" if backends > len(names) else "") or "-"


@click.group("error-clients", invoke_without_command=True)
@json_option
@admin_options
@with_watch
@click.pass_context
def error_clients(context: click.Context, wants_json: bool, access: AdminAccess) -> None:
    """List clients that are ignored after invalid messages.

    They are ignored for a while; `forgive` accepts one again.

    \b
    With --json, an array of objects:
      client     its name, for `forgive`
      socket     frontend, backend or peer
      ends_in    seconds until it is accepted again
      bad        how many invalid messages it has sent

    \b
    Examples:
      scale0 error-clients
      scale0 error-clients --watch
      scale0 error-clients forgive frontend/1f2e3d4c5b
    """
    if context.invoked_subcommand is not None:
        return
    rows = list_all(access, "list_error_clients")
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("No client is ignored.")
    else:
        shown = [(row["client"], row["socket"], row["bad"], output.span(row["ends_in"])) for row in rows]
        output.table(("CLIENT", "SOCKET", "BAD", "ENDS IN"), shown, numbers=("BAD", "ENDS IN"))
        output.note("  next: `scale0 error-clients forgive CLIENT` accepts one again at once")


@error_clients.command()
@click.argument("names", metavar="CLIENT...", nargs=-1, required=True, shell_complete=completion_values.error_clients)
@json_option
@admin_options
def forgive(names: tuple[str, ...], wants_json: bool, access: AdminAccess) -> None:
    """Accept CLIENT again at once.

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
            done.append({"client": name, **manage(access, "forgive", client=name)})
        except NoSuchService as error:
            what = f"{name} is not ignored"
            raise errors.CommandError(what, "`scale0 error-clients` lists the ignored clients") from error
    if wants_json:
        output.say(output.as_json(done))
    else:
        for row in done:
            output.say(f"{row['client']} is accepted again")
