"""A broker without sockets: the real machines, a clock that a test moves, and what would have been sent.

Lives here: turns, connections and time for unit tests. Never here: a decision of the broker's. Invariant: everything
that a turn says is packed as the runner would pack it, so that what cannot be sent fails here too.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from scale0.broker.admin.access import digest_of
from scale0.broker.core.broker import Broker
from scale0.broker.core.keys import Keys
from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import BrokerConfig, Endpoints
from scale0.history.events.journal import Journal
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.machine import Sent
from scale0.storage.memory.store import MemoryStore
from tests.fakes.turns import InstantHost

MAGIC = b"SCALE0/1"
TOKEN = "s0_test"
WALL = 1_900_000_000.0

Told = tuple[str, dict[str, Any], list[bytes]]


class World:
    """One broker and its clock."""

    def __init__(self, keys: Keys | None = None, **config: Any) -> None:
        """`keys`: as with CURVE."""
        self._host = InstantHost(lambda: self.now, self._send)
        self.events = self._host.events
        store = MemoryStore()
        opened = store.open()
        made = BrokerConfig(identity="broker-1", **config)
        self.broker: Broker = compose_broker(made, Endpoints(), opened, 1_000, random.Random(7), digest_of(TOKEN), keys)
        self.mono = 100.0
        self.wall = WALL
        self.told: dict[bytes, list[Told]] = {}
        self.promised: list[tuple[bytes, str]] = []
        """Who was told what only after a commit."""
        self._host.begin(self.broker, store, Journal("broker-1", 1_000, 1, 0))
        effects = Effects()
        start_broker(self.broker, opened, self.now, effects)
        self._host.finish(effects)

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    def say(
        self, who: str, command: str, options: dict[str, Any] | None = None, *bodies: bytes, door: str = ""
    ) -> list[Told]:
        """One message from a client whose name begins with its socket's; what it hears at once."""
        return self.frames(who, [MAGIC, command.encode(), msgspec.json.encode(options or {}), *bodies], door)

    def frames(self, who: str, frames: list[bytes], door: str = "") -> list[Told]:
        effects = Effects()
        name = who.encode()
        self.broker.receive(door or who.partition("-")[0], name, list(frames), self.now, effects)
        self._host.finish(effects)
        return self.hear(who)

    def hear(self, who: str) -> list[Told]:
        """What this client was told since it last listened."""
        return self.told.pop(who.encode(), [])

    def ready(self, who: str, *services: str, **options: Any) -> None:
        """CHECKCONFIG and READY."""
        checked = self.say(who, "CHECKCONFIG", {"identity": options.pop("identity", who)})
        version = checked[0][1]["config_version"]
        said = {"services": list(services), "config_version": version, "time": self.wall, **options}
        told = self.say(who, "READY", said)
        assert told[0][0] == "READYOK", told
        self.told.setdefault(who.encode(), []).extend(told[1:])

    def pass_time(self, seconds: float, wall: float | None = None) -> None:
        """Let time pass, with a turn at each deadline, as the runner takes them."""
        end = self.mono + seconds
        while (due := self.broker.deadline()) is not None and due <= end:
            self._move(max(due, self.mono))
            self.turn()
        self._move(end)
        self.turn()

    def sleep(self, seconds: float) -> None:
        """The machine stands still: no turn until it is over."""
        self._move(self.mono + seconds)

    def turn(self) -> None:
        self._host.finish(Effects())

    def manage(self, command: str, **arguments: Any) -> Told:
        said = {"command": command, "id": "m", "auth_token": TOKEN, **arguments}
        return self.say("frontend-admin", "MANAGEMENTREQ", said)[-1]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def _move(self, mono: float) -> None:
        self.wall += mono - self.mono
        self.mono = mono

    def _send(self, peer: Any, frames: list[bytes]) -> Sent:
        for command, options, bodies in unpacked(frames[1:] if frames[0] == b"" else frames):
            self.told.setdefault(peer.routing_id, []).append((command, options, bodies))
            if self._host.releasing:
                self.promised.append((peer.routing_id, command))
        return "sent"


def unpacked(frames: list[bytes]) -> list[Told]:
    """The messages in these frames."""
    if frames[1] == b"BATCH":
        return [(command, options, bodies) for command, options, *bodies in msgspec.msgpack.decode(frames[3])]
    return [(frames[1].decode(), msgspec.json.decode(frames[2] or b"{}"), frames[3:])]
