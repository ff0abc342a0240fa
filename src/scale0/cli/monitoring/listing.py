"""`scale0 agents`, `scale0 checks` and `scale0 incidents`: the state of what is monitored."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.common.endpoints import join_option
from scale0.cli.common.options import json_option, repeat, watch_option
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.check_test import COLOURS
from scale0.client.admin.helens import HelenRows
from scale0.client.admin.rows import Row, known_agents, known_checks, known_incidents

if TYPE_CHECKING:
    from scale0.client.client import Client

STATES: Final = tuple(COLOURS)
PRESENCE: Final = {"connected": "green", "away": "yellow", "doubled": "red"}
SUPPRESSED: Final = {"silence": "silenced", "depends_on": "dependency"}
"""Why notifications are suppressed, in one word; other reasons have their own name."""
MAX_TEXT_CHARS: Final = 200
"""Of a message in a table; `--json` has the whole message."""

agent_option = click.option(
    "--agent", metavar="GLOB", help="Only checks of these agents.", shell_complete=completion_values.agents
)
check_option = click.option(
    "--check", metavar="GLOB", help="Only these checks.", shell_complete=completion_values.checks
)


def short(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "-"
    return line if len(line) <= MAX_TEXT_CHARS else f"{line[: MAX_TEXT_CHARS - 1]}…"


def ago(moment: float | None, now: float) -> str:
    return "-" if moment is None else f"{output.span(now - moment)} ago"


def filters_of(only: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in only.items() if value is not None}


def show_repeatedly(join: str, show: Callable[[Client], bool], watch: bool, wants_json: bool) -> None:
    """Show once, or until Ctrl-C; exits with 1 if the last output had problems. Errors do not end --watch."""
    well = True
    with connect(join, DISCOVERY_SECONDS) as client:

        def look() -> None:
            nonlocal well
            try:
                well = show(client)
            except errors.CommandError as error:
                if not watch:
                    raise
                error.show()

        repeat(look, watch, wants_json)
    if not well:
        sys.exit(errors.NO)


def report_silent(answer: HelenRows) -> bool:
    """Print which Helens did not answer; True if there are any."""
    for helen in answer.silent:
        output.note(f"{helen} does not answer: her agents are missing here")
    return bool(answer.silent)


@click.command()
@join_option
@json_option
@watch_option
def agents(join: str, wants_json: bool, watch: bool) -> None:
    """List the agents of every Helen, connected or not.

    \b
    With --json, an array of objects:
      agent              the name in its certificate
      state              connected, away, or doubled: two machines use its certificate
      since              when it connected (seconds since the epoch), if it is connected
      left               when it disconnected, if it is away
      protocol, software the versions of the protocol and of the agent
      address            its address, if it is connected
      silent_seconds     time since its last message, if it is connected
      labels, checks     its labels, and the checks that it can run
      helen              the Helen that knows it

    \b
    Examples:
      scale0 agents
      scale0 agents --json | jq '.[] | select(.state != "connected") | .agent'
    """

    def show(client: Client) -> bool:
        answer = helens.ask(client, "agents", {"all": True})
        show_agents(known_agents(answer.rows), wants_json)
        return not report_silent(answer)

    show_repeatedly(join, show, watch, wants_json)


def show_agents(found: Sequence[Row], wants_json: bool) -> None:
    if wants_json:
        output.say(output.as_json(found))
    elif not found:
        output.say("No agent is known yet. On Helen's machine, with her folder:\n")
        output.say("    scale0 helen token --data-dir FOLDER\n")
        output.say("and on the machine to monitor, with that token:\n")
        output.say("    scale0 agent enrol HELEN_HOST --token -\n    scale0 agent --config agent/agent.zpl")
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
@join_option
@json_option
@watch_option
@agent_option
@check_option
@click.option("--state", type=click.Choice(STATES), help="Only checks in this state.")
@click.option("--problems", is_flag=True, help="Only checks that are not ok, or stale.")
def checks(join: str, wants_json: bool, watch: bool, problems: bool, **only: str | None) -> None:
    """List the checks of all agents, the worst first.

    Exits with 1 if the hard state of one is critical or unknown, or if one is stale.

    \b
    With --json, an array of objects:
      agent, check         the agent and the name of the check
      state, hard          ok, warning, critical or unknown; hard: max_attempts times in a row
      attempt              how often in a row, while it is not hard
      max_attempts         of its definition
      flapping             its state changes too often
      flapping_percent     how often it changes
      message              of its last result
      at, since            the time of its last result, and since when it has this state
                           (seconds since the epoch)
      seconds              how long its last run took
      fresh_until, stale   until when the result is valid; stale: the next one is overdue
      incident             the id of the open one; blank: none
      suppressed           why notifications are suppressed
      helen                the Helen that monitors it

    \b
    Examples:
      scale0 checks --problems
      scale0 checks --agent 'web-*' --json | jq '.[] | select(.hard)'
    """
    query = filters_of(only)

    def show(client: Client) -> bool:
        answer = helens.ask(client, "checks", dict(query))
        found = known_checks(answer.rows, problems)
        show_checks(found, bool(query), problems, wants_json)
        bad = any((row["hard"] and row["state"] in ("critical", "unknown")) or row.get("stale") for row in found)
        return not (report_silent(answer) or bad)

    show_repeatedly(join, show, watch, wants_json)


def show_checks(found: Sequence[Row], filtered: bool, problems: bool, wants_json: bool) -> None:
    if wants_json:
        output.say(output.as_json(found))
    elif found:
        now = time.time()
        heads = ("AGENT", "CHECK", "STATE", "LAST", "MESSAGE")
        shown = [(*row_head(row), ago(row["at"], now), short(row["message"])) for row in found]
        output.table(heads, shown, numbers=("LAST",), palette={"STATE": COLOURS}, cut="MESSAGE")
        counts = {state: sum(row["state"] == state for row in found) for state in STATES}
        counts["stale"] = sum(bool(row.get("stale")) for row in found)
        output.note(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    elif problems:
        output.say("There are no problems. `scale0 checks` lists all checks.")
    elif filtered:
        output.say("No check with a result matches. `scale0 checks` lists all of them.")
    else:
        output.say("No check has a result yet. This lists the defined checks:\n")
        output.say("    scale0 check list\n")
        output.say("and this checks the disks of every agent:\n")
        output.say("    scale0 check add disks --check disk --interval 60")


def row_head(row: Row) -> tuple[str, str, str]:
    marks = []
    if row["state"] != "ok" and not row["hard"]:
        marks.append(f"try {row['attempt']} of {row['max_attempts']}")
    if row["flapping"]:
        marks.append("flapping")
    causes = (why.partition(" ")[0] for why in row["suppressed"])
    marks += [SUPPRESSED.get(cause, cause) for cause in dict.fromkeys(causes) if cause != "flapping"]
    if row.get("stale"):
        marks.append("stale")
    state = row["state"] + (f" ({', '.join(marks)})" if marks else "")
    return row["agent"], row["check"], state


@click.command()
@join_option
@json_option
@watch_option
@agent_option
@check_option
@click.option("--all", "everything", is_flag=True, help="Include closed incidents.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, metavar="COUNT", help="The maximum number (50).")
def incidents(join: str, wants_json: bool, watch: bool, everything: bool, limit: int, **only: str | None) -> None:
    """List open incidents, the newest first. Exits with 1 if one is open.

    \b
    With --json, an array of objects:
      id             its id
      agent, check   of which agent and check
      opened, closed when (seconds since the epoch); closed is null while it is open
      state, worst   its last state, and its worst state
      message        of the check
      helen          the Helen that monitors it

    \b
    Examples:
      scale0 incidents --watch
      scale0 incidents --all --agent 'web-*'
    """
    query = filters_of(only)

    def show(client: Client) -> bool:
        answer = helens.ask(client, "incidents", {"open": not everything, **query}, limit)
        found = known_incidents(answer.rows)
        show_incidents(found[:limit], everything, wants_json)
        return not (report_silent(answer) or any(row["closed"] is None for row in found))

    show_repeatedly(join, show, watch, wants_json)


def show_incidents(found: Sequence[Row], everything: bool, wants_json: bool) -> None:
    if wants_json:
        output.say(output.as_json(found))
    elif not found and everything:
        output.say("There is no incident, and there never was one.")
    elif not found:
        output.say("No incident is open. `scale0 incidents --all` lists the closed ones.")
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
