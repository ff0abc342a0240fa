"""Subscriptions to the configuration that other brokers publish.

Invariants: no call blocks; with CURVE a publisher's key must be known before the connection, from its broker's HELLO.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from scale0.broker.edge.dialed_connections import DialedConnections
from scale0.kernel.limits import Limits
from scale0.kernel.machine import Sent
from scale0.transport.core.zmtp import SUB, Mechanism, NullMechanism
from scale0.transport.edge.curve_certificates import client_mechanism

if TYPE_CHECKING:
    from scale0.broker.edge.curve import Curve

EVERYTHING = b"\x01"
"""A subscription to every topic, as all versions of ZMTP 3 understand it."""


class SubscriberSocket:
    """Several publishers. For the runner, this is a ROUTER that cannot send."""

    def __init__(self, name: str, sources: Iterable[str], limits: Limits, curve: Curve | None = None) -> None:
        self.name = name
        self._curve = curve
        self._sources = tuple(sources)
        self._keys: dict[str, str] = {}
        """By endpoint: the key that the publisher must prove."""
        self._connections = DialedConnections(SUB, limits, self._mechanism)
        self._connections.on_ready = self._subscribe
        self.connect()

    def connect(self) -> None:
        """Connect to the publishers whose key is known, and end connections by a key that is no longer stored."""
        for endpoint in self._sources:
            before = self._keys.get(endpoint)
            if before is not None and (self._curve is None or self._curve.peer_of(before)):
                continue
            keys = self._curve.candidates(endpoint) if self._curve is not None else [""]
            if len(keys) == 1:
                self._keys[endpoint] = keys[0]
                self._connections.reopen(endpoint)

    def _mechanism(self, endpoint: str) -> Mechanism | None:
        if self._curve is None:
            return NullMechanism(SUB, is_client=True)
        return client_mechanism(self._curve.own, self._keys[endpoint], SUB)

    def _subscribe(self, endpoint: str) -> None:
        self._connections.send(endpoint, [EVERYTHING])

    @property
    def descriptor(self) -> int:
        return self._connections.descriptor

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Published messages, each with an empty routing id first."""
        return ([b"", *frames] for _, frames in self._connections.drain(most))

    def pending(self) -> bool:
        return self._connections.pending()

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        del routing_id, frames
        return "gone"

    def close(self) -> None:
        self._connections.close_all()
