"""NEEDBROKER: is a broker, or its whole group, really gone, and who else serves its clients? (PROTOCOL 2.1)

Promise: NEGO-4
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from scale0.transport.core.address_book import AddressBook, KnownBroker, KnownGroup
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.fakes.network import FakeNetwork, NetworkBroker, endpoint_of, two_groups

NOTHING: dict[str, dict[str, Any]] = {name: {"services": ()} for name in "cwx"}


@pytest.fixture
def network() -> FakeNetwork:
    """`w` and `x` are in the west."""
    return two_groups(fallback="wx")


def need(
    node: NetworkBroker, preferred: str, identity: str = "me", services: tuple[str, ...] = ()
) -> dict[str, Any] | int:
    """Where it is sent; or the code of the refusal."""
    said = {"identity": identity, "services": list(services), "preferred_broker": preferred}
    ((command, heard, _),) = node.ask_once(BACKEND, ("NEEDBROKER", said))
    return int(heard["code"]) if command == "DISCONNECTERROR" else heard


def sent_to(node: NetworkBroker, preferred: str, identity: str = "me", services: tuple[str, ...] = ()) -> Any:
    found = need(node, preferred, identity, services)
    return found if isinstance(found, int) else found["broker"]


def test_a_broker_that_is_heard_is_named_again_once(network):
    told = need(network["b"], "a")
    assert isinstance(told, dict)
    assert told["broker"] == "a"
    assert told["endpoints"]["backend"] == endpoint_of("a", "backend")
    assert 0 <= told["after"] <= 2
    assert sent_to(network["b"], "a") != "a", "who asks again is believed"
    assert sent_to(network["b"], "a", "somebody else") == "a"
    network.run(31)
    assert sent_to(network["b"], "a") == "a"


def test_a_broker_that_is_gone_is_not_named(network):
    network["a"].kill()
    network.run(1.6)
    for number in range(20):
        assert sent_to(network["b"], "a", f"client-{number}") in ("b", "c")


@pytest.mark.parametrize("command", ["drain", "disable"])
def test_nobody_is_sent_to_a_broker_that_serves_no_more(network: FakeNetwork, command: str):
    assert network["c"].manage(command).code == 200
    network.run(1.5)
    assert {sent_to(network["b"], "gone", f"client-{number}") for number in range(20)} == {"a", "b"}


def test_those_who_ask_at_once_are_spread(network):
    found = Counter(sent_to(network["b"], "gone", f"client-{number}") for number in range(300))
    assert set(found) == {"a", "b", "c"}
    # It knows its own load, and what it sent elsewhere since their last heartbeat.
    assert max(found["a"], found["c"]) - min(found["a"], found["c"]) <= 1


def test_the_fallback_group_is_asked_when_nobody_of_the_own_is_left(network):
    for name in "ac":
        network[name].kill()
    network.run(6)
    assert sent_to(network["b"], "a") == "b"
    assert network["b"].manage("drain").code == 200
    assert sent_to(network["b"], "a", "other") in ("w", "x")
    for name in "wx":
        network[name].kill()
    network.run(6)
    assert need(network["b"], "a", "third") == 503


def test_services_decide():
    network = two_groups(
        fallback="wx",
        of={"a": {"services": ("paint",)}, "b": {"services": ("paint", "glue")}, "c": {"services": ("saw",)}},
    )
    assert sent_to(network["a"], "gone", services=("glue",)) == "b"
    assert sent_to(network["a"], "gone", services=("saw",)) == "c"
    assert sent_to(network["a"], "gone", services=("saw", "glue")) in ("w", "x"), "they serve all"


def test_a_backend_with_what_another_serves_is_sent_there():
    network = two_groups(fallback="wx", of={"a": {"services": ("paint",)}, "b": {"services": ("glue",)}, **NOTHING})
    ready = {"services": ["glue"], "config_version": network["a"].rank[0]}
    check = {"identity": "w1", "services": ["glue"]}
    heard = {
        one.command: one.options for one in network["a"].ask_once(BACKEND, ("CHECKCONFIG", check), ("READY", ready))
    }
    assert heard["CHANGEBROKER"]["broker"] == "b"
    ready["services"] = ["nobody.serves.this"]
    heard = {
        one.command: one.options
        for one in network["a"].ask_once(BACKEND, ("CHECKCONFIG", {"identity": "w2"}), ("READY", ready))
    }
    assert heard["DISCONNECTERROR"]["code"] == 403


def test_a_frontend_may_ask_too(network):
    ((command, said, _),) = network["b"].ask_once(
        FRONTEND, ("NEEDBROKER", {"identity": "f", "preferred_broker": "gone"})
    )
    assert command == "CHANGEBROKER"
    assert said["endpoints"]["frontend"] == endpoint_of(said["broker"], "frontend")


def group(name: str, size: int) -> KnownGroup:
    brokers = [f"{name}{number}" for number in range(size)]
    return KnownGroup(name=name, brokers=[KnownBroker(one, {BACKEND: endpoint_of(one, BACKEND)}) for one in brokers])


def test_after_home_and_one_of_its_group_one_of_each_fallback_group_is_tried():
    for seed in range(20):
        book = AddressBook(BACKEND, [endpoint_of("east0", BACKEND)], random.Random(seed))
        book.update([group("east", 5), group("west", 3), group("north", 2)], "east0")
        order = [book.current]
        while not book.next_endpoint():
            order.append(book.current)
        names = [place.removeprefix("tcp://")[:-2].rstrip("0123456789:") for place in order]
        assert order[0] == endpoint_of("east0", BACKEND)
        assert names[:4] == ["east", "east", "west", "north"]
        assert sorted(names[4:]) == ["east"] * 3 + ["north"] + ["west"] * 2
        assert len(set(order)) == 10


def test_a_broker_of_the_fallback_group_names_who_is_left_of_the_clients_own():
    network = two_groups()
    network["a"].kill()
    network.run(6)
    lost = network["w"].client(BACKEND)
    lost.send("NEEDBROKER", {"identity": "worker", "services": ["paint"], "preferred_broker": "a"})
    [(command, said, _)] = lost.received()
    assert (command, said["group"]) == ("CHANGEBROKER", "east")
    assert said["broker"] in ("b", "c")


def test_if_nobody_is_left_of_it_the_one_that_was_asked_takes_it():
    network = two_groups()
    for name in "abc":
        network[name].kill()
    network.run(6)
    lost = network["w"].client(BACKEND)
    lost.send("NEEDBROKER", {"identity": "worker", "services": ["paint"], "preferred_broker": "a"})
    assert [(command, said["broker"]) for command, said, _ in lost.received()] == [("CHANGEBROKER", "w")]


def test_nobody_is_sent_to_a_broker_whose_socket_is_closed():
    """Its silence is not long enough yet to call it lost."""
    network = two_groups()
    network["a"].kill()
    network.run(1.2)
    peer = network["b"].machine.peers.by_name["a"]
    assert not peer.lost
    assert not peer.serves
    lost = network["b"].client(BACKEND)
    lost.send("NEEDBROKER", {"identity": "worker", "services": ["paint"], "preferred_broker": "a"})
    assert [said["broker"] for _, said, _ in lost.received()] != ["a"]
