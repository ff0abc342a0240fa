"""What backends of one key may offer: how often they may change it, and what an offer costs that stays the same."""

from __future__ import annotations

import json

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.permissions import OFFER, KeyRules, Permissions
from scale0.broker.core.rate_limits import OFFER_SECONDS
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
