"""What backends of one key may offer: how often they may change it, and what an offer costs that stays the same."""

from __future__ import annotations

import json
from typing import Any

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.offer_memory import NAME_BYTES, SERVICE_BYTES
from scale0.broker.core.permissions import OFFER, KeyRules, Permissions
from scale0.broker.core.rate_limits import OFFER_SECONDS
from scale0.broker.core.scheduler import Service
from scale0.tasks.jsonrpc.messages import RATE_LIMITED
from tests.fakes.broker import FakeBroker

STORED = KeyTable(Key("", "backend", name) for name in ("flood", "honest"))
MOST = int(10 * OFFER_SECONDS)


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def limited() -> FakeBroker:
    return FakeBroker(keys=Keys(user_of, STORED), max_service_changes_per_second=10)


def names(count: int, kind: str = "s") -> list[str]:
    return [f"{kind}.{number}" for number in range(count)]


def ready(broker: FakeBroker, who: str, services: list[str]) -> list[str]:
    """The commands of the answer to another READY."""
    told = broker.exchange(who, "READY", {"services": services, "config_version": 1})
    return [
        command if command != "DISCONNECTERROR" else f"{said['code']} {said['message']}" for command, said, _ in told
    ]


# Promise: FAIR-12
def test_a_key_changes_its_services_at_a_limited_rate_over_all_its_connections():
    broker = limited()
    broker.join("backend-flood-1", *names(MOST), identity="flood.1")
    [refused] = ready_of_new(broker, "backend-flood-2", "flood.2")
    assert refused.startswith("429 ")
    assert "max_service_changes_per_second" in refused
    assert "try again later" in refused
    broker.join("backend-honest-1", *names(50), identity="honest.1")
    broker.pass_time(OFFER_SECONDS + 0.1)
    broker.join("backend-flood-2", "late", identity="flood.2")
    assert not json.loads(broker.manage("list_error_clients")[2][0])["items"], "it is not penalised"


def ready_of_new(broker: FakeBroker, who: str, identity: str) -> list[str]:
    broker.exchange(who, "CHECKCONFIG", {"identity": identity})
    return ready(broker, who, ["one"])


# Promise: FAIR-12
def test_the_first_offer_of_a_backend_passes_whatever_its_size():
    broker = limited()
    broker.join("backend-flood-1", *names(MOST + 500), identity="flood.1")


# Promise: FAIR-12
def test_an_offer_that_stays_the_same_costs_nothing():
    broker = limited()
    broker.join("backend-flood-1", *names(MOST - 1), identity="flood.1")
    changes, journal = broker.machine.members.changes, len(broker.events)
    for _ in range(50):
        assert ready(broker, "backend-flood-1", names(MOST - 1)) == ["READYOK"]
    assert broker.machine.members.changes == changes, "no other broker is told"
    assert len(broker.events) == journal
    assert ready(broker, "backend-flood-1", [*names(MOST - 1), "one.more"]) == ["READYOK"], "one change"


def test_other_slots_of_a_service_are_a_change():
    broker = limited()
    broker.join("backend-flood-1", "a", "b", identity="flood.1", slots=4)
    offer = {"services": ["a", "b"], "config_version": 1, "slots": 4, "service_slots": [1, 4]}
    broker.exchange("backend-flood-1", "READY", offer)
    assert broker.machine.scheduler.services["a"].slots == 1
    assert broker.connection("backend-flood-1").account.offers.used == 3


def test_a_key_without_rules_needs_no_decision_for_each_name():
    permissions = Permissions()
    permissions.know({"backend/ruled": (KeyRules(("offer:s.*",)), False)})
    for name in names(100):
        assert not permissions.why_not("backend/plain", OFFER, name)
    assert not permissions._decisions
    assert permissions.why_not("backend/plain", OFFER, "helen.events")
    assert permissions.why_not("backend/plain", "call", "s")
    assert permissions.why_not("backend/ruled", OFFER, "other")
    permissions.know({"backend/plain": (KeyRules((), ("offer:s.*",)), False)})
    assert permissions.why_not("backend/plain", OFFER, "s.1")


COST = SERVICE_BYTES + len("s.0")


def bounded(**limits: Any) -> FakeBroker:
    return FakeBroker(keys=Keys(user_of, STORED), **limits)


# Promise: QUOTA-11
def test_services_are_bounded_for_a_key_over_all_its_connections_and_those_of_others_are_not():
    broker = bounded(max_offer_bytes=4 * COST)
    broker.join("backend-flood-1", "s.1", "s.2", identity="flood.1")
    [refused] = ready_of_new(broker, "backend-flood-2", "flood.2")
    assert refused.startswith("429 ")
    assert f"{2 * COST} bytes (max_key_offer_bytes)" in refused
    broker.join("backend-honest-1", "s.1", "s.2", identity="honest.1")
    assert broker.machine.members.memory.used == 4 * COST
    assert not json.loads(broker.manage("list_error_clients")[2][0])["items"]


# Promise: QUOTA-11
def test_services_of_all_keys_are_bounded_together():
    broker = bounded(max_offer_bytes=3 * COST, max_key_offer_bytes=3 * COST)
    broker.join("backend-flood-1", "s.1", "s.2", "s.3", identity="flood.1")
    [refused] = ready_of_new(broker, "backend-honest-1", "honest.1")
    assert f"{3 * COST} bytes (max_offer_bytes)" in refused


# Promise: QUOTA-11
def test_what_a_backend_offers_no_more_does_not_count():
    broker = bounded(max_offer_bytes=4 * COST)
    broker.join("backend-flood-1", "s.1", "s.2", identity="flood.1")
    assert ready(broker, "backend-flood-1", ["s.3", "s.4"]) == ["READYOK"], "in place of the others"
    assert ready(broker, "backend-flood-1", ["s.3"]) == ["READYOK"]
    broker.join("backend-flood-2", "s.5", identity="flood.2")
    broker.exchange("backend-flood-1", "DISCONNECT")
    broker.join("backend-flood-3", "s.6", identity="flood.3")
    for who in ("backend-flood-2", "backend-flood-3"):
        broker.exchange(who, "DISCONNECT")
    assert broker.machine.members.memory.used == 0


# Promise: QUOTA-11
def test_the_memory_of_a_member_moves_with_it_to_another_connection():
    broker = bounded()
    broker.join("backend-flood-1", "s.1", identity="flood.1")
    before = broker.connection("backend-flood-1").account
    broker.join("backend-flood-2", "s.1", "s.2", identity="flood.1")
    assert broker.connection("backend-flood-2").account.offer_bytes == 2 * COST
    assert before.offer_bytes == 2 * COST, "one key has one account"
    without = FakeBroker()
    without.join("backend-1", "s.1", identity="x")
    before = without.connection("backend-1").account
    without.join("backend-2", "s.1", identity="x")
    assert (before.offer_bytes, without.connection("backend-2").account.offer_bytes) == (0, COST)


# Promise: QUOTA-11
def test_services_that_a_frontend_names_count_by_their_names():
    broker = FakeBroker(max_key_offer_bytes=3 * (NAME_BYTES + 3))
    told = broker.exchange("frontend-1", "CHECKCONFIG", {"identity": "f", "services": ["s.1", "s.2", "s.3"]})
    assert [command for command, _, _ in told] == ["CONFIG"]
    told = broker.exchange("frontend-1", "CHECKCONFIG", {"identity": "f", "services": ["s.1", "s.2", "s.3", "s.4"]})
    assert [said["code"] for command, said, _ in told if command == "DISCONNECTERROR"] == [429]


# Promise: QUOTA-11
def test_statuses_of_nodes_are_kept_as_bytes_and_count():
    broker = FakeBroker(max_key_offer_bytes=SERVICE_BYTES + 1 + 20)
    call(broker, "node_connect", "n", ["m"])
    assert call(broker, "node_status", "n", {"load": 1})["result"] is True
    member = broker.connection("backend-1").member
    assert member is not None
    assert (member.status, member.status_bytes) == (b'{"load":1}', 10)
    refused = call(broker, "node_status", "n", "x" * 20)["error"]
    assert refused["code"] == RATE_LIMITED
    assert "max_key_offer_bytes" in refused["message"]
    [client] = [one for one in json.loads(broker.manage("list_clients")[2][0])["items"] if one["identity"] == "n"]
    assert client["status"] == {"load": 1}


def call(broker: FakeBroker, method: str, *params: object) -> dict[str, Any]:
    broker.ask("backend-1", method, *params)
    [answer] = broker.received("backend-1")
    said: dict[str, Any] = answer.bodies[0]
    return said


def test_a_service_without_requests_has_no_record_of_shares():
    broker = FakeBroker()
    broker.join("backend-1", "s")
    service = broker.machine.scheduler.services["s"]
    assert "shares" not in {name for name in type(service).__slots__ if has_slot(service, name)}
    broker.exchange("frontend-1", "REQUEST", {"service": "s", "id": 1}, b"x")
    assert service.shares.in_flight == 1


def has_slot(service: Service, name: str) -> bool:
    try:
        object.__getattribute__(service, name)
    except AttributeError:
        return False
    return True
