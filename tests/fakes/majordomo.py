"""Majordomo 0.1 and 0.2 in tests: the constants of RFC 7 and RFC 18, a fake broker, and workers by the letter.

Names that begin with `w` are workers: they come to the backend socket, others to the frontend. What a peer receives is
exactly what would lie on the wire for it, without its routing id; what depends on a commit is received after it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.broker.core.members import Member
from scale0.kernel.effects import Effects
from scale0.kernel.machine import Sent
from scale0.transport.core.sockets import DISABLED
from tests.fakes.broker import FakeBroker

C01, C02, W01, W02 = b"MDPC01", b"MDPC02", b"MDPW01", b"MDPW02"
EMPTY = b""
READY = b"\x01"
REQUEST = b"\x02"
# Both versions have READY and REQUEST in common; then they part.
REPLY_01, HEARTBEAT_01, DISCONNECT_01 = b"\x03", b"\x04", b"\x05"
PARTIAL_02, FINAL_02, HEARTBEAT_02, DISCONNECT_02 = b"\x03", b"\x04", b"\x05", b"\x06"
CLIENT_REQUEST_02, CLIENT_PARTIAL_02, CLIENT_FINAL_02 = b"\x01", b"\x02", b"\x03"


class MajordomoBroker(FakeBroker):
    """One broker and everybody who talks to it."""

    def __init__(self, store: Any = None, **config: Any) -> None:
        self._frames: dict[str, list[list[bytes]]] = {}
        super().__init__(store=store, **{"state": "active", **config})

    def socket_of(self, who: str) -> str:
        return "backend" if who.startswith("w") else "frontend"

    def say(self, who: str, *frames: bytes, socket: str = "") -> None:
        """One message."""
        self.send_frames(who, list(frames), socket=socket)

    def take(self, who: str) -> list[list[bytes]]:
        """What came for somebody since it was last asked."""
        return self._frames.pop(who, [])

    def crash(self, *_: Any) -> None:
        """As by kill -9; the next one starts from what was committed."""
        self._frames.clear()
        self.start(self.store.crash())

    def cut_power(self) -> None:
        """Nothing more is committed."""
        self.host.crashed = True

    def disable(self) -> None:
        """What management's `disable` does to those who are there."""
        effects = Effects()
        for member in list(self.machine.members.by_name.values()):
            self.machine.members.leave(member, self.now, effects)
        self.machine.state.state = DISABLED
        self.host.finish(effects)

    def member(self, who: str) -> Member | None:
        found = self.machine.connections.find(self.socket_of(who), who.encode())
        return found.member if found is not None else None

    def kinds(self) -> list[str]:
        """The events since they were last asked for."""
        kinds = super().kinds()
        self.events.clear()
        return kinds

    def scale0_backend(self, who: str, *services: str) -> None:
        """A backend of Scale0's own, in the queue of its services."""
        self.send(who, "CHECKCONFIG", {"config_type": "json", "identity": who})
        version = json.loads(self.take(who)[0][2])["config_version"]
        self.send(who, "READY", {"services": services, "config_version": version})
        assert [frames[1] for frames in self.take(who)] == [b"READYOK"]

    def _send(self, peer: Any, frames: list[bytes]) -> Sent:
        if not self.host.crashed:
            self._frames.setdefault(peer.routing_id.decode(), []).append(frames)
        return "sent"

    # Titanic.

    def ask_titanic(self, service: bytes, *frames: bytes, who: str = "client") -> list[bytes]:
        """A call of one of the three, and its answer."""
        self.say(who, C02, CLIENT_REQUEST_02, service, *frames)
        (answer,) = self.take(who)
        assert answer[:3] == [C02, CLIENT_FINAL_02, service]
        return answer[3:]

    def store_request(self, service: bytes, *frames: bytes) -> bytes:
        """A request that is taken; its UUID."""
        status, uuid = self.ask_titanic(b"titanic.request", service, *frames)
        assert status == b"200"
        return uuid

    def worker(self, who: str, service: bytes = b"echo") -> None:
        """A worker is on the list."""
        self.say(who, W02, READY, service)

    def requests_of(self, who: str) -> list[tuple[bytes, list[bytes]]]:
        """The requests that a worker was given: addresses and bodies."""
        heard = [frames for frames in self.take(who) if frames[1] == REQUEST]
        return [(frames[2], frames[4:]) for frames in heard]

    def reply(self, who: str, address: bytes, *frames: bytes) -> None:
        """A worker's FINAL."""
        self.say(who, W02, FINAL_02, address, EMPTY, *frames)

    def leased(self) -> int:
        """How many leases there are."""
        leased: int = self.machine.tasks.leases.leased
        return leased


INTERVAL = 2.5
"""The broker's own default."""


class Worker:
    """A worker of one version, by the letter of its RFC."""

    def __init__(self, version: str, lead: tuple[bytes, ...], header: bytes, last: bytes, beat: bytes, bye: bytes):
        self.version = version
        self.lead, self.header, self.last, self.beat, self.bye = lead, header, last, beat, bye

    def __repr__(self) -> str:
        return self.version

    def frames(self, *rest: bytes) -> list[bytes]:
        return [*self.lead, self.header, *rest]

    def ready(self, broker: MajordomoBroker, who: str, service: bytes = b"echo") -> None:
        broker.say(who, *self.frames(READY, service))


OLD = Worker("0.1", (EMPTY,), W01, REPLY_01, HEARTBEAT_01, DISCONNECT_01)
NEW = Worker("0.2", (), W02, FINAL_02, HEARTBEAT_02, DISCONNECT_02)
DIALECT = Worker("dialect", (EMPTY,), W02, FINAL_02, HEARTBEAT_02, DISCONNECT_02)

every_version = pytest.mark.parametrize("version", [OLD, NEW, DIALECT], ids=repr)


def ask(broker: MajordomoBroker, id_: int = 1, who: str = "client", **options: object) -> None:
    broker.send(who, "REQUEST", {"service": "echo", "id": id_, **options}, b"hello")


def address(broker: MajordomoBroker, worker: Worker, who: str) -> bytes:
    """The client address of the one request that this worker was given."""
    (frames,) = broker.take(who)
    lead = len(worker.lead)
    assert frames[: lead + 2] == worker.frames(REQUEST)
    assert frames[lead + 3 :] == [EMPTY, b"hello"]
    return frames[lead + 2]
