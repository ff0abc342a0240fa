"""The keys of a client: its own certificate, and the public key that it expects of the broker.

They come, in this order, from the arguments, from SCALE0_KEY and SCALE0_SERVER_KEY, or from a certificate in the user's
key folders that names the endpoint. Without keys, or with SCALE0_KEY=none, a client connects unencrypted, and a broker
that requires keys rejects it. Invariants: a certificate that other users can read is not used; every error about a
certificate names its file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import zmq

from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.transport.core.address_book import AddressBook
from scale0.transport.edge.curve_certificates import (
    KEYS_FOLDER,
    LOCAL,
    SECRET_ENDING,
    CurveCertificate,
    is_key,
    read_pair,
    read_public,
    set_client,
)

log = logging.getLogger("scale0.keys")

KEY: Final = "SCALE0_KEY"
"""A file with the client's own certificate, or NO_KEYS."""
NO_KEYS: Final = "none"
"""Connect unencrypted, whatever is in the key folders."""
SERVER_KEY: Final = "SCALE0_SERVER_KEY"
"""The broker's public key, or a file that holds it."""
DATA_DIR: Final = "SCALE0_DATA_DIR"
LOCAL_FOLDER: Final = ".scale0"
"""Where `scale0 up` keeps its data."""


class ClientKeys:
    def __init__(self, own: CurveCertificate, path: Path, server_key: str, given: Sequence[str]) -> None:
        self.own = own
        self.path = path
        self._server_key = server_key
        self._given = frozenset(given)
        self.learned: Callable[[str], str] = lambda _: ""
        """The public keys of brokers that other brokers announced, by endpoint."""

    def apply(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Set the keys of a socket that is about to connect to `endpoint`."""
        announced = "" if endpoint in self._given else self.learned(endpoint)
        set_client(socket, self.own, announced or self._server_key)


def find_keys(
    endpoints: Sequence[str], key: str | Path | None = None, server_key: str | None = None
) -> ClientKeys | None:
    """The keys for these endpoints; None for an unencrypted connection."""
    given = key or os.environ.get(KEY, "")
    expected = server_key or os.environ.get(SERVER_KEY, "")
    if given == NO_KEYS:
        return None
    if given:
        path = Path(given).expanduser()
        own = read_pair(path)
    else:
        if server_key:
            raise ConfigError(["server_key needs a client key: give key, or set SCALE0_KEY"])
        found = _find_certificate(endpoints)
        if found is None:
            return None
        path, own = found
    wanted = read_public(expected) if expected else own.metadata.get("server-key", "")
    if not is_key(wanted):
        raise ConfigError([f"{path}: the broker's public key is not known: give server_key, or set SCALE0_SERVER_KEY"])
    return ClientKeys(own, path, wanted, endpoints)


def keys_for(
    addresses: AddressBook, endpoints: Sequence[str], key: str | Path | None = None, server_key: str | None = None
) -> ClientKeys | None:
    """The same, with the server keys that the client's address book learns."""
    found = find_keys(endpoints, key, server_key)
    if found is not None:
        found.learned = addresses.server_key
        addresses.key_hint = f"; the key is in {found.path}: {remedy(found.path)}"
    return found


def identity_with(identity: str, keys: ClientKeys | None) -> str:
    """The identity that the broker assigns to a client with these keys: the name of the key is its prefix."""
    name = keys.own.name if keys is not None else ""
    return identity if not name or f"{identity}.".startswith(f"{name}.") else f"{name}.{identity}"


def config_folder(environment: dict[str, str]) -> Path:
    given = environment.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path(environment.get("HOME", "~")).expanduser() / ".config"
    return base / "scale0" / KEYS_FOLDER


def folders() -> list[Path]:
    """Folders with certificates: the user's, and those of a broker on this machine."""
    environment = dict(os.environ)
    data_dir = Path(environment.get(DATA_DIR) or LOCAL_FOLDER)
    return [config_folder(environment), data_dir / KEYS_FOLDER / LOCAL]


def remedy(path: Path) -> str:
    """What to do with the key of a network that does not exist any more."""
    return f"if it is outdated, delete it (rm {path}); to connect without encryption, set {KEY}={NO_KEYS}"


def certificates_in(folder: Path) -> Iterator[tuple[Path, CurveCertificate | None, str]]:
    """Each certificate of a key folder; None, and the reason, if it cannot be used."""
    try:
        paths = sorted(folder.glob(f"*{SECRET_ENDING}"))
    except OSError:
        return
    for path in paths:
        try:
            found = read_pair(path)
        except ConfigError as error:
            yield path, None, str(error)
            continue
        if is_key(found.metadata.get("server-key", "")) or "endpoint" not in found.metadata:
            yield path, found, ""
        else:
            yield path, None, f"{path}: it names an endpoint, but not the public key of its broker"


def leftover_keys(endpoints: Sequence[str]) -> list[str]:
    """The user's certificates that stand in the way of an unencrypted network at these endpoints, or are of no use."""
    found = []
    for path, certificate, fault in certificates_in(config_folder(dict(os.environ))):
        if certificate is None:
            found.append(fault)
        elif set(certificate.metadata.get("endpoint", "").split()) & set(endpoints):
            found.append(f"{path} is the key of an encrypted network at an address of this one: {remedy(path)}")
    return found


def _find_certificate(endpoints: Sequence[str]) -> tuple[Path, CurveCertificate] | None:
    for folder in folders():
        for path, found, fault in certificates_in(folder):
            if found is None:
                log.warning("%s; it is not used", fault, extra=about(file=str(path)))
            elif set(found.metadata.get("endpoint", "").split()) & set(endpoints):
                return path, found
    return None
