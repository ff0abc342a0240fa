"""`scale0 check`: run one now, try one here, and say what the agents run by themselves.

Lives here: `run`, `list`, `add`, `change` and `remove`; `test` is in `check_test`. Never here: what a check does. A
definition is part of the network document, and changes by management like all of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, watched
from scale0.cli.monitoring import check_output, helens
from scale0.cli.monitoring.check_test import test
from scale0.cli.network import document_entries, snapshot

if TYPE_CHECKING:
    from scale0.client.client import Client

GRACE_SECONDS: Final = 10.0
"""How much longer we wait than Helen does; the broker waits half of it longer."""
KEY: Final = "checks"
WHO_IS_THERE: Final = "`scale0 agents` shows who is there"
HINT: Final = "`scale0 check list` and `scale0 handler list` show what is there; docs/configuration.md has every key"

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def check() -> None:
    """Run a check on an agent, try one on this machine, or have agents run one by themselves.

    \b
    Examples:
      scale0 check test disk                     on this machine, without a network
      scale0 check run web-1 load                on an agent, now
      scale0 check add disks --check disk        on every agent, from now on
      scale0 check list                          what they run
      scale0 checks                              how they all are
    """


arg_option = click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="An argument of the check.")


@check.command()
@click.argument("agent", shell_complete=completion_values.agents)
@click.argument("name", required=False, shell_complete=completion_values.checks)
@joins
@arg_option
@click.option(
    "--timeout", type=click.FloatRange(0, 3_600, min_open=True), default=30.0, metavar="SECONDS", help="At most (30)."
)
@json_option
@authentication.commands
def run(
    agent: str,
    name: str | None,
    join: str,
    args: tuple[str, ...],
    timeout: float,
    wants_json: bool,
    authority: authentication.GivenCredentials,
) -> None:
    """Have AGENT run the check NAME now; without NAME, show what it can run. Exits with 0 if it is ok, with 1 if not.

    A check that is defined for the agent (`scale0 check list`) runs as it is defined there, and its result counts: who
    has mended something need not wait for the next run. With --arg, and for any other check that the agent knows, it
    is a mere question: no state changes.

    With a token or a password it is a command: it needs the role operator, and `scale0 audit` shows who gave it.
    Without, it is a request like any other of a client that the broker lets in.

    \b
    With --json, the result: state, message, metrics, started, seconds
    Without NAME, an array of names

    \b
    Examples:
      scale0 check run web-1 load
      scale0 check run web-1 tcp --arg host=127.0.0.1 --arg port=80
    """
    given = document_entries.pairs(args, "--arg")
    with connect(join, timeout + GRACE_SECONDS) as client:
        if name is None:
            show_names(client, agent, wants_json)
            return
        helens.need_helens(client)
        said = {"agent": agent, "check": name, "timeout": timeout, **({"args": given} if given else {})}
        found = result_of(client, snapshot.AdminRights(authority, join), said)
    if wants_json:
        output.say(output.as_json(found))
    else:
        check_output.show(found)
    sys.exit(0 if found["state"] == "ok" else errors.NO)


def result_of(client: Client, right: snapshot.AdminRights, said: dict[str, Any]) -> dict[str, Any]:
    """By the command, whose giver is recorded; for whoever has no right, or a broker that does not know it, by a plain
    request."""
    from scale0.errors import CallError
    from scale0.kernel import codes

    try:
        found: dict[str, Any] | None = right.manage(client, "run_check", body=said)
        if found is None and "args" not in said:
            found = as_defined(client, said)
        return found or asked(client, said)
    except CallError as error:
        if error.code == codes.NO_SUCH_SERVICE:
            raise errors.CommandError(error.message, WHO_IS_THERE) from error
        if error.code == codes.NO_ANSWER:
            message = f"{said['agent']} did not answer within {said['timeout']:g} s"
            raise errors.CommandError(message, "allow more: --timeout") from error
        raise


def show_names(client: Client, agent: str, wants_json: bool) -> None:
    """What an agent can run."""
    rows = [row for row in helens.ask(client, "agents", {"all": True}).rows if row["agent"] == agent]
    if not rows:
        raise errors.CommandError(f"no Helen knows agent {agent}", WHO_IS_THERE)
    names = sorted({name for row in rows for name in row["checks"]})
    output.say(output.as_json(names) if wants_json else "\n".join(map(output.clean, names)) or "nothing yet")


def as_defined(client: Client, said: dict[str, Any]) -> dict[str, Any] | None:
    """The result of the check that has this name in the configuration; None: none has, or not for this agent."""
    from scale0.errors import CallError
    from scale0.kernel import codes

    try:
        return asked(client, {**said, "recheck": True})
    except CallError as error:
        if error.code != codes.NO_SUCH_SERVICE:
            raise
        return None


def asked(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """What a Helen answers. As raw bytes: `timeout` is a key of the body here, and Helen ends the wait before we do."""
    from scale0.client import payload

    found: dict[str, Any] = payload.decode(client.request("helen.check", payload.encode(body))[0])
    return found


def defining(command: Command) -> Command:
    """The options that say what a check is; those that are not given are None or empty."""
    seconds = click.FloatRange(0, min_open=True)
    wrapped: Any = command
    for option in reversed(
        (
            click.option("--check", "what", metavar="CHECK", help="A built-in, a plugin or a Lua file (NAME)."),
            arg_option,
            click.option("--interval", type=seconds, metavar="SECONDS", help="How often it runs (60)."),
            click.option("--timeout", type=seconds, metavar="SECONDS", help="How long one run may take (10)."),
            click.option("--agent", "agents", multiple=True, metavar="GLOB", help="Which agents (all)."),
            click.option("--label", "labels", multiple=True, metavar="NAME=GLOB", help="Only agents with this label."),
            click.option("--warn", multiple=True, metavar="METRIC=RANGE", help="A limit of a metric, as 80 or 10:."),
            click.option("--crit", multiple=True, metavar="METRIC=RANGE", help="The same, for critical."),
            click.option("--max-attempts", type=click.IntRange(1), help="Problems in a row that make it hard (3)."),
            click.option("--depends-on", multiple=True, metavar="[AGENT/]CHECK", help="No notice while it is down."),
            click.option("--handler", "handlers", multiple=True, metavar="NAME", help="Who is told."),
            click.option("--enabled/--disabled", default=None, help="Whether it runs at all (enabled)."),
        )
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def definition(
    what: str | None, args: Sequence[str], labels: Sequence[str], warn: Sequence[str], crit: Sequence[str], **rest: Any
) -> dict[str, Any]:
    """The keys that were given, as the document has them; a list that was given as '' is empty."""
    limits: dict[str, dict[str, Any]] = {}
    for option, words in (("warn", warn), ("crit", crit)):
        for metric, limit in document_entries.pairs(words, f"--{option}").items():
            limits.setdefault(metric, {})[option] = limit
    said = {
        "check": what,
        "args": document_entries.pairs(args, "--arg"),
        "labels": document_entries.texts(labels, "--label"),
        "thresholds": limits,
        **rest,
    }
    return {key: plain(value) for key, value in said.items() if is_given(value)}


def plain(value: Any) -> Any:
    """An option's value as the document has it."""
    return [word for word in value if word] if isinstance(value, tuple) else value


def is_given(value: Any) -> bool:
    """False for an option that nobody typed."""
    return value is not None and value not in ((), {})


@check.command()
@click.argument("name")
@joins
@defining
@authentication.commands
def add(name: str, join: str, authority: authentication.GivenCredentials, **said: Any) -> None:
    """Have agents run a check by themselves from now on; one that has this NAME is replaced.

    \b
    Examples:
      scale0 check add disks --check disk --interval 60 --arg crit=95
      scale0 check add web --check http --arg url=http://127.0.0.1/ \\
          --label role=web --handler pager
      scale0 check add root --check my-plugin --crit /=90
    """
    found = definition(**said)
    version = document_entries.put(join, authority, {document_entries.path(KEY, name): {"name": name, **found}}, HINT)
    tell(name, version, found)


@check.command()
@click.argument("name", shell_complete=completion_values.definitions)
@joins
@defining
@authentication.commands
def change(name: str, join: str, authority: authentication.GivenCredentials, **said: Any) -> None:
    """Change what is given of the check NAME, and leave the rest of it as it is; '' empties a list.

    \b
    Examples:
      scale0 check change load --handler pager
      scale0 check change load --handler ''
      scale0 check change swap --disabled
    """
    found = definition(**said)
    if not found:
        raise click.UsageError("say what to change: see --help")
    [known] = document_entries.entries(join, authority, KEY)
    if name not in {entry["name"] for entry in known}:
        raise errors.CommandError(f"there is no check {name}", "`scale0 check list` shows those that are there")
    version = document_entries.put(
        join, authority, {document_entries.path(KEY, name, key): value for key, value in found.items()}, HINT
    )
    tell(name, version, found)


def tell(name: str, version: int, found: dict[str, Any]) -> None:
    """What came of it, and how to see more."""
    output.say(f"{name} is in the configuration, version {version}")
    if found.get("enabled", True):
        every = f", every {output.span(found['interval'])}" if "interval" in found else ""
        output.note(f"  next: `scale0 checks --check {name}` shows what it finds{every}")


@check.command()
@click.argument("name", shell_complete=completion_values.definitions)
@joins
@authentication.commands
def remove(name: str, join: str, authority: authentication.GivenCredentials) -> None:
    """Let no agent run the check NAME by itself any more.

    \b
    Example:
      scale0 check remove disks
    """
    version = document_entries.take(
        join, authority, "check", [name], "no other check may depend on it: `scale0 check list`"
    )
    output.say(f"{name} is gone from the configuration, version {version}")


@check.command("list")
@joins
@json_option
@authentication.commands
@watched
def listing(join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Show what agents run by themselves; `scale0 checks` shows what they find.

    \b
    With --json, an array of the objects of the document (docs/configuration.md).

    \b
    Example:
      scale0 check list
    """
    [found] = document_entries.entries(join, authority, KEY)
    if wants_json:
        output.say(output.as_json(found))
    elif not found:
        output.say("No check is defined yet. Let every agent look at its disks:\n")
        output.say("    scale0 check add disks --check disk --interval 60")
    else:
        heads = ("NAME", "CHECK", "EVERY", "AGENTS", "HANDLERS", "ARGS")
        output.table(heads, [row(entry) for entry in found], numbers=("EVERY",), cut="ARGS")


def row(entry: dict[str, Any]) -> tuple[str, ...]:
    """A definition on a line."""
    return (
        entry["name"],
        entry.get("check") or entry["name"],
        output.span(entry["interval"]) if entry["enabled"] else "disabled",
        selected(entry),
        " ".join(entry["handlers"]) or "-",
        " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in entry["args"].items()) or "-",
    )


def selected(entry: dict[str, Any]) -> str:
    """Which agents an entry is for."""
    labels = [f"{key}={value}" for key, value in entry["labels"].items()]
    return " ".join([*entry["agents"], *labels]) or "all"


check.add_command(test)
