"""Brokers with keys under faults (kills, cuts, repeated messages): in the end every broker admits what the files say.

The brokers are real machines on simulated wires; files, their watch and the handshake are a few lines here.

Promise: CURVE-15, CURVE-16, CURVE-17
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from scale0.broker.cluster.key_replication import KeyReplication, places_of
from scale0.broker.cluster.replicated_keys import AdmittedKey, KeySource, admitted_keys
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.kernel.effects import Effects
from scale0.transport.core.sockets import PEER, PEER_SOCKETS
from tests.fakes.examples import seeds
from tests.fakes.network import FakeNetwork, NetworkBroker, endpoint_of
from tests.unit.broker.test_key_replication import public

NAMES = ("a", "b", "c", "d")
LOOK_SECONDS = 0.5
TOLD_SECONDS = 2.0
"""Two heartbeats: how soon a change is known by whoever can be reached."""
AGAIN_SECONDS = 70.0
"""After this long everything was told once more, whatever got lost."""


class KeyedBroker(NetworkBroker):
    """A broker with files of keys."""

    def __init__(self, network: FakeNetwork, name: str, **config: Any) -> None:
        self.files: set[Key] = set()
        self.disk = b"{}"
        self.table = KeyTable()
        super().__init__(network, name, keys=Keys(self._user, self.table), **config)

    @property
    def share(self) -> KeyReplication:
        assert self.machine.key_replication is not None
        return self.machine.key_replication

    def _other(self, socket: str, routing_id: bytes) -> str:
        if socket == PEER:
            return self.network.dialers[int(routing_id)][0]
        return next(name for name in NAMES if endpoint_of(name) == routing_id.decode())

    def _user(self, socket: str, routing_id: bytes) -> str:
        return f"peer/{self._other(socket, routing_id)}" if socket in PEER_SOCKETS else "frontend/admin"

    def start(self, store: Any = None) -> None:
        super().start(store)
        self.share.load(msgspec.json.decode(self.disk, type=dict[str, KeySource]))
        self.look()

    def stored(self) -> list[AdmittedKey]:
        return admitted_keys(sorted(self.files), self.share.sources, self.name, public(self.name))

    def look(self) -> None:
        """As `broker.edge.curve` does."""
        newer, effects = KeyTable(one.key for one in self.stored()), Effects()
        lost, self.table = self.table.lost_users(newer), newer
        assert self.keys is not None
        self.keys.know(newer)
        self.share.set_own_keys(places_of(self.files))
        self.share.keep(newer.brokers.values())
        self.machine.lose_users(lost, self.now, effects)
        self.host.finish(effects)
        self.disk = msgspec.json.encode(self.share.sources)

    def send_frames(self, who: str, *messages: list[bytes], socket: str = "") -> None:
        """No handshake, no message: either end must have the other's key."""
        if socket in PEER_SOCKETS:
            other = self.network[self._other(socket, who.encode())]
            assert isinstance(other, KeyedBroker)
            if not (self.lets_in("peer", other.name) and other.lets_in("peer", self.name)):
                return
        super().send_frames(who, *messages, socket=socket)

    def lets_in(self, role: str, name: str) -> bool:
        return self.table.find(role, public(name)) is not None

    def clients(self) -> frozenset[str]:
        return self.table.names["backend"]


class KeyedNetwork(FakeNetwork):
    """Each one joined the one before it, by token: these two have each other's key, and nobody else's."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.keyed: dict[str, KeyedBroker] = {}
        for at, name in enumerate(NAMES):
            peers = (endpoint_of(NAMES[at - 1]),) if at else ()
            own = {"identity": name, "group": "east", "peers": peers, "config_service": not at, "curve": True}
            node = self.brokers[name] = self.keyed[name] = KeyedBroker(self, name, **own)
            if at:
                before = self.keyed[NAMES[at - 1]]
                before.files.add(Key(public(name), PEER, name))
                node.files.add(Key(public(before.name), PEER, before.name))
        self.wait(10)

    def wait(self, seconds: float) -> None:
        """Time goes by, and files are looked at."""
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.run(LOOK_SECONDS)
            for node in self.keyed.values():
                if node.up:
                    node.look()

    def up(self) -> list[KeyedBroker]:
        return [node for node in self.keyed.values() if node.up]

    def let(self, at: str, name: str) -> None:
        self.keyed[at].files.add(Key(public(name), "backend", name))

    def revoke(self, at: str, name: str, role: str = "backend") -> None:
        self.keyed[at].files.discard(Key(public(name), role, name))


@pytest.fixture
def network() -> KeyedNetwork:
    return KeyedNetwork()


def test_all_learn_of_all_brokers_and_of_each_key_within_two_heartbeats(network: KeyedNetwork) -> None:
    for node in network.up():
        assert node.table.names["peer"] == set(NAMES) - {node.name}
    network.let("d", "w")
    network.wait(TOLD_SECONDS)
    assert all(node.clients() == {"w"} for node in network.up())
    network.revoke("d", "w")
    network.wait(TOLD_SECONDS)
    assert not any(node.clients() for node in network.up())


def test_a_broker_that_slept_disabled_hears_of_what_is_gone_when_it_serves_again(network: KeyedNetwork) -> None:
    network.let("a", "w")
    network.wait(TOLD_SECONDS)
    assert network.keyed["b"].manage("disable").code == 200
    network.revoke("a", "w")
    network.wait(1)
    assert network.keyed["b"].manage("enable").code == 200
    network.wait(TOLD_SECONDS)
    assert not network.keyed["b"].clients()


def test_a_revocation_finds_its_way_around_a_cut(network: KeyedNetwork) -> None:
    network.let("a", "w")
    network.wait(TOLD_SECONDS)
    network.cut(("a", "d"))
    network.revoke("a", "w")
    network.wait(TOLD_SECONDS)
    assert not network.keyed["d"].clients()


def test_a_broker_that_is_revoked_takes_with_it_whom_it_brought(network: KeyedNetwork) -> None:
    network.let("d", "w")
    network.wait(TOLD_SECONDS)
    network.revoke("b", "c", "peer")
    network.wait(TOLD_SECONDS)
    for name in ("a", "b"):
        assert network.keyed[name].table.names["peer"] == {"a", "b"} - {name}
        assert not network.keyed[name].clients()


@pytest.mark.parametrize("seed", seeds(6))
def test_whatever_fails_no_key_comes_back_and_all_agree_in_the_end(seed: int) -> None:
    network, rng = KeyedNetwork(seed), random.Random(seed)
    network.repeats = 0.1
    for _ in range(25):
        at, other, client = rng.choice(NAMES), rng.choice(NAMES), f"{rng.choice('wx')}-"
        match rng.choice(("let", "let", "revoke", "revoke", "kill", "start", "cut", "heal")):
            case "let":
                network.let(at, client + at)
            case "revoke":
                network.revoke(at, client + at)
            case "kill" if network.keyed[at].up and len(network.up()) > 2:
                network.keyed[at].kill()
            case "start" if not network.keyed[at].up:
                network.keyed[at].start()
            case "cut" if at != other:
                network.cut((at, other))
            case "heal":
                network.heal()
        network.wait(rng.choice((0.5, 1, 3, 6)))
    check_the_dead_speak_through_none(network, rng)
    network.repair()
    network.wait(AGAIN_SECONDS)
    stored = {key.name for node in network.keyed.values() for key in node.files if key.role == "backend"}
    assert {node.name: node.clients() for node in network.up()} == {name: frozenset(stored) for name in NAMES}


def check_the_dead_speak_through_none(network: KeyedNetwork, rng: random.Random) -> None:
    """A key goes while one broker is away, and dies with the broker that stored it: who is left knows, and tells."""
    owner, away = rng.sample(NAMES, 2)
    network.repair()
    network.let(owner, "last")
    network.wait(AGAIN_SECONDS)
    assert all("last" in node.clients() for node in network.up())
    network.keyed[away].kill()
    network.revoke(owner, "last")
    network.wait(TOLD_SECONDS)
    network.keyed[owner].kill()
    network.keyed[away].start()
    network.wait(10)
    left = [node for node in network.up() if any(other is not node and knows(node, other) for other in network.up())]
    assert not any("last" in node.clients() for node in left)


def knows(one: KeyedBroker, other: KeyedBroker) -> bool:
    peer = one.machine.peers.by_name.get(other.name)
    return peer is not None and not peer.lost
