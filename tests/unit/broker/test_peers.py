"""Brokers that know each other: joining by one address, signs of life, and a configuration that spreads.

Promise: CONF-3, CONF-7
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from scale0.broker.cluster import peers
from scale0.broker.core.protocol_handler import Act
from scale0.config import MAX_VERSION
from scale0.kernel.effects import Effects
from tests.fakes.broker import WALL
from tests.fakes.network import FakeNetwork, NetworkBroker, endpoint_of, network_of

FIRST = endpoint_of("a")
INTERVAL = 1.0
LIVENESS = 3


def three() -> tuple[FakeNetwork, list[NetworkBroker]]:
    """`a` may change the configuration; the others have its address, and nothing else."""
    network = network_of("a", "b", "c")
    return network, list(network.brokers.values())


def states(node: NetworkBroker) -> dict[str, str]:
    return {peer.identity: peer.shown for peer in node.machine.peers.by_name.values()}


def test_a_broker_with_one_address_learns_the_rest():
    _, nodes = three()
    for node in nodes:
        assert states(node) == {other.name: "active" for other in nodes if other is not node}
        assert node.machine.state.state == "active"
        assert node.rank == nodes[0].rank
    listed = {
        (broker.identity, broker.endpoints.peer)
        for group in nodes[2].machine.documents.document.group_config
        for broker in group.brokers
    }
    assert listed == {(node.name, endpoint_of(node.name)) for node in nodes}


def test_a_broker_that_is_joining_waits_for_whom_it_was_given():
    network = FakeNetwork()
    lonely = network.add("b", peers=(FIRST,))
    network.run(30)
    assert lonely.machine.state.state == "joining"
    network.add("a", config_service=True)
    network.run(3)
    assert lonely.machine.state.state == "active"
    assert [(event.before, event.after) for event in lonely.of_kind("broker.state_changed")] == [("joining", "active")]


def test_of_several_addresses_one_is_enough():
    network = FakeNetwork()
    network.add("a", config_service=True)
    late = network.add("b", peers=(endpoint_of("nobody"), FIRST))
    network.run(3)
    assert late.machine.state.state == "active"


def test_who_is_dead_is_noticed_in_time_and_never_before():
    network, (a, b, _) = three()
    b.kill()
    died = network.time
    while states(a)["b"] != "lost":
        network.run(0.05)
        assert network.time - died < INTERVAL * (LIVENESS + 1) + 0.25
    assert network.time - died >= INTERVAL * LIVENESS - INTERVAL
    (lost,) = a.of_kind("peer.lost")
    assert died - INTERVAL <= lost.last_received_wall - WALL <= died
    b.start()
    network.run(3)
    assert states(a)["b"] == states(b)["a"] == "active"


def test_who_slept_takes_nobody_for_dead():
    network, (a, b, c) = three()
    a.frozen = True
    network.run(30)
    assert states(b)["a"] == states(c)["a"] == "lost"
    a.frozen = False
    network.run(3)
    assert states(a) == {"b": "active", "c": "active"}
    assert a.of_kind("peer.lost") == []
    assert states(b)["a"] == states(c)["a"] == "active"


def test_a_cut_one_way_is_seen_by_whom_hears_nothing():
    network, (a, b, _) = three()
    network.cut(("b", "a"), both=False)
    network.run(10)
    assert states(a)["b"] == "lost"
    network.heal()
    network.run(3)
    assert states(a)["b"] == states(b)["a"] == "active"


def test_a_broker_that_was_disabled_says_so_and_is_silent():
    network, (a, b, _) = three()
    assert b.manage("disable").code == 200
    network.run(0.1)
    assert states(a)["b"] == "disabled"
    network.run(10)
    assert states(a)["b"] == "lost"
    assert b.manage("enable").code == 200
    network.run(5)
    assert states(a)["b"] == "active"
    assert states(b) == {"a": "active", "c": "active"}


def test_a_change_reaches_everybody_within_two_heartbeats():
    network, nodes = three()
    answer = nodes[0].manage("patch_config", set={"default_heartbeat_interval": 1.5})
    assert answer.code == 200
    network.run(2 * INTERVAL)
    assert {node.rank for node in nodes} == {(answer.body["version"], answer.body["hash"])}
    for node in nodes:
        assert node.rank in node.history()


def test_a_broker_without_config_service_changes_nothing():
    _, (_, b, _) = three()
    assert b.manage("patch_config", set={"default_heartbeat_interval": 2}).code == 403


def test_a_stale_broker_that_returns_downgrades_nobody():
    network, nodes = three()
    b = nodes[1]
    b.kill()
    for number in range(5):
        nodes[0].manage("patch_config", set={"default_heartbeat_interval": 1.0 + number / 10})
    network.run(10)
    newest = nodes[0].rank
    b.start()
    assert b.rank < newest
    network.run(3)
    assert {node.rank for node in nodes} == {newest}
    assert all(node.of_kind("config.conflict") == [] for node in nodes), "it is old, not another"


@pytest.mark.parametrize("changes", [(1, 1), (1, 3), (3, 1)], ids=str)
def test_changes_on_two_sides_of_a_cut_become_one_and_both_are_kept(changes: tuple[int, int]):
    network = FakeNetwork()
    nodes = [network.add("a", config_service=True)]
    nodes += [network.add(name, peers=(FIRST,), config_service=True) for name in "bcd"]
    network.run(6)
    halves = [("a", "b"), ("c", "d")]
    network.cut(*((one, other) for one in halves[0] for other in halves[1]))
    network.run(6)
    ranks = []
    for node, times in zip((nodes[0], nodes[2]), changes, strict=True):
        for number in range(times):
            name = f"{node.name}{number}"
            answer = node.manage("patch_config", set={f"services.{name}": {"name": name}})
            assert answer.code == 200
        ranks.append((answer.body["version"], answer.body["hash"]))
    network.run(6)
    assert len({node.rank for node in nodes}) == 2
    network.heal()
    network.run(6)
    assert {node.rank for node in nodes} == {max(ranks)}
    for half in halves:
        told = [node for node in nodes if node.name in half and node.of_kind("config.conflict")]
        assert told, f"nobody of {half} was told"
    for node in (nodes[0], nodes[2]):
        assert set(ranks) <= node.history(), f"{node.name} has lost one of the two"


def test_somebody_with_our_own_name_is_no_peer_of_ours():
    network = FakeNetwork()
    alone = network.add("a", config_service=True, peers=(endpoint_of("a"),))
    network.run(5)
    assert states(alone) == {}
    assert list(alone.machine.peers.rows(alone.now)) == []


def test_of_two_brokers_with_one_name_one_rests():
    network, (a, _, _) = three()
    network.add("other", identity="b", peers=(FIRST,))
    before = a.rank[0]
    network.run(600)
    assert 2 <= a.machine.state.counters["peers_replaced"] <= 25, "they take turns, a minute each"
    assert a.rank[0] - before <= 25, "the configuration is not rewritten with every heartbeat"
    assert states(a)["c"] == "active"


def test_a_broker_with_two_addresses_has_one_line():
    network = FakeNetwork()
    network.aliases["tcp://also-a:5"] = FIRST
    a = network.add("a", config_service=True)
    b = network.add("b", peers=(FIRST, "tcp://also-a:5"))
    network.run(3)
    for _ in range(300):
        network.run(1)
        assert states(a) == {"b": "active"}
        assert states(b) == {"a": "active"}
    assert a.machine.state.counters["peers_replaced"] <= 8
    assert a.of_kind("peer.lost") == b.of_kind("peer.lost") == []


def test_a_history_that_does_not_reach_back_is_no_conflict():
    network, (a, b, c) = three()
    c.kill()
    b.kill()
    for number in range(5):
        a.manage("patch_config", set={"default_heartbeat_interval": 1.0 + number / 10})
    d = network.add("d", peers=(FIRST,))
    network.run(5)
    a.kill()
    b.config = msgspec.structs.replace(b.config, peers=(endpoint_of("d"),))
    b.start()
    network.run(10)
    assert b.rank == d.rank
    assert b.of_kind("config.conflict") == d.of_kind("config.conflict") == []


def test_for_a_new_broker_the_one_that_was_lost_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(peers, "MAX_PEERS", 2)
    network, (a, b, c) = three()
    b.kill()
    network.run(10)
    c.kill()
    network.run(10)
    network.add("d", peers=(FIRST,))
    network.run(3)
    assert states(a) == {"c": "lost", "d": "active"}
    network.add("e", peers=(FIRST,))
    network.run(3)
    assert states(a) == {"d": "active", "e": "active"}
    network.add("f", peers=(FIRST,))
    network.run(3)
    assert states(a) == {"d": "active", "e": "active"}, "nobody who is alive has to go"


def counted(asked: list[str], act: Act, connection: Any, said: Any, bodies: Any, now: Any, effects: Any) -> None:
    """Do it, and note who wanted it."""
    asked.append(said.identity)
    act(connection, said, bodies, now, effects)


def test_many_tell_of_a_change_and_one_copy_is_pulled():
    network = FakeNetwork()
    nodes = [network.add("a", config_service=True)]
    nodes += [network.add(name, peers=(endpoint_of("a"),)) for name in "bcdefg"]
    network.run(8)
    asked: list[str] = []
    for node in nodes:
        for socket in ("peer", "dialed"):
            acts = node.machine.scale0._acts[socket]
            acts["CHECKCONFIG"] = partial(counted, asked, acts["CHECKCONFIG"])
    assert nodes[0].manage("patch_config", set={"heartbeat_liveness": 5}).code == 200
    network.run(0)
    assert {node.machine.state.liveness for node in nodes} == {5}
    assert len(asked) == len(nodes) - 1


def test_who_tells_of_a_change_and_never_gives_it_keeps_nobody_from_it():
    for seed in range(10):
        network = FakeNetwork(seed)
        nodes = [network.add("a", config_service=True)]
        nodes += [network.add(name, peers=(endpoint_of("a"),)) for name in "bc"]
        network.run(6)
        for socket in ("peer", "dialed"):
            nodes[2].machine.scale0._acts[socket]["CHECKCONFIG"] = lambda *_: None
        network.cut(("a", "b"))
        assert nodes[0].manage("patch_config", set={"heartbeat_liveness": 5}).code == 200
        network.run(2.5)  # `c` tells of it, and says nothing when it is asked
        assert nodes[1].rank != nodes[0].rank == nodes[2].rank
        network.heal()
        network.run(2.1)
        assert nodes[1].rank == nodes[0].rank


@pytest.mark.parametrize("version", [2**63 - 1, MAX_VERSION + 1, MAX_VERSION, 3_000_000], ids=str)
def test_no_other_broker_uses_up_the_versions_of_the_network(version: int):
    network = network_of("a", "b")
    a, b = network["a"], network["b"]
    before = a.rank
    hold_version(b, version)
    network.run(3)
    assert a.rank == before
    assert a.manage("patch_config", set={"heartbeat_liveness": 5}).code == 200
    hold_version(b, before[0] + 500_000)
    network.run(3)
    assert a.rank == b.rank, "an advance that is possible is accepted"


def hold_version(broker: NetworkBroker, version: int) -> None:
    """The broker has the same document with another version, by whatever defect."""
    documents = broker.machine.documents
    document = msgspec.structs.replace(documents.document, version=version, parent="0" * 64)
    documents.change(document, "a defect", [], broker.now, Effects())


def test_a_document_with_the_last_version_is_not_changed_and_ends_no_broker():
    broker = FakeNetwork().add("a", config_service=True)
    documents = broker.machine.documents
    document = msgspec.structs.replace(documents.document, version=MAX_VERSION)
    effects = Effects()
    documents.change(document, "an older version", [], broker.now, effects)
    answer = broker.manage("patch_config", set={"heartbeat_liveness": 5})
    assert (answer.code, documents.version) == (400, MAX_VERSION)
    assert str(MAX_VERSION) in str(answer.body)
