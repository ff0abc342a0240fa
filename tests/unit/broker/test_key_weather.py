"""Brokers with keys in bad weather: kills, cuts and echoes, and in the end everybody lets in what the files say.

The brokers are real machines on simulated wires; files, their watch and the handshake are a few lines here.

Promise: CURVE-15, CURVE-16, CURVE-17
"""

from __future__ import annotations

import random

import msgspec
import pytest

from scale0.broker.cluster.key_replication import KeyReplication, places_of
from scale0.broker.cluster.replicated_keys import AdmittedKey, KeySource, let_in
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.config import BrokerConfig
from scale0.kernel.effects import Effects
from scale0.transport.core.sockets import PEER, PEER_SOCKETS
from tests.fakes.examples import seeds
from tests.unit.broker.network import Network, Node, place_of

NAMES = ("a", "b", "c", "d")
LOOK_SECONDS = 0.5
TOLD_SECONDS = 2.0
"""Two heartbeats: how soon a change is known by whoever can be reached."""
AGAIN_SECONDS = 70.0
"""After this long everything was told once more, whatever got lost."""


def public(name: str) -> str:
    return (name.replace("-", "") + "x" * 40)[:40]


class KeyedNode(Node):
    """A broker with files of keys."""

    def __init__(self, network: Network, name: str, config: BrokerConfig) -> None:
        super().__init__(network, name, config)
        self.files: set[Key] = set()
        self.disk = b"{}"
        self.table = KeyTable()
        self.keys = Keys(self._user, self.table)

    @property
    def share(self) -> KeyReplication:
        assert self.broker.key_share is not None
        return self.broker.key_share

    def _other(self, door: str, routing_id: bytes) -> str:
        if door == PEER:
            return self.network._ends[int(routing_id)][0]
        return next(name for name in NAMES if place_of(name) == routing_id.decode())

    def _user(self, door: str, routing_id: bytes) -> str:
        return f"peer/{self._other(door, routing_id)}" if door in PEER_SOCKETS else "frontend/admin"

    def start(self) -> None:
        super().start()
        self.share.load(msgspec.json.decode(self.disk, type=dict[str, KeySource]))
        self.look()

    def stored(self) -> list[AdmittedKey]:
        return let_in(sorted(self.files), self.share.tellers, self.name, public(self.name))

    def look(self) -> None:
        """As `broker.edge.curve` does."""
        newer, effects = KeyTable(one.key for one in self.stored()), Effects()
        lost, self.table = self.table.lost_users(newer), newer
        assert self.keys is not None
        self.keys.know(newer)
        self.share.know(places_of(self.files))
        self.share.keep(newer.brokers.values())
        self.broker.lose_users(lost, self.now, effects)
        self._host.finish(effects)
        self.disk = msgspec.json.encode(self.share.tellers)

    def receive(self, door: str, routing_id: bytes, frames: list[bytes]) -> None:
        """No handshake, no message: either end must have the other's key."""
        if door in PEER_SOCKETS:
            other = self.network.nodes[self._other(door, routing_id)]
            assert isinstance(other, KeyedNode)
            if not (self.lets_in("peer", other.name) and other.lets_in("peer", self.name)):
                return
        super().receive(door, routing_id, frames)

    def lets_in(self, role: str, name: str) -> bool:
        return self.table.find(role, public(name)) is not None

    def clients(self) -> frozenset[str]:
        return self.table.names["backend"]


class Town(Network):
    """Each one joined the one before it, by token: these two have each other's key, and nobody else's."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.keyed: dict[str, KeyedNode] = {}
        for at, name in enumerate(NAMES):
            peers = (place_of(NAMES[at - 1]),) if at else ()
            own = BrokerConfig(identity=name, group="east", peers=peers, config_service=not at, curve=True)
            node = self.nodes[name] = self.keyed[name] = KeyedNode(self, name, own)
            if at:
                before = self.keyed[NAMES[at - 1]]
                before.files.add(Key(public(name), PEER, name))
                node.files.add(Key(public(before.name), PEER, before.name))
        for node in self.keyed.values():
            node.start()
        self.wait(10)

    def wait(self, seconds: float) -> None:
        """Time goes by, and files are looked at."""
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.run(LOOK_SECONDS)
            for node in self.keyed.values():
                if node.up:
                    node.look()

    def up(self) -> list[KeyedNode]:
        return [node for node in self.keyed.values() if node.up]

    def let(self, at: str, name: str) -> None:
        self.keyed[at].files.add(Key(public(name), "backend", name))

    def revoke(self, at: str, name: str, role: str = "backend") -> None:
        self.keyed[at].files.discard(Key(public(name), role, name))


def test_all_learn_of_all_brokers_and_of_each_key_within_two_heartbeats() -> None:
    town = Town()
    for node in town.up():
        assert node.table.names["peer"] == set(NAMES) - {node.name}
    town.let("d", "w")
    town.wait(TOLD_SECONDS)
    assert all(node.clients() == {"w"} for node in town.up())
    town.revoke("d", "w")
    town.wait(TOLD_SECONDS)
    assert not any(node.clients() for node in town.up())


def test_a_broker_that_slept_disabled_hears_of_what_is_gone_when_it_serves_again() -> None:
    town = Town()
    town.let("a", "w")
    town.wait(TOLD_SECONDS)
    assert town.keyed["b"].manage("disable")[0] == 200
    town.revoke("a", "w")
    town.wait(1)
    assert town.keyed["b"].manage("enable")[0] == 200
    town.wait(TOLD_SECONDS)
    assert not town.keyed["b"].clients()


def test_a_revocation_finds_its_way_around_a_cut() -> None:
    town = Town()
    town.let("a", "w")
    town.wait(TOLD_SECONDS)
    town.cut(("a", "d"))
    town.revoke("a", "w")
    town.wait(TOLD_SECONDS)
    assert not town.keyed["d"].clients()


def test_a_broker_that_is_revoked_takes_with_it_whom_it_brought() -> None:
    town = Town()
    town.let("d", "w")
    town.wait(TOLD_SECONDS)
    town.revoke("b", "c", "peer")
    town.wait(TOLD_SECONDS)
    for name in ("a", "b"):
        assert town.keyed[name].table.names["peer"] == {"a", "b"} - {name}
        assert not town.keyed[name].clients()


@pytest.mark.parametrize("seed", seeds(6))
def test_in_any_weather_no_key_comes_back_and_all_agree_in_the_end(seed: int) -> None:
    town, dice = Town(seed), random.Random(seed)
    town.echo = 0.1
    for _ in range(25):
        at, other, client = dice.choice(NAMES), dice.choice(NAMES), f"{dice.choice('wx')}-"
        match dice.choice(("let", "let", "revoke", "revoke", "kill", "start", "cut", "heal")):
            case "let":
                town.let(at, client + at)
            case "revoke":
                town.revoke(at, client + at)
            case "kill" if town.keyed[at].up and len(town.up()) > 2:
                town.keyed[at].kill()
            case "start" if not town.keyed[at].up:
                town.keyed[at].start()
            case "cut" if at != other:
                town.cut((at, other))
            case "heal":
                town.heal()
        town.wait(dice.choice((0.5, 1, 3, 6)))
    check_the_dead_speak_through_none(town, dice)
    town.heal()
    for node in town.keyed.values():
        if not node.up:
            node.start()
    town.wait(AGAIN_SECONDS)
    stored = {key.name for node in town.keyed.values() for key in node.files if key.role == "backend"}
    assert {node.name: node.clients() for node in town.up()} == {name: frozenset(stored) for name in NAMES}


def check_the_dead_speak_through_none(town: Town, dice: random.Random) -> None:
    """A key goes while one broker is away, and dies with the broker that stored it: who is left knows, and tells."""
    owner, away = dice.sample(NAMES, 2)
    town.heal()
    for node in town.keyed.values():
        if not node.up:
            node.start()
    town.let(owner, "last")
    town.wait(AGAIN_SECONDS)
    assert all("last" in node.clients() for node in town.up())
    town.keyed[away].kill()
    town.revoke(owner, "last")
    town.wait(TOLD_SECONDS)
    town.keyed[owner].kill()
    town.keyed[away].start()
    town.wait(10)
    left = [node for node in town.up() if any(other is not node and knows(node, other) for other in town.up())]
    assert not any("last" in node.clients() for node in left)


def knows(one: KeyedNode, other: KeyedNode) -> bool:
    peer = one.broker.peers.by_name.get(other.name)
    return peer is not None and not peer.lost
