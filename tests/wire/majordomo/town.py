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
from scale0.kernel.effects import Effects
from scale0.storage.interface import OpenedStore
from scale0.transport.core.sockets import DISABLED

C01, C02, W01, W02 = b"MDPC01", b"MDPC02", b"MDPW01", b"MDPW02"
EMPTY = b""
READY = b"\x01"
REQUEST = b"\x02"
# Both versions have READY and REQUEST in common; then they part.
REPLY_01, HEARTBEAT_01, DISCONNECT_01 = b"\x03", b"\x04", b"\x05"
PARTIAL_02, FINAL_02, HEARTBEAT_02, DISCONNECT_02 = b"\x03", b"\x04", b"\x05", b"\x06"
CLIENT_REQUEST_02, CLIENT_PARTIAL_02, CLIENT_FINAL_02 = b"\x01", b"\x02", b"\x03"

BEFORE = OpenedStore(settings={}, document=None, tokens=(), next_seq=1, last_time_us=0, last_boot_us=0, boots=1)


class Town:
    """One broker and everybody who talks to it."""

    def __init__(self, **config: Any) -> None:
        own: dict[str, Any] = {"identity": "broker-1", "state": "active", **config}
        self.broker: Broker = compose_broker(BrokerConfig(**own), Endpoints(), BEFORE, 1, random.Random(1), None)
        self.mono = 1_000.0
        self.events: list[Any] = []
        self._mail: dict[str, list[list[bytes]]] = {}
        step = Effects()
        start_broker(self.broker, BEFORE, self.now, step)
        self._take(step)

    @property
    def now(self) -> Now:
        return Now(self.mono, 1_700_000_000.0 + self.mono)

    def says(self, who: str, *frames: bytes, door: str | None = None) -> None:
        """One message; names that start with `w` come to the backend door, others to the frontend."""
        step = Effects()
        self.broker.receive(door or door_of(who), who.encode(), list(frames), self.now, step)
        self._take(step)

    def together(self, who: str, *messages: list[bytes]) -> None:
        """Several messages in one turn."""
        step = Effects()
        for frames in messages:
            self.broker.receive(door_of(who), who.encode(), frames, self.now, step)
        self._take(step)

    def hears(self, who: str) -> list[list[bytes]]:
        """What came for somebody since it was last asked."""
        return self._mail.pop(who, [])

    def passes(self, seconds: float) -> None:
        """Time goes by, and every timer rings at its time."""
        end = self.mono + seconds
        while (due := self.broker.deadline()) is not None and due <= end:
            self.mono = max(self.mono, due)
            step = Effects()
            self.broker.tick(self.now, step)
            self._take(step)
        self.mono = end

    def gone(self, who: str, *messages: Any) -> None:
        """The socket says that somebody's connection is gone, and what could not be sent."""
        step = Effects()
        self.broker.undelivered(self.connection(who), messages, self.now, step)
        self._take(step)

    def disables(self) -> None:
        """What management's `disable` does to those who are there."""
        step = Effects()
        for member in list(self.broker.members.by_name.values()):
            self.broker.members.leave(member, self.now, step)
        self.broker.state.state = DISABLED
        self._take(step)

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

    def _take(self, step: Effects) -> None:
        self.events += step.events
        for peer, messages in [*step.sends.items(), *step.promises.items()]:
            self._mail.setdefault(peer.routing_id.decode(), []).extend(peer.pack(messages))


def door_of(who: str) -> str:
    return "backend" if who.startswith("w") else "frontend"
