"""What the command line remembers: one client id per user and network.

Lives here: the state file. Never here: secrets. Invariants: a state file that cannot be read or written costs the
memory, not the command; two commands at once never share a connection's identity, because the second would take over
from the first.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from scale0.kernel.names import is_identity

STATE_FILE: Final = "clients.json"
MAX_NETWORKS: Final = 1_000
"""Networks that are remembered; the oldest is forgotten first."""
MAX_STATE_BYTES: Final = 1024 * 1024
"""More than anybody's networks need."""


def state_folder(environment: dict[str, str]) -> Path:
    """Where this user's programs keep what they remember."""
    given = environment.get("XDG_STATE_HOME", "")
    base = (
        Path(given) if given.startswith("/") else Path(environment.get("HOME", "~")).expanduser() / ".local" / "state"
    )
    return base / "scale0"


def client_id(network: str, folder: Path) -> str:
    """This user's id in a network, made when it is first asked for."""
    path = folder / STATE_FILE
    known = _read(path)
    found = known.get(network)
    if isinstance(found, str) and is_identity(found):
        return found
    made = f"cli-{secrets.token_hex(6)}"
    newest = list(known.items())[-(MAX_NETWORKS - 1) :]
    _write(path, {**dict(newest), network: made})
    return made


def connection_identity(network: str) -> str:
    """The id with which this process connects: the user's, and its own number."""
    return f"{client_id(network, state_folder(dict(os.environ)))}.{os.getpid()}"


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
