"""`scale0 agents`, `checks` and `incidents`: what is watched, and how it is.

Lives here: reading commands. Never here: a change of anything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, shown_again, watch_option
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.check_output import COLOURS
from scale0.cli.network.listing import DISCOVERY_SECONDS
from scale0.client.admin.helens import HelenRows
from scale0.client.admin.rows import Row, known_agents, known_checks, known_incidents

if TYPE_CHECKING:
    from scale0.client.client import Client

STATES: Final = tuple(COLOURS)
PRESENCE: Final = {"connected": "green", "away": "yellow", "doubled": "red"}
HELD_BACK: Final = {"silence": "silenced", "depends_on": "excused"}
"""What keeps notices back, in a word; others are called what they are."""
MAX_TEXT_CHARS: Final = 200
"""Of a message in a table; `--json` has all of it."""

agent_option = click.option(
    "--agent", metavar="GLOB", help="Only those of these agents.", shell_complete=completion_values.agents
)
check_option = click.option(
    "--check", metavar="GLOB", help="Only these checks.", shell_complete=completion_values.checks
)


def short(text: str) -> str:
    """The first line of a message."""
    line = text.strip().splitlines()[0] if text.strip() else "-"
    return line if len(line) <= MAX_TEXT_CHARS else f"{line[: MAX_TEXT_CHARS - 1]}…"


def ago(moment: float | None, now: float) -> str:
    """How long ago."""
    return "-" if moment is None else f"{output.span(now - moment)} ago"


def given(only: dict[str, str | None]) -> dict[str, str]:
    """What was asked for."""
    return {name: value for name, value in only.items() if value is not None}


def looking(join: str, show: Callable[[Client], bool], watch: bool, wants_json: bool) -> None:
    """Show once, or until Ctrl-C; exit with 1 if what was shown is not well. Who watches sees Helen go and come."""
    well = True
    with connect(join, DISCOVERY_SECONDS) as client:

        def look() -> None:
            nonlocal well
            try:
                well = show(client)
            except errors.CommandError as trouble:
                if not watch:
                    raise
                trouble.show()

        shown_again(look, watch, wants_json)
    if not well:
        sys.exit(errors.NO)


def missing(heard: HelenRows) -> bool:
    """Say who did not answer; True if somebody did not."""
    for helen in heard.silent:
        output.note(f"{helen} does not answer: what she watches is missing here")
    return bool(heard.silent)


@click.command()
@joins
@json_option
@watch_option
def agents(join: str, wants_json: bool, watch: bool) -> None:
    """Show every agent that any Helen knows, those who are away included.

    \b
    With --json, an array of objects:
      agent              the name in its certificate
      state              connected, away, or doubled: two machines have its certificate
      since              when it connected (seconds since the epoch), if it is
      left               when it went, if it is away
      protocol, software the version of the line protocol, and of the agent
      address            where it connects from, if it is connected
      silent_seconds     how long it has said nothing, if it is connected
      labels, checks     of its own file: what it is, and what it can run
      helen              who knows it

    \b
    Examples:
      scale0 agents
      scale0 agents --json | jq '.[] | select(.state != "connected") | .agent'
    """

    def show(client: Client) -> bool:
        heard = helens.ask(client, "agents", {"all": True})
        show_agents(known_agents(heard.rows), wants_json)
        return not missing(heard)

    looking(join, show, watch, wants_json)


def show_agents(found: Sequence[Row], wants_json: bool) -> None:
    """The table of agents, or how to get one."""
    if wants_json:
        output.say(output.as_json(found))
    elif not found:
        output.say("No agent is known yet. On the machine that Helen runs on, with her folder:\n")
        output.say("    scale0 helen token --data-dir FOLDER\n")
        output.say("and on the machine that is to be watched, with that token:\n")
        output.say("    scale0 agent enrol HELEN_HOST --token TOKEN\n    scale0 agent --config agent/agent.zpl")
    else:
        now = time.time()
        heads = ("AGENT", "STATE", "SINCE", "SOFTWARE", "ADDRESS", "LABELS")
        shown = [
            (
                row["agent"],
                row["state"],
                ago(row.get("since") or row.get("left"), now),
                row["software"] or "-",
                row.get("address") or "-",
                " ".join(f"{name}={value}" for name, value in sorted((row["labels"] or {}).items())) or "-",
            )
            for row in found
        ]
        output.table(heads, shown, numbers=("SINCE",), palette={"STATE": PRESENCE}, cut="LABELS")


@click.command()
@joins
@json_option
@watch_option
@agent_option
@check_option
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--problems", is_flag=True, help="Only those that are not ok, or stale.")
def checks(join: str, wants_json: bool, watch: bool, problems: bool, **only: str | None) -> None:
    """Show every check of every agent, the worst first. Exits with 1 if one is critical or unknown for sure, or stale.

    \b
    With --json, an array of objects:
      agent, check         whose, and which
      state, hard          ok, warning, critical or unknown; hard: seen max_attempts times
      attempt              how often it was seen in a row, while it is not hard
      max_attempts         of its definition
      flapping             it changes too often to mean anything
      flapping_percent     how much it changes
      message              what it said
      at, since            when it was last answered, and since when it is like that
                           (seconds since the epoch)
      seconds              how long its last run took
      fresh_until, stale   until when that counts; stale: a newer result is long overdue
      incident             the id of the open one; blank: none
      suppressed           what keeps notices back, if anything does
      helen                who watches it

    \b
    Examples:
      scale0 checks --problems
      scale0 checks --agent 'web-*' --json | jq '.[] | select(.hard)'
    """
    asked = given(only)

    def show(client: Client) -> bool:
        heard = helens.ask(client, "checks", dict(asked))
        found = known_checks(heard.rows, problems)
        show_checks(found, bool(asked), problems, wants_json)
        bad = any((row["hard"] and row["state"] in ("critical", "unknown")) or row.get("stale") for row in found)
        return not (missing(heard) or bad)

    looking(join, show, watch, wants_json)


def show_checks(found: Sequence[Row], filtered: bool, problems: bool, wants_json: bool) -> None:
    """The table of checks, or what to type when there is none."""
    if wants_json:
        output.say(output.as_json(found))
    elif found:
        now = time.time()
        heads = ("AGENT", "CHECK", "STATE", "LAST", "MESSAGE")
        shown = [(*named(row), ago(row["at"], now), short(row["message"])) for row in found]
        output.table(heads, shown, numbers=("LAST",), palette={"STATE": COLOURS}, cut="MESSAGE")
        counts = {state: sum(row["state"] == state for row in found) for state in STATES}
        counts["stale"] = sum(bool(row.get("stale")) for row in found)
        output.note(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    elif problems:
        output.say("No problem is known. `scale0 checks` shows all checks.")
    elif filtered:
        output.say("No check is like that, or none has answered yet. `scale0 checks` shows all that have.")
    else:
        output.say("No check has answered yet. This shows those that agents run by themselves:\n")
        output.say("    scale0 check list\n")
        output.say("and this lets every agent look at its disks from now on:\n")
        output.say("    scale0 check add disks --check disk --interval 60")


def named(row: Row) -> tuple[str, str, str]:
    """Whose, which, and its state with what there is to know of it."""
    marks = []
    if row["state"] != "ok" and not row["hard"]:
        marks.append(f"try {row['attempt']} of {row['max_attempts']}")
    if row["flapping"]:
        marks.append("flapping")
    causes = (why.partition(" ")[0] for why in row["suppressed"])
    marks += [HELD_BACK.get(cause, cause) for cause in dict.fromkeys(causes) if cause != "flapping"]
    if row.get("stale"):
        marks.append("stale")
    state = row["state"] + (f" ({', '.join(marks)})" if marks else "")
    return row["agent"], row["check"], state


@click.command()
@joins
@json_option
@watch_option
@agent_option
@check_option
@click.option("--all", "everything", is_flag=True, help="Closed ones, too.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, metavar="COUNT", help="At most so many (50).")
def incidents(join: str, wants_json: bool, watch: bool, everything: bool, limit: int, **only: str | None) -> None:
    """Show what is wrong now, or was: newest first. Exits with 1 if an incident is open.

    \b
    With --json, an array of objects:
      id             its own
      agent, check   where
      opened, closed when (seconds since the epoch); closed is null while it is open
      state, worst   what it is or was last, and the worst that it was
      message        what the check said
      helen          who watches it

    \b
    Examples:
      scale0 incidents --watch
      scale0 incidents --all --agent 'web-*'
    """
    asked = given(only)

    def show(client: Client) -> bool:
        heard = helens.ask(client, "incidents", {"open": not everything, **asked}, limit)
        found = known_incidents(heard.rows)
        show_incidents(found[:limit], everything, wants_json)
        return not (missing(heard) or any(row["closed"] is None for row in found))

    looking(join, show, watch, wants_json)


def show_incidents(found: Sequence[Row], everything: bool, wants_json: bool) -> None:
    """The table of incidents; none is good news."""
    if wants_json:
        output.say(output.as_json(found))
    elif not found and everything:
        output.say("There is no incident: nothing that is watched was ever down for sure.")
    elif not found:
        output.say("No incident is open. `scale0 incidents --all` shows those that were.")
    else:
        now = time.time()
        heads = ("AGENT", "CHECK", "WORST", "OPENED", "LASTED", "MESSAGE")
        shown = [
            (
                row["agent"],
                row["check"],
                row["worst"],
                ago(row["opened"], now),
                output.span(row["closed"] - row["opened"]) if row["closed"] else "open",
                short(row["message"]),
            )
            for row in found
        ]
        output.table(
            heads,
            shown,
            numbers=("OPENED", "LASTED"),
            palette={"WORST": COLOURS, "LASTED": {"open": "red"}},
            cut="MESSAGE",
        )
