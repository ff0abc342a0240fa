"""A group that is gone as a whole, or almost: whom its clients ask, and what they hear.

Promise: NEGO-4
"""

from __future__ import annotations

import random

from scale0.transport.core.address_book import AddressBook, KnownBroker, KnownGroup
from scale0.transport.core.sockets import BACKEND
from tests.unit.broker.network import place_of
from tests.unit.broker.test_forwarding import town


def group(name: str, size: int) -> KnownGroup:
    brokers = [f"{name}{number}" for number in range(size)]
    return KnownGroup(name=name, brokers=[KnownBroker(one, {BACKEND: place_of(one, BACKEND)}) for one in brokers])


def test_after_home_and_one_of_its_group_one_of_each_fallback_group_is_tried():
    for seed in range(20):
        book = AddressBook(BACKEND, [place_of("east0", BACKEND)], random.Random(seed))
        book.update([group("east", 5), group("west", 3), group("north", 2)], "east0")
        order = [book.current]
        while not book.next_endpoint():
            order.append(book.current)
        names = [place.removeprefix("tcp://")[:-2].rstrip("0123456789:") for place in order]
        assert order[0] == place_of("east0", BACKEND)
        assert names[:4] == ["east", "east", "west", "north"]
        assert sorted(names[4:]) == ["east"] * 3 + ["north"] + ["west"] * 2
        assert len(set(order)) == 10


def test_a_broker_of_the_fallback_group_names_who_is_left_of_the_clients_own():
    network, nodes = town()
    nodes["a"].kill()
    network.run(6)
    lost = nodes["w"].client(BACKEND)
    lost.say("NEEDBROKER", {"identity": "worker", "services": ["paint"], "preferred_broker": "a"})
    [(command, said, _)] = lost.hears()
    assert (command, said["group"]) == ("CHANGEBROKER", "east")
    assert said["broker"] in ("b", "c")


def test_if_nobody_is_left_of_it_the_one_that_was_asked_takes_it():
    network, nodes = town()
    for name in "abc":
        nodes[name].kill()
    network.run(6)
    lost = nodes["w"].client(BACKEND)
    lost.say("NEEDBROKER", {"identity": "worker", "services": ["paint"], "preferred_broker": "a"})
    assert [(command, said["broker"]) for command, said, _ in lost.hears()] == [("CHANGEBROKER", "w")]


def test_nobody_is_sent_to_a_broker_whose_socket_is_closed():
    """Its silence is not long enough yet to call it lost."""
    network, nodes = town()
    nodes["a"].kill()
    network.run(1.2)
    peer = nodes["b"].broker.peers.by_name["a"]
    assert not peer.lost
    assert not peer.serves
    lost = nodes["b"].client(BACKEND)
    lost.say("NEEDBROKER", {"identity": "worker", "services": ["paint"], "preferred_broker": "a"})
    assert [said["broker"] for _, said, _ in lost.hears()] != ["a"]
