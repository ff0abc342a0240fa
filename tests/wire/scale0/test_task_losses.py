"""What native backends lose, keep and give back: deaths, departures, new connections, holds (PROTOCOL 2.1, 2.3, 6)."""

# Promise: TASK-5
# Promise: TASK-7
from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import raws, unique
from tests.wire.scale0.rpc import Backend, client

pytestmark = pytest.mark.processes

INTERVAL = 0.2
LIVENESS = 3
SOONEST = INTERVAL * LIVENESS
LATEST = INTERVAL * (LIVENESS + 1) + 0.25


@pytest.fixture(scope="module")
def lively(tmp_path_factory):
    """A broker that is quick to judge."""
    config = {"default_heartbeat_interval": INTERVAL, "heartbeat_liveness": LIVENESS}
    with own_broker(tmp_path_factory.mktemp("lively"), **config) as (broker, _):
        yield broker


@pytest.fixture
def quick(lively):
    with raws(lively.endpoints) as made:
        yield made


def held_by(*tasks: dict[str, Any]) -> list[list[Any]]:
    return [[task["id"], task["attempt"]] for task in tasks]


def test_a_backend_that_leaves_gives_its_tasks_back_at_once(owner, method, net):
    leaves = Backend(net, method, slots=3)
    tasks = owner.submit_many([owner.new(method) for _ in range(3)])
    held = leaves.tasks(3)
    leaves.running(held[0])
    owner.until_code(tasks[0], 5000)
    stays = Backend(net, method, slots=3)
    start = time.monotonic()
    leaves.leave()
    assert [(task["id"], task["attempt"]) for task in stays.tasks(3)] == [(task, 2) for task in tasks]
    assert time.monotonic() - start < 1


def test_work_that_was_never_started_costs_no_attempt(owner, method, net):
    task = owner.submit(method, [], max_attempts=1)
    for number in range(1, 5):
        worker = Backend(net, method)
        assert [(held["id"], held["attempt"]) for held in worker.tasks()] == [(task, number)]
        worker.leave()
    worker = Backend(net, method)
    held = worker.tasks()[0]
    worker.running(held)
    assert worker.codes(held, result="in the end") == [200]
    assert owner.result(task) == "in the end"


def test_work_that_was_started_costs_an_attempt(owner, method, net):
    task = owner.submit(method, [], max_attempts=2)
    names = []
    for number in (1, 2):
        worker = Backend(net, method)
        names.append(worker.identity)
        held = worker.tasks()[0]
        assert held["attempt"] == number
        worker.running(held)
        owner.until_code(task, 5000)
        worker.leave()
    owner.until_code(task, 9000)
    error = owner.error(task)
    assert error["code"] == -32090
    assert all(name in json.dumps(error["data"]) for name in names)
    assert Backend(net, method).idle(0.1)


def test_a_dead_backends_tasks_move_in_time_and_never_before(quick):
    owner, method = client(quick), unique("method")
    dies = Backend(quick, method)
    task = owner.submit(method)
    held = dies.tasks()[0]
    before = time.monotonic()
    dies.running(held)
    owner.until_code(task, 5000)
    after = time.monotonic()
    lives = Backend(quick, method, heartbeat_interval=30)
    moved = lives.tasks()[0]
    noticed = time.monotonic()
    assert (moved["id"], moved["attempt"]) == (task, 2)
    assert noticed - before >= SOONEST
    assert noticed - after <= LATEST + 0.1
    assert lives.codes(moved, result="moved") == [200]
    assert owner.result(task) == "moved"


def test_a_backend_that_is_back_too_late_gets_409(quick):
    owner, method = client(quick), unique("method")
    late = Backend(quick, method)
    task = owner.submit(method)
    old = late.tasks()[0]
    other = Backend(quick, method, heartbeat_interval=30)
    new = other.tasks()[0]
    late.connect(services=[], holds=held_by(old))
    assert late.codes(old, result="late") == [409]
    assert other.codes(new, result="in time") == [200]
    assert late.codes(old, result="late") == [409]
    assert owner.result(task) == "in time"


@pytest.mark.parametrize("started", [False, True])
def test_what_a_backend_holds_over_a_new_connection_stays_with_it(owner, method, net, started):
    worker = Backend(net, method)
    task = owner.submit(method, [], max_attempts=1)
    held = worker.tasks()[0]
    if started:
        worker.running(held)
        owner.until_code(task, 5000)
    worker.raw.close()
    worker.connect(holds=held_by(held))
    other = Backend(net, method)
    assert worker.idle()
    assert other.idle(0.1)
    status = owner.status(task)
    assert (status["attempt"], status["code"]) == (1, 5000 if started else 3000)
    assert worker.codes(held, result="kept") == [200]
    assert owner.result(task) == "kept"


def test_what_a_backend_does_not_name_on_a_new_connection_is_queued_again_at_once(owner, method, net):
    worker = Backend(net, method, slots=3)
    tasks = owner.submit_many([owner.new(method) for _ in range(3)])
    held = worker.tasks(3)
    worker.raw.close()
    start = time.monotonic()
    worker.connect(slots=3, holds=held_by(held[1]))
    again = worker.tasks(2)
    assert time.monotonic() - start < 1
    assert [(task["id"], task["attempt"]) for task in again] == [(tasks[0], 2), (tasks[2], 2)]
    assert worker.idle(0.1)
    assert worker.codes(held[0], held[1], again[0], again[1], result=1) == [409, 200, 200, 200]


def test_a_backend_cannot_hold_what_it_never_had(owner, method, net):
    worker = Backend(net, method)
    owner.submit(method)
    held = worker.tasks()[0]
    thief = Backend(net, method, holds=[[held["id"], 1], [held["id"], 2], [unique("never"), 1]])
    assert thief.idle(0.1)
    assert thief.codes(held, result="stolen") == [409]
    assert worker.codes(held, result="mine") == [200]
    assert owner.result(held["id"]) == "mine"


def test_ready_again_on_the_same_connection_keeps_all_work(owner, method, net):
    worker = Backend(net, method, slots=2)
    tasks = owner.submit_many([owner.new(method) for _ in range(3)])
    held = worker.tasks(2)
    for _ in range(3):
        worker.ready(slots=2)
    assert worker.idle()
    assert [owner.status(task)["attempt"] for task in tasks] == [1, 1, 0]
    assert worker.codes(*held) == [200, 200]


def test_a_finished_result_is_taken_on_a_new_connection(owner, method, net):
    worker = Backend(net, method)
    task = owner.submit(method)
    held = worker.tasks()[0]
    worker.say("TASKSDONE", [{"id": task, "attempt": 1, "result": "sent before the cut"}])
    owner.until_code(task, 7000)
    worker.raw.close()
    worker.connect()
    assert worker.codes(held, result="sent before the cut") == [200]
    assert owner.result(task) == "sent before the cut"
    assert worker.idle(0.1)


def test_a_poisonous_task_ends_and_does_no_harm_to_others(owner, method, net):
    poison = owner.submit(method, ["poison"], max_attempts=3)
    good = owner.submit(method, ["good"])
    ended = False
    while not ended:
        worker = Backend(net, method)
        held = worker.tasks()[0]
        worker.running(held)
        if held["id"] == poison:
            owner.until_code(poison, 5000)
            worker.leave()
        else:
            assert worker.codes(held, result="fine") == [200]
            ended = True
    assert owner.until_code(poison, 9000)
    assert owner.error(poison)["code"] == -32090
    assert owner.result(good) == "fine"
