"""What one client can make a broker remember or do is bounded: found by review, each once a way to hurt the others."""

from __future__ import annotations

import msgspec

from scale0.broker.core.scheduler import MAX_IDLE_SERVICES
from scale0.kernel.timers import MAX_EMPTY, TimerWheel
from tests.unit.broker.world import MAGIC, World


def batch(*messages: tuple[object, ...]) -> list[bytes]:
    return [MAGIC, b"BATCH", b"", msgspec.msgpack.encode(messages)]


def test_a_flood_of_heartbeats_makes_an_error_client_and_costs_few_answers():
    world = World()
    world.ready("backend-1", "echo")
    told = world.frames("backend-1", batch(*[("HEARTBEAT", {"config_version": 1})] * 10_000))
    assert len(told) <= 200
    assert world.manage("list_error_clients")[2]
    assert "client.refused" in world.kinds()
    assert world.say("backend-1", "HEARTBEAT") == []


def test_an_error_client_is_handed_no_work():
    world = World(request_timeout=5.0)
    world.ready("backend-1", "echo")
    for _ in range(11):
        world.frames("backend-1", [b"nonsense"])
    world.ready("backend-2", "echo")
    for number in range(3):
        world.say("frontend-1", "REQUEST", {"service": "echo", "id": number}, b"x")
    assert world.hear("backend-1") == []
    assert [command for command, _, _ in world.hear("backend-2")] == ["REQUEST"]


def test_clients_that_come_and_go_leave_no_timers():
    world = World()
    before = len(world.broker.state.timers)
    for number in range(500):
        world.say(f"backend-{number}", "DISCONNECT")
        world.ready(f"backend-x{number}", "echo", heartbeat_interval=80_000)
        world.say(f"backend-x{number}", "DISCONNECT")
    assert len(world.broker.state.timers) <= before + 2
    assert len(world.broker.connections) == 0


def test_clients_that_come_and_go_leave_no_readings_of_their_clocks():
    world = World()
    for name in ("a", "b", "c"):
        world.ready(f"backend-{name}", "echo")
    for number in range(500):
        world.ready(f"backend-x{number}", "echo")
        world.say(f"backend-x{number}", "DISCONNECT")
    skew = world.broker.scale0._negotiation._clock_skew
    assert len(skew._readings) < 100


def test_a_very_long_interval_does_not_put_off_the_judgement_of_clocks():
    world = World()
    world.ready("backend-slow", "echo", heartbeat_interval=86_400)
    for name in ("a", "b"):
        world.ready(f"backend-{name}", "echo", heartbeat_interval=1_000)
    world.ready("backend-wrong", "echo", heartbeat_interval=1_000, time=world.wall - 5_000)
    world.pass_time(16)
    assert [said["code"] for command, said, _ in world.hear("backend-wrong") if command == "DISCONNECTERROR"] == [425]


def test_services_that_nobody_offers_any_more_are_forgotten_oldest_first():
    world = World()
    world.ready("backend-1", "first")
    for number in range(MAX_IDLE_SERVICES // 1_000 + 3):
        world.pass_time(1)
        names = [f"s{number}.{n}" for n in range(1_000)]
        world.say("backend-1", "READY", {"services": names, "config_version": 1})
    assert len(world.broker.scheduler.services) <= MAX_IDLE_SERVICES + 1_000
    assert "first" not in world.broker.scheduler.services


def test_failures_of_services_that_nobody_offers_are_summed_up_together():
    world = World(request_queue_limit=1, max_outstanding=100_000)
    world.pass_time(10)
    for number in range(3_000):
        world.say("frontend-1", "REQUEST", {"service": f"s{number}", "id": number, "timeout": 0.01})
    world.pass_time(0.05)
    world.pass_time(10)
    sums = [event for event in world.events if event.kind == "request.summed"]
    assert [(event.service, event.failed) for event in sums] == [("", {"404": 2_000})]


def test_listings_are_made_once_for_many_who_ask():
    world = World()
    world.ready("backend-1", "echo")
    asks = [("REQUEST", {"service": "scale0.services", "id": n}) for n in range(50)]
    told = world.frames("frontend-1", batch(*asks))
    assert [command for command, _, _ in told] == ["REPLY"] * 50
    different = [("REQUEST", {"service": "scale0.services", "id": n}, b'{"after": "%d"}' % n) for n in range(50)]
    told = world.frames("frontend-1", batch(*different))
    refused = [said["code"] for command, said, _ in told if command == "ERROR"]
    assert refused
    assert set(refused) == {429}


def test_an_oversized_part_costs_its_request_and_nothing_else():
    world = World(max_message_bytes=4_096)
    world.ready("backend-1", "echo", slots=2)
    for number in range(2):
        world.say("frontend-1", "REQUEST", {"service": "echo", "id": number})
    first, second = (said["id"] for _, said, _ in world.hear("backend-1"))
    assert world.say("backend-1", "PARTIAL", {"id": first}, b"x" * 5_000) == []
    world.say("backend-1", "REPLY", {"id": second}, b"y")
    told = world.hear("frontend-1")
    assert [(command, said.get("code")) for command, said, _ in told] == [("ERROR", 413), ("REPLY", None)]


def test_buckets_that_were_emptied_long_before_their_time_are_given_back():
    wheel: TimerWheel[int] = TimerWheel()
    for number in range(50_000):
        wheel.remove(number, wheel.add(number, 10.0 + number))
    assert len(wheel._buckets) <= 2 * MAX_EMPTY + 2
    kept = wheel.add(7, 99.0)
    assert wheel.deadline() == kept * wheel.grain
    assert wheel.expire(100.0) == [7]
