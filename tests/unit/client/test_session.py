"""A line, with a clock that the test moves: backoff, negotiation, heartbeats, other brokers, and what ends it.

Promise: NEGO-5
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.calls import CallFailed
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import (
    MAX_URGENT_BACKOFF_SECONDS,
    RECHECK_SECONDS,
    Connected,
    ConnectionLost,
    SessionEffects,
    SessionEnded,
)
from tests.fakes.examples import seeds
from tests.processes.client.bench import HASH, WALL, Bench

PLACE = "tcp://127.0.0.1:5701"
OTHER = "tcp://127.0.0.1:5801"
OLDER, NEWER = "0" * 64, "f" * 64


def backend(*endpoints: str, seed: int = 1, **options: Any) -> Bench:
    bench = Bench(BackendSession(endpoints or (PLACE,), "me", ["a"], 2, random.Random(seed), **options))
    bench.act("start")
    return bench


def frontend(*endpoints: str, seed: int = 1, **options: Any) -> Bench:
    bench = Bench(FrontendSession(endpoints or (PLACE,), None, random.Random(seed), **options))
    bench.act("start")
    return bench


def up(bench: Bench) -> Bench:
    bench.ack()
    if isinstance(bench.session, BackendSession):
        bench.ready_ok()
    assert bench.take(Connected) == [Connected("me")]
    bench.news.clear()
    bench.hush()
    return bench


@pytest.mark.parametrize("make", [backend, frontend])
@pytest.mark.parametrize("seed", seeds(20))
def test_every_attempt_waits_a_random_time_below_a_ceiling_that_doubles(make: Callable[..., Bench], seed: int) -> None:
    bench = make(seed=seed)
    assert bench.opened == [PLACE], "the first one of all does not wait"
    delays: list[float] = []
    for _ in range(12):
        lost = bench.mono
        bench.act("closed", "refused")
        bench.reopen()
        delays.append(bench.mono - lost)
    ceilings = [min(60.0, 2.0**n) for n in range(12)]
    assert all(0 <= delay <= ceiling for delay, ceiling in zip(delays, ceilings, strict=True)), delays
    assert len(set(delays)) == len(delays)


def test_delays_fill_the_whole_range_and_start_again_after_success() -> None:
    delays = []
    for seed in range(300):
        bench = up(backend(seed=seed))
        bench.act("closed", "the cable")
        due = bench.session.deadline()
        assert due is not None
        delays.append(due - bench.mono)
    assert min(delays) < 0.02
    assert max(delays) > 0.98
    assert 0.4 < sum(delays) / len(delays) < 0.6, "full jitter, the first attempt included"


@pytest.mark.parametrize("seed", seeds(100))
def test_while_somebody_waits_attempts_are_seconds_apart(seed: int) -> None:
    """Promise: CLIENT-6. A delay longer than what is left of a call would make its time worth nothing."""
    bench = frontend(seed=seed)
    bench.act("request", "s", [b"x"], 60.0, False, "call")
    tried = bench.mono
    while bench.mono < 150.0:
        bench.act("closed", "refused")
        bench.reopen()
        assert bench.mono - tried <= MAX_URGENT_BACKOFF_SECONDS
        tried = bench.mono
    assert not bench.take(CallFailed)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_backend_with_work_in_flight_is_back_before_its_leases_end(seed: int) -> None:
    """Promise: CLIENT-6. A restarted broker keeps leases for 6 s; after some failures the backoff was longer, and the
    work ran again elsewhere although its worker lived."""
    bench = up(backend(seed=seed))
    bench.hear("REQUEST", b"1", service="a", id="r1", timeout=900)
    tried = bench.mono
    for _ in range(12):
        bench.act("closed", "refused")
        bench.reopen()
        assert bench.mono - tried <= MAX_URGENT_BACKOFF_SECONDS
        tried = bench.mono


@pytest.mark.parametrize("seed", seeds(20))
def test_who_begins_to_wait_does_not_wait_for_a_delay_of_calmer_times(seed: int) -> None:
    """Promise: CLIENT-6"""
    bench = frontend(seed=seed)
    for _ in range(8):
        bench.act("closed", "refused")
        bench.reopen()
    bench.act("closed", "refused")
    asked = bench.mono
    bench.act("request", "s", [b"x"], 10.0, False, "call")
    bench.reopen()
    assert bench.mono - asked <= MAX_URGENT_BACKOFF_SECONDS
    assert not bench.take(CallFailed)


def test_a_backend_negotiates_checkconfig_then_ready() -> None:
    bench = backend(heartbeat_interval=2.0)
    [(command, said)] = bench.hush()
    assert (command, said) == (
        "CHECKCONFIG",
        {"config_type": "json", "batch": True, "request_batches": True, "identity": "me", "services": ["a"]},
    )
    bench.hear("CONFIG", b"{}", identity="me", config_type="json", config_version=3, config_hash=HASH)
    [(command, ready)] = bench.hush()
    assert command == "READY"
    assert (ready.services, ready.slots, ready.config_version, ready.heartbeat_interval) == (["a"], 2, 3, 2.0)
    assert ready.time == WALL + bench.mono
    assert not bench.take(Connected)
    bench.ready_ok(4.0)
    assert bench.take(Connected) == [Connected("me")]
    bench.pass_time(4.1)
    assert bench.words == ["HEARTBEAT"]


@pytest.mark.parametrize("interval", [0.0, -1.0])
def test_an_interval_that_cannot_be_is_not_taken(interval: float) -> None:
    bench = backend()
    bench.ack()
    bench.ready_ok(interval)
    bench.hush()
    bench.pass_time(1.5)
    assert bench.words == ["HEARTBEAT"]


def test_a_configuration_never_goes_back() -> None:
    bench = backend()
    line = bench.session.connection
    bench.hear("CONFIG", b'{"n":1}', identity="me", config_type="json", config_version=5, config_hash=HASH)
    for version, digest in ((4, NEWER), (5, OLDER), (5, HASH)):
        bench.hear("CONFIG", b"old", identity="me", config_type="json", config_version=version, config_hash=digest)
        assert (line.config_version, line.config_hash, line.config) == (5, HASH, b'{"n":1}')
    bench.ack(version=4, digest=NEWER)
    assert (line.config_version, line.config_hash) == (5, HASH)
    bench.ack(version=6, digest=OLDER)
    assert (line.config_version, line.config_hash) == (6, OLDER)
    bench.hear("CONFIG", b"new", identity="me", config_type="json", config_version=6, config_hash=NEWER)
    assert line.config == b"new"
    bench.act("closed", "the cable")
    bench.hush()
    bench.pass_time(1)
    assert bench.said[0][1]["config_version"] == 6, "a reconnect says what we have"


def test_force_negotiate_keeps_what_is_in_hand() -> None:
    bench = up(backend())
    bench.hear("REQUEST", b"1", service="a", id="r1", timeout=9)
    bench.hear("REQUEST", b"2", service="a", id="r2", timeout=9)
    bench.act("reply", "r1", [b"one"])
    bench.hush()
    bench.hear("FORCENEGOTIATE", reason="who are you?")
    bench.hear("FORCENEGOTIATE", reason="and again")
    assert bench.words == ["CHECKCONFIG"], "once is enough"
    bench.act("reply", "r2", [b"two"])
    bench.ack()
    ready = bench.hush()[-1][1]
    assert ready.holds == [("r2", 0)], "finished, but not said yet"
    bench.ready_ok()
    assert bench.hush() == [("REPLY", {"id": "r2"}, b"two")]


def test_a_broker_that_is_silent_is_given_up_after_three_intervals() -> None:
    bench = up(backend())
    bench.pass_time(2.9)
    assert not bench.take(ConnectionLost)
    assert bench.words == ["HEARTBEAT", "HEARTBEAT"]
    bench.hear("HEARTBEAT")
    bench.pass_time(2.9)
    assert not bench.take(ConnectionLost)
    bench.pass_time(0.2 + RECHECK_SECONDS)
    assert [lost.reason for lost in bench.take(ConnectionLost)] == ["the broker's heartbeats stopped"]


# Promise: LIVE-3
def test_a_client_that_was_suspended_reads_what_came_before_it_gives_the_broker_up() -> None:
    bench = up(backend())
    bench.mono += 60.0
    bench.act("tick")
    assert not bench.take(ConnectionLost), "messages may not have reached the socket yet"
    bench.hear("HEARTBEAT")
    bench.pass_time(2.9)
    assert not bench.take(ConnectionLost)
    bench.mono += 60.0
    bench.pass_time(RECHECK_SECONDS + 0.01)
    assert bench.take(ConnectionLost), "silence that lasts is a loss"


def test_no_answer_to_the_negotiation_ends_the_attempt() -> None:
    for make in (backend, frontend):
        bench = make()
        bench.pass_time(2.9)
        assert not bench.take(ConnectionLost)
        bench.pass_time(0.2)
        assert bench.take(ConnectionLost) == [ConnectionLost("the broker did not answer")]


def test_an_idle_frontend_expects_nothing() -> None:
    bench = up(frontend())
    bench.pass_time(3_600)
    assert not bench.take(ConnectionLost)
    assert bench.words == []


def test_change_broker_goes_there_after_the_time_it_names() -> None:
    bench = up(backend())
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"backend": OTHER, "frontend": PLACE}, after=2.0)
    bench.pass_time(1.9)
    assert bench.opened == [PLACE]
    assert not bench.take(ConnectionLost), "until then it works where it is"
    bench.hear("HEARTBEAT")
    bench.hush()
    bench.pass_time(0.2)
    assert [(command, said.services) for command, said in bench.hush()] == [("READY", [])]
    assert not bench.take(ConnectionLost), "something may be on its way"
    bench.ready_ok()
    bench.pass_time(0)
    assert bench.take(ConnectionLost)
    assert bench.words == ["DISCONNECT", "CHECKCONFIG"]
    assert bench.opened == [PLACE, OTHER]
    bench.act("closed", "refused")
    bench.pass_time(1.0)
    assert bench.opened == [PLACE, OTHER, PLACE], "the old one is the next to try"


@pytest.mark.parametrize(
    "place",
    ["", "tcp://", "ipc:///tmp/x", "inproc://x", "tcp://host", "tcp://h:1 x", "tcp://h:٣", "tcp://*:5", "tcp://é:5"],
)
def test_change_broker_to_a_place_that_cannot_be_is_ignored(place: str) -> None:
    bench = up(backend())
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"backend": place})
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"frontend": OTHER})
    assert not bench.take(ConnectionLost)


@pytest.mark.parametrize("after", [-1.0, 1e9])
def test_change_broker_waits_a_minute_at_the_most(after: float) -> None:
    bench = backend()
    bench.ack()
    bench.hear("CHANGEBROKER", broker="b", endpoints={"backend": OTHER}, after=after)
    bench.pass_time(59)
    assert bench.opened == [PLACE]
    bench.pass_time(2)
    assert bench.opened == [PLACE, OTHER]


def test_who_is_told_to_go_ends_its_work_first() -> None:
    bench = up(backend())
    bench.hear("REQUEST", b"1", service="a", id="r1", timeout=90)
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"backend": OTHER})
    bench.pass_time(0)
    assert [(command, said.services) for command, said in bench.hush()] == [("READY", [])], "it takes nothing new"
    bench.ready_ok()
    bench.act("reply", "r1", [b"one"])
    bench.pass_time(0)
    assert bench.words == ["REPLY", "DISCONNECT", "CHECKCONFIG"]
    assert bench.opened == [PLACE, OTHER]


def test_who_cannot_end_its_work_stays() -> None:
    bench = up(backend())
    bench.hear("REQUEST", b"1", service="a", id="r1", timeout=900)
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"backend": OTHER})
    for _ in range(60):
        bench.pass_time(1)
        bench.hear("HEARTBEAT")
    readies = [said.services for command, said, *_ in bench.hush() if command == "READY"]
    assert readies == [[], ["a"]]
    bench.act("reply", "r1", [b"one"])
    bench.pass_time(1)
    assert bench.opened == [PLACE]


def told_of_brokers(bench: Bench) -> None:
    """CONFIG: `b1` is here, `b2` is elsewhere."""
    rows = [
        {"identity": "b1", "endpoints": {"backend": PLACE, "frontend": PLACE}},
        {"identity": "b2", "endpoints": {"backend": OTHER, "frontend": OTHER}},
    ]
    body = json.dumps({"group_config": [{"name": "g", "brokers": rows}], "preferred_broker": "b1"}).encode()
    bench.hear("CONFIG", body, identity="me", config_type="json", config_version=3, config_hash=HASH)
    if isinstance(bench.session, BackendSession):
        bench.ready_ok()


def test_one_address_is_enough_to_learn_the_others() -> None:
    bench = backend()
    told_of_brokers(bench)
    bench.act("closed", "the cable")
    bench.hush()
    bench.reopen()
    assert bench.opened == [PLACE, OTHER]
    assert bench.hush() == [("NEEDBROKER", {"preferred_broker": "b1", "services": ["a"], "identity": "me"})]
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"backend": OTHER}, after=1.0)
    bench.pass_time(0.9)
    assert bench.words == [], "it goes when it was told to go"
    bench.pass_time(0.2)
    assert bench.words == ["CHECKCONFIG"]
    assert bench.opened == [PLACE, OTHER], "on the same connection"


def test_who_is_sent_to_its_own_broker_in_vain_asks_the_same_one_again() -> None:
    bench = backend()
    told_of_brokers(bench)
    bench.act("closed", "the cable")
    bench.reopen()
    bench.hear("CHANGEBROKER", broker="b1", endpoints={"backend": PLACE}, after=0.5)
    bench.reopen()
    assert bench.opened == [PLACE, OTHER, PLACE]
    bench.hush()
    at = bench.mono
    bench.act("closed", "refused")
    bench.reopen()
    assert bench.mono - at <= 0.2, "at once"
    assert bench.opened[-1] == OTHER
    assert bench.words == ["NEEDBROKER"]


@pytest.mark.parametrize(("code", "words"), [(503, "NEEDBROKER"), (501, "CHECKCONFIG"), (403, "CHECKCONFIG")])
def test_a_broker_that_knows_no_other_is_used_itself(code: int, words: str) -> None:
    bench = backend()
    told_of_brokers(bench)
    bench.act("closed", "the cable")
    bench.reopen()
    bench.hush()
    bench.hear("DISCONNECTERROR", code=code, message="no")
    while bench.opened.count(OTHER) < 2:
        bench.hush()
        bench.reopen()
        if bench.opened[-1] == PLACE:
            bench.act("closed", "refused")
    assert bench.words == [words]


def test_force_negotiate_while_it_asks_sends_what_waits() -> None:
    bench = frontend()
    told_of_brokers(bench)
    bench.act("closed", "the cable")
    bench.act("request", "a", [b"1"], 60.0, True, "x")
    bench.reopen()
    assert bench.opened[-1] == OTHER
    bench.hush()
    bench.hear("FORCENEGOTIATE", reason="I know no such word")
    assert bench.words == ["CHECKCONFIG", "REQUEST", "REQUEST"], "a ping, and the request"


def test_who_is_told_to_stay_after_all_offers_again() -> None:
    bench = up(backend())
    bench.hear("CHANGEBROKER", broker="b2", endpoints={"backend": OTHER})
    bench.pass_time(0)
    bench.hear("CHANGEBROKER", broker="b1", endpoints={"backend": PLACE})
    readies = [said.services for command, said, *_ in bench.hush() if command == "READY"]
    assert readies == [[], ["a"]]


def test_a_configuration_with_wrong_brokers_tells_nothing() -> None:
    bench = backend()
    rows = [{"identity": "b", "endpoints": {"backend": place}} for place in ("ipc:///x", "tcp://", "", PLACE)]
    body = json.dumps({"group_config": [{"name": "g", "brokers": rows}]}).encode()
    bench.hear("CONFIG", body, identity="me", config_type="json", config_version=3, config_hash=HASH)
    assert not bench.session.connection.addresses.has_others


def test_409_ends_the_line_for_good() -> None:
    bench = up(backend())
    bench.hear("DISCONNECTERROR", code=409, message="taken")
    assert bench.take(SessionEnded) == [SessionEnded(409, "taken")]
    assert not bench.open_now
    bench.act("closed", "the socket")
    bench.pass_time(1_000)
    assert bench.opened == [PLACE]
    assert bench.session.deadline() is None


@pytest.mark.parametrize("code", [403, 408, 415, 425, 426, 429, 503])
def test_other_refusals_back_off_and_try_again(code: int) -> None:
    bench = backend()
    for _ in range(5):
        bench.hear("DISCONNECTERROR", code=code, message="not now")
        assert bench.take(ConnectionLost) == [ConnectionLost(f"{code} not now")]
        assert bench.session.connection.refusal == f"{code} not now"
        assert not bench.open_now
        bench.reopen()
    assert not bench.take(SessionEnded)


def test_leaving_says_disconnect_and_nothing_comes_after_it() -> None:
    bench = up(backend())
    bench.act("end")
    assert bench.words == ["DISCONNECT"]
    bench.hear("REQUEST", b"1", service="a", id="r1", timeout=9)
    bench.pass_time(100)
    assert bench.words == ["DISCONNECT"]
    assert not bench.news


def test_rubbish_is_not_heeded() -> None:
    for bench in (up(backend()), up(frontend())):
        before = bench.session.connection.state
        for frames in ([], [b"x"], [b"SCALE0/1"], [b"SCALE0/1", b"REPLY", b"{"], [b"SCALE0/1", b"NOPE", b""]):
            bench.session.receive(frames, bench.now, SessionEffects())
        bench.hear("REPLY", b"", id="unknown", service="a")
        bench.hear("PARTIAL", b"", id=7)
        assert bench.session.connection.state == before
        assert not bench.news


# Promise: NEGO-5
def test_an_interval_that_is_too_long_is_lowered_to_a_day() -> None:
    worker, caller = up(backend()), up(frontend())
    body = b'{"heartbeat_interval": 1e308}'
    worker.hear("READYOK", identity="me", heartbeat_interval=1e308, time=WALL, config_version=1)
    caller.hear("CONFIG", body, identity="me", config_type="json", config_version=2, config_hash=NEWER)
    assert worker.session.connection.interval == caller.session.connection.interval == 86_400.0
    due = worker.session.deadline()
    assert due is not None
    assert due <= worker.mono + 3 * 86_400.0
