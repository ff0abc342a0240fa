"""`scale0 services` and `clients`: what is there.

Lives here: reading commands. Never here: a change of anything. The keys of `--json` are the broker's own (docs: the
help of each command); new keys may come, none goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, shown_again, watch_option

if TYPE_CHECKING:
    from scale0.client.client import Client

DISCOVERY_SECONDS: Final = 5.0


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

    \b
    Examples:
      scale0 clients --role backend
      scale0 clients --json | jq -r '.[] | select(.age > 3) | .identity'
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


def counted(count: int, noun: str) -> str:
    """`1 backend`, `2 backends`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def state_of(row: dict[str, Any]) -> str:
    """Its state, and for whom it stands by, or in."""
    whom = row.get("standby_for")
    if not whom or row["state"] not in ("active", "standby"):
        return str(row["state"])
    return f"standby for {whom}" if row["state"] == "standby" else f"active in place of {whom}"
