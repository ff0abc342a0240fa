"""Who lives: silence, death, work that moves, clocks, restarts (PROTOCOL 2.1, the promises about liveness)."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raw, Raws, raws, unique

pytestmark = pytest.mark.processes

INTERVAL = 0.2
LIVENESS = 3
SOONEST = INTERVAL * LIVENESS
LATEST = INTERVAL * (LIVENESS + 1) + 0.25


@pytest.fixture(scope="module")
def lively(tmp_path_factory):
    """A broker that is quick to judge."""
    folder = tmp_path_factory.mktemp("lively")
    config = {"default_heartbeat_interval": INTERVAL, "heartbeat_liveness": LIVENESS, "frontend_idle": 0.5}
    with own_broker(folder, **config) as (broker, _):
        yield broker


@pytest.fixture
def quick(lively):
    with raws(lively.endpoints) as made:
        yield made


def beat(*clients: Raw) -> None:
    for client in clients:
        client.say("HEARTBEAT", {"time": time.time()})


def known(net: Raws, identity: str) -> bool:
    rows = net.frontend().request("scale0.clients").body["items"]
    return any(row["identity"] == identity for row in rows)


def alive_until(net: Raws, seconds: float, *clients: Raw) -> None:
    """Keep these clients alive for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        beat(*clients)
        for client in clients:
            client.hear_until("HEARTBEAT")
        net.frontend().silent(INTERVAL / 4)


# Promise: LIVE-1
def test_a_silent_backend_dies_in_time_and_never_before(quick):
    service = unique("dies")
    backend, caller = quick.backend(service), quick.frontend()
    caller.say("REQUEST", {"service": service, "id": 1})
    backend.hear_until("REQUEST")
    before = time.monotonic()
    beat(backend)
    backend.hear_until("HEARTBEAT")
    after = time.monotonic()
    died = caller.hear()
    noticed = time.monotonic()
    assert (died.command, died.code) == ("ERROR", 502)
    assert noticed - before >= SOONEST
    assert noticed - after <= LATEST


def test_any_message_is_a_sign_of_life(quick):
    service = unique("lives")
    backend, caller = quick.backend(service), quick.frontend()
    caller.say("REQUEST", {"service": service, "id": 1})
    id_ = backend.hear_until("REQUEST").options["id"]
    end = time.monotonic() + 1.2 * LATEST
    while time.monotonic() < end:
        backend.say("PARTIAL", {"id": id_}, b".")
        assert caller.hear().command == "PARTIAL"
        caller.silent(INTERVAL)
    backend.say("REPLY", {"id": id_}, b"!")
    assert caller.hear().bodies == [b"!"]


def test_a_longer_interval_gives_a_longer_life(quick):
    service, me = unique("slow"), unique("worker")
    quick.backend(service, identity=me, heartbeat_interval=0.5)
    start = time.monotonic()
    until(lambda: not known(quick, me))
    assert 1.5 <= time.monotonic() - start <= 2.25 + 0.1


def test_a_dead_backend_is_out_of_every_queue_and_must_negotiate(quick):
    service, me = unique("gone"), unique("worker")
    backend = quick.backend(service, identity=me)
    until(lambda: not known(quick, me))
    assert quick.frontend().request(service, timeout=0.1).code == 404
    assert backend.hear_until("DISCONNECTERROR").code == 408
    assert backend.ask("HEARTBEAT").command == "FORCENEGOTIATE"


# Promise: LIVE-4
def test_work_of_a_dead_backend_that_may_be_retried_moves_in_time(quick):
    service = unique("moves")
    dies, caller = quick.backend(service), quick.frontend()
    caller.say("REQUEST", {"service": service, "id": 1, "retry": True, "timeout": 20}, b"work")
    dies.hear_until("REQUEST")
    lives = quick.backend(service)
    start = time.monotonic()
    dies.close()
    while (asked := lives.hear_or_none(INTERVAL / 2)) is None or asked.command != "REQUEST":
        beat(lives)
    assert time.monotonic() - start <= LATEST
    assert asked.bodies == [b"work"]
    lives.say("REPLY", {"id": asked.options["id"]}, b"moved")
    assert caller.hear().bodies == [b"moved"]


# Promise: LIVE-4
@pytest.mark.parametrize(("retry", "partial"), [(False, False), (True, True)])
def test_work_that_may_not_be_retried_ends_with_502(quick, retry, partial):
    service = unique("lost")
    backend, caller = quick.backend(service), quick.frontend()
    caller.say("REQUEST", {"service": service, "id": 1, "retry": retry, "timeout": 20})
    id_ = backend.hear_until("REQUEST").options["id"]
    if partial:
        backend.say("PARTIAL", {"id": id_}, b"half")
        assert caller.hear().command == "PARTIAL"
    backend.close()
    assert caller.hear().code == 502


def test_new_work_for_a_connection_that_is_gone_goes_to_another_at_once(quick):
    service = unique("gone")
    gone = quick.backend(service)
    stays, caller = quick.backend(service, heartbeat_interval=5), quick.frontend()
    gone.close()
    start = time.monotonic()
    # libzmq learns of the close a moment later: what was sent until then counts as held.
    for number in range(20):
        caller.say("REQUEST", {"service": service, "id": number, "retry": True})
        while (asked := stays.hear_or_none(0.05)) is not None:
            stays.say("REPLY", {"id": asked.options["id"]})
    heard = {caller.hear().options["id"] for _ in range(19)}
    assert len(heard) == 19
    assert time.monotonic() - start < 10


# Promise: LIVE-6
def test_a_frontend_that_never_sent_a_heartbeat_is_not_judged_by_silence(quick):
    me, caller, service = unique("caller"), quick.frontend(), unique("later")
    caller.check(me)
    caller.say("REQUEST", {"service": service, "id": 1, "timeout": 10})
    assert caller.silent(1.2 * LATEST)
    assert known(quick, me)
    quick.backend(service).answer()
    assert caller.hear().command == "REPLY"


# Promise: LIVE-6
def test_an_idle_frontend_is_forgotten(quick):
    me = unique("idle")
    start = time.monotonic()
    quick.frontend().check(me)
    until(lambda: not known(quick, me))
    assert time.monotonic() - start >= 0.5


def test_a_frontend_that_sent_a_heartbeat_is_judged_like_a_backend(quick):
    me, caller = unique("caller"), quick.frontend()
    caller.check(me)
    start = time.monotonic()
    caller.ask("HEARTBEAT")
    until(lambda: not known(quick, me))
    assert SOONEST <= time.monotonic() - start <= LATEST + 0.1


# Promise: LIVE-3
def test_a_broker_that_was_asleep_kills_nobody_who_kept_talking(tmp_path):
    config = {"default_heartbeat_interval": INTERVAL, "heartbeat_liveness": LIVENESS}
    with own_broker(tmp_path, **config) as (broker, net):
        crew = [net.backend("held") for _ in range(20)]
        caller = net.frontend()
        for number in range(20):
            caller.say("REQUEST", {"service": "held", "id": number, "timeout": 30})
        held = [(backend, backend.hear_until("REQUEST").options["id"]) for backend in crew]
        for _ in range(2):
            os.kill(broker.pid, signal.SIGSTOP)
            end = time.monotonic() + 2 * SOONEST
            while time.monotonic() < end:
                beat(*crew)
                caller.silent(INTERVAL / 2)
            os.kill(broker.pid, signal.SIGCONT)
            alive_until(net, INTERVAL, *crew)
        for backend, id_ in held:
            backend.say("REPLY", {"id": id_})
        assert [caller.hear().command for _ in held] == ["REPLY"] * 20


def skewed(net: Raws, offset: float, **options: Any) -> Raw:
    raw = net("backend")
    raw.ready(unique("s"), time=time.time() + offset, heartbeat_interval=INTERVAL, **options)
    return raw


# Promise: LIVE-7
@pytest.mark.parametrize("offset", [-100, 100, 1e9, -1e9])
def test_a_client_whose_clock_is_wrong_is_disconnected_with_425(tmp_path, offset):
    with own_broker(tmp_path, default_heartbeat_interval=INTERVAL) as (_, net):
        right = skewed(net, 5)
        heard = skewed(net, offset).hear_until("DISCONNECTERROR")
        assert heard.code == 425
        assert right.silent(2 * INTERVAL)


# Promise: LIVE-8
def test_a_broker_whose_clock_no_client_confirms_serves_and_warns(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=INTERVAL) as (broker, net):
        client = skewed(net, 3_600)
        end = time.monotonic() + 10
        while "no client confirms it" not in broker.log.read_text():
            client.say("HEARTBEAT", {"time": time.time() + 3_600})
            heard = client.hear_or_none(INTERVAL / 2)
            assert heard is None or heard.command == "HEARTBEAT", heard
            assert time.monotonic() < end


def test_one_wrong_clock_among_many_is_found_and_the_others_stay(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=INTERVAL) as (_, net):
        right = [skewed(net, 0) for _ in range(4)]
        wrong = skewed(net, 100)
        end = time.monotonic() + 10
        while (heard := wrong.hear_or_none(INTERVAL / 2)) is None or heard.command != "DISCONNECTERROR":
            beat(*right)
            wrong.say("HEARTBEAT", {"time": time.time() + 100})
            assert time.monotonic() < end
        assert heard.code == 425
        for client in right:
            assert client.hear_until("HEARTBEAT").command == "HEARTBEAT"
            assert client.hear_until("HEARTBEAT", "DISCONNECTERROR").command == "HEARTBEAT"


# Promise: LIVE-7
def test_three_clients_who_agree_outvote_the_brokers_clock(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=INTERVAL) as (_, net):
        crew = [skewed(net, 0) for _ in range(3)]
        end = time.monotonic() + 6 * INTERVAL
        while time.monotonic() < end:
            for client in crew:
                client.say("HEARTBEAT", {"time": time.time() + 3_600})
                assert client.hear_until("HEARTBEAT", "DISCONNECTERROR").command == "HEARTBEAT"
            crew[0].silent(INTERVAL / 2)


# Promise: NEGO-3
def test_after_a_kill_everybody_must_negotiate_and_old_answers_match_nothing(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=5) as (broker, net):
        backend, caller = net.backend("echo", identity="worker"), net.frontend()
        caller.check("caller")
        caller.say("REQUEST", {"service": "echo", "id": 1})
        old = backend.hear_until("REQUEST").options["id"]
        broker.kill9()
        broker.restart()
        backend.say("REPLY", {"id": old}, b"for the dead")
        backend.say("HEARTBEAT")
        assert backend.hear().command == "FORCENEGOTIATE"
        backend.ready("echo", identity="worker", holds=[[old, 1]])
        caller.say("REQUEST", {"service": "echo", "id": 1})
        asked = backend.hear_until("REQUEST")
        assert asked.options["id"] != old
        backend.say("REPLY", {"id": asked.options["id"]}, b"alive")
        assert caller.hear_until("REPLY").bodies == [b"alive"]


# Promise: LIVE-4
def test_what_a_backend_still_holds_stays_with_it_over_a_new_connection(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=5) as (_, net):
        old, caller = net.backend("echo", identity="worker", slots=3), net.frontend()
        for number, retry in enumerate((True, True, False)):
            caller.say("REQUEST", {"service": "echo", "id": number, "retry": retry}, b"%d" % number)
        ids = [old.hear_until("REQUEST").options["id"] for _ in range(3)]
        old.close()
        new = net("backend")
        new.check("worker")
        new.say("READY", {"services": ["echo"], "config_version": 1, "slots": 3, "holds": [[ids[0], 1]]})
        assert new.hear().command == "READYOK"
        again = new.hear()
        assert (again.command, again.bodies) == ("REQUEST", [b"1"])
        lost = caller.hear()
        assert (lost.options["id"], lost.code) == (2, 502)
        new.say("REPLY", {"id": ids[0]}, b"kept")
        assert caller.hear().bodies == [b"kept"]
        new.say("REPLY", {"id": again.options["id"]}, b"again")
        assert caller.hear().bodies == [b"again"]


# Promise: LIVE-5
def test_many_clients_together_get_a_longer_interval(tmp_path):
    config = {"default_heartbeat_interval": INTERVAL, "max_heartbeats_per_second": 10}
    with own_broker(tmp_path, **config) as (_, net):
        given = [net("backend").ready(unique("s")).options["heartbeat_interval"] for _ in range(12)]
        assert given[0] == INTERVAL
        assert given[-1] >= 1.0
        assert given == sorted(given)
