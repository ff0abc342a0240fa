"""Stored requests and who does them: deaths, restarts, bounds, and whose slot it is."""

# Promise: MDP-6
from __future__ import annotations

import json
import random

import pytest

from scale0.compat.titanic.request_runs import MAX_UNDER_WAY, METHOD_PREFIX
from scale0.tasks.jsonrpc.arguments import DEFAULT_RESULT_SECONDS
from tests.fakes.examples import seeds
from tests.wire.majordomo.harbour import Harbour
from tests.wire.majordomo.town import C02, CLIENT_REQUEST_02, DISCONNECT_02, W02
from tests.wire.majordomo.worker import INTERVAL

REQUEST, REPLY, CLOSE = b"titanic.request", b"titanic.reply", b"titanic.close"
SILENCE = 3.2 * INTERVAL
LANE = METHOD_PREFIX + "echo"


@pytest.fixture
def harbour() -> Harbour:
    return Harbour()


def do_all(harbour: Harbour, who: str) -> int:
    """A worker answers whatever it is given, until it is given nothing more."""
    done = 0
    while work := harbour.work_of(who):
        for address, frames in work:
            harbour.answers(who, address, b"did", *frames)
            done += 1
    return done


def test_a_stored_request_survives_the_broker(harbour):
    uuid = harbour.stores(b"echo", b"hello")
    harbour.dies()
    assert harbour.asks(REPLY, uuid) == [b"300"]
    harbour.worker("w1")
    assert do_all(harbour, "w1") == 1
    harbour.dies()
    assert harbour.asks(REPLY, uuid) == [b"200", b"did", b"hello"]
    assert harbour.asks(CLOSE, uuid) == [b"200"]
    harbour.dies()
    assert harbour.asks(REPLY, uuid) == [b"400"]


def test_nothing_is_said_before_it_is_stored(harbour):
    harbour.cut_power()
    harbour.says("client", C02, CLIENT_REQUEST_02, REQUEST, b"echo", b"hello")
    assert harbour.hears("client") == []
    harbour.dies()
    harbour.worker("w1")
    assert harbour.work_of("w1") == []


def test_what_was_under_way_when_the_broker_died_is_done_at_once_and_costs_no_attempt(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    assert len(harbour.work_of("w1")) == 1
    harbour.dies()
    harbour.worker("w2")
    (task,) = harbour.broker.tasks.backlog.tasks.values()
    assert (task.attempt, task.starts) == (2, 1)
    assert do_all(harbour, "w2") == 1
    assert harbour.asks(REPLY, uuid) == [b"200", b"did", b"hello"]


def test_a_worker_that_never_comes_costs_nothing_and_one_that_comes_late_does_it(harbour):
    uuids = [harbour.stores(b"echo", b"%d" % number) for number in range(3)]
    harbour.passes(300.0)
    assert harbour.broker.tasks.backlog.tasks == {}
    assert harbour.broker.tasks.queue.method_queues.methods() == []
    assert [harbour.asks(REPLY, uuid) for uuid in uuids] == [[b"300"]] * 3
    harbour.worker("w1")
    assert do_all(harbour, "w1") == 3
    assert [harbour.asks(REPLY, uuid)[2] for uuid in uuids] == [b"0", b"1", b"2"]


def test_they_are_done_in_the_order_in_which_they_were_stored(harbour):
    for number in range(20):
        harbour.stores(b"echo", b"%d" % number)
    harbour.worker("w1")
    seen = []
    while work := harbour.work_of("w1"):
        ((address, frames),) = work  # a worker of Majordomo has one at a time
        seen += frames
        harbour.answers("w1", address, b"done")
    assert seen == [b"%d" % number for number in range(20)]


def test_each_death_is_an_attempt_and_the_pause_grows(harbour):
    uuid = harbour.stores(b"echo", b"hello")
    harbour.worker("w0")
    waited = []
    for number in range(1, 5):
        assert len(harbour.work_of(f"w{number - 1}")) == 1
        harbour.says(f"w{number - 1}", W02, DISCONNECT_02)
        harbour.worker(f"w{number}")
        began = harbour.mono
        while not harbour.broker.tasks.leases.leased:
            harbour.passes(0.1)
            harbour.says(f"w{number}", W02, b"\x05")
        waited.append(harbour.mono - began)
    for number, seconds in enumerate(waited):
        assert 2**number <= seconds <= 1.5 * 2**number + 1.5
    assert do_all(harbour, "w4") == 1
    assert harbour.asks(REPLY, uuid) == [b"200", b"did", b"hello"]


def test_a_lane_that_was_dropped_is_read_again_when_somebody_comes(harbour):
    harbour.worker("w1")
    first, second = harbour.stores(b"echo", b"1"), harbour.stores(b"echo", b"2")
    assert len(harbour.work_of("w1")) == 1
    harbour.says("w1", W02, DISCONNECT_02)
    harbour.passes(200.0)
    assert LANE not in harbour.broker.tasks.queue.method_queues.methods()
    harbour.worker("w2")
    assert do_all(harbour, "w2") == 2
    assert harbour.asks(REPLY, first)[0] == harbour.asks(REPLY, second)[0] == b"200"


def test_a_long_pause_outlives_the_lane(harbour):
    harbour.scale0_backend("wown", "echo")
    uuid = harbour.stores(b"echo", b"hello")
    tries = 0
    for _ in range(400):
        for frames in [frames for frames in harbour.hears("wown") if frames[1] == b"REQUEST"]:
            tries += 1
            if tries < 8:  # the last pause is longer than an idle lane lasts
                said = {"id": json.loads(frames[2])["id"], "code": 504, "message": "too slow"}
                harbour.scale0("wown", "ERROR", said)
            else:
                harbour.says("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
        harbour.passes(1.0)
        harbour.scale0("wown", "HEARTBEAT", {"time": harbour.now.wall, "config_version": 1})
    assert tries == 8
    assert harbour.asks(REPLY, uuid) == [b"200", b"done"]


def test_a_network_that_stores_nothing_pays_nothing(harbour):
    for service in (b"a", b"b", b"c"):
        harbour.worker(f"w{service.decode()}", service)
    assert not [name for name in harbour.broker.tasks.queue.method_queues.methods() if name.startswith(METHOD_PREFIX)]
    harbour.stores(b"b", b"hello")
    method_queues = [
        name for name in harbour.broker.tasks.queue.method_queues.methods() if name.startswith(METHOD_PREFIX)
    ]
    assert method_queues == [METHOD_PREFIX + "b"]


def test_an_answer_is_kept_for_a_day(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    do_all(harbour, "w1")
    harbour.mono += DEFAULT_RESULT_SECONDS - 1.0
    assert harbour.asks(REPLY, uuid) == [b"200", b"did", b"hello"]
    harbour.mono += 2.0
    assert harbour.asks(REPLY, uuid) == [b"400"]


def test_only_so_many_are_under_way_whatever_a_backend_would_take(harbour):
    harbour.scale0("wown", "CHECKCONFIG", {"config_type": "json", "identity": "wown"})
    harbour.scale0("wown", "READY", {"services": ["echo"], "config_version": 1, "slots": 1_000})
    uuids = [harbour.stores(b"echo", b"%d" % number) for number in range(MAX_UNDER_WAY + 10)]
    given = [frames for frames in harbour.hears("wown") if frames[1] == b"REQUEST"]
    assert len(given) == harbour.under_way() == MAX_UNDER_WAY
    while given:
        for frames in given:
            harbour.says("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
        given = [frames for frames in harbour.hears("wown") if frames[1] == b"REQUEST"]
    assert {tuple(harbour.asks(REPLY, uuid)) for uuid in uuids} == {(b"200", b"done")}


def test_large_ones_are_under_way_a_few_at_a_time():
    harbour = Harbour(max_message_bytes=64 * 1024 * 1024)
    harbour.scale0("wown", "CHECKCONFIG", {"config_type": "json", "identity": "wown"})
    harbour.scale0("wown", "READY", {"services": ["echo", "too"], "config_version": 1, "slots": 10})
    body = bytes(20 * 1024 * 1024)
    uuids = [harbour.stores(service, body) for service in (b"echo", b"echo", b"too", b"too")]
    done = 0
    while given := [frames for frames in harbour.hears("wown") if frames[1] == b"REQUEST"]:
        assert harbour.under_way() <= 2
        harbour.says("wown", b"SCALE0/1", b"REPLY", given[0][2], b"done")
        for frames in given[1:]:
            harbour.says("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
        done += len(given)
    assert done == 4
    assert {tuple(harbour.asks(REPLY, uuid)) for uuid in uuids} == {(b"200", b"done")}


def test_an_answer_that_would_not_fit_is_an_error(harbour):
    small = Harbour(max_message_bytes=1_000)
    small.worker("w1")
    uuid = small.stores(b"echo", b"hello")
    ((address, _),) = small.work_of("w1")
    small.says("w1", W02, b"\x03", address, b"", bytes(900))
    small.answers("w1", address, bytes(900))
    assert small.asks(REPLY, uuid) == [b"500"]


def test_requests_of_clients_who_wait_come_first(harbour):
    harbour.worker("w1")
    first = harbour.stores(b"echo", b"stored 1")
    harbour.stores(b"echo", b"stored 2")
    ((address, _),) = harbour.work_of("w1")
    harbour.says("other", C02, CLIENT_REQUEST_02, b"echo", b"now")
    harbour.answers("w1", address, b"done")
    assert harbour.asks(REPLY, first) == [b"200", b"done"]
    ((address, frames),) = harbour.work_of("w1")
    assert frames == [b"now"]
    harbour.answers("w1", address, b"done")
    assert [frames for _, frames in harbour.work_of("w1")] == [[b"stored 2"]]


def test_tasks_and_stored_requests_share_the_slots(harbour):
    rpc = {"jsonrpc": "2.0", "id": 1}
    connect = {**rpc, "method": "zerotask.broker.client_connect", "params": ["me"]}
    harbour.says("tasker", json.dumps(connect).encode())
    for number in range(20):
        harbour.stores(b"echo", b"%d" % number)
        submit = {**rpc, "method": "zerotask.broker.client_new_task", "params": ["me", "echo", [number]]}
        harbour.says("tasker", json.dumps(submit).encode())
    harbour.scale0("wown", "CHECKCONFIG", {"config_type": "json", "identity": "wown"})
    harbour.scale0("wown", "READY", {"services": ["echo"], "config_version": 1})
    order = ""
    for _ in range(1_000):
        heard = harbour.hears("wown")
        for frames in heard:
            if frames[1] == b"REQUEST":
                order += "r"
                harbour.says("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
            elif frames[1] == b"TASKS":
                tasks = json.loads(frames[3])
                order += "t" * len(tasks)
                done = [{"id": task["id"], "attempt": task["attempt"], "result": 1} for task in tasks]
                harbour.says("wown", b"SCALE0/1", b"TASKSDONE", b"", json.dumps(done).encode())
        harbour.passes(0.02)
        if len(order) == 40:
            break
    assert order.count("r") == order.count("t") == 20
    # Neither waits until the other is done.
    assert 5 <= order[:20].count("r") <= 15


def test_an_answer_that_cannot_be_stored_is_fetched_again_when_there_is_room(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    ((address, _),) = harbour.work_of("w1")
    harbour.broker.state.full = True
    harbour.answers("w1", address, b"lost")
    assert harbour.work_of("w1") == []
    harbour.broker.state.full = False
    harbour.says("w1", W02, b"\x05")
    harbour.passes(1.5)
    assert do_all(harbour, "w1") == 1
    assert harbour.asks(REPLY, uuid) == [b"200", b"did", b"hello"]


def test_a_task_that_a_client_put_in_our_lane_is_not_run(harbour):
    harbour.worker("w1")
    uuid = harbour.stores(b"echo", b"hello")
    rpc = {"jsonrpc": "2.0", "id": 1}
    connect = {**rpc, "method": "zerotask.broker.client_connect", "params": ["me"]}
    params = ["me", LANE, {"titanic": ["aGVsbG8="]}]
    submit = {**rpc, "method": "zerotask.broker.client_new_task", "params": params}
    harbour.says("tasker", json.dumps(connect).encode())
    harbour.says("tasker", json.dumps(submit).encode())
    assert do_all(harbour, "w1") == 1
    assert harbour.asks(REPLY, uuid) == [b"200", b"did", b"hello"]
    assert harbour.broker.tasks.queue.open == 0


def test_a_draining_broker_begins_nothing(harbour):
    uuid = harbour.stores(b"echo", b"hello")
    harbour.broker.state.draining = True
    harbour.worker("w1")
    assert harbour.work_of("w1") == []
    assert harbour.asks(REPLY, uuid) == [b"300"]


@pytest.mark.parametrize("seed", seeds(25))
def test_whatever_dies_everything_stored_is_done_and_nothing_is_with_two(seed):
    """Clients, workers and the broker in any order; in the end one good worker does what is left."""
    rng, harbour = random.Random(seed), Harbour()
    kept: dict[bytes, bytes] = {}
    closed: set[bytes] = set()
    hands: dict[str, list[tuple[bytes, list[bytes]]]] = {}
    for number in range(150):
        match rng.randrange(8):
            case 0 | 1 | 2:
                body = b"%d" % number
                kept[harbour.stores(b"echo", body)] = body
            case 3 if len(hands) < 3:
                hands[f"w{number}"] = []
                harbour.worker(f"w{number}")
            case 4 if kept and rng.random() < 0.2:
                uuid = rng.choice(list(kept))
                closed.add(uuid)
                assert harbour.asks(CLOSE, uuid) == [b"200"]
            case 5 if hands:
                gone = rng.choice(list(hands))
                del hands[gone]
                harbour.says(gone, W02, DISCONNECT_02)
            case 6 if rng.random() < 0.15:
                hands.clear()
                harbour.dies()
            case _:
                harbour.passes(rng.choice([0.0, 0.3, 1.6]))
                for who in hands:
                    harbour.says(who, W02, b"\x05")
        for who, work in hands.items():
            work += harbour.work_of(who)
            if work and rng.random() < 0.6:
                address, frames = work.pop()
                harbour.answers(who, address, b"did", *frames)
        bodies = [frames[0] for work in hands.values() for _, frames in work]
        assert len(bodies) == len(set(bodies))
    for who in list(hands):
        harbour.says(who, W02, DISCONNECT_02)
    harbour.worker("wlast")
    for _ in range(400):
        do_all(harbour, "wlast")
        harbour.passes(1.0)
        harbour.says("wlast", W02, b"\x05")
    for uuid, body in kept.items():
        assert harbour.asks(REPLY, uuid) == ([b"400"] if uuid in closed else [b"200", b"did", body])
    assert harbour.broker.tasks.queue.open == harbour.under_way() == 0
