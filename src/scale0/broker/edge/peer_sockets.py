"""The connections that a broker dials: one for each peer, by endpoint.

Invariants: no call blocks; a message that cannot be sent at once is never sent later, because it would be outdated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scale0.broker.edge.dialed_connections import LINGER_SECONDS, DialedConnections
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.transport.core.zmtp import DEALER, Mechanism, NullMechanism
from scale0.transport.edge.curve_certificates import client_mechanism

if TYPE_CHECKING:
    from scale0.broker.edge.curve import Curve
    from scale0.transport.edge.curve_certificates import CurveCertificate
    from scale0.transport.edge.zmtp_client import Cause

log = logging.getLogger("scale0.dialer")


class PeerKeys(NamedTuple):
    key: str
    """The one that the peer must prove."""
    pair: CurveCertificate
    """Our own pair: a broker that does not know our new key yet knows the previous one."""


class PeerSockets:
    """For the runner, this is a ROUTER whose routing ids are endpoints."""

    def __init__(self, name: str, limits: Limits, curve: Curve | None = None) -> None:
        self.name = name
        self._curve = curve
        self._keys: dict[str, PeerKeys] = {}
        """By endpoint: the keys of the current attempt."""
        if curve is not None:
            curve.dialed_user = self._user_of
        self._connections = DialedConnections(DEALER, limits, self._mechanism)
        self._connections.on_end = self._try_another

    @property
    def descriptor(self) -> int:
        """Readable when any of the connections may have an event."""
        return self._connections.descriptor

    def dial(self, endpoint: str) -> None:
        """Connect, and reconnect until `disconnect`."""
        if endpoint in self._connections:
            return
        if self._curve is not None and not self._choose(endpoint):
            log.warning(
                "cannot connect to the broker at %s: no peer key is stored; add one with scale0 keys",
                endpoint,
                extra=about(endpoint=endpoint),
            )
        self._connections.open(endpoint)

    def _mechanism(self, endpoint: str) -> Mechanism | None:
        if self._curve is None:
            return NullMechanism(DEALER, is_client=True)
        if endpoint not in self._keys and not self._choose(endpoint):
            return None
        keys = self._keys[endpoint]
        return client_mechanism(keys.pair, keys.key)

    def _choose(self, endpoint: str) -> bool:
        """Select the next possible key of the broker there; False if there is none."""
        assert self._curve is not None
        possible = [PeerKeys(key, pair) for pair in self._curve.pairs.all for key in self._curve.candidates(endpoint)]
        before = self._keys.get(endpoint)
        if not possible:
            return False
        at = (possible.index(before) + 1) % len(possible) if before in possible else 0
        self._keys[endpoint] = possible[at]
        return True

    def _try_another(self, endpoint: str, cause: Cause) -> None:
        """The broker may have another key, or may not know ours."""
        if self._curve is not None and cause in ("refused", "handshake"):
            self._choose(endpoint)

    def review(self) -> None:
        """Keys may have changed: end the connections to brokers whose key is no longer stored, and those by a key of
        ours that is retired."""
        if self._curve is None:
            return
        for endpoint in self._connections:
            keys = self._keys.get(endpoint)
            if keys is None or not self._curve.peer_of(keys.key) or keys.pair not in self._curve.pairs.all:
                self._keys.pop(endpoint, None)
                if self._choose(endpoint) or keys is not None:
                    self._connections.reopen(endpoint)

    def _user_of(self, routing_id: bytes) -> str:
        keys = self._keys.get(routing_id.decode())
        return self._curve.peer_of(keys.key) if self._curve is not None and keys is not None else ""

    def disconnect(self, endpoint: str) -> None:
        self._connections.close(endpoint, LINGER_SECONDS)
        self._keys.pop(endpoint, None)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Pending messages, each with its endpoint first; at most `most` messages."""
        return ([endpoint.encode(), *frames] for endpoint, frames in self._connections.drain(most))

    def pending(self) -> bool:
        return self._connections.pending()

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Buffer one message until `flush`; a peer that is not connected, or is too far behind, counts as gone."""
        return "sent" if self._connections.send(routing_id.decode(), frames) else "gone"

    def flush(self) -> None:
        self._connections.flush()

    def close(self) -> None:
        self._connections.close_all()
