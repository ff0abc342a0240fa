"""RFC 9: the three services, what becomes of a request that is stored, and crashes in between."""

# Promise: MDP-6
from __future__ import annotations

import json
import random

import pytest

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.compat.titanic import request_runs
from scale0.compat.titanic.request_runs import MAX_UNDER_WAY, METHOD_PREFIX
from scale0.compat.titanic.services import pack_frames, read_frames
from scale0.compat.titanic.stored_requests import TitanicTasks
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_queries import ListTasks, TaskPage
from scale0.tasks.jsonrpc.arguments import DEFAULT_RESULT_SECONDS
from tests.fakes.examples import seeds
from tests.fakes.majordomo import (
    C01,
    C02,
    CLIENT_FINAL_02,
    CLIENT_REQUEST_02,
    DISCONNECT_02,
    EMPTY,
    INTERVAL,
    PARTIAL_02,
    W02,
    MajordomoBroker,
)

REQUEST, REPLY, CLOSE = b"titanic.request", b"titanic.reply", b"titanic.close"
NOBODYS = b"0123456789abcdef" * 2
SILENCE = 3.2 * INTERVAL


def test_a_request_is_kept_done_and_fetched_as_often_as_wanted(broker):
    uuid = broker.store_request(b"echo", b"hello", b"\x00\xff", b"")
    assert len(uuid) == 32
    assert set(uuid) <= set(b"0123456789abcdef")
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]
    broker.worker("w1")
    ((address, frames),) = broker.requests_of("w1")
    assert frames == [b"hello", b"\x00\xff", b""]
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]
    broker.reply("w1", address, b"done", b"\xfe")
    for _ in range(2):
        assert broker.ask_titanic(REPLY, uuid) == [b"200", b"done", b"\xfe"]
    assert broker.ask_titanic(REPLY, uuid.upper(), who="other") == [b"200", b"done", b"\xfe"]


def test_a_worker_that_is_there_gets_it_at_once(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    ((address, _),) = broker.requests_of("w1")
    broker.reply("w1", address, b"done")
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"done"]


def test_a_client_of_01_is_answered_in_its_own_form(broker):
    broker.worker("w1")
    broker.say("client", EMPTY, C01, REQUEST, b"echo", b"hello")
    ((empty, header, service, status, uuid),) = broker.take("client")
    assert (empty, header, service, status) == (EMPTY, C01, REQUEST, b"200")
    ((address, _),) = broker.requests_of("w1")
    broker.reply("w1", address, b"done")
    broker.say("client", EMPTY, C01, REPLY, uuid)
    assert broker.take("client") == [[EMPTY, C01, REPLY, b"200", b"done"]]
    broker.say("client", EMPTY, C01, CLOSE, uuid)
    assert broker.take("client") == [[EMPTY, C01, CLOSE, b"200"]]


def test_the_parts_of_an_answer_are_kept_with_the_last(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    ((address, _),) = broker.requests_of("w1")
    broker.say("w1", W02, PARTIAL_02, address, EMPTY, b"a")
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]
    broker.reply("w1", address, b"b", b"c")
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"a", b"b", b"c"]


def test_a_backend_of_our_own_does_it_too(broker):
    uuid = broker.store_request(b"own", b"hello")
    broker.scale0_backend("wown", "other")
    broker.send("wown", "READY", {"services": ["own"], "config_version": 1})
    ((_, _, options, body),) = [frames for frames in broker.take("wown") if frames[1] == b"REQUEST"]
    assert body == b"hello"
    broker.say("wown", b"SCALE0/1", b"REPLY", options, b"done")
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"done"]


def test_an_error_of_its_own_backend_is_final(broker):
    broker.scale0_backend("wown", "own")
    uuid = broker.store_request(b"own", b"hello")
    ((_, _, options, _),) = broker.take("wown")
    broker.send("wown", "ERROR", {"id": json.loads(options)["id"], "code": 500, "message": "it raised"})
    assert broker.ask_titanic(REPLY, uuid) == [b"500"]
    assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
    assert broker.ask_titanic(REPLY, uuid) == [b"400"]


def test_an_unknown_uuid_is_400_and_closing_it_is_fine(broker):
    assert broker.ask_titanic(REPLY, NOBODYS) == [b"400"]
    assert broker.ask_titanic(CLOSE, NOBODYS) == [b"200"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_closing_forgets_the_answer_and_may_be_said_again(store, tmp_path):
    broker = MajordomoBroker(SqliteStore(tmp_path) if store == "sqlite" else None)
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    ((address, _),) = broker.requests_of("w1")
    broker.reply("w1", address, b"a secret")
    before = broker.machine.tasks.queue.open
    broker.send_frames("client", *[[C02, CLIENT_REQUEST_02, CLOSE, uuid]] * 2)
    assert broker.take("client") == [[C02, CLIENT_FINAL_02, CLOSE, b"200"]] * 2
    for _ in range(2):
        assert broker.ask_titanic(REPLY, uuid) == [b"400"]
        assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
    assert broker.machine.tasks.queue.open == before == 0
    broker.pass_time(120.0)
    assert broker.ask_titanic(REPLY, uuid) == [b"400"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_what_is_closed_before_it_was_begun_is_never_done(store, tmp_path):
    broker = MajordomoBroker(SqliteStore(tmp_path) if store == "sqlite" else None)
    uuid, other = broker.store_request(b"echo", b"never"), broker.store_request(b"echo", b"hello")
    assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
    broker.worker("w1")
    assert [frames for _, frames in broker.requests_of("w1")] == [[b"hello"]]
    assert [broker.ask_titanic(REPLY, each) for each in (uuid, other)] == [[b"400"], [b"300"]]
    broker.pass_time(120.0)  # until the next sweep
    page = broker.store.read(ListTasks(limit=10))
    assert isinstance(page, TaskPage)
    assert len(page.tasks) == 1


def test_what_is_closed_while_it_is_done_is_forgotten(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    ((address, _),) = broker.requests_of("w1")
    assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
    assert broker.leased() == 0
    broker.reply("w1", address, b"too late")
    assert broker.ask_titanic(REPLY, uuid) == [b"400"]
    next_one = broker.store_request(b"echo", b"more")
    ((address, _),) = broker.requests_of("w1")
    broker.reply("w1", address, b"done")
    assert broker.ask_titanic(REPLY, next_one) == [b"200", b"done"]


@pytest.mark.parametrize(
    ("service", "frames"),
    [
        (REQUEST, [b"echo"]),
        (REQUEST, [b"", b"hello"]),
        (REQUEST, [b"\xff", b"hello"]),
        (REQUEST, [b"x" * 256, b"hello"]),
        (REQUEST, [b"mmi.service", b"echo"]),
        (REQUEST, [b"titanic.request", b"echo"]),
        (REQUEST, [b"scale0.ping", b"echo"]),
        (REPLY, [b""]),
        (REPLY, [NOBODYS, b"more"]),
        (REPLY, [NOBODYS + b"\n"]),
        (REPLY, ["٣".encode() * 16]),
        (CLOSE, [b"nonsense"]),
    ],
)
def test_what_makes_no_sense_is_400_and_counts_as_bad_input(broker, service, frames):
    assert broker.ask_titanic(service, *frames) == [b"400"]
    assert broker.connection("client").account.bad.used == 1
    assert broker.machine.tasks.queue.open == 0


def test_nothing_is_taken_that_cannot_be_kept(broker):
    broker.machine.state.full = True
    assert broker.ask_titanic(REQUEST, b"echo", b"hello") == [b"500"]
    assert broker.ask_titanic(CLOSE, NOBODYS) == [b"500"]
    broker.machine.state.full = False
    broker.machine.state.draining = True
    assert broker.ask_titanic(REQUEST, b"echo", b"hello") == [b"500"]
    full = MajordomoBroker(task_queue_limit=1)
    full.store_request(b"echo", b"hello")
    assert full.ask_titanic(REQUEST, b"echo", b"hello") == [b"500"]


def test_the_three_services_are_there_and_nobody_can_offer_them(broker):
    for service in (REQUEST, REPLY, CLOSE):
        assert broker.ask_titanic(b"mmi.service", service) == [b"200"]
    assert broker.ask_titanic(b"mmi.service", b"titanic.other") == [b"404"]
    broker.worker("w1", REPLY)
    assert broker.take("w1") == [[W02, DISCONNECT_02]]
    broker.worker("w2", b"titanic.run:echo")
    assert broker.take("w2") == [[W02, DISCONNECT_02]]
    broker.say("client", C02, CLIENT_REQUEST_02, b"titanic.other", b"hello")
    assert broker.take("client") == []


def test_the_uuid_is_not_in_the_store_or_in_an_event(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello").decode()
    ((address, _),) = broker.requests_of("w1")
    broker.reply("w1", address, b"done")
    assert {"task.submitted", "task.completed"} <= {event.kind for event in broker.events}
    assert not [event for event in broker.events if uuid in str(event)]
    assert uuid not in str(broker.store.snapshot())


def test_frames_survive_as_json_and_nothing_else_is_taken_for_them():
    for frames in ([], [b""], [bytes(range(256)), b"x"]):
        packed = pack_frames(frames)
        assert json.loads(packed).keys() == {"titanic"}
        assert read_frames(packed) == frames
    for data in (b"", b"null", b"[]", b'{"titanic": null}', b'{"titanic": [1]}', b'{"titanic": ["*"]}', b"[" * 10_000):
        assert read_frames(data) is None


def test_a_worker_that_dies_with_it_is_followed_by_another(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    assert len(broker.requests_of("w1")) == 1
    broker.pass_time(SILENCE)
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]
    broker.worker("w2")
    broker.pass_time(2.0)
    ((address, frames),) = broker.requests_of("w2")
    assert frames == [b"hello"]
    broker.reply("w2", address, b"done")
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"done"]


REQUEST, REPLY, CLOSE = b"titanic.request", b"titanic.reply", b"titanic.close"
SILENCE = 3.2 * INTERVAL
LANE = METHOD_PREFIX + "echo"


def do_all(broker: MajordomoBroker, who: str) -> int:
    """A worker answers whatever it is given, until it is given nothing more."""
    done = 0
    while work := broker.requests_of(who):
        for address, frames in work:
            broker.reply(who, address, b"did", *frames)
            done += 1
    return done


def test_a_stored_request_survives_the_broker(broker):
    uuid = broker.store_request(b"echo", b"hello")
    broker.crash()
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]
    broker.worker("w1")
    assert do_all(broker, "w1") == 1
    broker.crash()
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"did", b"hello"]
    assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
    broker.crash()
    assert broker.ask_titanic(REPLY, uuid) == [b"400"]


def test_nothing_is_said_before_it_is_stored(broker):
    broker.cut_power()
    broker.say("client", C02, CLIENT_REQUEST_02, REQUEST, b"echo", b"hello")
    assert broker.take("client") == []
    broker.crash()
    broker.worker("w1")
    assert broker.requests_of("w1") == []


def test_what_was_under_way_when_the_broker_died_is_done_at_once_and_costs_no_attempt(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    assert len(broker.requests_of("w1")) == 1
    broker.crash()
    broker.worker("w2")
    (task,) = broker.machine.tasks.backlog.tasks.values()
    assert (task.attempt, task.starts) == (2, 1)
    assert do_all(broker, "w2") == 1
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"did", b"hello"]


def test_a_worker_that_never_comes_costs_nothing_and_one_that_comes_late_does_it(broker):
    uuids = [broker.store_request(b"echo", b"%d" % number) for number in range(3)]
    broker.pass_time(300.0)
    assert broker.machine.tasks.backlog.tasks == {}
    assert broker.machine.tasks.queue.method_queues.methods() == []
    assert [broker.ask_titanic(REPLY, uuid) for uuid in uuids] == [[b"300"]] * 3
    broker.worker("w1")
    assert do_all(broker, "w1") == 3
    assert [broker.ask_titanic(REPLY, uuid)[2] for uuid in uuids] == [b"0", b"1", b"2"]


def test_they_are_done_in_the_order_in_which_they_were_stored(broker):
    for number in range(20):
        broker.store_request(b"echo", b"%d" % number)
    broker.worker("w1")
    seen = []
    while work := broker.requests_of("w1"):
        ((address, frames),) = work  # a worker of Majordomo has one at a time
        seen += frames
        broker.reply("w1", address, b"done")
    assert seen == [b"%d" % number for number in range(20)]


def test_each_death_is_an_attempt_and_the_pause_grows(broker):
    uuid = broker.store_request(b"echo", b"hello")
    broker.worker("w0")
    waited = []
    for number in range(1, 5):
        assert len(broker.requests_of(f"w{number - 1}")) == 1
        broker.say(f"w{number - 1}", W02, DISCONNECT_02)
        broker.worker(f"w{number}")
        began = broker.mono
        while not broker.machine.tasks.leases.leased:
            broker.pass_time(0.1)
            broker.say(f"w{number}", W02, b"\x05")
        waited.append(broker.mono - began)
    for number, seconds in enumerate(waited):
        assert 2**number <= seconds <= 1.5 * 2**number + 1.5
    assert do_all(broker, "w4") == 1
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"did", b"hello"]


def test_a_lane_that_was_dropped_is_read_again_when_somebody_comes(broker):
    broker.worker("w1")
    first, second = broker.store_request(b"echo", b"1"), broker.store_request(b"echo", b"2")
    assert len(broker.requests_of("w1")) == 1
    broker.say("w1", W02, DISCONNECT_02)
    broker.pass_time(200.0)
    assert LANE not in broker.machine.tasks.queue.method_queues.methods()
    broker.worker("w2")
    assert do_all(broker, "w2") == 2
    assert broker.ask_titanic(REPLY, first)[0] == broker.ask_titanic(REPLY, second)[0] == b"200"


def test_a_long_pause_outlives_the_lane(broker):
    broker.scale0_backend("wown", "echo")
    uuid = broker.store_request(b"echo", b"hello")
    tries = 0
    for _ in range(400):
        for frames in [frames for frames in broker.take("wown") if frames[1] == b"REQUEST"]:
            tries += 1
            if tries < 8:  # the last pause is longer than an idle lane lasts
                said = {"id": json.loads(frames[2])["id"], "code": 504, "message": "too slow"}
                broker.send("wown", "ERROR", said)
            else:
                broker.say("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
        broker.pass_time(1.0)
        broker.send("wown", "HEARTBEAT", {"time": broker.now.wall, "config_version": 1})
    assert tries == 8
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"done"]


def test_a_network_that_stores_nothing_pays_nothing(broker):
    for service in (b"a", b"b", b"c"):
        broker.worker(f"w{service.decode()}", service)
    assert not [name for name in broker.machine.tasks.queue.method_queues.methods() if name.startswith(METHOD_PREFIX)]
    broker.store_request(b"b", b"hello")
    method_queues = [
        name for name in broker.machine.tasks.queue.method_queues.methods() if name.startswith(METHOD_PREFIX)
    ]
    assert method_queues == [METHOD_PREFIX + "b"]


def test_services_that_were_offered_once_need_no_memory_of_stored_requests(monkeypatch):
    monkeypatch.setattr(request_runs, "MAX_SERVICES", 10)
    broker = MajordomoBroker()
    broker.worker("w1", b"s.0")
    for number in range(11):  # more than are known: any service may have stored requests
        broker.store_request(b"s.%d" % number, b"hello")
    broker.scale0_backend("wown", "other")
    for number in range(200):
        broker.send("wown", "READY", {"services": [f"n.{number}.{n}" for n in range(10)], "config_version": 1})
    work = broker.machine.requests.tasks
    assert isinstance(work, TitanicTasks)
    runs = work._runs
    assert runs._unsure
    assert len(runs._streams) <= 3 * 10 + 10
    assert "s.0" in runs._streams
    assert broker.ask_titanic(REPLY, broker.store_request(b"s.0", b"hello"))[0] == b"300"


def test_an_answer_is_kept_for_a_day(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    do_all(broker, "w1")
    broker.sleep(DEFAULT_RESULT_SECONDS - 1.0)
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"did", b"hello"]
    broker.sleep(2.0)
    assert broker.ask_titanic(REPLY, uuid) == [b"400"]


def test_only_so_many_are_under_way_whatever_a_backend_would_take(broker):
    broker.send("wown", "CHECKCONFIG", {"config_type": "json", "identity": "wown"})
    broker.send("wown", "READY", {"services": ["echo"], "config_version": 1, "slots": 1_000})
    uuids = [broker.store_request(b"echo", b"%d" % number) for number in range(MAX_UNDER_WAY + 10)]
    given = [frames for frames in broker.take("wown") if frames[1] == b"REQUEST"]
    assert len(given) == broker.leased() == MAX_UNDER_WAY
    while given:
        for frames in given:
            broker.say("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
        given = [frames for frames in broker.take("wown") if frames[1] == b"REQUEST"]
    assert {tuple(broker.ask_titanic(REPLY, uuid)) for uuid in uuids} == {(b"200", b"done")}


def test_large_ones_are_under_way_a_few_at_a_time():
    broker = MajordomoBroker(max_message_bytes=64 * 1024 * 1024)
    broker.send("wown", "CHECKCONFIG", {"config_type": "json", "identity": "wown"})
    broker.send("wown", "READY", {"services": ["echo", "too"], "config_version": 1, "slots": 10})
    body = bytes(20 * 1024 * 1024)
    uuids = [broker.store_request(service, body) for service in (b"echo", b"echo", b"too", b"too")]
    done = 0
    while given := [frames for frames in broker.take("wown") if frames[1] == b"REQUEST"]:
        assert broker.leased() <= 2
        broker.say("wown", b"SCALE0/1", b"REPLY", given[0][2], b"done")
        for frames in given[1:]:
            broker.say("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
        done += len(given)
    assert done == 4
    assert {tuple(broker.ask_titanic(REPLY, uuid)) for uuid in uuids} == {(b"200", b"done")}


def test_an_answer_that_would_not_fit_is_an_error(broker):
    small = MajordomoBroker(max_message_bytes=1_000)
    small.worker("w1")
    uuid = small.store_request(b"echo", b"hello")
    ((address, _),) = small.requests_of("w1")
    small.say("w1", W02, b"\x03", address, b"", bytes(900))
    small.reply("w1", address, bytes(900))
    assert small.ask_titanic(REPLY, uuid) == [b"500"]


def test_requests_of_clients_who_wait_come_first(broker):
    broker.worker("w1")
    first = broker.store_request(b"echo", b"stored 1")
    broker.store_request(b"echo", b"stored 2")
    ((address, _),) = broker.requests_of("w1")
    broker.say("other", C02, CLIENT_REQUEST_02, b"echo", b"now")
    broker.reply("w1", address, b"done")
    assert broker.ask_titanic(REPLY, first) == [b"200", b"done"]
    ((address, frames),) = broker.requests_of("w1")
    assert frames == [b"now"]
    broker.reply("w1", address, b"done")
    assert [frames for _, frames in broker.requests_of("w1")] == [[b"stored 2"]]


def test_tasks_and_stored_requests_share_the_slots(broker):
    rpc = {"jsonrpc": "2.0", "id": 1}
    connect = {**rpc, "method": "zerotask.broker.client_connect", "params": ["me"]}
    broker.say("tasker", json.dumps(connect).encode())
    for number in range(20):
        broker.store_request(b"echo", b"%d" % number)
        submit = {**rpc, "method": "zerotask.broker.client_new_task", "params": ["me", "echo", [number]]}
        broker.say("tasker", json.dumps(submit).encode())
    broker.send("wown", "CHECKCONFIG", {"config_type": "json", "identity": "wown"})
    broker.send("wown", "READY", {"services": ["echo"], "config_version": 1})
    order = ""
    for _ in range(1_000):
        heard = broker.take("wown")
        for frames in heard:
            if frames[1] == b"REQUEST":
                order += "r"
                broker.say("wown", b"SCALE0/1", b"REPLY", frames[2], b"done")
            elif frames[1] == b"TASKS":
                tasks = json.loads(frames[3])
                order += "t" * len(tasks)
                done = [{"id": task["id"], "attempt": task["attempt"], "result": 1} for task in tasks]
                broker.say("wown", b"SCALE0/1", b"TASKSDONE", b"", json.dumps(done).encode())
        broker.pass_time(0.02)
        if len(order) == 40:
            break
    assert order.count("r") == order.count("t") == 20
    # Neither waits until the other is done.
    assert 5 <= order[:20].count("r") <= 15


def test_an_answer_that_cannot_be_stored_is_fetched_again_when_there_is_room(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    ((address, _),) = broker.requests_of("w1")
    broker.machine.state.full = True
    broker.reply("w1", address, b"lost")
    assert broker.requests_of("w1") == []
    broker.machine.state.full = False
    broker.say("w1", W02, b"\x05")
    broker.pass_time(1.5)
    assert do_all(broker, "w1") == 1
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"did", b"hello"]


def test_a_task_that_a_client_put_in_our_lane_is_not_run(broker):
    broker.worker("w1")
    uuid = broker.store_request(b"echo", b"hello")
    rpc = {"jsonrpc": "2.0", "id": 1}
    connect = {**rpc, "method": "zerotask.broker.client_connect", "params": ["me"]}
    params = ["me", LANE, {"titanic": ["aGVsbG8="]}]
    submit = {**rpc, "method": "zerotask.broker.client_new_task", "params": params}
    broker.say("tasker", json.dumps(connect).encode())
    broker.say("tasker", json.dumps(submit).encode())
    assert do_all(broker, "w1") == 1
    assert broker.ask_titanic(REPLY, uuid) == [b"200", b"did", b"hello"]
    assert broker.machine.tasks.queue.open == 0


def test_a_draining_broker_begins_nothing(broker):
    uuid = broker.store_request(b"echo", b"hello")
    broker.machine.state.draining = True
    broker.worker("w1")
    assert broker.requests_of("w1") == []
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]


@pytest.mark.parametrize("seed", seeds(25))
def test_whatever_dies_everything_stored_is_done_and_nothing_is_with_two(seed):
    """Clients, workers and the broker in any order; in the end one good worker does what is left."""
    rng, broker = random.Random(seed), MajordomoBroker()
    kept: dict[bytes, bytes] = {}
    closed: set[bytes] = set()
    hands: dict[str, list[tuple[bytes, list[bytes]]]] = {}
    for number in range(150):
        match rng.randrange(8):
            case 0 | 1 | 2:
                body = b"%d" % number
                kept[broker.store_request(b"echo", body)] = body
            case 3 if len(hands) < 3:
                hands[f"w{number}"] = []
                broker.worker(f"w{number}")
            case 4 if kept and rng.random() < 0.2:
                uuid = rng.choice(list(kept))
                closed.add(uuid)
                assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
            case 5 if hands:
                gone = rng.choice(list(hands))
                del hands[gone]
                broker.say(gone, W02, DISCONNECT_02)
            case 6 if rng.random() < 0.15:
                hands.clear()
                broker.crash()
            case _:
                broker.pass_time(rng.choice([0.0, 0.3, 1.6]))
                for who in hands:
                    broker.say(who, W02, b"\x05")
        for who, work in hands.items():
            work += broker.requests_of(who)
            if work and rng.random() < 0.6:
                address, frames = work.pop()
                broker.reply(who, address, b"did", *frames)
        bodies = [frames[0] for work in hands.values() for _, frames in work]
        assert len(bodies) == len(set(bodies))
    for who in list(hands):
        broker.say(who, W02, DISCONNECT_02)
    broker.worker("wlast")
    for _ in range(400):
        do_all(broker, "wlast")
        broker.pass_time(1.0)
        broker.say("wlast", W02, b"\x05")
    for uuid, body in kept.items():
        assert broker.ask_titanic(REPLY, uuid) == ([b"400"] if uuid in closed else [b"200", b"did", body])
    assert broker.machine.tasks.queue.open == broker.leased() == 0


# Promise: OWN-1
def test_a_stored_request_belongs_to_the_key_that_stored_it():
    table = KeyTable(Key(name.ljust(40, "."), "frontend", name) for name in ("client", "other"))
    broker = MajordomoBroker(keys=Keys(lambda _, id_: f"frontend/{id_.decode()}", table), curve=True)
    uuid = broker.store_request(b"echo", b"hello")
    assert broker.ask_titanic(REPLY, uuid, who="other") == [b"400"]
    assert broker.ask_titanic(CLOSE, uuid, who="other") == [b"200"], "as for an unknown one"
    assert broker.ask_titanic(REPLY, uuid) == [b"300"]
    assert broker.ask_titanic(CLOSE, uuid) == [b"200"]
    assert broker.ask_titanic(REPLY, uuid) == [b"400"]
