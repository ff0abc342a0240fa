"""Tables of clients between brokers, and requests that go where somebody offers what they want.

Promise: REQ-8
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.broker.cluster.peer_catalog import ClientRow, PeerCatalog
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.unit.broker.network import Client, Network, Node, place_of

FIRST = place_of("a")


def town(seed: int = 1, **common: Any) -> tuple[Network, dict[str, Node]]:
    """`a`, `b` and `c` in the east; `w` in the west, which is the east's fallback."""
    network = Network(seed)
    nodes = {"a": network.add("a", config_service=True, fallback_groups=("west",), **common)}
    for name, group in (("b", "east"), ("c", "east"), ("w", "west")):
        nodes[name] = network.add(name, group=group, peers=(FIRST,), **common)
    network.run(6)
    return network, nodes


def worker(node: Node, *services: str, slots: int = 1) -> Client:
    made = node.client(BACKEND)
    made.ready(f"worker-{made.number}", *services, slots=slots)
    return made


def answer(backend: Client, body: bytes = b"done") -> dict[str, Any]:
    """It takes its next request, and replies."""
    asked = next(said for command, said, _ in backend.hears() if command == "REQUEST")
    backend.say("REPLY", {"id": asked["id"]}, body)
    return asked


def heard(client: Client) -> list[tuple[str, Any]]:
    return [(command, said.get("code", bodies)) for command, said, bodies in client.hears()]


def test_a_request_goes_to_the_broker_whose_backend_offers_it():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=5)
    network.run(0)
    asked = answer(backend, b"it is red")
    assert asked["service"] == "paint"
    assert 0 < asked["timeout"] <= 5
    network.run(0)
    assert heard(caller) == [("REPLY", [b"it is red"])]
    assert nodes["a"].broker.requests.under_way == nodes["b"].broker.requests.under_way == {}


def test_parts_and_errors_come_back_as_well():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    for last, body, seen in (("REPLY", [b"3"], [b"3"]), ("ERROR", [], 418)):
        caller.request("paint")
        network.run(0)
        asked = next(said for command, said, _ in backend.hears() if command == "REQUEST")
        backend.say("PARTIAL", {"id": asked["id"]}, b"1")
        backend.say("PARTIAL", {"id": asked["id"]}, b"2")
        backend.say(last, {"id": asked["id"], "code": 418, "message": "teapot"}, *body)
        network.run(0)
        assert heard(caller) == [("PARTIAL", [b"1"]), ("PARTIAL", [b"2"]), (last, seen)]


def test_the_own_backends_come_first_then_the_group_then_the_fallback():
    network, nodes = town()
    far = worker(nodes["w"], "paint")
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint")
    network.run(0)
    answer(far)
    network.run(0)
    near = worker(nodes["c"], "paint")
    network.run(2)
    caller.hears()
    caller.request("paint")
    network.run(0)
    answer(near)
    own = worker(nodes["a"], "paint")
    network.run(2)
    caller.hears()
    caller.request("paint")
    answer(own)
    assert heard(caller)[-1] == ("REPLY", [b"done"])
    assert far.hears() == near.hears() == []


def test_a_newcomers_fallback_groups_count_unless_somebody_wrote_others():
    network = Network()
    network.add("a", config_service=True)
    away = network.add("w", group="west", peers=(FIRST,), config_service=True, fallback_groups=("east", "nowhere"))
    network.run(6)
    groups = {group.name: group.fallback_groups for group in away.broker.documents.document.group_config}
    assert groups == {"east": (), "west": ("east",)}
    backend = worker(network.nodes["a"], "paint")
    network.run(2)
    caller = away.client(FRONTEND)
    caller.request("paint", b"red", timeout=5)
    network.run(0)
    answer(backend)
    network.run(0)
    assert heard(caller) == [("REPLY", [b"done"])]
    version = away.rank[0]
    network.run(30)
    assert away.rank[0] == version


def test_the_own_backends_come_first_even_if_they_are_busy():
    network, nodes = town()
    own, other = worker(nodes["a"], "paint"), worker(nodes["b"], "paint")
    network.run(2)
    for _ in range(2):
        nodes["a"].client(FRONTEND).request("paint")
    network.run(1)
    assert len([1 for command, _, _ in own.hears() if command == "REQUEST"]) == 1
    assert other.hears() == []


def test_brokers_take_turns():
    network, nodes = town()
    backends = [worker(nodes[name], "paint", slots=10) for name in "bc"]
    network.run(2)
    for _ in range(6):
        nodes["a"].client(FRONTEND).request("paint")
    network.run(0)
    assert [len([1 for command, _, _ in one.hears() if command == "REQUEST"]) for one in backends] == [3, 3]


def test_what_waits_goes_once_somebody_elsewhere_offers_it():
    network, nodes = town()
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", timeout=20)
    network.run(3)
    backend = worker(nodes["b"], "paint")
    network.run(2)
    answer(backend)
    network.run(0)
    assert heard(caller) == [("REPLY", [b"done"])]


def test_nobody_offers_it_anywhere():
    network, nodes = town()
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", timeout=2)
    network.run(3)
    assert heard(caller) == [("ERROR", 404)]


def test_a_busy_backend_elsewhere_is_waited_for_there():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    first, second = (nodes["a"].client(FRONTEND) for _ in range(2))
    for caller in (first, second):
        caller.request("paint", timeout=3)
    network.run(0)
    answer(backend)
    network.run(0)
    answer(backend, b"again")
    network.run(0)
    assert heard(first) == [("REPLY", [b"done"])]
    assert heard(second) == [("REPLY", [b"again"])]


@pytest.mark.parametrize(("retry", "said"), [(False, ("ERROR", 502)), (True, ("REPLY", [b"done"]))])
def test_a_broker_that_dies_with_a_request_is_like_a_backend_that_does(retry: bool, said: Any):
    network, nodes = town()
    worker(nodes["b"], "paint")
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", timeout=30, retry=retry)
    network.run(0)
    other = worker(nodes["c"], "paint")
    network.run(2)
    nodes["b"].kill()
    network.run(6)
    if retry:
        answer(other)
        network.run(0)
    assert heard(caller) == [said]


def test_a_frontend_that_is_gone_costs_nothing_elsewhere():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    caller.say("CHECKCONFIG", {"identity": "me"})
    caller.request("paint", timeout=4)
    network.run(0)
    caller.say("DISCONNECT", {})
    answer(backend)
    network.run(1)
    assert heard(caller)[1:] == []
    assert nodes["b"].broker.requests.under_way == {}


@pytest.mark.parametrize(("hops", "said"), [(2, ("REPLY", [b"done"])), (1, ("ERROR", 502))])
def test_a_request_passes_so_many_brokers_and_no_more(hops: int, said: Any):
    """`a` has not heard yet that the backend is not at `b` any more, but at `c`."""
    network, nodes = town(max_hops=hops)
    backend = worker(nodes["b"], "paint")
    network.run(2)
    network.cut(("b", "a"), ("c", "a"), both=False)
    backend.say("DISCONNECT", {})
    backend = worker(nodes["c"], "paint")
    network.run(1.5)
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", timeout=2)
    network.run(0)
    if hops == 2:
        network.heal()
        answer(backend)
    network.run(3)
    assert heard(caller) == [said]
    assert [command for command, *_ in backend.hears() if command == "REQUEST"] == []


def test_every_broker_tells_of_all_services_and_where_they_are():
    network, nodes = town()
    worker(nodes["b"], "paint", slots=3)
    worker(nodes["c"], "paint", "glue")
    network.run(2)
    for node in nodes.values():
        rows = {row["service"]: row for row in node.broker.management._views.services()["items"]}
        if node.name == "w":
            continue  # it is in another group, which has no fallback
        assert (rows["paint"]["backends"], rows["paint"]["slots"]) == (2, 4)
        assert rows["paint"]["where"] == sorted("bc", key=lambda name: (name != node.name, name))
        assert rows["glue"]["where"] == ["c"]


def test_who_left_is_gone_everywhere():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    assert "paint" in nodes["a"].broker.peers.by_name["b"].table.offered
    backend.say("DISCONNECT", {})
    network.run(2)
    assert "paint" not in nodes["a"].broker.peers.by_name["b"].table.offered


def test_what_was_missed_is_asked_for():
    network, nodes = town()
    worker(nodes["b"], "paint")
    network.cut(("b", "a"), both=False)
    network.run(1.5)
    network.heal()
    worker(nodes["b"], "glue")
    network.run(2.5)
    assert {"paint", "glue"} <= nodes["a"].broker.peers.by_name["b"].table.offered.keys()


def test_a_broker_that_restarts_at_once_hears_everything_again():
    network, nodes = town()
    worker(nodes["a"], "paint")
    network.run(2)
    nodes["b"].kill()
    nodes["b"].start()
    network.run(2.5)
    assert "paint" in nodes["b"].broker.peers.by_name["a"].table.offered


def test_what_never_left_for_a_dead_broker_is_done_elsewhere():
    """Nobody saw these requests yet, so that even those without `retry` may go to another."""
    network, nodes = town()
    worker(nodes["b"], "paint", slots=4)
    other = worker(nodes["c"], "paint", slots=4)
    network.run(2)
    nodes["b"].kill()
    callers = [nodes["a"].client(FRONTEND) for _ in range(3)]
    for caller in callers:
        caller.request("paint", b"red", timeout=5)
    network.run(0)
    asked = [said for command, said, _ in other.hears() if command == "REQUEST"]
    assert len(asked) == 3
    for said in asked:
        other.say("REPLY", {"id": said["id"]}, b"done")
    network.run(0)
    assert [heard(caller) for caller in callers] == [[("REPLY", [b"done"])]] * 3


def test_what_nobody_there_offers_any_more_comes_back_and_is_done_elsewhere():
    """The worker leaves while requests are on their way to its broker, or wait there."""
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    callers = [nodes["a"].client(FRONTEND) for _ in range(3)]
    for caller in callers[:2]:
        caller.request("paint", b"red", timeout=20)
    network.run(0)
    backend.say("READY", {"services": [], "config_version": nodes["b"].rank[0]})
    callers[2].request("paint", b"red", timeout=20)
    network.run(0)
    answer(backend)
    backend.say("DISCONNECT", {})
    network.run(2)
    assert heard(callers[0]) == [("REPLY", [b"done"])]
    other = nodes["a"].client(BACKEND)
    other.say("CHECKCONFIG", {"identity": "other"})
    other.say("READY", {"services": ["paint"], "slots": 4, "config_version": nodes["a"].rank[0]})
    asked = [said for command, said, _ in other.hears() if command == "REQUEST"]
    assert len(asked) == 2, "they came back"
    for said in asked:
        other.say("REPLY", {"id": said["id"]}, b"done")
    assert [heard(caller) for caller in callers[1:]] == [[("REPLY", [b"done"])]] * 2


def test_what_came_back_once_is_tried_there_again_soon():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    network.run(2)
    assert nodes["b"].manage("drain")[0] == 200
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=20)
    network.run(0)
    assert nodes["b"].manage("enable")[0] == 200
    network.run(2.5)
    backend.hears()
    again = nodes["c"].client(FRONTEND)
    again.request("paint", b"red", timeout=20)
    network.run(0)
    assert nodes["b"].broker.requests.under_way, "its worker did nothing, but its broker serves again"


def test_a_backends_own_404_is_not_taken_for_a_broker_that_has_nobody():
    network, nodes = town()
    backend, other = worker(nodes["b"], "paint"), worker(nodes["c"], "paint")
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=20)
    network.run(0)
    (asked,) = [
        (one, said["id"]) for one in (backend, other) for command, said, _ in one.hears() if command == "REQUEST"
    ]
    asked[0].say("ERROR", {"id": asked[1], "code": 404, "message": "no such colour", "unrun": True})
    network.run(3)
    assert heard(caller) == [("ERROR", 404)]
    assert [one.hears() for one in (backend, other)] == [[], []]


def test_what_waits_goes_once_a_broker_serves_again():
    network, nodes = town()
    backend = worker(nodes["b"], "paint")
    assert nodes["b"].manage("drain")[0] == 200
    network.run(2)
    caller = nodes["a"].client(FRONTEND)
    caller.request("paint", b"red", timeout=20)
    network.run(2)
    assert [command for command, *_ in backend.hears() if command == "REQUEST"] == []
    assert nodes["b"].manage("enable")[0] == 200
    network.run(2.5)
    answer(backend)
    network.run(0)
    assert heard(caller) == [("REPLY", [b"done"])]


def test_who_shares_nothing_is_no_worse_for_being_asked():
    network = Network()
    a = network.add("a", config_service=True, heartbeat_share="off")
    b = network.add("b", peers=(FIRST,), heartbeat_share="pull")
    network.run(120)
    assert {peer.shown for node in (a, b) for peer in node.broker.peers.by_name.values()} == {"active"}
    assert "peers_refused_us" not in b.broker.state.counters
    assert a.kinds("client.refused") == []


@pytest.mark.parametrize("share", ["push", "pull", "off"])
def test_tables_are_shared_as_the_file_says(share: str):
    network, nodes = town(heartbeat_share=share)
    worker(nodes["b"], "paint")
    network.run(8)
    assert ("paint" in nodes["a"].broker.peers.by_name["b"].table.offered) == (share != "off")


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
