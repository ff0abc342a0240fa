"""Keys of the brokers that run on this machine as this user, found by their ports.

A broker with keys links its pairs for local programs into the user's key folder when it starts, and removes the links
when it stops. So every program of this user finds its key, in whatever directory it runs; other users cannot read it.
Invariants: a link is no copy of a secret; a link that leads nowhere is ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.transport.core.sockets import BACKEND, FRONTEND, PEER
from scale0.transport.edge.curve_certificates import KEYS_FOLDER, LOCAL, SECRET_ENDING, SERVER, read_pair

log = logging.getLogger("scale0.keys")

RUNNING: Final = "running"
"""The folder of the links, in the user's key folder."""


def config_folder(environment: Mapping[str, str]) -> Path:
    given = environment.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path(environment.get("HOME", "~")).expanduser() / ".config"
    return base / "scale0" / KEYS_FOLDER


def announce(keys: Path, endpoints: Mapping[str, str]) -> None:
    """Link the key folder of a broker that listens here now. A user without a home has no links: programs need the
    broker's data directory."""
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink(missing_ok=True)
        for path, target in _links(keys.absolute(), endpoints):
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            temporary.replace(path)
    except OSError as error:
        log.info("the keys for local programs cannot be linked in the user's key folder: %s", error, extra=about())


def withdraw(keys: Path, endpoints: Mapping[str, str]) -> None:
    """Remove the links of a broker that stops, unless another one has taken its ports."""
    with contextlib.suppress(OSError):
        for path, target in _links(keys.absolute(), endpoints):
            if path.is_symlink() and path.readlink() == target:
                path.unlink(missing_ok=True)


def forget(endpoints: Mapping[str, str]) -> None:
    """A broker without keys listens here now: remove links that a broker at the same ports left behind."""
    with contextlib.suppress(OSError):
        for path, _ in _links(Path(), endpoints):
            if path.is_symlink():
                path.unlink(missing_ok=True)


def pairs_for(endpoints: Sequence[str]) -> Iterator[Path]:
    """The pairs for local programs of brokers at these endpoints."""
    for endpoint in endpoints:
        for role in (FRONTEND, BACKEND):
            path = _folder() / _name(role, endpoint)
            with contextlib.suppress(OSError, RuntimeError):
                yield path.resolve(strict=True)


def server_keys(keys: Path) -> set[str]:
    """The public keys by which the broker with this key folder can be reached: two, while its key is replaced."""
    found = set()
    for path in (keys / SERVER).glob(f"*{SECRET_ENDING}"):
        with contextlib.suppress(ConfigError):
            found.add(read_pair(path).public)
    return found


def key_folder_of(peer_endpoint: str) -> Path | None:
    """The key folder of the broker of this user with this peer endpoint; None if there is none."""
    path = _folder() / _name(PEER, peer_endpoint)
    try:
        return path.resolve(strict=True) if path.is_symlink() else None
    except (OSError, RuntimeError):
        return None


def _folder() -> Path:
    return config_folder(os.environ) / RUNNING


def _name(role: str, endpoint: str) -> str:
    port = endpoint.rpartition(":")[2]
    return f"{role}-{port}" if role == PEER else f"{role}-{port}{SECRET_ENDING}"


def _links(keys: Path, endpoints: Mapping[str, str]) -> Iterator[tuple[Path, Path]]:
    for role in (FRONTEND, BACKEND):
        yield _folder() / _name(role, endpoints[role]), keys / LOCAL / f"{role}{SECRET_ENDING}"
    yield _folder() / _name(PEER, endpoints[PEER]), keys
