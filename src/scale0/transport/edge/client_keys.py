"""The keys of a client: its own certificate, and the public key that it expects of the broker.

They come, in this order, from the arguments, from SCALE0_KEY and SCALE0_SERVER_KEY, from a broker of the same user that
runs at the endpoint, or from a certificate in the key folders that names the endpoint. Without keys, or with
SCALE0_KEY=none, a client connects unencrypted, and a broker that requires keys rejects it. Invariants: a certificate
that other users can read is not used; every error about a certificate names its file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.transport.core.address_book import AddressBook
from scale0.transport.core.sockets import HELEN
from scale0.transport.core.zmtp import DEALER, NullMechanism
from scale0.transport.core.zmtp_curve import CurveClient
from scale0.transport.edge.curve_certificates import (
    KEYS_FOLDER,
    LOCAL,
    PROGRAM,
    SECRET_ENDING,
    CurveCertificate,
    client_mechanism,
    is_key,
    read_pair,
    read_public,
    write_pair,
)
from scale0.transport.edge.local_keys import config_folder, pairs_for, server_keys

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


WhyNot = Callable[[str], str]
"""By endpoint: why no unencrypted connection may be made to it now; blank if it may."""

_refusals: list[WhyNot] = []
"""Of this process; they hold for every connection, reconnections too."""


def refuse_unencrypted(why_not: WhyNot) -> None:
    """From now on, make no unencrypted connection for which this gives a reason."""
    if why_not not in _refusals:
        _refusals.append(why_not)


def unencrypted(endpoint: str) -> NullMechanism:
    """The mechanism of a connection without keys; ValueError if this process must not make it."""
    for why_not in _refusals:
        if reason := why_not(endpoint):
            raise ValueError(reason)
    return NullMechanism(DEALER, is_client=True)


class ClientKeys:
    def __init__(
        self, own: CurveCertificate, path: Path, server_key: str, given: Sequence[str], is_stored: bool = False
    ) -> None:
        """`is_stored`: the server key is in the file of the own certificate."""
        self.own = own
        self.path = path
        self._server_key = server_key
        self._given = frozenset(given)
        self._is_stored = is_stored
        self._used: dict[str, str] = {}
        """By endpoint: the key that was expected at the last connection."""
        self.learned: Callable[[str], str] = lambda _: ""
        """The public keys of brokers that other brokers announced, by endpoint."""

    def for_frontends(self) -> ClientKeys | None:
        """The same pair for the frontends of the network, if it is a Helen's, whose pair is stored in both roles. Their
        server keys are learned."""
        is_helens = self.own.metadata.get("role") == HELEN
        return ClientKeys(self.own, self.path, self._server_key, ()) if is_helens else None

    def mechanism(self, endpoint: str) -> CurveClient:
        """The mechanism of a connection to `endpoint`."""
        own, expected = self.own, self._server_key
        if endpoint not in self._given:
            if PROGRAM in own.metadata and (running := find_running((endpoint,))) is not None:
                # Another broker of the same user on this machine: it has a key of its own for local programs.
                own, expected = running[1], running[1].metadata["server-key"]
            else:
                expected = self.learned(endpoint) or expected
        self._used[endpoint] = expected
        return client_mechanism(own, expected)

    def learn(self, endpoint: str, server_key: str) -> None:
        """The broker at `endpoint` announced its own key. If the user gave this endpoint, and the broker has proved the
        key that was expected so far, expect the new one from now on, also in later processes."""
        was_proved = endpoint in self._given and self._used.get(endpoint) == self._server_key
        if server_key == self._server_key or not was_proved or not is_key(server_key):
            return
        before, self._server_key = self._server_key, server_key
        if not self._is_stored:
            log.warning(
                "the broker at %s has a new key: set server_key to %s", endpoint, server_key, extra=about(peer=endpoint)
            )
            return
        try:
            stored = read_pair(self.path)
            if stored.metadata.get("server-key") == before:
                metadata = {**stored.metadata, "server-key": server_key}
                write_pair(self.path, CurveCertificate(public=stored.public, secret=stored.secret, metadata=metadata))
                log.info("the broker at %s has a new key; it is stored in %s", endpoint, self.path, extra=about())
        except (ConfigError, OSError) as error:
            log.warning("cannot store the new key of the broker at %s: %s", endpoint, error, extra=about(peer=endpoint))


def find_keys(
    endpoints: Sequence[str], key: str | Path | None = None, server_key: str | None = None, role: str = ""
) -> ClientKeys | None:
    """The keys for these endpoints, if there are several those of this role; None for an unencrypted connection."""
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
        found = _find_certificate(endpoints, role)
        if found is None:
            return None
        path, own = found
    wanted = read_public(expected) if expected else own.metadata.get("server-key", "")
    if not is_key(wanted):
        raise ConfigError([f"{path}: the broker's public key is not known: give server_key, or set SCALE0_SERVER_KEY"])
    return ClientKeys(own, path, wanted, endpoints, is_stored=not expected)


def keys_for(
    addresses: AddressBook,
    endpoints: Sequence[str],
    key: str | Path | None = None,
    server_key: str | None = None,
    role: str = "",
) -> ClientKeys | None:
    """The same, with the server keys that the client's address book learns."""
    found = find_keys(endpoints, key, server_key, role)
    if found is not None:
        found.learned, addresses.on_server_key = addresses.server_key, found.learn
        addresses.key_hint = f"; the key is in {found.path}: {remedy(found.path)}"
    return found


def identity_with(identity: str, keys: ClientKeys | None) -> str:
    """The identity that the broker assigns to a client with these keys: the name of the key is its prefix."""
    name = keys.own.name if keys is not None else ""
    return identity if not name or f"{identity}.".startswith(f"{name}.") else f"{name}.{identity}"


def folders() -> list[Path]:
    """Folders with certificates: the user's, and those of a broker on this machine."""
    data_dir = Path(os.environ.get(DATA_DIR) or LOCAL_FOLDER)
    return [config_folder(os.environ), data_dir / KEYS_FOLDER / LOCAL]


def remedy(path: Path) -> str:
    """What to do with the key of a network that does not exist any more."""
    return f"if it is outdated, delete it (rm {path}); to connect without encryption, set {KEY}={NO_KEYS}"


def certificates_in(folder: Path) -> Iterator[tuple[Path, CurveCertificate | None, str]]:
    """Each certificate of a key folder; None, and the reason, if it cannot be used."""
    try:
        yield from read_certificates(sorted(folder.glob(f"*{SECRET_ENDING}")))
    except OSError:
        return


def read_certificates(paths: Iterable[Path]) -> Iterator[tuple[Path, CurveCertificate | None, str]]:
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


def _find_certificate(endpoints: Sequence[str], role: str) -> tuple[Path, CurveCertificate] | None:
    running = find_running(endpoints)
    usable = [
        (path, found)
        for path, found in _matching(chain.from_iterable(map(certificates_in, folders())), endpoints)
        # A key of an earlier network at this address is of no use for the broker that runs here now.
        if running is None or found.metadata.get("server-key") in server_keys(running[0].parent.parent)
    ]
    return min(usable, key=lambda one: bool(role) and one[1].metadata.get("role") != role, default=running)


def find_running(endpoints: Sequence[str]) -> tuple[Path, CurveCertificate] | None:
    """The pair for local programs of a broker that this user runs at one of these endpoints."""
    return next(_matching(read_certificates(pairs_for(endpoints)), endpoints), None)


def _matching(
    certificates: Iterable[tuple[Path, CurveCertificate | None, str]], endpoints: Sequence[str]
) -> Iterator[tuple[Path, CurveCertificate]]:
    for path, found, fault in certificates:
        if found is None:
            log.warning("%s; it is not used", fault, extra=about(file=str(path)))
        elif set(found.metadata.get("endpoint", "").split()) & set(endpoints):
            yield path, found
