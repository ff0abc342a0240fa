"""`scale0 peers`, `scale0 groups` and `scale0 topology`: the brokers that the connected one knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import output
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.common.endpoints import join_option
from scale0.cli.common.options import json_option, repeat, watch_option
from scale0.cli.network.listing import counted, state_of
from scale0.client.admin.rows import brokers_in_order, group_rows, grouped, offered_at

if TYPE_CHECKING:
    from scale0.client.client import Client

NO_GROUP: Final = "(no group)"
SHOWN_SERVICES: Final = 6
"""Of each broker in the drawing."""
ALONE: Final = "This broker has no peers. Another one joins it with `scale0 broker --join HOST:PORT` (its peer port)."


@click.command()
@join_option
@json_option
@watch_option
def peers(join: str, wants_json: bool, watch: bool) -> None:
    """List the brokers that a broker knows, itself first.

    \b
    With --json, an array of objects:
      broker, group   its name and group
      state           active, standby, joining, draining, disabled, or lost
      standby_for     the broker that it is the standby of; blank: none
      services        its services: all, or a list
      load            how many clients it has
      age             seconds since its last message
      config_version  the version of its configuration
      endpoints       the endpoints of its sockets

    \b
    Examples:
      scale0 peers --watch
      scale0 peers --json | jq '.[] | select(.state == "lost") | .broker'
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        repeat(lambda: show_peers(client, wants_json), watch, wants_json)


def show_peers(client: Client, wants_json: bool) -> None:
    rows = brokers_of(client)
    if wants_json:
        output.say(output.as_json(rows))
        return
    heads = ("BROKER", "GROUP", "STATE", "CLIENTS", "CONFIG", "LAST SEEN", "PEER")
    shown = [
        (
            row["broker"],
            row["group"] or "-",
            state_of(row),
            f"{row['load']:.0f}",
            row["config_version"],
            f"{output.span(row['age'])} ago" if number else "connected",
            row["endpoints"].get("peer") or "-",
        )
        for number, row in enumerate(rows)
    ]
    output.table(heads, shown, numbers=("CLIENTS", "CONFIG"))
    if len(rows) == 1:
        output.note(ALONE)


@click.command()
@join_option
@json_option
@watch_option
def groups(join: str, wants_json: bool, watch: bool) -> None:
    """List the groups of brokers that the one at --join knows.

    \b
    With --json, an array of objects:
      group     its name; blank in a network without groups
      brokers   names of its brokers
      active    how many of them are active
      load      how many clients they have in total

    \b
    Example:
      scale0 groups
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        repeat(lambda: show_groups(client, wants_json), watch, wants_json)


def show_groups(client: Client, wants_json: bool) -> None:
    rows = group_rows(brokers_of(client))
    if wants_json:
        output.say(output.as_json(rows))
        return
    shown = [
        (
            row["group"] or NO_GROUP,
            f"{row['active']} of {len(row['brokers'])}",
            f"{row['load']:.0f}",
            " ".join(row["brokers"]),
        )
        for row in rows
    ]
    output.table(("GROUP", "ACTIVE", "CLIENTS", "BROKERS"), shown, numbers=("ACTIVE", "CLIENTS"))


@click.command()
@join_option
@json_option
@watch_option
def topology(join: str, wants_json: bool, watch: bool) -> None:
    """Draw the network as a tree: groups, brokers and services.

    \b
    With --json, an object:
      brokers   as `scale0 peers --json`
      groups    as `scale0 groups --json`
      services  {broker: [name…]}

    \b
    Examples:
      scale0 topology
      scale0 topology --json | jq .services
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        repeat(lambda: show_topology(client, wants_json), watch, wants_json)


def show_topology(client: Client, wants_json: bool) -> None:
    if wants_json:
        rows = brokers_of(client)
        offered = offered_at(client.services())
        output.say(output.as_json({"brokers": rows, "groups": group_rows(rows), "services": offered}))
    else:
        output.say(output.clean("\n".join(drawing(client))))


def drawing(client: Client) -> Iterator[str]:
    offered = offered_at(client.services())
    rows = brokers_of(client)
    for name, members in grouped(rows).items():
        yield name or NO_GROUP
        for number, row in enumerate(members):
            last = number == len(members) - 1
            mark = "  <- connected" if row is rows[0] else ""
            clients = counted(int(row["load"]), "client")
            state = f"{state_of(row)}, {clients}, version {row['config_version']}"
            if row["state"] == "lost":
                state = f"lost, last seen {output.span(row['age'])} ago"
            yield f"{'└' if last else '├'}─ {row['broker']}: {state}{mark}"
            names = offered.get(row["broker"], [])
            more = f" +{len(names) - SHOWN_SERVICES}" if len(names) > SHOWN_SERVICES else ""
            if names:
                yield f"{' ' if last else '│'}    {' '.join(names[:SHOWN_SERVICES])}{more}"


def brokers_of(client: Client) -> list[dict[str, Any]]:
    """The connected broker, then the others by name."""
    return brokers_in_order(client.call("scale0.brokers")["items"])
