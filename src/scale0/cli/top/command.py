"""`scale0 top`: the network, live in the terminal.

Lives here: the command, and one frame for pipes. Never here: the screen (`top_screen`), or what it shows (`top_views`).
"""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from scale0.cli.common import authentication, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option
from scale0.cli.network import snapshot
from scale0.cli.network.listing import DISCOVERY_SECONDS

VIEW_NAMES: Final = ("services", "queues", "agents", "checks", "incidents", "brokers", "wrong")


@click.command()
@joins
@json_option
@click.option("--once", is_flag=True, help="One frame as plain text; so it is where stdout is no terminal.")
@click.option(
    "--view", type=click.Choice(VIEW_NAMES), help="What to show first; with --once, only this, and all of it."
)
@click.option("--filter", "words", default="", metavar="WORDS", help="With --once: only rows with these words.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look; rates are of the time in between.",
)
@authentication.commands
def top(
    join: str,
    wants_json: bool,
    once: bool,
    view: str | None,
    words: str,
    interval: float,
    authority: authentication.GivenCredentials,
) -> None:
    """Watch services, queues, agents, checks, incidents and brokers, live.

    Keys: 1 to 7 choose a view, enter opens a row, / filters, s sorts, r reverses, p pauses, ? helps, q quits. Rates and
    latencies need a right (see --data-dir); without one it shows what any client may know. A broker that goes away is
    said to be, and found again.

    \b
    With --json, one object: status, findings, parts, services, queues, agents, checks,
      incidents, brokers, total (rates of all services), managed, watched

    \b
    Examples:
      scale0 top
      scale0 top --view queues
      scale0 top --once | head -20
      scale0 top --json --interval 2 | jq '.services[] | {service, p99: .rates.p99_seconds}'
    """
    right = snapshot.AdminRights(authority, join)
    if once or wants_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        show_once(join, right, interval, view, words, wants_json)
        return
    from scale0.cli.top.screen import TopApp
    from scale0.cli.top.views import VIEWS

    TopApp(join, right, interval, VIEWS[VIEW_NAMES.index(view or "services")]).run()


def show_once(
    join: str, right: snapshot.AdminRights, interval: float, name: str | None, words: str, wants_json: bool
) -> None:
    """One frame; rates need two looks."""
    from scale0.cli.top import text
    from scale0.cli.top.frame import as_data, frame_of
    from scale0.cli.top.views import VIEWS, ViewState

    with connect(join, DISCOVERY_SECONDS) as client:
        before = snapshot.look(client, right)
        after = before
        if before.rates is not None:
            time.sleep(interval)
            after = snapshot.look(client, right)
    frame = frame_of(after, before if after is not before else None)
    if wants_json:
        output.say(output.as_json(as_data(frame)))
        return
    view = VIEWS[VIEW_NAMES.index(name)] if name else None
    choice = ViewState(view.sort, words=words) if view else None
    text.show(frame, view, choice, time.time())
