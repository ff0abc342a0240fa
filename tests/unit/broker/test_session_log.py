"""What the journal has of the sessions of clients, however often a key changes them.

Promise: QUOTA-9
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from scale0.broker.core import session_log
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.session_log import WINDOW_SECONDS
from tests.fakes.broker import FakeBroker

STORED = KeyTable(Key("", "backend", name) for name in ("flood", "honest"))
LISTS = [[f"pub.{turn}.{n}." + "x" * 90 for n in range(20)] for turn in range(2)]
SIZE = len(msgspec.json.encode(LISTS[0]))
FLOODS = 4
SESSION_BYTES, RETRY_BYTES = 32 * SIZE, 4 * SIZE


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_log, "SESSION_BYTES", SESSION_BYTES)
    monkeypatch.setattr(session_log, "RETRY_BYTES", RETRY_BYTES)


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def keyed() -> FakeBroker:
    broker = FakeBroker(keys=Keys(user_of, STORED))
    for number in range(FLOODS):
        broker.join(f"backend-flood-{number}", "pub.a", identity=f"flood.{number}")
    return broker


def offer(broker: FakeBroker, who: str, services: Sequence[str]) -> None:
    broker.exchange(who, "READY", {"services": services, "config_version": 1})


def sessions(broker: FakeBroker) -> list[Any]:
    return [one for one in broker.events if one.kind.startswith("client.") and hasattr(one, "services")]


def recorded_bytes(broker: FakeBroker) -> int:
    return sum(len(msgspec.json.encode(one.services)) for one in sessions(broker))


def flood(broker: FakeBroker, seconds: float) -> int:
    """READY with changing services on each connection; the bytes that were sent."""
    sent = 0
    for turn in range(int(seconds / 0.2)):
        for number in range(FLOODS):
            offer(broker, f"backend-flood-{number}", LISTS[turn % 2])
            sent += SIZE
        broker.pass_time(0.2)
    return sent


def test_services_that_change_all_the_time_fill_a_bounded_part_of_the_journal():
    broker = keyed()
    assert flood(broker, 2 * WINDOW_SECONDS + 5) > 10 * 3 * SESSION_BYTES
    assert recorded_bytes(broker) < 3 * (SESSION_BYTES + SIZE)


def test_the_newest_offer_is_recorded_once_there_is_room():
    broker = keyed()
    flood(broker, 10)
    assert broker.machine.state.counters["sessions_delayed"]
    for number in range(FLOODS):
        offer(broker, f"backend-flood-{number}", [f"last.{number}"])
    broker.events.clear()
    for _ in range(int(WINDOW_SECONDS)):
        broker.pass_time(1.1)
        for number in range(FLOODS):
            broker.exchange(f"backend-flood-{number}", "HEARTBEAT")
    changed = sorted((one.identity, one.services) for one in sessions(broker))
    assert changed == [(f"flood.{number}", (f"last.{number}",)) for number in range(FLOODS)]


def test_an_offer_that_returned_to_what_is_recorded_needs_no_event():
    broker = keyed()
    flood(broker, 10)
    last = {one.identity: one.services for one in sessions(broker)}
    for number in range(FLOODS):
        offer(broker, f"backend-flood-{number}", last[f"flood.{number}"])
    broker.events.clear()
    broker.pass_time(WINDOW_SECONDS)
    assert [one for one in sessions(broker) if one.kind == "client.changed"] == []


def test_another_key_is_recorded_at_once():
    broker = keyed()
    flood(broker, 10)
    broker.join("backend-honest-1", "orders", identity="honest")
    offer(broker, "backend-honest-1", ["orders", "prices"])
    broker.exchange("backend-honest-1", "DISCONNECT")
    own = [(one.kind, one.services) for one in sessions(broker) if one.identity == "honest"]
    assert own == [
        ("client.joined", ("orders",)),
        ("client.changed", ("orders", "prices")),
        ("client.left", ("orders", "prices")),
    ]


def test_clients_that_come_and_go_have_pairs_of_events_or_none():
    broker = keyed()
    for number in range(400):
        who = f"backend-flood-x{number}"
        broker.join(who, *LISTS[0], identity=f"flood.x{number}")
        broker.exchange(who, "DISCONNECT")
        broker.pass_time(0.01)
    kinds: dict[str, list[str]] = {}
    for one in sessions(broker):
        kinds.setdefault(one.identity, []).append(one.kind)
    came = [each for name, each in kinds.items() if "x" in name]
    assert set(map(tuple, came)) == {("client.joined", "client.left")}
    assert len(came) + broker.machine.state.counters["sessions_unrecorded"] == 400
    assert recorded_bytes(broker) < 2 * (SESSION_BYTES + SIZE)


def test_what_waits_is_recorded_over_several_turns():
    broker = FakeBroker(keys=Keys(user_of, STORED), max_control_per_second=10_000)
    count = 2 * SESSION_BYTES // SIZE
    for number in range(count):
        broker.join(f"backend-flood-{number}", *LISTS[0], identity=f"flood.{number}")
    most, before = 0, recorded_bytes(broker)
    for _ in range(int(2 * WINDOW_SECONDS)):
        broker.pass_time(1.0)
        for number in range(count):
            broker.exchange(f"backend-flood-{number}", "HEARTBEAT")
        most, before = max(most, recorded_bytes(broker) - before), recorded_bytes(broker)
    assert most < RETRY_BYTES + 2 * SIZE
    assert {one.identity for one in sessions(broker)} == {f"flood.{number}" for number in range(count)}
    assert broker.machine.members._session_log._waiting == {}
