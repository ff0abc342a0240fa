"""Queues are fair between clients: whoever asks much waits behind nobody but itself (PROTOCOL 2.2).

Promise: CURVE-13
"""

from __future__ import annotations

import random
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scale0.broker.core.connections import Connection
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.request import RoutedRequest
from scale0.broker.core.request_memory import RequestMemory
from scale0.broker.core.request_queues import RequestQueues
from scale0.kernel.clock import Now
from tests.fakes.broker import FakeBroker

FLOOD = 500


def asked(broker: FakeBroker, who: str, count: int, service: str = "slow", start: int = 0) -> list[Any]:
    """Ask; what it heard at once."""
    told: list[Any] = []
    for number in range(start, start + count):
        told += broker.exchange(
            who, "REQUEST", {"service": service, "id": f"{who}/{number}", "timeout": 60}, who.encode()
        )
    return told


def order(broker: FakeBroker, worker: str, count: int) -> list[str]:
    """Whose request the worker gets, one after the other."""
    out = []
    for _ in range(count):
        told = next(iter(broker.received(worker, "REQUEST")))
        out.append(told[2][0].decode())
        broker.send(worker, "REPLY", {"id": told[1]["id"]}, b"done")
    return out


def test_one_that_asks_much_does_not_delay_another(broker: FakeBroker) -> None:
    broker.join("backend-1", "slow")
    asked(broker, "frontend-flood", FLOOD)
    asked(broker, "frontend-honest", 3)
    served = order(broker, "backend-1", 10)
    assert served[:7].count("frontend-honest") == 3
    assert served[7:] == ["frontend-flood"] * 3


def test_a_flood_at_one_service_does_not_delay_another_service_of_the_same_worker(broker: FakeBroker) -> None:
    broker.join("backend-1", "slow", "other")
    asked(broker, "frontend-flood", FLOOD)
    asked(broker, "frontend-honest", 3, "other")
    assert order(broker, "backend-1", 8).count("frontend-honest") == 3


def test_a_full_queue_refuses_whoever_has_the_most_in_it() -> None:
    broker = FakeBroker(request_queue_limit=20)
    broker.join("backend-1", "slow")
    asked(broker, "frontend-flood", 21)
    broker.received("frontend-flood")
    assert asked(broker, "frontend-honest", 5) == []
    refused = broker.received("frontend-flood")
    assert [(one[0], one[1]["code"]) for one in refused] == [("ERROR", 429)] * 5
    assert [one[1]["id"] for one in refused] == [f"frontend-flood/{n}" for n in (20, 19, 18, 17, 16)]
    assert [one[1]["code"] for one in asked(broker, "frontend-flood", 1, start=50)] == [429]
    assert 429 in [one[1]["code"] for one in asked(broker, "frontend-honest", 6, start=5)]
    waiting = [request.origin.routing_id for request in broker.machine.requests.queues["slow"]]
    assert len(waiting) == 20
    assert abs(waiting.count(b"frontend-flood") - waiting.count(b"frontend-honest")) <= 1


def test_one_client_alone_is_served_in_order(broker: FakeBroker) -> None:
    broker.join("backend-1", "a", "b")
    for number in range(20):
        said = {"service": "ab"[number % 3 == 0], "id": number, "timeout": 60}
        broker.exchange("frontend-1", "REQUEST", said, str(number).encode())
    assert order(broker, "backend-1", 20) == [str(number) for number in range(20)]


def made(number: int, owner: Connection, service: str) -> RoutedRequest:
    return RoutedRequest(str(number), number, owner, number, service, (b"",), 0.0, 1.0, False, 0)


def owners(count: int) -> list[Connection]:
    handler: Any = None
    return [Connection("frontend", str(n).encode(), handler, Now(0.0, 0.0)) for n in range(count)]


@given(st.integers(0, 2**32 - 1))
def test_whatever_comes_and_goes_the_books_are_right(seed: int) -> None:
    rng = random.Random(seed)
    waiting, clients, naive = RequestQueues(RequestMemory()), owners(4), dict[RoutedRequest, None]()
    for number in range(150):
        match rng.randrange(4):
            case 0 | 1:
                request = made(number, rng.choice(clients), rng.choice("xyz"))
                loser = waiting.room(request, 12)
                if loser is not None and loser is not request:
                    counts = [sum(1 for r in naive if r.service == request.service and r.origin is c) for c in clients]
                    assert sum(1 for r in naive if r.service == loser.service and r.origin is loser.origin) == max(
                        counts
                    )
                    assert waiting.remove(loser)
                    del naive[loser]
                if loser is not request:
                    waiting.add(request, first=rng.random() < 0.1)
                    naive[request] = None
            case 2 if naive:
                gone = rng.choice(list(naive))
                assert waiting.remove(gone)
                assert not waiting.remove(gone)
                del naive[gone]
            case _:
                request_ = waiting.next(frozenset(rng.sample("xyz", rng.randrange(4))))
                if request_ is not None:
                    waiting.served(request_)
                    del naive[request_]
        assert {r for queue in waiting.queues.values() for r in queue} == set(naive)
        assert all(len(queue) == sum(1 for r in naive if r.service == name) for name, queue in waiting.queues.items())
    assert not waiting._shares or naive


def spent(clients: int, each: int) -> float:
    """Seconds for each request, in and out."""
    waiting, all_of_them = RequestQueues(RequestMemory()), owners(clients)
    services, count = frozenset(("x",)), clients * each
    requests = [made(number, all_of_them[number % clients], "x") for number in range(count)]
    began = time.process_time()
    for request in requests:
        assert waiting.room(request, count) is None
        waiting.add(request)
    for _ in requests:
        next_one = waiting.next(services)
        assert next_one is not None
        waiting.served(next_one)
    return (time.process_time() - began) / count


def test_the_cost_is_flat() -> None:
    few = min(spent(2, 1_000) for _ in range(5))
    many = min(spent(2_000, 10) for _ in range(3))
    assert many < 6 * few + 5e-6, (few, many)


STORED = KeyTable(
    Key("", role, name) for role, name in (("frontend", "flood"), ("frontend", "honest"), ("backend", "worker"))
)


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def test_the_negotiation_of_one_key_is_bounded_over_all_its_connections() -> None:
    broker = FakeBroker(keys=Keys(user_of, STORED), max_heartbeats_per_second=20, max_control_per_second=10)
    answered = 0
    for number in range(20):
        for _ in range(5):
            answered += bool(
                broker.exchange(f"frontend-flood-{number}", "CHECKCONFIG", {"identity": f"flood.{number}"})
            )
    assert answered == 40
    assert broker.exchange("frontend-honest-1", "CHECKCONFIG", {"identity": "honest"})
    broker.pass_time(1.1)
    assert broker.exchange("frontend-flood-1", "CHECKCONFIG", {"identity": "flood.1"})


def test_the_requests_of_one_key_are_bounded_over_all_its_connections() -> None:
    broker = FakeBroker(keys=Keys(user_of, STORED), max_requests_per_second=40)
    broker.join("backend-worker-1", "slow", identity="worker")
    refused = [told for number in range(20) for told in asked(broker, f"frontend-flood-{number}", 5)]
    assert [(told[0], told[1]["code"]) for told in refused] == [("ERROR", 429)] * 60
    assert {told[1]["id"].rpartition("/")[2] for told in refused} <= set("01234"), "each is told about its own"
    assert asked(broker, "frontend-honest-1", 3) == [], "another key is not held to it"
    broker.pass_time(1.1)
    assert asked(broker, "frontend-flood-1", 5, start=5) == [], "a second later it may ask again"


def test_without_keys_each_connection_has_its_own_rate() -> None:
    broker = FakeBroker(max_requests_per_second=10)
    broker.join("backend-1", "slow")
    assert len(asked(broker, "frontend-flood", 15)) == 5
    assert asked(broker, "frontend-honest", 10) == []


def test_what_is_sent_again_beyond_the_rate_is_still_answered_once() -> None:
    broker = FakeBroker(max_requests_per_second=1)
    broker.join("backend-1", "slow")
    assert asked(broker, "frontend-1", 1) == asked(broker, "frontend-1", 1) == []
    assert order(broker, "backend-1", 1) == ["frontend-1"]
    assert [told[0] for told in broker.received("frontend-1")] == ["REPLY"]


def test_with_keys_many_connections_of_one_key_are_one_client() -> None:
    broker = FakeBroker(keys=Keys(user_of, STORED))
    broker.join("backend-worker-1", "slow", identity="worker")
    for number in range(50):
        asked(broker, f"frontend-flood-{number}", 10)
    asked(broker, "frontend-honest-1", 3)
    served = order(broker, "backend-worker-1", 9)
    assert served.count("frontend-honest-1") == 3


# Promise: FAIR-4
def test_lists_of_management_cost_by_their_rows() -> None:
    broker = FakeBroker(max_requests_per_second=100)
    broker.join("backend-1", *(f"s{number:03}" for number in range(500)))
    broker.pass_time(1.1)
    listed = [broker.manage("list_services", limit=500) for _ in range(5)]
    assert [answer.options["code"] for answer in listed] == [200, 200, 429, 429, 429]
    assert len(listed[0].body["items"]) == 500
    broker.pass_time(1.1)
    assert broker.manage("status").options["code"] == 200


# Promise: FAIR-4
def test_a_list_of_services_costs_by_its_rows() -> None:
    broker = FakeBroker(max_requests_per_second=100)
    broker.join("backend-1", *(f"s{number:03}" for number in range(500)))
    for limit in (500, 400):  # two pages: 92 requests
        request = {"service": "scale0.services", "id": limit}
        assert broker.exchange("frontend-flood", "REQUEST", request, {"limit": limit})[0].command == "REPLY"
    assert len(asked(broker, "frontend-flood", 20, "scale0.ping")) == 20
    refused = [told for told in asked(broker, "frontend-flood", 20, "scale0.ping", 50) if told[0] == "ERROR"]
    assert len(refused) == 20
