"""The client that a command connects with, and the state file with one client id for each user and network.

A state file that cannot be read or written never fails a command. Two commands at the same time never share an
identity, because the second one would take over the session of the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common.authentication import PATIENCE_SECONDS, AdminAccess, Credentials, log_in
from scale0.cli.common.proof import require_proof
from scale0.client.admin.helens import PagedRows
from scale0.client.admin.rows import Row
from scale0.kernel.names import is_identity

if TYPE_CHECKING:
    from scale0.client.client import Client

DISCOVERY_SECONDS: Final = 5.0
"""How long a broker may take to answer about itself."""
STATE_FILE: Final = "clients.json"
MAX_NETWORKS: Final = 1_000
"""In the state file; the oldest is removed first."""
MAX_STATE_BYTES: Final = 1024 * 1024


def connect(
    join: str, timeout: float = 30.0, patience: float = PATIENCE_SECONDS, task_client: str | None = None
) -> Client:
    from scale0.client.client import Client

    require_proof(join, patience)
    user = client_id(join, state_folder(dict(os.environ)))
    identity = own_identity(join, f"{user}.{os.getpid()}")
    return Client(join, identity=identity, timeout=timeout, patience=patience, task_client=task_client)


def own_identity(join: str, identity: str) -> str | None:
    """The identity, prefixed with the name of our key if there is one; None: the broker chooses it."""
    from scale0.transport.edge.client_keys import find_keys

    keys = find_keys([join])
    if keys is None:
        return identity
    return f"{keys.own.name}.{identity}" if keys.own.name else None


@contextlib.contextmanager
def admin_client(access: AdminAccess, timeout: float = DISCOVERY_SECONDS) -> Iterator[tuple[Client, Credentials]]:
    credentials = access.need()
    with connect(access.join, timeout) as client:
        yield client, log_in(client, credentials)


def manage(access: AdminAccess, command: str, **arguments: Any) -> Any:
    with admin_client(access) as (client, token):
        return client.manage(command, **arguments, **token)


def list_all(access: AdminAccess, command: str, query: Row | None = None, limit: int | None = None) -> list[Row]:
    """The rows of a management command, page by page; at most `limit` of them."""
    pages = PagedRows(query or {}, limit)
    with admin_client(access) as (client, token):
        while (request := pages.request()) is not None:
            pages.add(client.manage(command, **request, **token))
    return pages.rows


def state_folder(environment: dict[str, str]) -> Path:
    """The folder for the state files of this user (XDG base directories)."""
    given = environment.get("XDG_STATE_HOME", "")
    if given.startswith("/"):
        return Path(given) / "scale0"
    return Path(environment.get("HOME", "~")).expanduser() / ".local" / "state" / "scale0"


def client_id(network: str, folder: Path) -> str:
    """This user's id in a network; created on first use."""
    path = folder / STATE_FILE
    known = _read(path)
    found = known.get(network)
    if isinstance(found, str) and is_identity(found):
        return found
    made = f"cli-{secrets.token_hex(6)}"
    newest = list(known.items())[-(MAX_NETWORKS - 1) :]
    _write(path, {**dict(newest), network: made})
    return made


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(path: Path, value: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_text(json.dumps(value, indent=1))
        partial.chmod(0o600)
        partial.rename(path)
    except OSError:
        return
