"""`scale0 top`: the network, live in the terminal, or one frame for pipes."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from scale0.cli.common import output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.connection import DISCOVERY_SECONDS, connect
from scale0.cli.common.options import json_option
from scale0.cli.network import snapshot

VIEW_NAMES: Final = ("services", "queues", "agents", "checks", "incidents", "brokers", "wrong")


@click.command()
@json_option
@click.option("--once", is_flag=True, help="Print one frame as plain text; the default without a terminal.")
@click.option("--view", type=click.Choice(VIEW_NAMES), help="The first view; with --once, only this view, completely.")
@click.option("--filter", "words", default="", metavar="WORDS", help="With --once: only rows that contain these words.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to poll; rates are for the time in between.",
)
@admin_options
def top(
    wants_json: bool,
    once: bool,
    view: str | None,
    words: str,
    interval: float,
    access: AdminAccess,
) -> None:
    """Watch services, queues, checks and brokers, live.

    Keys: 1 to 7 choose a view, enter opens a row, / filters, s sorts, r reverses, p pauses, ? helps, q quits. Rates and
    latencies need credentials (see --data-dir); without them it shows what any client may know. While the broker does
    not answer, the command says so and reconnects.

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
    rights = snapshot.AdminRights(access)
    if once or wants_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        show_once(access.join, rights, interval, view, words, wants_json)
        return
    from scale0.cli.top.screen import TopApp
    from scale0.cli.top.views import VIEWS

    TopApp(access.join, rights, interval, VIEWS[VIEW_NAMES.index(view or "services")]).run()


def show_once(
    join: str, rights: snapshot.AdminRights, interval: float, name: str | None, words: str, wants_json: bool
) -> None:
    from scale0.cli.top.views import VIEWS, ViewState, as_data, frame_of, show

    with connect(join, DISCOVERY_SECONDS) as client:
        before = snapshot.take(client, rights)
        after = before
        if before.rates is not None:
            time.sleep(interval)
            after = snapshot.take(client, rights)
    frame = frame_of(after, before if after is not before else None)
    if wants_json:
        output.say(output.as_json(as_data(frame)))
        return
    view = VIEWS[VIEW_NAMES.index(name)] if name else None
    choice = ViewState(view.sort, words=words) if view else None
    show(frame, view, choice, time.time())
