"""`scale0 check`: run a check now, and define the checks that agents run.

A definition is part of the network document and changes by management commands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.connection import connect
from scale0.cli.common.options import json_option, with_options, with_watch
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.check_test import show_result, test
from scale0.cli.network import document_entries, snapshot
from scale0.kernel import codes

if TYPE_CHECKING:
    from scale0.client.client import Client

GRACE_SECONDS: Final = 10.0
"""We wait this much longer than Helen; the broker waits half of it longer."""
KEY: Final = "checks"
LIST_AGENTS: Final = "`scale0 agents` lists the agents"
HINT: Final = "see `scale0 check list` and `scale0 handler list`; docs/configuration.md describes every key"


@click.group()
def check() -> None:
    """Run, test and define checks.

    \b
    Examples:
      scale0 check test disk                     on this machine, without a network
      scale0 check run web-1 load                on an agent, now
      scale0 check add disks --check disk        on every agent, regularly
      scale0 check list                          list the definitions
      scale0 checks                              show the results
    """


arg_option = click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument of the check.")


@check.command()
@click.argument("agent", shell_complete=completion_values.agents)
@click.argument("name", required=False, shell_complete=completion_values.checks)
@arg_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, 3_600, min_open=True),
    default=30.0,
    metavar="SECONDS",
    help="How long to wait (30).",
)
@json_option
@admin_options
def run(
    agent: str,
    name: str | None,
    args: tuple[str, ...],
    timeout: float,
    wants_json: bool,
    access: AdminAccess,
) -> None:
    """Run the check NAME on AGENT now; without NAME, list its checks. Exits with 0 if it is ok, with 1 if not.

    A check that is defined for the agent (`scale0 check list`) runs as defined, and its result counts: after a repair
    one need not wait for the next run. With --arg, and for any other check that the agent knows, the result does not
    change any state.

    With a token or a password it is a management command: it needs the role operator, and `scale0 audit` lists it.
    Without them it is a normal request.

    \b
    With --json, the result: state, message, metrics, started, seconds
    Without NAME, an array of names

    \b
    Examples:
      scale0 check run web-1 load
      scale0 check run web-1 tcp --arg host=127.0.0.1 --arg port=80
    """
    given = document_entries.pairs(args, "--arg")
    with connect(access.join, timeout + GRACE_SECONDS) as client:
        if name is None:
            show_names(client, agent, wants_json)
            return
        helens.need_helens(client)
        body = {"agent": agent, "check": name, "timeout": timeout, **({"args": given} if given else {})}
        found = result_of(client, snapshot.AdminRights(access), body)
    if wants_json:
        output.say(output.as_json(found))
    else:
        show_result(found)
    sys.exit(0 if found["state"] == "ok" else errors.NO)


def result_of(client: Client, rights: snapshot.AdminRights, body: dict[str, Any]) -> dict[str, Any]:
    """By the management command, which is recorded; by a request if that is not possible."""
    from scale0.errors import CallError

    try:
        found: dict[str, Any] | None = rights.manage(client, "run_check", body=body)
        if found is None and "args" not in body:
            found = run_defined(client, body)
        return found or request_check(client, body)
    except CallError as error:
        if error.code == codes.NO_SUCH_SERVICE:
            raise errors.CommandError(error.message, LIST_AGENTS) from error
        if error.code == codes.NO_ANSWER:
            message = f"{body['agent']} did not answer within {body['timeout']:g} s"
            raise errors.CommandError(message, "allow more time with --timeout") from error
        raise


def show_names(client: Client, agent: str, wants_json: bool) -> None:
    rows = [row for row in helens.ask(client, "agents", {"all": True}).rows if row["agent"] == agent]
    if not rows:
        raise errors.CommandError(f"no Helen knows agent {agent}", LIST_AGENTS)
    names = sorted({name for row in rows for name in row["checks"]})
    output.say(output.as_json(names) if wants_json else "\n".join(map(output.clean, names)) or "no checks")


def run_defined(client: Client, body: dict[str, Any]) -> dict[str, Any] | None:
    """The result of the check that is defined with this name; None: none is defined for this agent."""
    from scale0.errors import CallError

    try:
        return request_check(client, {**body, "recheck": True})
    except CallError as error:
        if error.code != codes.NO_SUCH_SERVICE:
            raise
        return None


def request_check(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of a Helen. As raw bytes: `timeout` is a key of the body here, and Helen stops waiting first."""
    from scale0.client import payload

    found: dict[str, Any] = payload.decode(client.request("helen.check", payload.encode(body))[0])
    return found


SECONDS_ABOVE_0: Final = click.FloatRange(0, min_open=True)

definition_options = with_options(
    click.option("--check", "what", metavar="CHECK", help="A built-in check, a plugin or a Lua file (NAME)."),
    arg_option,
    click.option("--interval", type=SECONDS_ABOVE_0, metavar="SECONDS", help="How often it runs (60)."),
    click.option("--timeout", type=SECONDS_ABOVE_0, metavar="SECONDS", help="How long one run may take (10)."),
    click.option("--agent", "agents", multiple=True, metavar="GLOB", help="Only these agents (all)."),
    click.option("--label", "labels", multiple=True, metavar="NAME=GLOB", help="Only agents with this label."),
    click.option(
        "--warn",
        multiple=True,
        metavar="METRIC=RANGE",
        help="The warning range of a metric, such as 80 or 10:.",
    ),
    click.option("--crit", multiple=True, metavar="METRIC=RANGE", help="The critical range of a metric."),
    click.option("--max-attempts", type=click.IntRange(1), help="Failures in a row until the state is hard (3)."),
    click.option(
        "--depends-on", multiple=True, metavar="[AGENT/]CHECK", help="No notification while that check is down."
    ),
    click.option("--handler", "handlers", multiple=True, metavar="NAME", help="A handler for notifications."),
    click.option("--enabled/--disabled", default=None, help="Whether it runs (enabled)."),
)
"""The options that define a check; those that are not given are None or empty."""


def definition(
    what: str | None, args: Sequence[str], labels: Sequence[str], warn: Sequence[str], crit: Sequence[str], **rest: Any
) -> dict[str, Any]:
    """The given keys as in the document; a list that was given as '' is empty."""
    limits: dict[str, dict[str, Any]] = {}
    for option, words in (("warn", warn), ("crit", crit)):
        for metric, limit in document_entries.pairs(words, f"--{option}").items():
            limits.setdefault(metric, {})[option] = limit
    given = {
        "check": what,
        "args": document_entries.pairs(args, "--arg"),
        "labels": document_entries.texts(labels, "--label"),
        "thresholds": limits,
        **rest,
    }
    return {key: plain(value) for key, value in given.items() if is_given(value)}


def plain(value: Any) -> Any:
    return [word for word in value if word] if isinstance(value, tuple) else value


def is_given(value: Any) -> bool:
    return value is not None and value not in ((), {})


@check.command()
@click.argument("name")
@definition_options
@admin_options
def add(name: str, access: AdminAccess, **options: Any) -> None:
    """Define a check that agents run regularly; an existing one with this NAME is replaced.

    \b
    Examples:
      scale0 check add disks --check disk --interval 60 --arg crit=95
      scale0 check add web --check http --arg url=http://127.0.0.1/ \\
          --label role=web --handler pager
      scale0 check add root --check my-plugin --crit /=90
    """
    found = definition(**options)
    version = document_entries.put(access, {document_entries.path(KEY, name): {"name": name, **found}}, HINT)
    show_change(name, version, found)


@check.command()
@click.argument("name", shell_complete=completion_values.definitions)
@definition_options
@admin_options
def change(name: str, access: AdminAccess, **options: Any) -> None:
    """Change some keys of the check NAME; '' empties a list.

    \b
    Examples:
      scale0 check change load --handler pager
      scale0 check change load --handler ''
      scale0 check change swap --disabled
    """
    found = definition(**options)
    if not found:
        raise click.UsageError("give at least one option to change: see --help")
    [known] = document_entries.entries(access, KEY)
    if name not in {entry["name"] for entry in known}:
        raise errors.CommandError(f"there is no check {name}", "`scale0 check list` lists the checks")
    version = document_entries.put(
        access, {document_entries.path(KEY, name, key): value for key, value in found.items()}, HINT
    )
    show_change(name, version, found)


def show_change(name: str, version: int, found: dict[str, Any]) -> None:
    output.say(f"{name} is in the configuration, version {version}")
    if found.get("enabled", True):
        every = f", every {output.span(found['interval'])}" if "interval" in found else ""
        output.note(f"  next: `scale0 checks --check {name}` shows its results{every}")


@check.command()
@click.argument("name", shell_complete=completion_values.definitions)
@admin_options
def remove(name: str, access: AdminAccess) -> None:
    """Remove the definition of the check NAME.

    \b
    Example:
      scale0 check remove disks
    """
    version = document_entries.remove(access, "check", [name], "no other check may depend on it: `scale0 check list`")
    output.say(f"{name} is removed from the configuration, version {version}")


@check.command("list")
@json_option
@admin_options
@with_watch
def listing(wants_json: bool, access: AdminAccess) -> None:
    """List the definitions of checks; `scale0 checks` shows their results.

    \b
    With --json, an array of the objects of the document (docs/configuration.md).

    \b
    Example:
      scale0 check list
    """
    [found] = document_entries.entries(access, KEY)
    if wants_json:
        output.say(output.as_json(found))
    elif not found:
        output.say("No check is defined yet. To check the disks of every agent:\n")
        output.say("    scale0 check add disks --check disk --interval 60")
    else:
        heads = ("NAME", "CHECK", "EVERY", "AGENTS", "HANDLERS", "ARGS")
        output.table(heads, [row(entry) for entry in found], numbers=("EVERY",), cut="ARGS")


def row(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        entry["name"],
        entry.get("check") or entry["name"],
        output.span(entry["interval"]) if entry["enabled"] else "disabled",
        selected(entry),
        " ".join(entry["handlers"]) or "-",
        " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in entry["args"].items()) or "-",
    )


def selected(entry: dict[str, Any]) -> str:
    labels = [f"{key}={value}" for key, value in entry["labels"].items()]
    return " ".join([*entry["agents"], *labels]) or "all"


check.add_command(test)
