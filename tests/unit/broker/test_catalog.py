"""Services far away: who knows of them, and how a request comes there.

Promise: SCALE-4
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.broker.cluster.catalog import Catalog, OfferedServices
from scale0.broker.cluster.peer_catalog import ClientRow, PeerCatalog
from scale0.broker.cluster.topology import are_near, neighbours_of
from scale0.broker.core.state import BrokerState
from scale0.config import BrokerConfig, BrokerEntry, Endpoints, GroupConfig, NetworkDocument
from tests.fakes.network import FakeNetwork, endpoint_of
from tests.unit.broker.test_forwarding import received

SOCKETS = ("frontend", "backend", "config_pub", "task_pub", "peer")


def document(groups: int, each: int, fallback: int = 1) -> NetworkDocument:
    """Groups g0, g1, …, each with the next ones as its fallback, of brokers such as g0x0."""
    return NetworkDocument(
        network="scale0",
        group_config=tuple(
            GroupConfig(
                name=f"g{number}",
                fallback_groups=tuple(f"g{(number + effects) % groups}" for effects in range(1, fallback + 1)),
                brokers=tuple(
                    BrokerEntry(
                        identity=(name := f"g{number}x{place}"),
                        services="all",
                        endpoints=Endpoints(**{socket: endpoint_of(name, socket) for socket in SOCKETS}),
                    )
                    for place in range(each)
                ),
            )
            for number in range(groups)
        ),
    )


def land(groups: int, each: int, fallback: int = 1, **common: Any) -> FakeNetwork:
    """All of them started with that document."""
    network, listed = FakeNetwork(), document(groups, each, fallback).group_config
    for group in listed:
        for broker in group.brokers:
            network.add(broker.identity, group=group.name, group_config=listed, state="active", **common)
    network.run(4)
    return network


@pytest.mark.parametrize(("groups", "each", "fallback"), [(2, 1, 0), (3, 2, 0), (20, 10, 1), (33, 1, 0), (40, 3, 2)])
def test_from_every_group_there_is_a_way_to_every_other(groups: int, each: int, fallback: int):
    made = document(groups, each, fallback)
    ways: dict[str, set[str]] = {}
    for group in made.group_config:
        for broker in group.brokers:
            for other in neighbours_of(made, group.name, broker.identity):
                ways.setdefault(broker.identity, set()).add(other.identity)
                ways.setdefault(other.identity, set()).add(broker.identity)
    reached, border, steps = {"g0x0"}, {"g0x0"}, 0
    while border:
        border = {other for one in border for other in ways[one]} - reached
        reached |= border
        steps += bool(border)
    assert len(reached) == groups * each
    assert steps <= (8 if each > 1 else groups // 2 + 1)
    # Its group, its fallback groups, those whose fallback it is, and across the circle both ways.
    assert max(len(known - {name}) for name, known in ways.items()) <= each * (1 + 2 * fallback) + 8


def test_near_are_the_own_group_its_fallbacks_and_whose_fallback_it_is():
    made = document(5, 1)
    assert [are_near(made, "g1", other) for other in ("g0", "g1", "g2", "g3", "g4")] == [True, True, True, False, False]
    assert are_near(made, "g1", "unheard-of")


def test_what_is_offered_far_away_is_known_and_reached():
    network = land(9, 2)
    backend = network["g4x1"].worker("paint")
    network.run(3)
    views = network["g0x0"].machine.management._views
    assert {row["service"]: row["where"] for row in views.services()["items"]} == {"paint": ["g4x1"]}
    assert "g4x1" not in network["g0x0"].machine.peers.by_name
    caller = network["g0x0"].client("frontend")
    caller.request("paint", b"red", timeout=10)
    network.run(4)
    backend.answer()
    assert received(caller) == [("REPLY", [b"done"])]
    caller.request("paint", b"blue", timeout=10)
    backend.answer()
    assert received(caller) == [("REPLY", [b"done"])]


def test_those_far_away_hear_of_kinds_and_not_of_clients():
    network = land(8, 1, peers=())
    network["g0x0"].machine.peers.seek("g2x0", float("inf"))
    for _ in range(5):
        network["g0x0"].worker("paint", slots=2)
    network.run(3)
    tables = {
        name: node.machine.peers.by_name["g0x0"].table
        for name, node in network.brokers.items()
        if "g0x0" in node.machine.peers.by_name
    }
    rows = {name: (len(table.rows), table.offered["paint"].slots) for name, table in tables.items()}
    assert rows == {"g1x0": (5, 10), "g2x0": (1, 10), "g7x0": (5, 10)}


def test_brokers_near_and_far_hear_of_the_slots_of_each_service():
    network = land(8, 1, peers=())
    network["g0x0"].machine.peers.seek("g2x0", float("inf"))
    for _ in range(2):
        network["g0x0"].worker("paint", "print", slots=7, service_slots=[2, 5])
    network.run(3)
    for name in ("g1x0", "g2x0"):
        offered = network[name].machine.peers.by_name["g0x0"].table.offered
        assert (offered["paint"].slots, offered["print"].slots) == (4, 10), name


def test_a_row_without_numbers_for_each_service_counts_its_totals_for_all():
    table = PeerCatalog()
    old = ClientRow(identity="old", role="backend", version=1, services=("a", "b"), slots=7, busy=3)
    new = ClientRow(
        identity="new",
        role="backend",
        version=2,
        services=("a", "b"),
        slots=7,
        service_slots=(2, 5),
        service_busy=(1, 0),
    )
    table.merge([old, new])
    assert table.offered == {"a": (2, 9, 4), "b": (2, 12, 3)}
    table.keep_only([old], 0)
    assert table.offered == {"a": (1, 7, 3), "b": (1, 7, 3)}


def test_who_dies_offers_nothing_anywhere_until_it_is_back():
    network = land(9, 2)
    network["g4x1"].worker("paint")
    network.run(3)
    directory = network["g0x0"].machine._cluster.forwarding._catalog
    assert list(directory.where("paint")) == ["g4x1"]
    network["g4x1"].kill()
    network.run(8)
    assert list(directory.where("paint")) == []
    network["g4x1"].start()
    network.run(3)
    network["g4x1"].worker("paint")
    network.run(4)
    assert list(directory.where("paint")) == ["g4x1"]


def test_nothing_is_said_of_it_while_nothing_changes():
    network = land(9, 2)
    network["g4x1"].worker("paint")
    network.run(5)
    for node in network.brokers.values():
        assert node.machine._cluster.forwarding._catalog.changes() == []


def test_what_was_missed_of_it_is_asked_for():
    network = land(9, 1)
    network.cut(("g4x0", "g5x0"), ("g4x0", "g3x0"), both=False)
    network["g4x0"].worker("paint")
    network.run(1)
    network.heal()
    network["g4x0"].worker("glue")
    network.run(3)
    for node in network.brokers.values():
        assert set(node.machine._cluster.forwarding._catalog.services) == {"paint", "glue"}


def test_groups_that_fall_back_to_nobody_hear_of_it_across_the_circle():
    network = land(9, 1, fallback=0)
    backend = network["g4x0"].worker("paint")
    network.run(5)
    for node in network.brokers.values():
        assert list(node.machine._cluster.forwarding._catalog.where("paint")) == ["g4x0"]
    caller = network["g0x0"].client("frontend")
    caller.request("paint", timeout=10)
    network.run(4)
    backend.answer()
    assert received(caller) == [("REPLY", [b"done"])]


@pytest.mark.parametrize("share", ["push", "pull"])
def test_it_comes_to_those_who_pull_as_well(share: str):
    network = land(4, 1, heartbeat_share=share)
    network["g2x0"].worker("paint")
    network.run(20)
    network["g2x0"].worker("glue")
    network.run(20)
    for node in network.brokers.values():
        assert set(node.machine._cluster.forwarding._catalog.services) == {"paint", "glue"}


class Nobody:
    """No peers."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}


def test_order_and_repetition_do_not_matter():
    dice = random.Random(3)
    said = [
        OfferedServices(broker=f"b{dice.randrange(4)}", version=n, services=(f"s{dice.randrange(3)}",))
        for n in range(40)
    ]
    found = []
    for _ in range(10):
        state = BrokerState("me", BrokerConfig(identity="me"), 1, dice, "active")
        directory = Catalog(state, Nobody())  # type: ignore[arg-type]
        for entry in dice.sample(said * 2, 80):
            directory.merge([entry], "someone")
        found.append((directory.entries, directory._where))
    assert all(one == found[0] for one in found)


def test_who_is_said_to_be_gone_says_that_it_is_not():
    state = BrokerState("me", BrokerConfig(identity="me"), 1, random.Random(1), "active")
    directory = Catalog(state, Nobody())  # type: ignore[arg-type]
    directory.offer(["paint"])
    directory.changes()
    directory.merge([OfferedServices(broker="me", version=1_000)], "someone")
    assert [entry for entry, _ in directory.changes()] == [
        OfferedServices(broker="me", version=1_001, services=("paint",))
    ]
