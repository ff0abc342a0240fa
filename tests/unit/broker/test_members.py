"""Who lives, by a clock that a test moves: the bounds of death, sleep, wrong clocks, many clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.examples import examples
from tests.unit.broker.world import World

intervals = st.sampled_from([0.05, 0.2, 1.0, 7.3])


def alive(world: World, name: str) -> bool:
    return any(identity == name for _, identity in world.broker.members.by_name)


# Promise: LIVE-1
@given(intervals, st.integers(1, 6), st.lists(st.floats(0.01, 0.99), max_size=6))
@examples(60)
def test_dead_is_noticed_in_time_and_never_before(interval, liveness, beats):
    world = World(default_heartbeat_interval=interval, heartbeat_liveness=liveness)
    world.ready("backend-1", "a")
    for share in beats:
        world.pass_time(share * interval * liveness)
        assert alive(world, "backend-1")
        world.say("backend-1", "HEARTBEAT")
    world.pass_time(interval * liveness - 0.001)
    assert alive(world, "backend-1")
    world.pass_time(interval + 0.25 + 0.001)
    assert not alive(world, "backend-1")
    assert "client.lost" in world.kinds()


# Promise: LIVE-2
@given(st.integers(-86_400, 86_400))
@examples(30)
def test_a_jump_of_the_wall_clock_kills_nobody(jump):
    world = World()
    for number in range(4):
        world.ready(f"backend-{number}", "a")
    for beat in range(12):
        world.pass_time(0.8)
        if beat == 4:
            world.wall += jump
        for number in range(4):
            told = world.say(f"backend-{number}", "HEARTBEAT", {"time": world.wall - (jump if beat >= 4 else 0)})
            assert [command for command, _, _ in told] == ["HEARTBEAT"]
    assert "client.lost" not in world.kinds()
    assert ("broker.clock_suspect" in world.kinds()) is (abs(jump) > 30)


# Promise: LIVE-3
@pytest.mark.parametrize("seconds", [0.7, 3.05, 30.0, 3_600.0])
def test_a_broker_that_slept_reads_its_mail_before_anybody_is_dead(seconds):
    world = World(default_heartbeat_interval=1.0)
    for number in range(50):
        world.ready(f"backend-{number}", "a")
    world.pass_time(0.5)
    world.sleep(seconds)
    world.turn()
    for number in range(50):
        assert world.say(f"backend-{number}", "HEARTBEAT")[0][0] == "HEARTBEAT"
    world.pass_time(2.0)
    assert "client.lost" not in world.kinds()


def test_a_client_that_died_while_the_broker_slept_is_found_dead_soon():
    world = World(default_heartbeat_interval=1.0)
    world.ready("backend-1", "a")
    world.sleep(30)
    world.turn()
    world.pass_time(0.5)
    assert not alive(world, "backend-1")


# Promise: LIVE-5
def test_heartbeats_of_all_clients_together_stay_under_the_limit():
    world = World(default_heartbeat_interval=1.0, max_heartbeats_per_second=10.0)
    given = []
    for number in range(200):
        name = f"backend-{number}"
        checked = world.say(name, "CHECKCONFIG", {"identity": name})
        said = {"services": [], "config_version": checked[0][1]["config_version"]}
        given.append(world.say(name, "READY", said)[0][1]["heartbeat_interval"])
    assert given[-1] >= 19.0
    for number in range(200):
        world.say(f"backend-{number}", "HEARTBEAT")
    rate = sum(1 / member.interval for member in world.broker.members.by_name.values())
    assert rate <= 10 * 1.25 + 1


def beat_all(world: World, offsets: list[float], times: int = 4) -> list[int | None]:
    """Everybody beats for some intervals with a clock that is off by so much; the code that each was let go with."""
    codes: list[int | None] = [None] * len(offsets)
    for number in range(len(offsets)):
        world.ready(f"backend-{number}", "a")
    for _ in range(times):
        world.pass_time(0.5)
        for number, offset in enumerate(offsets):
            if codes[number] is None:
                told = world.say(f"backend-{number}", "HEARTBEAT", {"time": world.wall + offset})
                world.told[f"backend-{number}".encode()] = told
        world.pass_time(0.5)
        for number in range(len(offsets)):
            for command, options, _ in world.hear(f"backend-{number}"):
                codes[number] = options["code"] if command == "DISCONNECTERROR" else codes[number]
    return codes


# Promise: LIVE-7
@pytest.mark.parametrize(
    ("offsets", "gone"),
    [
        ([100.0], [0]),
        ([29.0, -29.0], []),
        ([0.0, 100.0], [1]),
        ([100.0, 0.0, 0.0], [0]),
        ([100.0, -100.0, 0.0, 0.0], [0, 1]),
        ([100.0, 100.0, 0.0], []),
        ([3_600.0, 3_600.0, 3_600.0, 0.0, 0.0], []),
    ],
)
def test_the_majority_of_three_or_more_decides_whose_clock_is_wrong(offsets, gone):
    world = World()
    codes = beat_all(world, offsets)
    assert [number for number, code in enumerate(codes) if code == 425] == gone
    suspected = 2 * sum(abs(offset) > 30 for offset in offsets) > len(offsets) >= 3
    assert ("broker.clock_suspect" in world.kinds()) is suspected


# Promise: WIRE-5
def test_the_number_of_clients_is_bounded():
    world = World(max_clients=10)
    heard = [world.say(f"frontend-{n}", "REQUEST", {"service": "scale0.ping", "id": 1}) for n in range(20)]
    assert [bool(told) for told in heard] == [True] * 10 + [False] * 10
    world.pass_time(130)
    assert world.say("frontend-99", "REQUEST", {"service": "scale0.ping", "id": 1})


# Promise: LIVE-6
def test_a_silent_connection_is_forgotten_and_one_with_a_request_is_not():
    world = World()
    world.say("frontend-idle", "REQUEST", {"service": "scale0.ping", "id": 1})
    world.say("frontend-waits", "REQUEST", {"service": "a", "id": 1, "timeout": 500})
    world.pass_time(200)
    assert world.broker.connections.find("frontend", b"frontend-idle") is None
    assert world.broker.connections.find("frontend", b"frontend-waits") is not None


# Promise: WIRE-4
def test_what_was_counted_against_a_client_outlives_its_registration():
    world = World(default_heartbeat_interval=1.0)
    codes = []
    for _ in range(4):
        for _ in range(3):
            told = [options.get("code") for _, options, _ in world.say("backend-1", "NONSENSE")]
            codes += [code for code in told if code != 408]
        if len(codes) < 11:
            world.ready("backend-1", "a")
            world.pass_time(5)
            assert not alive(world, "backend-1")
    assert codes == [501] * 11
    assert world.say("backend-1", "CHECKCONFIG") == []
