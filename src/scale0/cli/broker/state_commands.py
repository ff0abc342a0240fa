"""`scale0 enable`, `disable`, `drain` and `reload`: change the state of a broker."""

from __future__ import annotations

from typing import Any, Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.authentication import AdminAccess, admin_options
from scale0.cli.common.connection import admin_client
from scale0.cli.common.options import json_option

STATE_SECONDS: Final = 30.0

broker_argument = click.argument("broker", required=False, shell_complete=completion_values.brokers)


def state_command(name: str, then: str, help_text: str) -> click.Command:
    """A command that changes the state of a broker, and prints what follows from it."""

    @click.command(name)
    @broker_argument
    @json_option
    @admin_options
    def command(broker: str | None, wants_json: bool, access: AdminAccess) -> None:
        done = commanded(name, broker, access)
        if wants_json:
            output.say(output.as_json(done))
        else:
            output.say(f"{done['broker']} is {'draining' if done['draining'] else done['state']}: {then}")

    command.help = (
        f"{help_text}\n\n\b\nWith --json, an object: broker, state, draining\n\n"
        f"\b\nExamples:\n  scale0 {name}\n  scale0 {name} east-1 --join 10.0.0.1 --token @token"
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
@json_option
@admin_options
def reload(broker: str | None, wants_json: bool, access: AdminAccess) -> None:
    """Let BROKER read its configuration file again.

    \b
    With --json, an object: broker, changed [key paths]

    \b
    Example:
      scale0 config check broker.zpl && scale0 reload
    """
    from scale0.errors import BadArguments

    try:
        done = commanded("reload_config", broker, access)
    except BadArguments as error:
        step = "the broker continues with its old settings; check the file with `scale0 config check FILE`"
        raise errors.CommandError(f"nothing was reloaded: {error.message}", step) from error
    if wants_json:
        output.say(output.as_json(done))
    elif done["changed"]:
        output.say(f"{done['broker']} has reloaded its file; changed: {', '.join(done['changed'])}")
    else:
        output.say(f"{done['broker']} has reloaded its file; nothing changed")


def commanded(command: str, broker: str | None, access: AdminAccess) -> dict[str, Any]:
    """Run the command at the named broker and at no other."""
    with admin_client(access, STATE_SECONDS) as (client, token):
        found: str = client.manage("status", **token)["broker"]
        if broker is not None and broker != found:
            raise errors.CommandError(
                f"{access.join} is {found}, not {broker}", f"give the address of {broker} with --join"
            )
        return {"broker": found, **client.manage(command, **token)}
