"""`scale0 peers`, `groups` and `topology`: the brokers of a network, as the one that is asked sees them.

Lives here: reading, and a drawing. Never here: a change of anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from scale0.cli.common import output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option, shown_again, watch_option
from scale0.cli.network.listing import DISCOVERY_SECONDS, counted, state_of
from scale0.client.admin.rows import brokers_in_order, group_rows, grouped, offered_at

if TYPE_CHECKING:
    from scale0.client.client import Client

NO_GROUP: Final = "(no group)"
SHOWN_SERVICES: Final = 6
"""Of one broker in the drawing."""
ALONE: Final = "This broker knows no other. Another joins it by `scale0 broker --join HOST:PORT` (its peer port)."


@click.command()
@joins
@json_option
@watch_option
def peers(join: str, wants_json: bool, watch: bool) -> None:
    """Show every broker that the one at --join knows, itself first.

    \b
    With --json, an array of objects:
      broker, group   who it is
      state           active, standby, joining, draining, disabled, or lost: not heard any more
      standby_for     the broker whose clients it takes over; blank: none
      services        what it serves: all, or a list
      load            how many clients it has, as it told last
      age             seconds since it was last heard
      config_version  of the configuration that it has
      endpoints       where its sockets are

    \b
    Examples:
      scale0 peers --watch
      scale0 peers --json | jq '.[] | select(.state == "lost") | .broker'
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        shown_again(lambda: show_peers(client, wants_json), watch, wants_json)


def show_peers(client: Client, wants_json: bool) -> None:
    """The table; a broker alone says how another joins it."""
    rows = brokers_of(client)
    if wants_json:
        output.say(output.as_json(rows))
        return
    heads = ("BROKER", "GROUP", "STATE", "CLIENTS", "CONFIG", "HEARD", "PEER")
    shown = [
        (
            row["broker"],
            row["group"] or "-",
            state_of(row),
            f"{row['load']:.0f}",
            row["config_version"],
            f"{output.span(row['age'])} ago" if number else "it was asked",
            row["endpoints"].get("peer") or "-",
        )
        for number, row in enumerate(rows)
    ]
    output.table(heads, shown, numbers=("CLIENTS", "CONFIG"))
    if len(rows) == 1:
        output.note(ALONE)


@click.command()
@joins
@json_option
@watch_option
def groups(join: str, wants_json: bool, watch: bool) -> None:
    """Show every group of brokers that the one at --join hears of.

    \b
    With --json, an array of objects:
      group     its name; blank in a network without groups
      brokers   names of its brokers
      active    how many of them serve
      load      how many clients they have, all together

    \b
    Example:
      scale0 groups
    """
    with connect(join, DISCOVERY_SECONDS) as client:
        shown_again(lambda: show_groups(client, wants_json), watch, wants_json)


def show_groups(client: Client, wants_json: bool) -> None:
    """One row for each."""
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
@joins
@json_option
@watch_option
def topology(join: str, wants_json: bool, watch: bool) -> None:
    """Draw the network in the terminal: groups, their brokers, and what is offered where.

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
        shown_again(lambda: show_topology(client, wants_json), watch, wants_json)


def show_topology(client: Client, wants_json: bool) -> None:
    """The drawing, or what it is drawn from."""
    if wants_json:
        rows = brokers_of(client)
        offered = offered_at(client.services())
        output.say(output.as_json({"brokers": rows, "groups": group_rows(rows), "services": offered}))
    else:
        output.say(output.clean("\n".join(drawing(client))))


def drawing(client: Client) -> Iterator[str]:
    """A tree: group, broker, services."""
    offered = offered_at(client.services())
    rows = brokers_of(client)
    for name, members in grouped(rows).items():
        yield name or NO_GROUP
        for number, row in enumerate(members):
            last = number == len(members) - 1
            mark = "  <- asked" if row is rows[0] else ""
            clients = counted(int(row["load"]), "client")
            state = f"{state_of(row)}, {clients}, version {row['config_version']}"
            if row["state"] == "lost":
                state = f"lost, heard {output.span(row['age'])} ago"
            yield f"{'└' if last else '├'}─ {row['broker']}: {state}{mark}"
            names = offered.get(row["broker"], [])
            more = f" +{len(names) - SHOWN_SERVICES}" if len(names) > SHOWN_SERVICES else ""
            if names:
                yield f"{' ' if last else '│'}    {' '.join(names[:SHOWN_SERVICES])}{more}"


def brokers_of(client: Client) -> list[dict[str, Any]]:
    """The broker that was asked, then the others by name."""
    return brokers_in_order(client.call("scale0.brokers")["items"])
