"""What the requests of a client occupy until they end: bodies that wait or are in flight, and kept parts of answers."""

# Promise: QUOTA-3, WIRE-5
from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.request_memory import BODY_BYTES, REQUEST_BYTES
from scale0.broker.core.requests import ABANDONED_SLOT_SECONDS
from scale0.kernel.effects import Effects
from tests.fakes.broker import FakeBroker
from tests.fakes.request_memory import assert_charged

STORED = KeyTable(
    [*(Key("", "frontend", name) for name in ("flood", "honest")), *(Key("", "backend", name) for name in "wx")]
)
KILO = b"x" * 1024
COST = REQUEST_BYTES + len(KILO)
MOST = 4 * COST
"""What one key may have."""


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker(
        keys=Keys(user_of, STORED),
        default_heartbeat_interval=100_000.0,
        max_request_timeout=86_400.0,
        max_waiting_bytes=2 * MOST,
    )
    broker.join("backend-w", "s", slots=100, identity="w")
    return broker


def request(broker: FakeBroker, who: str, id_: int, *bodies: bytes, delimiter: bool = False, **options: Any) -> int:
    """The code of a refusal; 0: it was accepted."""
    said = {"service": "s", "id": id_, "timeout": 86_000.0, **options}
    if delimiter:
        broker.send_frames(who, [b"", b"SCALE0/1", b"REQUEST", msgspec.json.encode(said), *bodies])
        told: list[Any] = broker.received(who)
    else:
        told = broker.exchange(who, "REQUEST", said, *bodies)
    return told[0].options["code"] if told else 0


def used(broker: FakeBroker) -> int:
    assert_charged(broker.machine)
    return broker.machine.requests.memory.used


def held(broker: FakeBroker) -> list[str]:
    return [said["id"] for command, said, _ in broker.received("backend-w") if command == "REQUEST"]


def close(broker: FakeBroker, who: str) -> None:
    effects = Effects()
    broker.machine.closed(who.partition("-")[0], who.encode(), broker.now, effects)
    broker.host.finish(effects)


def test_requests_in_flight_are_bounded_for_a_key_over_all_its_connections(broker):
    codes = [request(broker, f"frontend-flood-{n}", n, KILO) for n in range(6)]
    assert codes == [0, 0, 0, 0, 429, 429]
    message = broker.exchange("frontend-flood-1", "REQUEST", {"service": "s", "id": 9}, KILO)[0][1]["message"]
    assert f"{MOST} bytes (max_key_waiting_bytes)" in message
    assert "raise max_key_waiting_bytes" in message
    assert [request(broker, "frontend-honest-1", n, KILO) for n in range(5)] == [0, 0, 0, 0, 429]
    ids = held(broker)
    assert len(ids) == 8
    broker.exchange("backend-w", "REPLY", {"id": ids[0]}, b"y")
    broker.exchange("backend-w", "ERROR", {"id": ids[1], "code": 500, "message": "no"})
    assert used(broker) == 6 * COST
    assert [request(broker, "frontend-flood-2", n, KILO) for n in range(10, 13)] == [0, 0, 429]


def test_requests_in_flight_are_bounded_in_total():
    broker = FakeBroker(max_waiting_bytes=MOST, max_key_waiting_bytes=3 * COST)
    broker.join("backend-w", "s", slots=100)
    assert [request(broker, "frontend-1", n, KILO) for n in range(4)] == [0, 0, 0, 429]
    assert [request(broker, "frontend-2", n, KILO) for n in range(2)] == [0, 429]


def test_those_that_wait_and_those_in_flight_have_one_account(broker):
    broker.join("backend-w", "s", slots=2, identity="w")
    codes = [request(broker, "frontend-flood-1", n, b"") for n in range(20)]
    in_flight_and_waiting = codes.count(0)
    assert in_flight_and_waiting < MOST // REQUEST_BYTES
    for id_ in held(broker):
        broker.exchange("backend-w", "REPLY", {"id": id_})
    for id_ in held(broker):
        broker.exchange("backend-w", "REPLY", {"id": id_})
    assert used(broker) <= MOST


def test_requests_whose_client_is_gone_or_that_timed_out_no_longer_count(broker):
    assert request(broker, "frontend-flood-1", 1, KILO) == 0
    assert request(broker, "frontend-flood-2", 1, KILO, timeout=5.0) == 0
    close(broker, "frontend-flood-1")
    assert used(broker) == COST
    broker.pass_time(6.0)
    assert used(broker) == 0
    assert len(broker.machine.requests.under_way) == 2, "the backend still works on them"
    broker.pass_time(ABANDONED_SLOT_SECONDS + 1.0)
    assert used(broker) == 0


def test_a_retry_counts_once(broker):
    broker.join("backend-x", "s", slots=1, identity="x")
    for n in range(3):
        assert request(broker, "frontend-flood-1", n, KILO, retry=True) == 0
    broker.exchange("backend-w", "DISCONNECT")
    assert used(broker) >= 3 * COST
    broker.exchange("backend-x", "DISCONNECT")
    broker.pass_time(86_400.0)
    assert used(broker) == 0


def test_a_batch_counts_as_its_requests_until_the_last_is_answered(broker):
    broker.exchange("backend-w", "CHECKCONFIG", {"identity": "w", "request_batches": True})
    broker.exchange("frontend-flood-1", "CHECKCONFIG", {"identity": "flood", "request_batches": True})
    options = {"service": "s", "id": "r.", "first": 1, "timeout": 86_000.0}
    broker.exchange("frontend-flood-1", "REQUESTS", options, msgspec.msgpack.encode([KILO] * 3))
    (given,) = broker.received("backend-w", "REQUESTS")
    assert used(broker) == 3 * COST
    told = broker.exchange("frontend-flood-1", "REQUESTS", {**options, "first": 10}, msgspec.msgpack.encode([KILO] * 3))
    assert [said["code"] for _, said, _ in told] == [429, 429]
    (single,) = held(broker)
    assert used(broker) == MOST
    broker.exchange("backend-w", "REPLY", {"id": single}, b"y")
    answer = {"id": given.options["id"], "first": given.options["first"]}
    broker.exchange("backend-w", "REPLIES", answer, msgspec.msgpack.encode([b"1", b"2"]))
    assert used(broker) == 3 * COST
    broker.exchange("backend-w", "REPLIES", {**answer, "first": answer["first"] + 2}, msgspec.msgpack.encode([b"3"]))
    assert used(broker) == 0


def test_a_batch_that_is_separated_is_charged_request_by_request(broker):
    broker.exchange("backend-w", "CHECKCONFIG", {"identity": "w", "request_batches": True})
    broker.exchange("frontend-flood-1", "CHECKCONFIG", {"identity": "flood", "request_batches": True})
    options = {"service": "s", "id": "r.", "first": 1, "timeout": 86_000.0}
    broker.exchange("frontend-flood-1", "REQUESTS", options, msgspec.msgpack.encode([KILO] * 3))
    (given,) = broker.received("backend-w", "REQUESTS")
    id_ = f"{given.options['id']}{given.options['first']}"
    broker.exchange("backend-w", "ERROR", {"id": id_, "code": 500, "message": "no"})
    assert used(broker) == 2 * COST
    close(broker, "frontend-flood-1")
    broker.pass_time(20.0)
    assert used(broker) == 0


def test_kept_parts_of_answers_count_and_are_released_with_their_request(broker):
    """Requests with a delimiter, as a REQ socket sends them: the broker joins the parts of their answers."""
    for n in range(3):
        assert request(broker, f"frontend-flood-{n}", n, b"", delimiter=True) == 0
    first, second, third = held(broker)
    broker.exchange("backend-w", "PARTIAL", {"id": first}, 2 * KILO)
    broker.exchange("backend-w", "PARTIAL", {"id": second}, 2 * KILO)
    assert used(broker) == 3 * REQUEST_BYTES + 2 * (BODY_BYTES + 2 * len(KILO))
    assert [one.code for one in broker.received("frontend-flood-2")] == []
    broker.exchange("backend-w", "PARTIAL", {"id": third}, KILO)
    (told,) = broker.received("frontend-flood-2")
    assert (told.command, told.code) == ("ERROR", 429)
    assert "max_key_waiting_bytes" in told.options["message"]
    assert used(broker) == 2 * REQUEST_BYTES + 2 * (BODY_BYTES + 2 * len(KILO)), "what was kept of it is released"
    close(broker, "frontend-flood-0")
    assert used(broker) == REQUEST_BYTES + BODY_BYTES + 2 * len(KILO)
    broker.exchange("backend-w", "REPLY", {"id": second}, b"end")
    assert broker.received("frontend-flood-1")[0].bodies == [2 * KILO, b"end"]
    assert used(broker) == 0


def test_tiny_parts_count_what_their_records_need(broker):
    assert request(broker, "frontend-flood-1", 1, b"", delimiter=True) == 0
    (id_,) = held(broker)
    for _ in range(MOST // BODY_BYTES):
        broker.exchange("backend-w", "PARTIAL", {"id": id_}, b"")
    assert [one.code for one in broker.received("frontend-flood-1")] == [429]
    assert used(broker) == 0


@pytest.mark.parametrize("size", [9_000, 3_000])
def test_a_backend_whose_part_was_refused_gives_its_slot_back(size):
    broker = FakeBroker(max_waiting_bytes=4_000, max_message_bytes=8_000)
    broker.join("backend-w", "s", slots=1)
    assert request(broker, "frontend-1", 1, b"", delimiter=True) == 0
    (id_,) = held(broker)
    broker.exchange("backend-w", "PARTIAL", {"id": id_}, b"x" * size)
    assert [one.code for one in broker.received("frontend-1")] == [413 if size == 9_000 else 429]
    broker.pass_time(ABANDONED_SLOT_SECONDS + 1.0)
    assert broker.machine.requests.under_way == {}


def test_the_parts_for_a_majordomo_client_of_01_count_too(broker):
    for n in range(3):
        broker.send_frames(f"frontend-flood-{n}", [b"MDPC01", b"s", b""])
    ids = held(broker)
    for id_ in ids:
        broker.exchange("backend-w", "PARTIAL", {"id": id_}, 2 * KILO)
    assert used(broker) == 2 * (REQUEST_BYTES + BODY_BYTES + 2 * len(KILO)), "the third is refused: silence"
    broker.pass_time(31.0)
    assert used(broker) == 0
