"""Requests that wait are bounded by their bytes as well as by their number."""

from __future__ import annotations

from tests.unit.broker.world import World

KILO = b"x" * 1024


# Promise: REQ-5
def test_bytes_that_wait_for_a_backend_are_bounded_for_each_client():
    world = World(max_client_bytes=4096)
    told = [world.say("frontend-1", "REQUEST", {"service": "s", "id": n, "timeout": 5}, KILO) for n in range(5)]
    assert told[:4] == [[], [], [], []]
    assert [(command, said["id"], said["code"]) for command, said, _ in told[4]] == [("ERROR", 4, 429)]
    assert world.say("frontend-2", "REQUEST", {"service": "s", "id": 1, "timeout": 5}, KILO) == []


def test_bytes_that_were_handed_on_no_longer_count():
    world = World(max_client_bytes=2048)
    for n in range(2):
        world.say("frontend-1", "REQUEST", {"service": "s", "id": n, "timeout": 5}, KILO)
    world.ready("backend-1", "s", slots=2)
    assert world.say("frontend-1", "REQUEST", {"service": "t", "id": 2, "timeout": 5}, KILO, KILO) == []


def test_bytes_that_timed_out_no_longer_count():
    world = World(max_client_bytes=2048)
    world.say("frontend-1", "REQUEST", {"service": "s", "id": 1, "timeout": 1}, KILO, KILO)
    world.pass_time(1.1)
    world.hear("frontend-1")
    assert world.say("frontend-1", "REQUEST", {"service": "s", "id": 2, "timeout": 1}, KILO, KILO) == []


def test_bytes_move_with_a_client_that_comes_back():
    world = World(max_client_bytes=2048)
    world.say("frontend-1", "CHECKCONFIG", {"identity": "me"})
    world.say("frontend-1", "REQUEST", {"service": "s", "id": 1, "timeout": 5}, KILO, KILO)
    world.say("frontend-2", "CHECKCONFIG", {"identity": "me"})
    told = world.say("frontend-2", "REQUEST", {"service": "s", "id": 2, "timeout": 5}, KILO)
    assert [said["code"] for _, said, _ in told] == [429]
