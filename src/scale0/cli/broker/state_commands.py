"""`scale0 enable`, `disable`, `drain` and `reload`: change the state of a broker."""

from __future__ import annotations

from typing import Any, Final

import click

from scale0.cli.common import authentication, completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import join_option
from scale0.cli.common.options import json_option

broker_argument = click.argument("broker", required=False, shell_complete=completion_values.brokers)


def state_command(name: str, then: str, help_text: str) -> click.Command:
    """A command that changes the state of a broker, and prints what follows from it."""

    @click.command(name)
    @broker_argument
    @join_option
    @json_option
    @authentication.credential_options
    def command(broker: str | None, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
        done = commanded(name, broker, join, authority)
        if wants_json:
            output.say(output.as_json(done))
        else:
            output.say(f"{done['broker']} is {'draining' if done['draining'] else done['state']}: {then}")

    command.help = (
        f"{help_text}\n\n\b\nWith --json, an object: broker, state, draining\n\n"
        f"\b\nExamples:\n  scale0 {name}\n  scale0 {name} east-1 --join 10.0.0.1 --token TOKEN"
    )
    return command


ENABLE_AGAIN: Final = "`scale0 enable` enables it again"
enable = state_command("enable", "it serves clients", "Enable BROKER again, after `disable` or `drain`.")
disable = state_command(
    "disable",
    ENABLE_AGAIN,
    "Let BROKER answer only management.\n\nIts clients move to other brokers. It stays disabled after a restart.",
)
drain = state_command("drain", ENABLE_AGAIN, "Let BROKER finish its work, and accept nothing new.")


@click.command()
@broker_argument
@join_option
@json_option
@authentication.credential_options
def reload(broker: str | None, join: str, wants_json: bool, authority: authentication.GivenCredentials) -> None:
    """Let BROKER read its configuration file again.

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
        step = "the broker continues with its old settings; check the file with `scale0 config check FILE`"
        raise errors.CommandError(f"nothing was reloaded: {error.message}", step) from error
    if wants_json:
        output.say(output.as_json(done))
    elif done["changed"]:
        output.say(f"{done['broker']} has reloaded its file; changed: {', '.join(done['changed'])}")
    else:
        output.say(f"{done['broker']} has reloaded its file; nothing changed")


def commanded(command: str, broker: str | None, join: str, given: authentication.GivenCredentials) -> dict[str, Any]:
    """Run the command at the named broker and at no other."""
    credentials = authentication.need(given, join)
    with connect(join) as client:
        token = authentication.log_in(client, credentials)
        found: str = client.manage("status", **token)["broker"]
        if broker is not None and broker != found:
            raise errors.CommandError(f"{join} is {found}, not {broker}", f"give the address of {broker} with --join")
        return {"broker": found, **client.manage(command, **token)}
