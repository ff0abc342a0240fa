"""`scale0 services` and `scale0 clients`.

The keys of `--json` are those of the broker; keys may be added, and none is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scale0.cli.common import output
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.common.endpoints import join_option
from scale0.cli.common.options import json_option, repeat, watch_option

if TYPE_CHECKING:
    from scale0.client.client import Client


@click.command()
@join_option
@json_option
@watch_option
def services(join: str, wants_json: bool, watch: bool) -> None:
    """List the services of the network.

    \b
    With --json, an array of objects:
      service   its name
      backends  how many workers offer it
      slots     how many of its requests and tasks they handle at once
      busy      how many they are handling now
      waiting   requests in the queue
      where     brokers with such a worker

    \b
    Examples:
      scale0 services
      scale0 services --json | jq '.[] | select(.waiting > 0)'
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        repeat(lambda: show_services(client, wants_json), watch, wants_json)


def show_services(client: Client, wants_json: bool) -> None:
    rows = client.services()
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say("There is no service yet. Put this in hello.py:\n")
        output.say("    import scale0\n\n    worker = scale0.Worker()\n")
        output.say('    @worker.service("hello")\n    def hello(name: str) -> str:\n        return f"Hello, {name}!"\n')
        output.say("and run:\n\n    scale0 worker hello.py:worker &\n    scale0 call hello world")
    else:
        heads = ("SERVICE", "BACKENDS", "SLOTS", "BUSY", "WAITING", "WHERE")
        keys = ("service", "backends", "slots", "busy", "waiting")
        shown = [(*(row[key] for key in keys), " ".join(row["where"]) or "-") for row in rows]
        output.table(heads, shown, numbers=heads[1:5])


@click.command()
@join_option
@json_option
@watch_option
@click.option("--role", type=click.Choice(["backend", "frontend"]), help="Only clients of this role.")
def clients(join: str, wants_json: bool, watch: bool, role: str | None) -> None:
    """List the clients of a broker: backends and frontends.

    \b
    With --json, an array of objects:
      identity, role      its identity; backend or frontend
      services            the services that it offers
      services_more       how many more it offers, if the list is long
      slots, busy         how many requests it handles at once, and now
      age                 seconds since its last message
      since               when it connected (seconds since the epoch)
      heartbeat_interval  seconds
      config_version      the version of its configuration
      protocol            scale0 or majordomo

    \b
    Examples:
      scale0 clients --role backend
      scale0 clients --json | jq -r '.[] | select(.age > 3) | .identity'
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        repeat(lambda: show_clients(client, role, wants_json), watch, wants_json)


def show_clients(client: Client, role: str | None, wants_json: bool) -> None:
    rows = [row for row in client.clients() if role in (None, row["role"])]
    if wants_json:
        output.say(output.as_json(rows))
    elif not rows:
        output.say(f"No {role} is connected. Start a worker with `scale0 worker FILE.py:worker`.")
    else:
        heads = ("IDENTITY", "ROLE", "BUSY", "SLOTS", "LAST SEEN", "SERVICES")
        shown = [
            (row["identity"], row["role"], row["busy"], row["slots"], f"{output.span(row['age'])} ago", listed(row))
            for row in rows
        ]
        output.table(heads, shown, numbers=("BUSY", "SLOTS", "LAST SEEN"))


def listed(row: dict[str, Any]) -> str:
    names = row["services"][:3]
    more = len(row["services"]) - len(names) + row.get("services_more", 0)
    return " ".join(names) + (f" +{more}" if more else "") or "-"


def counted(count: int, noun: str) -> str:
    """`1 backend`, `2 backends`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def state_of(row: dict[str, Any]) -> str:
    """The state of a broker, with the broker that it is the standby of."""
    primary = row.get("standby_for")
    if not primary or row["state"] not in ("active", "standby"):
        return str(row["state"])
    return f"standby for {primary}" if row["state"] == "standby" else f"active in place of {primary}"
