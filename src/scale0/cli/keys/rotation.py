"""`scale0 keys rotate-server`: replace a broker's own key without an outage, in steps.

The commands work on the broker's folder; a running broker sees a change within a second.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scale0.cli.common import errors, output
from scale0.cli.common.options import json_option, with_watch
from scale0.cli.keys.folder import data_dir_option, existing

if TYPE_CHECKING:
    from scale0.broker.edge.key_folder import KeyFolder
    from scale0.broker.edge.server_rotation import PreviousKeyUsage


@click.group("rotate-server")
def rotate_server() -> None:
    """Replace the broker's own key in steps, without an outage.

    After `start` the broker accepts connections for the new key and for the previous one, and announces the new one;
    clients and brokers use it from their next connection on. `status` shows who still uses the previous key. `finish`
    retires it. Open connections stay in every step.

    \b
    Examples:
      scale0 keys rotate-server start
      scale0 keys rotate-server status
    """


@rotate_server.command()
@data_dir_option
@json_option
def start(data_dir: Path, wants_json: bool) -> None:
    """Make a new key for the broker, and accept the previous one as well.

    New tokens contain the new key. If a rotation is under way, the command changes nothing.

    \b
    Examples:
      scale0 keys rotate-server start
      scale0 keys rotate-server start --data-dir var/east-1
    With --json, an object: server_key, previous
    """
    from scale0.broker.edge.server_rotation import start_rotation

    pairs = start_rotation(existing(data_dir))
    previous = pairs.previous.public if pairs.previous is not None else ""
    if wants_json:
        output.say(output.as_json({"server_key": pairs.current.public, "previous": previous}))
        return
    output.say(f"the broker's key is {pairs.current.public}; the previous one, {previous}, is accepted as well")
    output.note("  next: `scale0 keys rotate-server status`; when nobody uses the previous key, `… finish`")


@rotate_server.command()
@data_dir_option
@json_option
@with_watch
def status(data_dir: Path, wants_json: bool) -> None:
    """Show who still uses the previous key of the broker.

    \b
    With --json, an object: server_key, previous (blank: no rotation is under way), connections (those that use the
    previous key), users (objects of user, connections, last_used), unseen (accepted users that have not connected since
    the start), reported (when the broker wrote this; null: never)

    \b
    Examples:
      scale0 keys rotate-server status
    """
    folder = existing(data_dir)
    current, previous, usage = rotation_of(folder)
    rows: list[dict[str, Any]] = [
        {"user": user, "connections": usage.connections.get(user, 0), "last_used": last}
        for user, last in sorted(usage.last_used.items())
    ]
    count = sum(usage.connections.values())
    if wants_json:
        shown = {"server_key": current, "previous": previous, "connections": count, "users": rows}
        output.say(output.as_json({**shown, "unseen": usage.unseen, "reported": usage.wall or None}))
        return
    if not previous:
        output.say(f"no rotation is under way; the broker's key is {current}")
        return
    output.say(f"the broker's key is {current}; the previous one, {previous}, has {count} connections")
    if rows:
        shown_rows = [(row["user"], str(row["connections"]), output.moment(row["last_used"])) for row in rows]
        output.table(("USER", "CONNECTIONS", "LAST USED"), shown_rows)
    if usage.unseen:
        output.say(f"not connected since the start, and to join again if that lasts: {some_of(usage.unseen)}")
    if not usage.wall:
        output.note("  the broker has not reported yet: is it running?")


@rotate_server.command()
@click.option("--force", is_flag=True, help="Also if the previous key was used recently, or a broker was away.")
@data_dir_option
@json_option
def finish(force: bool, data_dir: Path, wants_json: bool) -> None:
    """Retire the previous key of the broker.

    Open connections stay, but no new one is accepted for it. The command refuses while the previous key is in use, or
    was within the last hour, or a broker has not connected since the start.

    \b
    Examples:
      scale0 keys rotate-server finish --force
    With --json, an object: server_key, retired (blank: no rotation was under way)
    """
    from scale0.broker.edge.server_rotation import finish_rotation

    folder = existing(data_dir)
    current, previous, usage = rotation_of(folder)
    recent = usage.recent(time.time()) if previous else []
    away = [user for user in usage.unseen if user.startswith("peer/")] if previous else []
    if recent and not force:
        raise errors.CommandError(
            f"the previous key is in use, or was within the last hour: {some_of(recent)}",
            "wait until they have connected again (`scale0 keys rotate-server status`), or give --force",
        )
    if away and not force:
        raise errors.CommandError(
            f"brokers have not connected since the start, and do not know the new key: {some_of(away)}",
            "start them, or give --force: then they must join again",
        )
    retired = finish_rotation(folder)
    if wants_json:
        output.say(output.as_json({"server_key": current, "retired": retired}))
    else:
        output.say(f"{retired} is no longer accepted" if retired else "no rotation is under way")


def some_of(users: list[str]) -> str:
    return ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")


def rotation_of(folder: KeyFolder) -> tuple[str, str, PreviousKeyUsage]:
    """The current public key, the previous one, and who uses that."""
    from scale0.broker.edge.server_rotation import read_server_pairs, read_usage

    pairs = read_server_pairs(folder)
    previous = pairs.previous.public if pairs.previous is not None else ""
    return pairs.current.public, previous, read_usage(folder, previous)
