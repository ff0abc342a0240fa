"""`scale0 enable`, `disable`, `drain` and `reload`: change a broker's state.

Lives here: one command each. Never here: what it means; the broker decides and records that.
"""

from __future__ import annotations

from typing import Any

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.common.watch_mode import json_option

broker_argument = click.argument("broker", required=False, shell_complete=completion_values.brokers)


@click.command()
@broker_argument
@joins
@json_option
@authentication.commands
def enable(broker: str | None, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Let BROKER (the one at --join) serve again, after `disable` or `drain`.

    \b
    With --json, an object: broker, state, draining

    \b
    Examples:
      scale0 enable
      scale0 enable east-1 --join 10.0.0.1 --token TOKEN
    """
    show_state(commanded("enable", broker, join, authority), wants_json, "it serves")


@click.command()
@broker_argument
@joins
@json_option
@authentication.commands
def disable(broker: str | None, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Let BROKER answer nothing but management, so that its clients go elsewhere. Also after a restart.

    \b
    With --json, an object: broker, state, draining

    \b
    Examples:
      scale0 disable
      scale0 disable east-1 --join 10.0.0.1 --token TOKEN
    """
    show_state(commanded("disable", broker, join, authority), wants_json, "`scale0 enable` takes it back")


@click.command()
@broker_argument
@joins
@json_option
@authentication.commands
def drain(broker: str | None, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Let BROKER finish what it has, and take nothing new.

    \b
    With --json, an object: broker, state, draining

    \b
    Examples:
      scale0 drain
      scale0 drain east-1 --join 10.0.0.1 --token TOKEN
    """
    show_state(commanded("drain", broker, join, authority), wants_json, "`scale0 enable` takes it back")


@click.command()
@broker_argument
@joins
@json_option
@authentication.commands
def reload(broker: str | None, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Let BROKER read its own file again.

    \b
    With --json, an object: broker, changed [key paths]

    \b
    Example:
      scale0 config check broker.zpl && scale0 reload
    """
    from scale0.errors import BadArguments

    try:
        done = commanded("reload_config", broker, join, authority)
    except BadArguments as error:
        step = "the broker goes on as it was; `scale0 config check FILE` looks at a file"
        raise errors.CommandError(f"nothing was reloaded: {error.message}", step) from error
    if wants_json:
        output.say(output.as_json(done))
    elif done["changed"]:
        output.say(f"{done['broker']} has read its file again; changed: {', '.join(done['changed'])}")
    else:
        output.say(f"{done['broker']} has read its file again; nothing changed")


def commanded(command: str, broker: str | None, join: str, given: authentication.GivenCredentials) -> dict[str, Any]:
    """Give the command to the broker that was named, and to no other."""
    credentials = authentication.need(given, join)
    with connect(join) as client:
        token = authentication.log_in(client, credentials)
        found: str = client.manage("status", **token)["broker"]
        if broker is not None and broker != found:
            raise errors.CommandError(f"{join} is {found}, not {broker}", f"give the address of {broker} with --join")
        return {"broker": found, **client.manage(command, **token)}


def show_state(done: dict[str, Any], wants_json: bool, more: str) -> None:
    """The state that it is in now."""
    if wants_json:
        output.say(output.as_json(done))
    else:
        output.say(f"{done['broker']} is {'draining' if done['draining'] else done['state']}: {more}")
