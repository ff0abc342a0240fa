"""`scale0 handler`: where notifications about failed checks are sent.

A handler is part of the network document and changes by management commands. The document has only the name of a
command; what it runs is in Helen's own file.
"""

from __future__ import annotations

import time
from typing import Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.check import is_given, plain
from scale0.cli.monitoring.listing import STATES
from scale0.cli.network import document_entries
from scale0.cli.network.call import SECONDS
from scale0.cli.tasks.connection import task_client

KEY: Final = "handlers"
NOTIFY: Final = "helen.notify"
"""The task that sends a notification."""


@click.group()
def handler() -> None:
    """Define where notifications about checks are sent.

    A handler is a webhook, a command, an e-mail, or a task.

    \b
    Examples:
      scale0 handler add pager --webhook https://example.com/hook
      scale0 handler test pager
      scale0 check change load --handler pager
      scale0 handler list
    """


@handler.command("add")
@click.argument("name")
@click.option("--webhook", "url", metavar="URL", help="Post the notification as JSON to this URL.")
@click.option("--command", metavar="NAME", help="Run this command of `commands` in Helen's file; JSON on stdin.")
@click.option(
    "--email", "to", multiple=True, metavar="ADDRESS", help="Send an e-mail to this address (`smtp` in Helen's file)."
)
@click.option("--task", "method", metavar="METHOD", help="Submit this task, and run the check again when it has ended.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=TEXT", help="A header of the webhook; not for secrets."
)
@click.option(
    "--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter of the task (default: the notification)."
)
@click.option("--check-again/--no-check-again", default=None, help="After a task, run the check at once (yes).")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    help="Only for these states (all; a task: all but ok).",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="COUNT",
    help="Notifications in a period; one more summarises the rest (60).",
)
@click.option("--period", type=SECONDS, metavar="SECONDS", help="The length of a period (3600).")
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="How long one attempt may take (30).")
@click.option("--max-attempts", type=click.IntRange(1), metavar="COUNT", help="The number of attempts (5).")
@admin_options
def add(name: str, access: AdminAccess, **options: Any) -> None:
    """Add the handler NAME, or replace it. Checks refer to it with --handler.

    \b
    Examples:
      scale0 handler add pager --webhook https://example.com/hook --state critical
      scale0 handler add ops --email ops@example.com
      scale0 handler add restart --task service.restart --param name=nginx
    """
    kinds = {"webhook": "url", "command": "command", "email": "to", "task": "method"}
    chosen = [kind for kind, key in kinds.items() if options[key]]
    if len(chosen) != 1:
        raise click.UsageError("give exactly one of --webhook URL, --command NAME, --email ADDRESS and --task METHOD")
    options |= {
        "headers": document_entries.texts(options["headers"], "--header"),
        "params": document_entries.pairs(options["params"], "--param"),
    }
    given = {key: plain(value) for key, value in options.items() if is_given(value)}
    entry = {"name": name, "type": chosen[0], **given}
    version = document_entries.put(access, {document_entries.path(KEY, name): entry})
    output.say(f"{name} is in the configuration, version {version}")
    if chosen[0] == "task":
        output.note(f"  next: scale0 check change CHECK --handler {name}")
    else:
        output.note(f"  next: scale0 handler test {name}; then: scale0 check change CHECK --handler {name}")


@handler.command("list")
@json_option
@admin_options
@with_watch
def listing(wants_json: bool, access: AdminAccess) -> None:
    """List the handlers, and the checks that use them.

    \b
    With --json, an array of the objects of the document (docs/configuration.md).

    \b
    Example:
      scale0 handler list
    """
    found, checks = document_entries.entries(access, KEY, "checks")
    if wants_json:
        output.say(output.as_json(found))
    elif not found:
        output.say("No handler is defined yet. To send notifications of a check to a webhook:\n")
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
        output.table(("NAME", "TYPE", "TARGET", "STATES", "USED BY"), shown, cut="USED BY")


@handler.command("test")
@click.argument("name", shell_complete=completion_values.handlers)
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=30.0, help="How long to wait for it (30).")
@admin_options
def trial(name: str, timeout: float, access: AdminAccess) -> None:
    """Send a test notification to the handler NAME. Exits with 1 if that fails.

    \b
    Example:
      scale0 handler test pager
    """
    from scale0.errors import NoAnswer, TaskFailed

    [known] = document_entries.entries(access, KEY)
    kinds = {entry["name"]: entry for entry in known}
    if name not in kinds:
        raise errors.CommandError(f"there is no handler {name}", "`scale0 handler list` lists the handlers")
    if kinds[name]["type"] == "task":
        raise errors.CommandError(
            f"{name} is a task, which may change something",
            f"test it yourself: scale0 task submit {kinds[name]['method']} …",
        )
    with task_client(access.join) as client:
        helens.need_helens(client)
        task = client.task(max_attempts=1, timeout=timeout).submit(NOTIFY, handler=name, notice=sample(name))
        try:
            task.result(timeout=timeout)
        except NoAnswer as error:
            step = f"`scale0 task status {task.id}` shows its state"
            raise errors.CommandError(f"the notification was not sent within {timeout:g} s", step) from error
        except TaskFailed as error:
            raise errors.CommandError(
                f"the notification to {name} failed: {error.message}", "correct the handler or Helen's file"
            ) from error
    output.say(f"the notification to {name} was sent")


def sample(name: str) -> dict[str, Any]:
    """A notification with every key of a real one, of the kind `test`."""
    now = time.time()
    return {
        "id": f"test-{now:.0f}",
        "kind": "test",
        "handler": name,
        "agent": "test",
        "check": "test",
        "state": "ok",
        "previous": "ok",
        "message": "this is a test notification",
        "at": now,
        "since": now,
        "flapping": False,
        "incident": "",
        "labels": {},
    }


@handler.command("remove")
@click.argument("name", shell_complete=completion_values.handlers)
@admin_options
def remove(name: str, access: AdminAccess) -> None:
    """Remove the handler NAME.

    \b
    Example:
      scale0 handler remove pager
    """
    hint = "change the checks that use it first: `scale0 handler list` shows them"
    version = document_entries.remove(access, "handler", [name], hint)
    output.say(f"{name} is removed from the configuration, version {version}")
