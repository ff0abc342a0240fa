"""`scale0 agent forget`: an agent that is gone for good.

Lives here: the command. Never here: certificates; `scale0 agent revoke` takes those back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from scale0.cli.common import completion_values, errors, output
from scale0.cli.common.connection import connect
from scale0.cli.common.endpoints import joins
from scale0.cli.monitoring import helens
from scale0.cli.monitoring.helen_init import data_dir_option
from scale0.cli.network.listing import DISCOVERY_SECONDS
from scale0.client.admin.rows import HELEN_PREFIX

NOT_HERE: Final = "type it on Helen's machine, and name her folder with --data-dir"
STILL_THERE: Final = "stop it first, or `scale0 agent revoke` its certificate on Helen's machine"


@click.command()
@click.argument("name", shell_complete=completion_values.agents)
@joins
@data_dir_option
def forget(name: str, join: str, data_dir: Path) -> None:
    """Have Helen forget agent NAME, which is away for good, and how its checks were. Type it on Helen's machine.

    History stays. Its certificate holds as long as it did: revoke it, or the agent may come back.

    \b
    Example:
      scale0 agent forget web-1 --data-dir /var/lib/scale0/helen
    """
    from scale0.errors import CallError
    from scale0.kernel import codes
    from scale0.kernel.edge.secret_files import TOKEN_FILE, read_secret

    token = read_secret(data_dir / TOKEN_FILE)
    if token is None:
        raise errors.CommandError(f"there is no token of a Helen in {data_dir}", NOT_HERE, errors.USAGE)
    known = False
    with connect(join, DISCOVERY_SECONDS) as client:
        for helen in helens.need_helens(client):
            try:
                client.call(f"{HELEN_PREFIX}{helen}.forget", agent=name, token=token)
                known = True
            except CallError as error:
                if error.code == codes.IN_USE:
                    raise errors.CommandError(f"agent {name} is connected to {helen}", STILL_THERE) from error
                if error.code not in (codes.NO_SUCH_SERVICE, codes.WRONG_CREDENTIALS):
                    raise
    if not known:
        raise errors.CommandError(
            f"the Helen of {data_dir} does not know agent {name}", "`scale0 agents` shows who is known, and to whom"
        )
    output.say(f"{name} is forgotten")
