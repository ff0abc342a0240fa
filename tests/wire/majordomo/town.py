"""A broker without sockets, and peers who are only names: for stories about Majordomo.

Lives here: what a test needs to speak and to hear. Never here: an expectation. What a peer hears is exactly what would
lie on the wire for it, its routing id taken off.
"""

from __future__ import annotations

import json
import random
from typing import Any

from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import Member
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.machine import Sent
from scale0.storage.interface import Store
from scale0.storage.memory.store import MemoryStore
from scale0.transport.core.sockets import DISABLED
from tests.fakes.turns import InstantHost

C01, C02, W01, W02 = b"MDPC01", b"MDPC02", b"MDPW01", b"MDPW02"
EMPTY = b""
READY = b"\x01"
REQUEST = b"\x02"
# Both versions have READY and REQUEST in common; then they part.
REPLY_01, HEARTBEAT_01, DISCONNECT_01 = b"\x03", b"\x04", b"\x05"
PARTIAL_02, FINAL_02, HEARTBEAT_02, DISCONNECT_02 = b"\x03", b"\x04", b"\x05", b"\x06"
CLIENT_REQUEST_02, CLIENT_PARTIAL_02, CLIENT_FINAL_02 = b"\x01", b"\x02", b"\x03"

SOCKETS = {"frontend", "backend", "peer", "dialed"}


class Town:
    """One broker and everybody who talks to it."""

    def __init__(self, store: Store | None = None, **config: Any) -> None:
        self.mono = 1_000.0
        self._host = InstantHost(lambda: self.now, self._send, answered=(StoreQuery,))
        self.events = self._host.events
        self._mail: dict[str, list[list[bytes]]] = {}
        self._config = {"identity": "broker-1", "state": "active", **config}
        self.opens(store or MemoryStore())

    def opens(self, store: Store) -> None:
        """A broker starts on this store."""
        self.store = store
        opened = store.open()
        self.broker: Broker = compose_broker(
            BrokerConfig(**self._config), Endpoints(), opened, opened.boots, random.Random(opened.boots), None
        )
        self._host.crashed = False
        self._host.begin(self.broker, store)
        effects = Effects()
        start_broker(self.broker, opened, self.now, effects)
        self._host.finish(effects)

    def cut_power(self) -> None:
        """Nothing more is committed."""
        self._host.crashed = True

    def dies(self) -> None:
        """As by kill -9; the next one starts from what was committed."""
        assert isinstance(self.store, MemoryStore)
        self._mail.clear()
        self.opens(self.store.crash())

    @property
    def now(self) -> Now:
        return Now(self.mono, 1_700_000_000.0 + self.mono)

    def says(self, who: str, *frames: bytes, door: str | None = None) -> None:
        """One message; names that start with `w` come to the backend door, others to the frontend."""
        effects = Effects()
        self.broker.receive(door or door_of(who), who.encode(), list(frames), self.now, effects)
        self._host.finish(effects)

    def together(self, who: str, *messages: list[bytes]) -> None:
        """Several messages in one turn."""
        effects = Effects()
        for frames in messages:
            self.broker.receive(door_of(who), who.encode(), frames, self.now, effects)
        self._host.finish(effects)

    def hears(self, who: str) -> list[list[bytes]]:
        """What came for somebody since it was last asked."""
        return self._mail.pop(who, [])

    def passes(self, seconds: float) -> None:
        """Time goes by, and every timer rings at its time."""
        end = self.mono + seconds
        while (due := self.broker.deadline()) is not None and due <= end:
            self.mono = max(self.mono, due)
            self._host.finish(Effects())
        self.mono = end

    def gone(self, who: str, *messages: Any) -> None:
        """The socket says that somebody's connection is gone, and what could not be sent."""
        effects = Effects()
        self.broker.undelivered(self.connection(who), messages, self.now, effects)
        self._host.finish(effects)

    def disables(self) -> None:
        """What management's `disable` does to those who are there."""
        effects = Effects()
        for member in list(self.broker.members.by_name.values()):
            self.broker.members.leave(member, self.now, effects)
        self.broker.state.state = DISABLED
        self._host.finish(effects)

    def connection(self, who: str) -> Connection:
        found = self.broker.connections.find(door_of(who), who.encode())
        assert found is not None
        return found

    def member(self, who: str) -> Member | None:
        found = self.broker.connections.find(door_of(who), who.encode())
        return found.member if found is not None else None

    def kinds(self) -> list[str]:
        """The events since they were last asked for."""
        out = [event.kind for event in self.events]
        self.events.clear()
        return out

    def scale0(self, who: str, command: str, options: dict[str, Any], *bodies: bytes) -> None:
        """One message in Scale0's own protocol."""
        self.says(who, b"SCALE0/1", command.encode(), json.dumps(options).encode(), *bodies)

    def scale0_backend(self, who: str, *services: str) -> None:
        """A backend of Scale0's own, in the queue of its services."""
        self.scale0(who, "CHECKCONFIG", {"config_type": "json", "identity": who})
        version = json.loads(self.hears(who)[0][2])["config_version"]
        self.scale0(who, "READY", {"services": services, "config_version": version})
        assert [frames[1] for frames in self.hears(who)] == [b"READYOK"]

    def _send(self, peer: Any, frames: list[bytes]) -> Sent:
        assert peer.door in SOCKETS
        if not self._host.crashed:
            self._mail.setdefault(peer.routing_id.decode(), []).append(frames)
        return "sent"


def door_of(who: str) -> str:
    return "backend" if who.startswith("w") else "frontend"
