"""`scale0 status`: the state of a network on one screen, with its problems.

The keys of `--json` are those of the broker, with `findings`; keys may be added, and none is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.common.options import json_option, repeat, watch_option
from scale0.cli.network import snapshot
from scale0.cli.network.listing import counted, state_of
from scale0.kernel.time_text import utc_text

if TYPE_CHECKING:
    from scale0.client.admin.health import HealthFinding, NetworkSnapshot

SOFT: Final = "soft"
"""A check that failed fewer than max_attempts times in a row."""
COUNTED: Final = ("critical", "unknown", "warning", "stale", SOFT)
COLOURS: Final = {"critical": "red", "warning": "yellow", "ok": "green"}
MORE: Final = "For the full status, give the broker's folder with --data-dir, or --auth-id NAME."


@click.command()
@json_option
@watch_option
@admin_options
def status(wants_json: bool, watch: bool, access: AdminAccess) -> None:
    """Show the state of the network and its problems.

    Each problem has a next step. The command exits with 0 if there is no problem, with 1 if there is one, with 3 if the
    broker cannot be reached. With a token (see --data-dir) it shows everything; without one, what any client may know,
    and the rest is null.

    \b
    With --json, an object:
      broker, version, state, draining, standby_for, group, time, uptime,
      config_version, config_hash, heartbeat_interval, connections,
      clients {role: count}, services, error_clients, full,
      outage {since, reason} or null, counters, endpoints,
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

    rights = snapshot.AdminRights(access)
    well = True
    with connect(access.join, DISCOVERY_SECONDS) as client:

        def show() -> None:
            nonlocal well
            found = snapshot.take(client, rights)
            findings = found_in(found.seen)
            well = worst(findings) == "ok"
            show_status(found, findings, wants_json)

        repeat(show, watch, wants_json)
    if not well:
        sys.exit(1)


def show_status(found: snapshot.Snapshot, findings: Sequence[HealthFinding], wants_json: bool) -> None:
    status = dict(found.seen.status or {})
    if wants_json:
        import msgspec

        output.say(output.as_json({**status, "findings": msgspec.to_builtins(findings)}))
        return
    serves = status["state"] in ("active", "standby") and not status["draining"]
    output.facts(list(lines_of(status, found.seen)), {"state": "green" if serves else "yellow"})
    output.say()
    show_findings(findings)
    if not found.managed:
        output.note(MORE)


def lines_of(status: dict[str, Any], seen: NetworkSnapshot) -> Iterator[tuple[str, object]]:
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
    if status.get("outage"):
        yield "database", f"unavailable since {utc_text(status['outage']['since'])}"
    elif status["full"] is not None:
        yield "disk", "almost full" if status["full"] else "ok"
    if seen.peers:
        lost = sum(row["state"] == "lost" for row in seen.peers)
        yield "peers", counted(len(seen.peers), "broker") + (f", {lost} lost" if lost else "")
    yield "monitoring", monitoring_line(seen)
    yield from ((name, endpoint) for name, endpoint in status["endpoints"].items() if endpoint)


def monitoring_line(seen: NetworkSnapshot) -> str:
    if not seen.watched:
        return "none: no Helen is connected"
    parts = []
    if seen.agents is not None:
        parts.append(counted(len(seen.agents), "agent"))
    if seen.checks is not None:
        states = [state_of_check(row) for row in seen.checks]
        bad = ", ".join(f"{states.count(one)} {one}" for one in COUNTED if one in states)
        parts.append(counted(len(states), "check") + (f" ({bad})" if bad else ""))
    if seen.incidents is not None:
        parts.append(counted(len(seen.incidents), "open incident"))
    return ", ".join(parts) or "unknown: no Helen answers"


def state_of_check(row: Mapping[str, Any]) -> str:
    if row.get("stale"):
        return "stale"
    return str(row["state"]) if row["hard"] or row["state"] == "ok" else SOFT


def show_findings(findings: Sequence[HealthFinding]) -> None:
    """Each problem with the next step; one line if there is none."""
    if not any(one.severity != "ok" for one in findings):
        output.say(output.painted("No problems.", "green"))
    for one in findings:
        label = output.painted(one.severity.ljust(len("critical")), COLOURS[one.severity])
        output.say(f"{label}  {output.clean(f'{one.what}: {one.words}')}")
        output.say(f"          next: {output.clean(one.next)}")
