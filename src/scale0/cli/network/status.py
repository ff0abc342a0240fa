"""`scale0 status`: a network on one screen, with what is wrong in words.

Lives here: the command and its screen. Never here: what is wrong (`client.admin.health`), or how it is found
(`seeing`). The keys of `--json` are the broker's own, with `findings`; new keys may come, none goes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import authentication, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, shown_again, watch_option
from scale0.cli.network import snapshot
from scale0.cli.network.listing import DISCOVERY_SECONDS, counted, state_of

if TYPE_CHECKING:
    from scale0.client.admin.health import HealthFinding, NetworkSnapshot

NOT_SURE: Final = "not sure yet"
"""Of a check that changed, and was not seen often enough to count."""
TOLD: Final = ("critical", "unknown", "warning", "stale", NOT_SURE)
COLOURS: Final = {"critical": "red", "warning": "yellow", "ok": "green"}
MORE: Final = "For all of it, give the broker's folder with --data-dir, or --auth-id NAME."


@click.command()
@joins
@json_option
@watch_option
@authentication.commands
def status(join: str, wants_json: bool, watch: bool, authority: authentication.GivenCredentials) -> None:
    """Show how the network is, and what is wrong in words, each with what to type next.

    Exits with 0 if nothing is wrong, with 1 if something is, with 3 if the broker cannot be reached. With a token (see
    --data-dir) it sees all; without one, what any client may know, and the rest is null.

    \b
    With --json, an object:
      broker, version, state, draining, standby_for, group, time, uptime,
      config_version, config_hash, heartbeat_interval, connections,
      clients {role: count}, services, error_clients, full, counters, endpoints,
      requests {waiting, under_way, answered, failed},
      tasks {open, leased, in_memory, submitted, finished, failed, waits},
      findings [{severity, what, words, page, next}], the worst first

    \b
    Examples:
      scale0 status
      scale0 status --watch
      scale0 status --json | jq -r '.findings[].words'
    """
    from scale0.client.admin.health import found_in, worst

    right = snapshot.AdminRights(authority, join)
    well = True
    with connect(join, DISCOVERY_SECONDS) as client:

        def show() -> None:
            nonlocal well
            found = snapshot.look(client, right)
            wrong = found_in(found.seen)
            well = worst(wrong) == "ok"
            show_status(found, wrong, wants_json)

        shown_again(show, watch, wants_json)
    if not well:
        sys.exit(1)


def show_status(found: snapshot.Snapshot, wrong: Sequence[HealthFinding], wants_json: bool) -> None:
    """The network on one screen."""
    status = dict(found.seen.status or {})
    if wants_json:
        import msgspec

        output.say(output.as_json({**status, "findings": msgspec.to_builtins(wrong)}))
        return
    serves = status["state"] in ("active", "standby") and not status["draining"]
    output.facts(list(lines_of(status, found.seen)), {"state": "green" if serves else "yellow"})
    output.say()
    show_findings(wrong)
    if not found.managed:
        output.note(MORE)


def lines_of(status: dict[str, Any], seen: NetworkSnapshot) -> Iterator[tuple[str, object]]:
    """What there is, one thing on a line."""
    group = f" (group {status['group']})" if status["group"] else ""
    yield "broker", f"{status['broker']}{group}"
    yield "state", "draining" if status["draining"] else state_of(status)
    if status["requests"] is not None:
        yield "version", status["version"]
        yield "up for", output.span(status["uptime"])
    yield "config", f"version {status['config_version']}"
    yield "clients", ", ".join(counted(count, role) for role, count in sorted(status["clients"].items())) or "none"
    yield "services", status["services"]
    if status["requests"] is not None:
        requests = status["requests"]
        yield "requests", ", ".join(f"{requests[key]} {key.replace('_', ' ')}" for key in requests)
    if status.get("tasks"):
        tasks = status["tasks"]
        yield "tasks", ", ".join(f"{tasks[key]} {key}" for key in ("open", "leased", "finished", "failed"))
    if status["error_clients"]:
        yield "error clients", status["error_clients"]
    if status["full"] is not None:
        yield "disk", "full, or the database is away" if status["full"] else "has room"
    if seen.peers:
        lost = sum(row["state"] == "lost" for row in seen.peers)
        yield "peers", counted(len(seen.peers), "broker") + (f", {lost} lost" if lost else "")
    yield "watched", watched_words(seen)
    yield from ((name, place) for name, place in status["endpoints"].items() if place)


def watched_words(seen: NetworkSnapshot) -> str:
    """Agents, checks and incidents, in a few words."""
    if not seen.watched:
        return "nothing: no Helen is connected"
    parts = []
    if seen.agents is not None:
        parts.append(counted(len(seen.agents), "agent"))
    if seen.checks is not None:
        states = [state_of_check(row) for row in seen.checks]
        bad = ", ".join(f"{states.count(one)} {one}" for one in TOLD if one in states)
        parts.append(counted(len(states), "check") + (f" ({bad})" if bad else ""))
    if seen.incidents is not None:
        parts.append(counted(len(seen.incidents), "open incident"))
    return ", ".join(parts) or "not known: no Helen answers"


def state_of_check(row: Mapping[str, Any]) -> str:
    """Its state, as far as it counts."""
    if row.get("stale"):
        return "stale"
    return str(row["state"]) if row["hard"] or row["state"] == "ok" else NOT_SURE


def show_findings(wrong: Sequence[HealthFinding]) -> None:
    """Each wrong thing with what to type next; one line if there is none."""
    if not any(one.severity != "ok" for one in wrong):
        output.say(output.painted("Nothing is wrong.", "green"))
    for one in wrong:
        label = output.painted(one.severity.ljust(len("critical")), COLOURS[one.severity])
        output.say(f"{label}  {output.clean(f'{one.what}: {one.words}')}")
        output.say(f"          next: {output.clean(one.next)}")
