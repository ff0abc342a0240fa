"""What one client can make a broker remember or do is bounded, by number and by bytes."""

from __future__ import annotations

import msgspec

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.request_memory import BODY_BYTES, REQUEST_BYTES
from scale0.broker.core.request_queues import QUEUE_BYTES
from scale0.broker.core.request_stats import FAILED_EVENTS_PER_SECOND, MAX_CODES
from scale0.broker.core.scheduler import MAX_IDLE_SERVICES
from scale0.kernel.effects import Effects
from scale0.kernel.timers import MAX_EMPTY, TimerWheel
from scale0.tasks.core.method_queues import MAX_SPARE
from tests.fakes.broker import FakeBroker
from tests.fakes.messages import MAGIC


def batch(*messages: tuple[object, ...]) -> list[bytes]:
    return [MAGIC, b"BATCH", b"", msgspec.msgpack.encode(messages)]


def test_a_flood_of_heartbeats_makes_an_error_client_and_costs_few_answers(broker):
    broker.join("backend-1", "echo")
    broker.send_frames("backend-1", batch(*[("HEARTBEAT", {"config_version": 1})] * 10_000))
    assert len(broker.received("backend-1")) <= 200
    assert broker.manage("list_error_clients")[2]
    assert "client.refused" in broker.kinds()
    assert broker.exchange("backend-1", "HEARTBEAT") == []


def test_an_error_client_is_handed_no_work():
    broker = FakeBroker(request_timeout=5.0)
    broker.join("backend-1", "echo")
    for _ in range(11):
        broker.send_frames("backend-1", [b"nonsense"])
    broker.join("backend-2", "echo")
    for number in range(3):
        broker.exchange("frontend-1", "REQUEST", {"service": "echo", "id": number}, b"x")
    assert broker.received("backend-1") == []
    assert [command for command, _, _ in broker.received("backend-2")] == ["REQUEST"]


def test_clients_that_come_and_go_leave_no_timers(broker):
    before = len(broker.machine.state.timers)
    for number in range(500):
        broker.exchange(f"backend-{number}", "DISCONNECT")
        broker.join(f"backend-x{number}", "echo", heartbeat_interval=80_000)
        broker.exchange(f"backend-x{number}", "DISCONNECT")
    assert len(broker.machine.state.timers) <= before + 2
    assert len(broker.machine.connections) == 0


def test_clients_that_come_and_go_leave_no_readings_of_their_clocks(broker):
    for name in ("a", "b", "c"):
        broker.join(f"backend-{name}", "echo")
    for number in range(500):
        broker.join(f"backend-x{number}", "echo")
        broker.exchange(f"backend-x{number}", "DISCONNECT")
    skew = broker.machine.scale0._negotiation._clock_skew
    assert len(skew._readings) < 100


def test_a_very_long_interval_does_not_put_off_the_judgement_of_clocks(broker):
    broker.join("backend-slow", "echo", heartbeat_interval=86_400)
    for name in ("a", "b"):
        broker.join(f"backend-{name}", "echo", heartbeat_interval=1_000)
    broker.join("backend-wrong", "echo", heartbeat_interval=1_000, time=broker.wall - 5_000)
    broker.pass_time(16)
    assert [said["code"] for command, said, _ in broker.received("backend-wrong") if command == "DISCONNECTERROR"] == [
        425
    ]


# Promise: LIVE-7
def test_a_message_that_waited_does_not_confirm_a_clock_that_jumped(broker):
    crew = [f"backend-{name}" for name in "abcd"]
    for client in crew:
        broker.join(client, "echo", heartbeat_interval=1)
    jump = -45.0
    broker.wall += jump
    broker.exchange(crew[0], "HEARTBEAT", {"time": broker.wall - jump - 22.6})
    for talking in (crew, crew[:1], crew[:1]):
        for client in talking:
            broker.exchange(client, "HEARTBEAT", {"time": broker.wall - jump})
        broker.pass_time(0.9)
    for client in crew:
        assert "DISCONNECTERROR" not in [command for command, _, _ in broker.received(client)]


def test_services_that_nobody_offers_any_more_are_forgotten_oldest_first(broker):
    broker.join("backend-1", "first")
    for number in range(MAX_IDLE_SERVICES // 1_000 + 3):
        broker.pass_time(1)
        names = [f"s{number}.{n}" for n in range(1_000)]
        broker.exchange("backend-1", "READY", {"services": names, "config_version": 1})
    assert len(broker.machine.scheduler.services) <= MAX_IDLE_SERVICES + 1_000
    assert "first" not in broker.machine.scheduler.services


def offer_new_names(broker: FakeBroker, rounds: int) -> None:
    for number in range(rounds):
        broker.pass_time(0.05)
        names = [f"s{number}.{n}" for n in range(1_000)]
        broker.exchange("backend-1", "READY", {"services": names, "config_version": 1})


# Promise: WIRE-5
def test_names_that_a_backend_offered_once_need_no_memory_of_the_task_queue():
    broker = FakeBroker()
    broker.join("backend-1", "first")
    (member,) = broker.machine.members.by_name.values()
    rounds = MAX_SPARE // 1_000 + 5
    offer_new_names(broker, rounds)
    queues = broker.machine.tasks.queue.method_queues
    assert len(queues.all()) <= MAX_SPARE + 1_000
    assert member.backend is not None
    assert set(member.backend.offerings) == set(member.services), "nothing is left of those that were withdrawn"
    for n in range(1_000):
        assert queues.find(f"s{rounds - 1}.{n}") is not None, "what is offered keeps its queue"


def test_a_queue_with_tasks_and_one_that_is_subscribed_survive_a_flood_of_names():
    broker = FakeBroker()
    broker.join("backend-1", "waits")
    for name in ("waits", "heard"):
        broker.machine.receive_subscription([b"\x01task." + name.encode()], broker.now, Effects())
    for method, params in (("client_connect", ["c"]), ("client_new_task", ["c", "waits", []])):
        asked = {"jsonrpc": "2.0", "id": 1, "method": f"zerotask.broker.{method}", "params": params}
        broker.send_frames("frontend-c", [msgspec.json.encode(asked)])
    queues = broker.machine.tasks.queue.method_queues
    assert (len(queues.work(1)), queues.find("heard") is not None) == (1, True)
    offer_new_names(broker, MAX_SPARE // 1_000 + 5)
    assert (len(queues.work(1)), queues.find("heard") is not None) == (1, True)


def test_failures_of_services_that_nobody_offers_are_summed_up_together():
    broker = FakeBroker(request_queue_limit=1, max_outstanding=100_000)
    broker.pass_time(10)
    for number in range(3_000):
        broker.exchange("frontend-1", "REQUEST", {"service": f"s{number}", "id": number, "timeout": 0.01})
    broker.pass_time(0.05)
    broker.pass_time(10)
    sums = [event for event in broker.events if event.kind == "request.summed"]
    assert [(event.service, event.failed) for event in sums] == [("", {"404": 2_000})]


# Promise: WIRE-5
def test_codes_that_a_backend_invents_are_summed_up_together():
    broker = FakeBroker(error_client_limit=100_000)
    broker.pass_time(10)
    broker.join("backend-1", "echo", slots=10_000)
    count = FAILED_EVENTS_PER_SECOND + 10 * MAX_CODES
    for number in range(count):
        broker.send("frontend-1", "REQUEST", {"service": "echo", "id": number})
    for code, (_, request, _) in enumerate(broker.received("backend-1", "REQUEST"), 1_000):
        broker.send("backend-1", "ERROR", {"id": request["id"], "code": code})
    assert [one.code for one in broker.received("frontend-1")] == list(range(1_000, 1_000 + count))
    broker.pass_time(10)
    (failed,) = [event.failed for event in broker.events if event.kind == "request.summed"]
    first = 1_000 + FAILED_EVENTS_PER_SECOND
    assert failed == {**{str(code): 1 for code in range(first, first + MAX_CODES)}, "0": 9 * MAX_CODES}


def test_listings_are_made_once_for_many_who_ask(broker):
    broker.join("backend-1", "echo")
    asks = [("REQUEST", {"service": "scale0.services", "id": n}) for n in range(50)]
    broker.send_frames("frontend-1", batch(*asks))
    assert [command for command, _, _ in broker.received("frontend-1")] == ["REPLY"] * 50
    different = [("REQUEST", {"service": "scale0.services", "id": n}, b'{"after": "%d"}' % n) for n in range(50)]
    broker.send_frames("frontend-1", batch(*different))
    refused = [one.code for one in broker.received("frontend-1", "ERROR")]
    assert refused
    assert set(refused) == {429}


def test_an_oversized_part_costs_its_request_and_nothing_else():
    broker = FakeBroker(max_message_bytes=4_096)
    broker.join("backend-1", "echo", slots=2)
    for number in range(2):
        broker.exchange("frontend-1", "REQUEST", {"service": "echo", "id": number})
    first, second = (said["id"] for _, said, _ in broker.received("backend-1"))
    assert broker.exchange("backend-1", "PARTIAL", {"id": first}, b"x" * 5_000) == []
    broker.exchange("backend-1", "REPLY", {"id": second}, b"y")
    told = broker.received("frontend-1")
    assert [(command, said.get("code")) for command, said, _ in told] == [("ERROR", 413), ("REPLY", None)]


def test_buckets_that_were_emptied_long_before_their_time_are_given_back():
    wheel: TimerWheel[int] = TimerWheel()
    for number in range(50_000):
        wheel.remove(number, wheel.add(number, 10.0 + number))
    assert len(wheel._buckets) <= 2 * MAX_EMPTY + 2
    kept = wheel.add(7, 99.0)
    assert wheel.deadline() == kept * wheel.grain
    assert wheel.expire(100.0) == [7]


KILO = b"x" * 1024


# Promise: REQ-5
def test_bytes_that_wait_for_a_backend_are_bounded_for_each_client():
    broker = FakeBroker(max_client_bytes=4096)
    told = [broker.exchange("frontend-1", "REQUEST", {"service": "s", "id": n, "timeout": 5}, KILO) for n in range(5)]
    assert told[:4] == [[], [], [], []]
    assert [(command, said["id"], said["code"]) for command, said, _ in told[4]] == [("ERROR", 4, 429)]
    assert broker.exchange("frontend-2", "REQUEST", {"service": "s", "id": 1, "timeout": 5}, KILO) == []


def test_bytes_that_were_handed_on_no_longer_count():
    broker = FakeBroker(max_client_bytes=2048)
    for n in range(2):
        broker.exchange("frontend-1", "REQUEST", {"service": "s", "id": n, "timeout": 5}, KILO)
    broker.join("backend-1", "s", slots=2)
    assert broker.exchange("frontend-1", "REQUEST", {"service": "t", "id": 2, "timeout": 5}, KILO, KILO) == []


def test_bytes_that_timed_out_no_longer_count():
    broker = FakeBroker(max_client_bytes=2048)
    broker.exchange("frontend-1", "REQUEST", {"service": "s", "id": 1, "timeout": 1}, KILO, KILO)
    broker.pass_time(1.1)
    broker.received("frontend-1")
    assert broker.exchange("frontend-1", "REQUEST", {"service": "s", "id": 2, "timeout": 1}, KILO, KILO) == []


def test_bytes_move_with_a_client_that_comes_back():
    broker = FakeBroker(max_client_bytes=2048)
    broker.exchange("frontend-1", "CHECKCONFIG", {"identity": "me"})
    broker.exchange("frontend-1", "REQUEST", {"service": "s", "id": 1, "timeout": 5}, KILO, KILO)
    broker.exchange("frontend-2", "CHECKCONFIG", {"identity": "me"})
    told = broker.exchange("frontend-2", "REQUEST", {"service": "s", "id": 2, "timeout": 5}, KILO)
    assert [said["code"] for _, said, _ in told] == [429]


STORED = KeyTable(Key("", "frontend", name) for name in ("flood", "honest"))


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def waits(broker: FakeBroker, who: str, id_: int, *bodies: bytes) -> int:
    """The code of a refusal; 0: it waits."""
    told = broker.exchange(who, "REQUEST", {"service": "s", "id": id_, "timeout": 5}, *bodies)
    return told[0][1]["code"] if told else 0


COST = REQUEST_BYTES + len(KILO)
"""What a request with such a body counts."""


# Promise: QUOTA-3
def test_bytes_that_wait_are_bounded_for_a_key_over_all_its_connections():
    broker = FakeBroker(keys=Keys(user_of, STORED), max_waiting_bytes=2 * (QUEUE_BYTES + 4 * COST))
    codes = [waits(broker, f"frontend-flood-{n}", n, KILO) for n in range(6)]
    assert codes == [0, 0, 0, 0, 429, 429]
    told = broker.exchange("frontend-flood-1", "REQUEST", {"service": "s", "id": 9, "timeout": 5}, KILO)
    assert f"{QUEUE_BYTES + 4 * COST} bytes (max_key_waiting_bytes)" in told[0][1]["message"]
    assert [waits(broker, "frontend-honest-1", n, KILO) for n in range(5)] == [0, 0, 0, 0, 429]
    broker.pass_time(5.1)
    broker.received("frontend-flood-1")
    assert waits(broker, "frontend-flood-1", 10, *[KILO] * 4) == 0


# Promise: QUOTA-3
def test_bytes_that_wait_are_bounded_in_total_and_no_longer_count_when_they_are_answered():
    one, three = QUEUE_BYTES + COST, QUEUE_BYTES + REQUEST_BYTES + 3 * (len(KILO) + BODY_BYTES)
    broker = FakeBroker(max_waiting_bytes=three + one, max_key_waiting_bytes=three)
    assert waits(broker, "frontend-1", 1, *[KILO] * 3) == 0
    assert waits(broker, "frontend-1", 2, KILO) == 429
    assert waits(broker, "frontend-2", 1, *[KILO] * 2) == 429
    assert waits(broker, "frontend-2", 2, KILO) == 0
    broker.join("backend-1", "s", slots=2)
    assert waits(broker, "frontend-2", 3, *[KILO] * 3) == 429
    for _, said, _ in broker.received("backend-1"):
        broker.exchange("backend-1", "REPLY", {"id": said["id"]})
    broker.received("frontend-2")
    assert waits(broker, "frontend-2", 4, *[KILO] * 3) == 0


# Promise: QUOTA-3
def test_empty_requests_that_wait_count_what_their_records_need():
    broker = FakeBroker(max_waiting_bytes=1_000_000)
    asks = [("REQUEST", {"service": "s", "id": n, "timeout": 60}) for n in range(2_000)]
    broker.send_frames("frontend-1", batch(*asks))
    refused = [said for command, said, _ in broker.received("frontend-1") if command == "ERROR"]
    assert len(refused) == 2_000 - (500_000 - QUEUE_BYTES) // REQUEST_BYTES
    assert "max_key_waiting_bytes" in refused[0]["message"]


# Promise: QUOTA-3
def test_requests_for_many_services_count_their_queues():
    broker = FakeBroker(max_waiting_bytes=1_000_000)
    asks = [("REQUEST", {"service": f"s{n}", "id": n, "timeout": 60}) for n in range(1_000)]
    broker.send_frames("frontend-1", batch(*asks))
    refused = [said for command, said, _ in broker.received("frontend-1") if command == "ERROR"]
    assert len(refused) == 1_000 - 500_000 // (QUEUE_BYTES + REQUEST_BYTES)
    broker.pass_time(61)
    assert broker.machine.requests.memory.used == 0
