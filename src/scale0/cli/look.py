"""`scale0 services`, `clients` and `status`: what is there, and how it is.

Lives here: reading commands. Never here: a change of anything. The keys of `--json` are the broker's own (docs: the
help of each command); new keys may come, none goes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli import authority, output
from scale0.cli.network import connect
from scale0.cli.places import joins

if TYPE_CHECKING:
    from scale0.client.client import Client

WATCH_SECONDS: Final = 1.0
"""How often --watch looks again."""
DISCOVERY_SECONDS: Final = 5.0

watch_option = click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
json_option = click.option("--json", "wants_json", is_flag=True, help="One JSON value on stdout.")


def shown_again(show: Callable[[], None], watch: bool, wants_json: bool) -> None:
    """Show once, or until Ctrl-C."""
    show()
    while watch:
        time.sleep(WATCH_SECONDS)
        if output.on_terminal() and not wants_json:
            click.clear()
        show()
        sys.stdout.flush()


@click.command()
@joins
@json_option
@watch_option
def services(join: str, wants_json: bool, watch: bool) -> None:
    """Show every service of the network.

    \b
    With --json, an array of objects:
      service   its name
      backends  how many workers offer it
      slots     how many requests they take at once, all services of theirs together
      busy      how many they work on now
      waiting   requests that wait for a slot
      where     brokers that know such a worker

    \b
    Examples:
      scale0 services
      scale0 services --json | jq '.[] | select(.waiting > 0)'
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        shown_again(lambda: show_services(client, wants_json), watch, wants_json)


def show_services(client: Client, wants_json: bool) -> None:
    """The table, or what to type when it is empty."""
    rows = client.services()
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("Nobody offers a service yet. Put this in hello.py:\n")
        output.say("    import scale0\n\n    worker = scale0.Worker()\n")
        output.say('    @worker.service("hello")\n    def hello(name: str) -> str:\n        return f"Hello, {name}!"\n')
        output.say("and type:\n\n    scale0 worker hello.py:worker &\n    scale0 call hello world")
    else:
        heads = ("SERVICE", "BACKENDS", "SLOTS", "BUSY", "WAITING", "WHERE")
        keys = ("service", "backends", "slots", "busy", "waiting")
        shown = [(*(row[key] for key in keys), " ".join(row["where"]) or "-") for row in rows]
        output.table(heads, shown, numbers=heads[1:5])


@click.command()
@joins
@json_option
@watch_option
@click.option("--role", type=click.Choice(["backend", "frontend"]), help="Only these.")
def clients(join: str, wants_json: bool, watch: bool, role: str | None) -> None:
    """Show every client of the broker: workers (backends) and callers (frontends).

    \b
    With --json, an array of objects:
      identity, role      who it is; backend or frontend
      services            what it offers
      slots, busy         how much it takes at once, and works on now
      age                 seconds since it was last heard
      since               when it joined (seconds since the epoch)
      heartbeat_interval  seconds
      config_version      of the configuration that it has
      protocol            scale0 or majordomo
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        shown_again(lambda: show_clients(client, role, wants_json), watch, wants_json)


def show_clients(client: Client, role: str | None, wants_json: bool) -> None:
    """The table of clients; there is always one: this command."""
    rows = [row for row in client.clients() if role in (None, row["role"])]
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say(f"No {role} is connected. Start a worker with `scale0 worker FILE.py:worker`.")
    else:
        heads = ("IDENTITY", "ROLE", "BUSY", "SLOTS", "HEARD", "SERVICES")
        shown = [
            (row["identity"], row["role"], row["busy"], row["slots"], f"{output.span(row['age'])} ago", listed(row))
            for row in rows
        ]
        output.table(heads, shown, numbers=("BUSY", "SLOTS", "HEARD"))


def listed(row: dict[str, Any]) -> str:
    """A client's services, the first few by name."""
    names = row["services"]
    return " ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "") if names else "-"


@click.command()
@joins
@json_option
@watch_option
@authority.commands
def status(join: str, wants_json: bool, watch: bool, authority: authority.Authority) -> None:
    """Show how the broker is. Exits with 0 if it serves or stands by, with 1 if not, with 3 if it cannot be reached.

    With a token (see --data-dir) it shows all; without one, what any client may know, and the rest is null.

    \b
    With --json, an object:
      broker, version, state, draining, standby_for, group, time, uptime,
      config_version, config_hash, heartbeat_interval, connections,
      clients {role: count}, services, error_clients, counters, endpoints,
      requests {waiting, under_way, answered, failed},
      tasks {open, leased, in_memory, submitted, finished, failed, waits}
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        look = looking_at(client, authority, join)
        serves = True

        def show() -> None:
            nonlocal serves
            found = look()
            serves = found["state"] in ("active", "standby") and not found["draining"]
            show_status(found, wants_json)

        shown_again(show, watch, wants_json)
    if not serves:
        sys.exit(1)


def looking_at(client: Client, given: authority.Authority, join: str) -> Callable[[], dict[str, Any]]:
    """How to get the broker's status: by management, or else by discovery."""
    credentials = authority.find(given, join)
    if credentials is None:
        return lambda: discovered(client)
    login: authority.Credentials = {}

    def managed() -> dict[str, Any]:
        if not login:
            login.update(authority.log_in(client, credentials))
        found: dict[str, Any] = client.manage("status", **login)
        return found

    explicit = given.token or given.auth_id or given.data_dir
    return managed if explicit else lambda: managed_or_discovered(client, managed)


def managed_or_discovered(client: Client, managed: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A token file that lies here by chance may be another broker's."""
    from scale0.client.errors import WrongCredentials

    try:
        return managed()
    except WrongCredentials:
        return discovered(client)


UNKNOWN: Final = dict.fromkeys(
    (
        *("version", "uptime", "config_hash", "heartbeat_interval", "connections", "requests", "tasks"),
        *("error_clients", "counters"),
    )
)


def discovered(client: Client) -> dict[str, Any]:
    """What any client may know."""
    ping = client.ping()
    broker, *_others = client.call("scale0.brokers")["items"]
    roles: dict[str, int] = {}
    for row in client.clients():
        roles[row["role"]] = roles.get(row["role"], 0) + 1
    return {
        **UNKNOWN,
        "broker": ping["broker"],
        "state": ping["state"],
        "draining": None,
        "standby_for": broker.get("standby_for", ""),
        "group": broker["group"],
        "time": ping["time"],
        "config_version": ping["config_version"],
        "clients": roles,
        "services": sum(row["backends"] > 0 for row in client.services()),
        "endpoints": broker["endpoints"],
    }


def counted(count: int, noun: str) -> str:
    """`1 backend`, `2 backends`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def state_of(row: dict[str, Any]) -> str:
    """Its state, and for whom it stands by, or in."""
    whom = row.get("standby_for")
    if not whom or row["state"] not in ("active", "standby"):
        return str(row["state"])
    return f"standby for {whom}" if row["state"] == "standby" else f"active in place of {whom}"


def show_status(found: dict[str, Any], wants_json: bool) -> None:
    """A broker on one screen."""
    if wants_json:
        output.say(output.as_json(found))
        return
    state = "draining" if found["draining"] else state_of(found)
    roles = found["clients"]
    lines: list[tuple[str, object]] = [
        ("broker", found["broker"] + (f" (group {found['group']})" if found["group"] else "")),
        ("state", state),
        ("config", f"version {found['config_version']}"),
        ("clients", ", ".join(counted(count, role) for role, count in sorted(roles.items())) or "none"),
        ("services", found["services"]),
    ]
    if found["requests"] is not None:
        requests = found["requests"]
        lines[2:2] = [("version", found["version"]), ("up for", output.span(found["uptime"]))]
        lines.append(("requests", ", ".join(f"{requests[key]} {key.replace('_', ' ')}" for key in requests)))
        if found.get("tasks"):
            tasks = found["tasks"]
            lines.append(
                ("tasks", ", ".join(f"{tasks[key]} {key}" for key in ("open", "leased", "finished", "failed")))
            )
        if found["error_clients"]:
            lines.append(("error clients", found["error_clients"]))
    lines += [(name, place) for name, place in found["endpoints"].items() if place]
    output.facts(
        lines, {"state": "green" if found["state"] in ("active", "standby") and not found["draining"] else "yellow"}
    )
    if found["requests"] is None:
        output.note("For all of it, give the broker's folder with --data-dir, or --auth-id NAME.")
