"""`scale0 handler`: who is told when a check is down for sure, and how.

Lives here: `add`, `list`, `test` and `remove`. Never here: telling anybody; Helen does that. A handler is part of the
network document, and changes by management like all of it. Invariant: the document says a command's name only; what it
runs stands in Helen's own file.
"""

from __future__ import annotations

import time
from typing import Any, Final

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, watched
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.check import is_given, plain
from scale0.cli.monitoring.listing import STATES
from scale0.cli.network import document_entries
from scale0.cli.network.call import SECONDS

KEY: Final = "handlers"
NOTIFY: Final = "helen.notify"
"""The task that tells a notice."""


@click.group()
def handler() -> None:
    """Say who is told when a check is down for sure: a webhook, a command, an e-mail, or a task that mends it.

    \b
    Examples:
      scale0 handler add pager --webhook https://example.com/hook
      scale0 handler test pager
      scale0 check change load --handler pager
      scale0 handler list
    """


@handler.command("add")
@click.argument("name")
@joins
@click.option("--webhook", "url", metavar="URL", help="Post the notice there, as JSON.")
@click.option("--command", metavar="NAME", help="Run this one of `commands` in Helen's own file; JSON on stdin.")
@click.option("--email", "to", multiple=True, metavar="ADDRESS", help="Send it there (`smtp` in Helen's own file).")
@click.option("--task", "method", metavar="METHOD", help="Submit this task, and check again once it has ended.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Of a webhook; no place for secrets.")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Of a task (the notice).")
@click.option("--check-again/--no-check-again", default=None, help="After a task, run the check at once (yes).")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only of these (all; a task: not ok)."
)
@click.option(
    "--limit", type=click.IntRange(0), metavar="COUNT", help="Notices in a period, then one for the rest (60)."
)
@click.option("--period", type=SECONDS, metavar="SECONDS", help="How long that is (3600).")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="What telling it once may take (30).")
@click.option("--max-attempts", type=click.IntRange(1), metavar="COUNT", help="How often it is tried (5).")
@authentication.commands
def add(name: str, join: str, authority: authentication.GivenCredentials, **said: Any) -> None:
    """Add the handler NAME; one that has this name is replaced. Checks name it with --handler.

    \b
    Examples:
      scale0 handler add pager --webhook https://example.com/hook --state critical
      scale0 handler add ops --email ops@example.com
      scale0 handler add restart --task service.restart --param name=nginx
    """
    kinds = {"webhook": "url", "command": "command", "email": "to", "task": "method"}
    chosen = [kind for kind, key in kinds.items() if said[key]]
    if len(chosen) != 1:
        raise click.UsageError("give one of --webhook URL, --command NAME, --email ADDRESS and --task METHOD")
    said |= {
        "headers": document_entries.texts(said["headers"], "--header"),
        "params": document_entries.pairs(said["params"], "--param"),
    }
    given = {key: plain(value) for key, value in said.items() if is_given(value)}
    entry = {"name": name, "type": chosen[0], **given}
    version = document_entries.put(join, authority, {document_entries.path(KEY, name): entry})
    output.say(f"{name} is in the configuration, version {version}")
    if chosen[0] == "task":
        output.note(f"  next: scale0 check change CHECK --handler {name}")
    else:
        output.note(f"  next: scale0 handler test {name}; then: scale0 check change CHECK --handler {name}")


@handler.command("list")
@joins
@json_option
@authentication.commands
@watched
def listing(join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Show all handlers, and the checks that name them.

    \b
    With --json, an array of the objects of the document (docs/configuration.md).

    \b
    Example:
      scale0 handler list
    """
    found, checks = document_entries.entries(join, authority, KEY, "checks")
    if wants_json:
        output.say(output.as_json(found))
    elif not found:
        output.say("Nobody is told of anything yet. Have a web page told, and let a check name it:\n")
        output.say("    scale0 handler add pager --webhook https://example.com/hook")
        output.say("    scale0 check change CHECK --handler pager")
    else:
        users: dict[str, list[str]] = {}
        for check in checks:
            for name in check["handlers"]:
                users.setdefault(name, []).append(check["name"])
        shown = [
            (
                row["name"],
                row["type"],
                " ".join(row["to"]) or row["url"] or row["command"] or row["method"],
                " ".join(row["states"]) or "all",
                " ".join(users.get(row["name"], ())) or "no check",
            )
            for row in found
        ]
        output.table(("NAME", "TYPE", "TELLS", "STATES", "USED BY"), shown, cut="USED BY")


@handler.command("test")
@click.argument("name", shell_complete=completion_values.handlers)
@joins
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=30.0, help="How long to wait for it (30).")
@authentication.commands
def trial(name: str, join: str, timeout: float, authority: authentication.GivenCredentials) -> None:
    """Have the handler NAME told something now, to see whether it works. Exits with 1 if it does not.

    \b
    Example:
      scale0 handler test pager
    """
    from scale0.cli.tasks.connection import task_client
    from scale0.errors import NoAnswer, TaskFailed

    [known] = document_entries.entries(join, authority, KEY)
    kinds = {entry["name"]: entry for entry in known}
    if name not in kinds:
        raise errors.CommandError(f"there is no handler {name}", "`scale0 handler list` shows those that are there")
    if kinds[name]["type"] == "task":
        raise errors.CommandError(
            f"{name} is a task, which may change something", f"try it: scale0 task submit {kinds[name]['method']} …"
        )
    with task_client(join) as client:
        helens.need_helens(client)
        task = client.task(max_attempts=1, timeout=timeout).submit(NOTIFY, handler=name, notice=sample(name))
        try:
            task.result(timeout=timeout)
        except NoAnswer as error:
            step = f"`scale0 task status {task.id}` shows how far it is"
            raise errors.CommandError(f"nothing has come of it within {timeout:g} s", step) from error
        except TaskFailed as error:
            raise errors.CommandError(
                f"{name} was not told: {error.message}", "the handler, or Helen's own file, must change"
            ) from error
    output.say(f"{name} was told")


def sample(name: str) -> dict[str, Any]:
    """A notice that has every key of a real one, and says that it is none."""
    now = time.time()
    return {
        "id": f"test-{now:.0f}",
        "kind": "test",
        "handler": name,
        "agent": "test",
        "check": "test",
        "state": "ok",
        "previous": "ok",
        "message": "this is a test: nothing is wrong",
        "at": now,
        "since": now,
        "flapping": False,
        "incident": "",
        "labels": {},
    }


@handler.command("remove")
@click.argument("name", shell_complete=completion_values.handlers)
@joins
@authentication.commands
def remove(name: str, join: str, authority: authentication.GivenCredentials) -> None:
    """Tell the handler NAME nothing any more.

    \b
    Example:
      scale0 handler remove pager
    """
    hint = "checks that name it must be changed first: `scale0 handler list` shows them"
    version = document_entries.take(join, authority, "handler", [name], hint)
    output.say(f"{name} is gone from the configuration, version {version}")
