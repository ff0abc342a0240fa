"""A connection for one command.

Lives here: the client that a command uses. Never here: what it asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scale0.client.client import Client

PATIENCE_SECONDS: Final = 3.0
"""How long a command looks for its broker before it exits with 3."""


def connect(
    join: str, timeout: float = 30.0, patience: float = PATIENCE_SECONDS, task_client: str | None = None
) -> Client:
    """A client that gives up soon: somebody waits in front of a shell."""
    from scale0.cli.common.state_file import connection_identity
    from scale0.client.client import Client

    identity = own_identity(join, connection_identity(join))
    return Client(join, identity=identity, timeout=timeout, patience=patience, task_client=task_client)


def own_identity(join: str, identity: str) -> str | None:
    """The same, under the name of our key where there is one; None: it does not say, and the broker makes one."""
    from scale0.transport.edge.client_keys import find_keys

    keys = find_keys([join])
    if keys is None:
        return identity
    return f"{keys.own.name}.{identity}" if keys.own.name else None
