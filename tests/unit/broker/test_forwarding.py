"""Tables of clients between brokers, and requests that go where somebody offers what they want.

Promise: REQ-8
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.broker.cluster.peer_catalog import ClientRow, PeerCatalog
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.fakes.network import FakeNetwork, RawClient, endpoint_of, two_groups

FIRST = endpoint_of("a")


@pytest.fixture
def network() -> FakeNetwork:
    return two_groups()


def received(client: RawClient) -> list[tuple[str, Any]]:
    return [(command, said.get("code", bodies)) for command, said, bodies in client.received()]


def test_a_request_goes_to_the_broker_whose_backend_offers_it(network):
    backend = network["b"].known_worker("paint")
    caller = network["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=5)
    asked = backend.answer(b"it is red")
    assert asked["service"] == "paint"
    assert 0 < asked["timeout"] <= 5
    network.run(0)
    assert received(caller) == [("REPLY", [b"it is red"])]
    assert network["a"].machine.requests.under_way == network["b"].machine.requests.under_way == {}


def test_parts_and_errors_come_back_as_well(network):
    backend = network["b"].known_worker("paint")
    caller = network["a"].client(FRONTEND)
    for last, body, seen in (("REPLY", [b"3"], [b"3"]), ("ERROR", [], 418)):
        caller.request("paint")
        asked = next(said for command, said, _ in backend.received() if command == "REQUEST")
        backend.send("PARTIAL", {"id": asked["id"]}, b"1")
        backend.send("PARTIAL", {"id": asked["id"]}, b"2")
        backend.send(last, {"id": asked["id"], "code": 418, "message": "teapot"}, *body)
        network.run(0)
        assert received(caller) == [("PARTIAL", [b"1"]), ("PARTIAL", [b"2"]), (last, seen)]


def test_the_own_backends_come_first_then_the_group_then_the_fallback(network):
    far = network["w"].known_worker("paint")
    caller = network["a"].client(FRONTEND)
    caller.request("paint")
    far.answer()
    near = network["c"].known_worker("paint")
    caller.received()
    caller.request("paint")
    near.answer()
    own = network["a"].known_worker("paint")
    caller.received()
    caller.request("paint")
    own.answer()
    assert received(caller)[-1] == ("REPLY", [b"done"])
    assert far.received() == near.received() == []


def test_a_newcomers_fallback_groups_count_unless_somebody_wrote_others():
    network = FakeNetwork()
    network.add("a", config_service=True)
    away = network.add("w", group="west", peers=(FIRST,), config_service=True, fallback_groups=("east", "nowhere"))
    network.run(6)
    groups = {group.name: group.fallback_groups for group in away.machine.documents.document.group_config}
    assert groups == {"east": (), "west": ("east",)}
    backend = network["a"].known_worker("paint")
    caller = away.client(FRONTEND)
    caller.request("paint", b"red", timeout=5)
    backend.answer()
    assert received(caller) == [("REPLY", [b"done"])]
    version = away.rank[0]
    network.run(30)
    assert away.rank[0] == version


def test_the_own_backends_come_first_even_if_they_are_busy(network):
    own, other = network["a"].worker("paint"), network["b"].worker("paint")
    network.run(2)
    for _ in range(2):
        network["a"].client(FRONTEND).request("paint")
    network.run(1)
    assert len(own.received("REQUEST")) == 1
    assert other.received() == []


def test_brokers_take_turns(network):
    backends = [network[name].worker("paint", slots=10) for name in "bc"]
    network.run(2)
    for _ in range(6):
        network["a"].client(FRONTEND).request("paint")
    network.run(0)
    assert [len(one.received("REQUEST")) for one in backends] == [3, 3]


def test_what_waits_goes_once_somebody_elsewhere_offers_it(network):
    caller = network["a"].client(FRONTEND)
    caller.request("paint", timeout=20)
    network.run(3)
    backend = network["b"].known_worker("paint")
    backend.answer()
    assert received(caller) == [("REPLY", [b"done"])]


def test_nobody_offers_it_anywhere(network):
    caller = network["a"].client(FRONTEND)
    caller.request("paint", timeout=2)
    network.run(3)
    assert received(caller) == [("ERROR", 404)]


def test_a_busy_backend_elsewhere_is_waited_for_there(network):
    backend = network["b"].known_worker("paint")
    first, second = (network["a"].client(FRONTEND) for _ in range(2))
    for caller in (first, second):
        caller.request("paint", timeout=3)
    backend.answer()
    backend.answer(b"again")
    assert received(first) == [("REPLY", [b"done"])]
    assert received(second) == [("REPLY", [b"again"])]


@pytest.mark.parametrize(("retry", "said"), [(False, ("ERROR", 502)), (True, ("REPLY", [b"done"]))])
def test_a_broker_that_dies_with_a_request_is_like_a_backend_that_does(network: FakeNetwork, retry: bool, said: Any):
    network["b"].known_worker("paint")
    caller = network["a"].client(FRONTEND)
    caller.request("paint", timeout=30, retry=retry)
    other = network["c"].known_worker("paint")
    network["b"].kill()
    network.run(6)
    if retry:
        other.answer()
    assert received(caller) == [said]


def test_a_frontend_that_is_gone_costs_nothing_elsewhere(network):
    backend = network["b"].known_worker("paint")
    caller = network["a"].client(FRONTEND)
    caller.send("CHECKCONFIG", {"identity": "me"})
    caller.request("paint", timeout=4)
    caller.send("DISCONNECT", {})
    backend.answer()
    network.run(1)
    assert received(caller)[1:] == []
    assert network["b"].machine.requests.under_way == {}


@pytest.mark.parametrize(("hops", "said"), [(2, ("REPLY", [b"done"])), (1, ("ERROR", 502))])
def test_a_request_passes_so_many_brokers_and_no_more(hops: int, said: Any):
    """`a` has not heard yet that the backend is not at `b` any more, but at `c`."""
    network = two_groups(max_hops=hops)
    backend = network["b"].known_worker("paint")
    network.cut(("b", "a"), ("c", "a"), both=False)
    backend.send("DISCONNECT", {})
    backend = network["c"].worker("paint")
    network.run(1.5)
    caller = network["a"].client(FRONTEND)
    caller.request("paint", timeout=2)
    if hops == 2:
        network.heal()
        backend.answer()
    network.run(3)
    assert received(caller) == [said]
    assert backend.received("REQUEST") == []


def test_every_broker_tells_of_all_services_and_where_they_are(network):
    network["b"].worker("paint", slots=3)
    network["c"].known_worker("paint", "glue")
    for node in network.brokers.values():
        rows = {row["service"]: row for row in node.machine.management._views.services()["items"]}
        if node.name == "w":
            continue  # it is in another group, which has no fallback
        assert (rows["paint"]["backends"], rows["paint"]["slots"]) == (2, 4)
        assert rows["paint"]["where"] == sorted("bc", key=lambda name: (name != node.name, name))
        assert rows["glue"]["where"] == ["c"]


def test_who_left_is_gone_everywhere(network):
    backend = network["b"].known_worker("paint")
    assert "paint" in network["a"].machine.peers.by_name["b"].table.offered
    backend.send("DISCONNECT", {})
    network.run(2)
    assert "paint" not in network["a"].machine.peers.by_name["b"].table.offered


def test_what_was_missed_is_asked_for(network):
    network["b"].worker("paint")
    network.cut(("b", "a"), both=False)
    network.run(1.5)
    network.heal()
    network["b"].worker("glue")
    network.run(2.5)
    assert {"paint", "glue"} <= network["a"].machine.peers.by_name["b"].table.offered.keys()


def test_a_broker_that_restarts_at_once_hears_everything_again(network):
    network["a"].known_worker("paint")
    network["b"].kill()
    network["b"].start()
    network.run(2.5)
    assert "paint" in network["b"].machine.peers.by_name["a"].table.offered


def test_what_never_left_for_a_dead_broker_is_done_elsewhere(network):
    """Nobody saw these requests yet, so that even those without `retry` may go to another."""
    network["b"].worker("paint", slots=4)
    other = network["c"].known_worker("paint", slots=4)
    network["b"].kill()
    callers = [network["a"].client(FRONTEND) for _ in range(3)]
    for caller in callers:
        caller.request("paint", b"red", timeout=5)
    asked = [one.options for one in other.received("REQUEST")]
    assert len(asked) == 3
    for said in asked:
        other.send("REPLY", {"id": said["id"]}, b"done")
    network.run(0)
    assert [received(caller) for caller in callers] == [[("REPLY", [b"done"])]] * 3


def test_what_nobody_there_offers_any_more_comes_back_and_is_done_elsewhere(network):
    """The worker leaves while requests are on their way to its broker, or wait there."""
    backend = network["b"].known_worker("paint")
    callers = [network["a"].client(FRONTEND) for _ in range(3)]
    for caller in callers[:2]:
        caller.request("paint", b"red", timeout=20)
    backend.send("READY", {"services": [], "config_version": network["b"].rank[0]})
    callers[2].request("paint", b"red", timeout=20)
    backend.answer()
    backend.send("DISCONNECT", {})
    network.run(2)
    assert received(callers[0]) == [("REPLY", [b"done"])]
    other = network["a"].client(BACKEND)
    other.send("CHECKCONFIG", {"identity": "other"})
    other.send("READY", {"services": ["paint"], "slots": 4, "config_version": network["a"].rank[0]})
    asked = [one.options for one in other.received("REQUEST")]
    assert len(asked) == 2, "they came back"
    for said in asked:
        other.send("REPLY", {"id": said["id"]}, b"done")
    assert [received(caller) for caller in callers[1:]] == [[("REPLY", [b"done"])]] * 2


def test_what_came_back_once_is_tried_there_again_soon(network):
    backend = network["b"].known_worker("paint")
    assert network["b"].manage("drain").code == 200
    caller = network["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=20)
    assert network["b"].manage("enable").code == 200
    network.run(2.5)
    backend.received()
    again = network["c"].client(FRONTEND)
    again.request("paint", b"red", timeout=20)
    assert network["b"].machine.requests.under_way, "its worker did nothing, but its broker serves again"


def test_a_backends_own_404_is_not_taken_for_a_broker_that_has_nobody(network):
    backend, other = network["b"].worker("paint"), network["c"].worker("paint")
    network.run(2)
    caller = network["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=20)
    (asked,) = [
        (one, said["id"]) for one in (backend, other) for command, said, _ in one.received() if command == "REQUEST"
    ]
    asked[0].send("ERROR", {"id": asked[1], "code": 404, "message": "no such colour", "unrun": True})
    network.run(3)
    assert received(caller) == [("ERROR", 404)]
    assert [one.received() for one in (backend, other)] == [[], []]


def test_what_waits_goes_once_a_broker_serves_again(network):
    backend = network["b"].worker("paint")
    assert network["b"].manage("drain").code == 200
    network.run(2)
    caller = network["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=20)
    network.run(2)
    assert backend.received("REQUEST") == []
    assert network["b"].manage("enable").code == 200
    network.run(2.5)
    backend.answer()
    assert received(caller) == [("REPLY", [b"done"])]


def test_who_shares_nothing_is_no_worse_for_being_asked():
    network = FakeNetwork()
    a = network.add("a", config_service=True, heartbeat_share="off")
    b = network.add("b", peers=(FIRST,), heartbeat_share="pull")
    network.run(120)
    assert {peer.shown for node in (a, b) for peer in node.machine.peers.by_name.values()} == {"active"}
    assert "peers_refused_us" not in b.machine.state.counters
    assert a.of_kind("client.refused") == []


@pytest.mark.parametrize("share", ["push", "pull", "off"])
def test_tables_are_shared_as_the_file_says(share: str):
    network = two_groups(heartbeat_share=share)
    network["b"].worker("paint")
    network.run(8)
    assert ("paint" in network["a"].machine.peers.by_name["b"].table.offered) == (share != "off")


def row(version: int, name: str, *services: str, gone: bool = False) -> ClientRow:
    return ClientRow(identity=name, role="backend", version=version, services=services, slots=1, gone=gone)


def test_order_and_repetition_do_not_matter():
    """Deltas in any order, any of them twice: the table is that of the newest rows."""
    for seed in range(200):
        dice = random.Random(seed)
        told = [
            row(number, f"w{dice.randrange(4)}", *(() if (gone := dice.random() < 0.3) else ("s",)), gone=gone)
            for number in range(1, 20)
        ]
        newest = {one.identity: one for one in told}
        table = PeerCatalog()
        said = told + dice.sample(told, 8)
        dice.shuffle(said)
        for one in said:
            table.merge([one])
        assert {key[1]: one for key, one in table.rows.items()} == newest
        assert table.offered.get("s", (0,))[0] == sum(not one.gone for one in newest.values())


def test_nobody_comes_back_from_an_old_message_after_everything_was_told():
    table = PeerCatalog()
    table.merge([row(1, "w", "s")])
    table.merge([row(2, "w", gone=True)])
    table.keep_only([], 2)
    table.merge([row(1, "w", "s")])
    assert table.rows == {}
    assert table.offered == {}


def test_what_comes_late_of_a_former_life_does_not_hide_a_new_table() -> None:
    """Promise: REQ-8"""
    table = PeerCatalog()
    assert table.take(11, 21)
    table.renew()  # its broker starts again
    assert table.take(11, 21)  # and something late arrives
    assert table.take(1, 90)
    assert table.take(2, 90)
    assert not table.take(2, 90)
    assert not table.take(11, 21)
    assert table.take(3, 95)


# Promise: FAIR-5
def test_forwarded_requests_count_in_the_rate_of_their_client() -> None:
    network = two_groups(of={"b": {"max_requests_per_second": 20}})
    network["b"].known_worker("paint", slots=1_000)
    flood, honest = network["a"].client(FRONTEND), network["a"].client(FRONTEND)
    for number in range(100):
        flood.request("paint", id=number, timeout=5)
    refused = [code for command, code in received(flood) if command == "ERROR"]
    assert refused == [429] * 60, "twice the rate: the windows of two brokers begin at different times"
    honest.request("paint", id="h", timeout=5)
    assert received(honest) == [], "another client of the same broker is not held to it"
    network.run(1.1)
    flood.request("paint", id="later", timeout=5)
    assert received(flood) == []


# Promise: FAIR-5
def test_clients_of_another_broker_are_served_in_turn_with_each_other() -> None:
    network = two_groups()
    backend = network["b"].known_worker("paint")
    flood, honest = network["a"].client(FRONTEND), network["a"].client(FRONTEND)
    for number in range(50):
        flood.request("paint", b"flood", id=number, timeout=5)
    honest.request("paint", b"honest", id="h", timeout=5)
    bodies = []
    for _ in range(4):
        (message,) = backend.received("REQUEST")
        bodies += message.bodies
        backend.send("REPLY", {"id": message.options["id"]}, b"")
        network.run(0)
    assert b"honest" in bodies
