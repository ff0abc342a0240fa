"""Which clients live: the bounds of silence, of suspended brokers, of wrong clocks that jump, and of many clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.broker.core.broker import LATE_SECONDS
from tests.fakes.broker import FakeBroker
from tests.fakes.examples import examples

intervals = st.sampled_from([0.05, 0.2, 1.0, 7.3])


def alive(broker: FakeBroker, name: str) -> bool:
    return any(identity == name for _, identity in broker.machine.members.by_name)


# Promise: LIVE-1
@given(intervals, st.integers(1, 6), st.lists(st.floats(0.01, 0.99), max_size=6))
@examples(60)
def test_dead_is_noticed_in_time_and_never_before(interval, liveness, beats):
    broker = FakeBroker(default_heartbeat_interval=interval, heartbeat_liveness=liveness)
    broker.join("backend-1", "a")
    for share in beats:
        broker.pass_time(share * interval * liveness)
        assert alive(broker, "backend-1")
        broker.exchange("backend-1", "HEARTBEAT")
    broker.pass_time(interval * liveness - 0.001)
    assert alive(broker, "backend-1")
    broker.pass_time(interval + 0.25 + 0.001)
    assert not alive(broker, "backend-1")
    assert "client.lost" in broker.kinds()


# Promise: LIVE-2
@given(st.integers(-86_400, 86_400))
@examples(30)
def test_a_jump_of_the_wall_clock_kills_nobody(jump):
    broker = FakeBroker()
    for number in range(4):
        broker.join(f"backend-{number}", "a")
    for beat in range(12):
        broker.pass_time(0.8)
        if beat == 4:
            broker.wall += jump
        for number in range(4):
            told = broker.exchange(f"backend-{number}", "HEARTBEAT", {"time": broker.wall - (jump if beat >= 4 else 0)})
            assert [command for command, _, _ in told] == ["HEARTBEAT"]
    assert "client.lost" not in broker.kinds()
    assert ("broker.clock_suspect" in broker.kinds()) is (abs(jump) > 30)


# Promise: LIVE-3
@pytest.mark.parametrize("seconds", [0.7, 3.05, 30.0, 3_600.0])
def test_a_broker_that_slept_reads_its_mail_before_anybody_is_dead(seconds):
    broker = FakeBroker(default_heartbeat_interval=1.0)
    for number in range(50):
        broker.join(f"backend-{number}", "a")
    broker.pass_time(0.5)
    broker.sleep(seconds)
    broker.turn()
    for number in range(50):
        assert broker.exchange(f"backend-{number}", "HEARTBEAT")[0][0] == "HEARTBEAT"
    broker.pass_time(2.0)
    assert "client.lost" not in broker.kinds()


# Promise: LIVE-3
def test_a_reply_that_waits_in_the_socket_of_a_suspended_broker_is_in_time():
    broker = FakeBroker(default_heartbeat_interval=1.0)
    for name in ("backend-1", "backend-2"):
        broker.join(name, "a")
    for number in (1, 2):
        broker.send("frontend-1", "REQUEST", {"service": "a", "id": f"r{number}", "timeout": 2.0}, b"x")
    asked = {name: broker.received(name, "REQUEST") for name in ("backend-1", "backend-2")}
    broker.received("frontend-1")
    broker.sleep(10.0)
    broker.send("backend-2", "HEARTBEAT", {})
    broker.send("backend-1", "REPLY", {"id": asked["backend-1"][0].options["id"], "service": "a"}, b"y")
    broker.pass_time(2 * LATE_SECONDS)
    assert sorted((one.command, one.options.get("code")) for one in broker.received("frontend-1")) == [
        ("ERROR", 504),
        ("REPLY", None),
    ]


def test_a_client_that_died_while_the_broker_slept_is_found_dead_soon():
    broker = FakeBroker(default_heartbeat_interval=1.0)
    broker.join("backend-1", "a")
    broker.sleep(30)
    broker.turn()
    broker.pass_time(0.5)
    assert not alive(broker, "backend-1")


# Promise: LIVE-5
def test_heartbeats_of_all_clients_together_stay_under_the_limit():
    broker = FakeBroker(default_heartbeat_interval=1.0, max_heartbeats_per_second=10.0)
    given = []
    for number in range(200):
        name = f"backend-{number}"
        checked = broker.exchange(name, "CHECKCONFIG", {"identity": name})
        said = {"services": [], "config_version": checked[0][1]["config_version"]}
        given.append(broker.exchange(name, "READY", said)[0][1]["heartbeat_interval"])
    assert given[-1] >= 19.0
    for number in range(200):
        broker.exchange(f"backend-{number}", "HEARTBEAT")
    rate = sum(1 / member.interval for member in broker.machine.members.by_name.values())
    assert rate <= 10 * 1.25 + 1


def beat_all(broker: FakeBroker, offsets: list[float], times: int = 4) -> list[int | None]:
    """Everybody beats for some intervals with a clock that is off by so much; the code that each was let go with."""
    codes: list[int | None] = [None] * len(offsets)
    for number in range(len(offsets)):
        broker.join(f"backend-{number}", "a")
    for _ in range(times):
        broker.pass_time(0.5)
        for number, offset in enumerate(offsets):
            if codes[number] is None:
                broker.send(f"backend-{number}", "HEARTBEAT", {"time": broker.wall + offset})
        broker.pass_time(0.5)
        for number in range(len(offsets)):
            for refusal in broker.received(f"backend-{number}", "DISCONNECTERROR"):
                codes[number] = refusal.code
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
def test_the_majority_of_three_or_more_decides_whose_clock_is_wrong(broker, offsets, gone):
    codes = beat_all(broker, offsets)
    assert [number for number, code in enumerate(codes) if code == 425] == gone
    suspected = 2 * sum(abs(offset) > 30 for offset in offsets) > len(offsets) >= 3
    assert ("broker.clock_suspect" in broker.kinds()) is suspected


def is_suspect(broker: FakeBroker) -> bool:
    return bool(broker.machine.management._views.status(broker.now, "")["clock_suspect"])


# Promise: LIVE-8
@pytest.mark.parametrize("count", [1, 2])
def test_a_broker_that_starts_with_a_wrong_clock_serves_few_clients_and_says_so(broker, count):
    clients = [f"backend-{number}" for number in range(count)]
    for client in clients:
        broker.join(client, "a", time=broker.wall - 3_600)
    for _ in range(20):
        broker.pass_time(0.5)
        for client in clients:
            answers = broker.exchange(client, "HEARTBEAT", {"time": broker.wall - 3_600})
            assert [command for command, _, _ in answers] == ["HEARTBEAT"]
    assert broker.kinds().count("broker.clock_suspect") == 1
    assert is_suspect(broker)


# Promise: LIVE-8
def test_a_clock_that_a_client_confirms_is_no_longer_suspected(broker):
    broker.join("backend-wrong", "a", time=broker.wall + 3_600)
    assert is_suspect(broker)
    broker.join("backend-right", "a", time=broker.wall)
    broker.send("backend-wrong", "HEARTBEAT", {"time": broker.wall + 3_600})
    broker.pass_time(1.5)
    assert told_off(broker, "backend-wrong") == [425]
    assert told_off(broker, "backend-right") == []
    assert not is_suspect(broker)


# Promise: WIRE-5
def test_the_number_of_clients_is_bounded():
    broker = FakeBroker(max_clients=10)
    heard = [broker.exchange(f"frontend-{n}", "REQUEST", {"service": "scale0.ping", "id": 1}) for n in range(20)]
    assert [bool(told) for told in heard] == [True] * 10 + [False] * 10
    broker.pass_time(130)
    assert broker.exchange("frontend-99", "REQUEST", {"service": "scale0.ping", "id": 1})


# Promise: LIVE-6
def test_a_silent_connection_is_forgotten_and_one_with_a_request_is_not(broker):
    broker.exchange("frontend-idle", "REQUEST", {"service": "scale0.ping", "id": 1})
    broker.exchange("frontend-waits", "REQUEST", {"service": "a", "id": 1, "timeout": 500})
    broker.pass_time(200)
    assert broker.machine.connections.find("frontend", b"frontend-idle") is None
    assert broker.machine.connections.find("frontend", b"frontend-waits") is not None


# Promise: WIRE-4
def test_what_was_counted_against_a_client_outlives_its_registration():
    broker = FakeBroker(default_heartbeat_interval=1.0)
    codes = []
    for _ in range(4):
        for _ in range(3):
            told = [options.get("code") for _, options, _ in broker.exchange("backend-1", "NONSENSE")]
            codes += [code for code in told if code != 408]
        if len(codes) < 11:
            broker.join("backend-1", "a")
            broker.pass_time(5)
            assert not alive(broker, "backend-1")
    assert codes == [501] * 11
    assert broker.exchange("backend-1", "CHECKCONFIG") == []


JUMP_SECONDS = 3_600.0


def told_off(broker: FakeBroker, who: str) -> list[int]:
    return [said["code"] for command, said, _ in broker.received(who) if command == "DISCONNECTERROR"]


def with_one_worker() -> FakeBroker:
    """One worker, and enough clients who tell no time that a judgement waits for a window."""
    broker = FakeBroker()
    for name in ("x", "y"):
        broker.exchange(f"frontend-{name}", "CHECKCONFIG", {"identity": f"frontend-{name}"})
    broker.join("backend-right", "echo")
    return broker


def test_a_jump_that_nobody_was_there_to_see_is_not_taken_for_right():
    """Seed 2077200452: the only reading of the window is gone when it is judged, and the clock jumped meanwhile."""
    broker = with_one_worker()
    broker.join("backend-wrong", "echo", time=broker.wall + 86_400)
    for name in ("right", "wrong"):
        broker.exchange(f"backend-{name}", "DISCONNECT")
    broker.wall += JUMP_SECONDS
    broker.pass_time(20)
    for _ in range(3):
        broker.join("backend-right", "echo", time=broker.wall - JUMP_SECONDS)
        broker.pass_time(2)
        assert told_off(broker, "backend-right") == []
    assert "broker.clock_suspect" in broker.kinds()


def test_a_jump_between_reading_and_judgement_is_ours():
    broker = with_one_worker()
    broker.join("backend-wrong", "echo", time=broker.wall + 86_400)
    broker.wall += JUMP_SECONDS
    broker.pass_time(1.2)
    assert told_off(broker, "backend-right") == []
    assert "broker.clock_suspect" in broker.kinds()
    broker.wall -= JUMP_SECONDS
    broker.pass_time(0.5)
    broker.exchange("backend-wrong", "HEARTBEAT", {"time": broker.wall + 86_400})
    broker.pass_time(2)
    assert told_off(broker, "backend-wrong") == [425], "once our clock is right again, who is wrong is told"
