"""`scale0 agent forget`: an agent that is gone for good.

Lives here: the command. Never here: certificates; `scale0 agent revoke` takes those back.
"""

from __future__ import annotations

from typing import Final

import click

from scale0.cli import faults, helens, output
from scale0.cli.look import DISCOVERY_SECONDS
from scale0.cli.network import connect
from scale0.cli.places import joins

STILL_THERE: Final = "stop it first, or `scale0 agent revoke` its certificate on Helen's machine"


@click.command()
@click.argument("name")
@joins
def forget(name: str, join: str) -> None:
    """Have every Helen forget agent NAME, which is away for good, and how its checks were.

    History stays. Its certificate holds as long as it did: revoke it, or the agent may come back.
    """
    from scale0.base import codes
    from scale0.client.errors import CallError

    known = False
    with connect(join, DISCOVERY_SECONDS) as client:
        for helen in helens.need_helens(client):
            try:
                client.call(f"{helens.PREFIX}{helen}.forget", agent=name)
                known = True
            except CallError as error:
                if error.code == codes.IN_USE:
                    raise faults.Trouble(f"agent {name} is connected to {helen}", STILL_THERE) from error
                if error.code != codes.NO_SUCH_SERVICE:
                    raise
    if not known:
        raise faults.Trouble(f"no Helen knows agent {name}", "`scale0 agents` shows who is known")
    output.say(f"{name} is forgotten")
