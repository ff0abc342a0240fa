"""Whose task it is: attempts, timeouts, failures, silence, nodes that leave and come back (PROTOCOL 6)."""

# Promise: TASK-5
# Promise: TASK-7
from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raws, raws, unique
from tests.wire.scale0.rpc import Client, Node, Rpc, client, node, pause

pytestmark = pytest.mark.processes

INTERVAL = 0.2
LIVENESS = 3
SOONEST = INTERVAL * LIVENESS
LATEST = INTERVAL * (LIVENESS + 1) + 0.25
SHORT = 0.3
LATE = 1.0
"""What may be added to a deadline on a busy machine."""


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


def trio(net: Raws) -> tuple[Client, Node, Node, str]:
    """A client, two nodes, and a method that they share."""
    method = unique("method")
    return client(net), node(net, method), node(net, method), method


def finished(worker: Node, task: dict[str, Any], result: Any = None) -> int:
    """The code with which this attempt's finish is refused."""
    return worker.rpc.code("node_task_finished", worker.id, task["id"], result, task["attempt"])


# --- who may finish


def test_only_the_node_that_has_a_task_may_finish_it(net):
    owner, one, two, method = trio(net)
    task = owner.submit(method)
    assert one.rpc.code("node_task_finished", one.id, task, "early", 1) in (-32020, -32021)
    held = one.take(task)
    assert finished(two, held, "stolen") == -32021
    assert two.rpc.code("node_task_finished", task, "stolen") == -32021
    assert two.rpc.code("node_task_failed", task, {"code": 1, "message": "stolen"}) == -32021
    assert finished(one, {**held, "attempt": 2}) == -32021
    assert one.finish(held, "mine") is True
    assert finished(two, held, "stolen") == -32021
    assert owner.result(task) == "mine"


def test_an_unknown_task_cannot_be_finished(net):
    worker = node(net, "m")
    assert worker.rpc.code("node_task_finished", worker.id, unique("never"), 1, 1) == -32020
    assert worker.rpc.code("node_task_failed", unique("never"), {"code": 1, "message": ""}) == -32020
    assert worker.rpc.code("task_status", worker.id, unique("never"), "running") == -32020


def test_only_the_node_that_has_a_task_may_tell_its_status(net):
    owner, one, two, method = trio(net)
    task = owner.submit(method)
    one.take(task)
    assert two.rpc.code("task_status", two.id, task, "running") in (-32020, -32021, -32030)
    assert one.rpc.code("task_status", unique("nobody"), task, "running") == -32030
    assert owner.code(task) == 3000


def test_the_same_finish_again_is_true_again_and_changes_nothing(net):
    owner, worker, _, method = trio(net)
    task = owner.submit(method)
    held = worker.take(task)
    assert [worker.finish(held, "once") for _ in range(3)] == [True] * 3
    worker.rpc.answer(worker.rpc.ask("node_task_finished", worker.id, task, "changed", 1))
    worker.rpc.answer(worker.rpc.ask("node_task_failed", worker.id, task, {"code": 1, "message": "no"}, 1))
    assert owner.result(task) == "once"
    assert owner.code(task) == 7000


# --- failures


def test_a_reported_failure_is_final(net):
    owner, worker, _, method = trio(net)
    mores: list[dict[str, Any]] = [{}, {"retry": False}]
    for more in mores:
        task = owner.submit(method, [], max_attempts=5)
        worker.fail(worker.take(task), 4, **more)
        assert owner.code(task) == 9000
        assert owner.error(task)["code"] == 4
    assert worker.pull() == []


def test_a_failure_that_says_so_is_tried_again(net):
    owner, worker, other, method = trio(net)
    task = owner.submit(method, ["p"], max_attempts=3)
    worker.fail(worker.next(), retry=True)
    again = other.next()
    assert again == {"method": method, "params": ["p"], "id": task, "attempt": 2}
    other.finish(again, "at last")
    assert owner.result(task) == "at last"
    assert owner.status(task)["attempt"] == 2


def test_failures_are_tried_again_as_often_as_allowed(net):
    owner, worker, _, method = trio(net)
    task = owner.submit(method, [], max_attempts=2)
    for attempt in (1, 2):
        assert owner.code(task) == 1000
        held = worker.next()
        assert held["attempt"] == attempt
        worker.fail(held, 4, retry=True)
    assert owner.until_code(task, 9000)
    assert owner.error(task)["code"] in (4, -32090)
    assert worker.pull() == []


def test_the_next_attempt_waits_for_the_backoff_which_doubles(net):
    owner, worker, _, method = trio(net)
    owner.submit(method, [], backoff=SHORT, max_attempts=3)
    held = worker.next()
    for least in (SHORT, 2 * SHORT):
        start = time.monotonic()
        worker.fail(held, retry=True)
        assert worker.pull() == []
        held = worker.next()
        assert least - 0.02 <= time.monotonic() - start <= 2 * least + LATE


# --- timeouts


def test_a_task_that_outlasts_its_timeout_is_queued_again(net):
    owner, slow, other, method = trio(net)
    start = time.monotonic()
    task = owner.submit(method, [], timeout=SHORT)
    old = slow.next()
    new = other.next()
    assert SHORT - 0.02 <= time.monotonic() - start <= SHORT + LATE
    assert (new["id"], new["attempt"]) == (task, 2)
    assert finished(slow, old, "late") == -32021
    assert slow.rpc.code("node_task_finished", task, "late") == -32021
    assert other.finish(new, "in time") is True
    assert finished(slow, old, "late") == -32021
    assert other.finish(new, "in time") is True
    assert owner.result(task) == "in time"


def test_the_same_node_may_get_it_again_and_the_attempt_tells_them_apart(net):
    owner, worker, _, method = trio(net)
    task = owner.submit(method, [], timeout=SHORT)
    old = worker.next()
    new = worker.next()
    assert (old["attempt"], new["attempt"]) == (1, 2)
    assert finished(worker, old, "old") == -32021
    assert worker.finish(new, "new") is True
    assert owner.result(task) == "new"


def test_after_the_last_attempt_a_task_fails_with_its_history(net):
    owner, one, two, method = trio(net)
    task = owner.submit(method, [], timeout=SHORT / 2, max_attempts=2)
    one.next()
    two.next()
    status = owner.until_code(task, 9000)
    assert (status["status"], status["attempt"]) == ("failed", 2)
    error = owner.error(task)
    assert error["code"] == -32090
    history = json.dumps(error["data"])
    assert one.id in history
    assert two.id in history
    assert one.pull() == []
    assert owner.wait(task)[0]["error"]["code"] == -32090


def test_a_hand_out_by_json_rpc_counts_without_a_status(net):
    owner, worker, _, method = trio(net)
    task = owner.submit(method, [], max_attempts=1)
    worker.take(task)
    assert worker.rpc.call("node_disconnect", worker.id) is True
    assert owner.until_code(task, 9000)
    assert owner.error(task)["code"] == -32090


# --- nodes that leave


def test_a_node_that_disconnects_gives_its_tasks_back_at_once(net):
    owner, leaves, stays, method = trio(net)
    tasks = [owner.submit(method) for _ in range(3)]
    held = leaves.pull()
    leaves.rpc.call("task_status", leaves.id, tasks[0], "running")
    assert leaves.rpc.call("node_disconnect", leaves.id) is True
    assert [owner.code(task) for task in tasks] == [1000] * 3
    assert [(task["id"], task["attempt"]) for task in stays.pull()] == [(task, 2) for task in tasks]
    assert leaves.rpc.code("node_task_finished", leaves.id, held[0]["id"], 1, 1) in (-32021, -32030)


def beats(worker: Node, seconds: float) -> None:
    """Keep a node alive for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert worker.rpc.call("node_heartbeat", worker.id) is True
        pause()


def test_a_silent_node_loses_its_tasks_in_time_and_never_before(quick):
    owner, silent, lives, method = trio(quick)
    task = owner.submit(method)
    before = time.monotonic()
    held = silent.take(task)
    after = time.monotonic()
    assert held["attempt"] == 1
    again = lives.next()
    noticed = time.monotonic()
    assert (again["id"], again["attempt"]) == (task, 2)
    assert noticed - before >= SOONEST
    assert noticed - after <= LATEST + 0.1
    assert finished(silent, held) in (-32021, -32030)
    assert lives.finish(again, "moved") is True


def test_a_node_whose_connection_breaks_loses_its_tasks_in_time(quick):
    owner, gone, lives, method = trio(quick)
    task = owner.submit(method)
    gone.take(task)
    start = time.monotonic()
    gone.rpc.raw.close()
    assert lives.next()["id"] == task
    assert time.monotonic() - start <= LATEST + 0.1


@pytest.mark.parametrize("word", ["node_heartbeat", "node_status"])
def test_a_node_that_says_anything_keeps_its_tasks(quick, word):
    owner, worker, other, method = trio(quick)
    task = owner.submit(method)
    held = worker.take(task)
    end = time.monotonic() + 1.5 * LATEST
    while time.monotonic() < end:
        assert worker.rpc.call(word, worker.id) is True
        assert other.pull() == []
        pause()
    assert worker.finish(held, "kept") is True
    assert owner.status(task)["attempt"] == 1


def test_a_nodes_id_is_free_after_an_interval_of_silence(quick):
    method, mine = unique("method"), unique("node")
    old = node(quick, method, node_id=mine)
    newcomer = Rpc(quick("backend"))
    beats(old, INTERVAL)
    assert newcomer.code("node_connect", mine, [method]) == -32030
    until(lambda: newcomer.answer(newcomer.ask("node_connect", mine, [method])).get("result") == mine)
    assert newcomer.call("node_heartbeat", mine) is True


def test_a_clients_id_is_free_after_an_interval_of_silence(quick):
    one, newcomer = client(quick), Rpc(quick.frontend())
    task = one.submit("m")
    assert newcomer.code("client_connect", one.id) == -32010
    until(lambda: newcomer.answer(newcomer.ask("client_connect", one.id)).get("result") == one.id)
    assert newcomer.call("client_task_status", one.id, task)["code"] == 1000


def test_a_client_that_is_silent_keeps_its_tasks(quick):
    owner, worker, _, method = trio(quick)
    task = owner.submit(method)
    owner.rpc.raw.close()
    beats(worker, LATEST)
    worker.finish(worker.next(), "for whoever asks")
    other = Rpc(quick.frontend())
    assert other.call("client_task_result", owner.id, task) == "for whoever asks"


def test_a_task_is_not_stuck_though_every_node_was_lost(quick):
    owner, one, two, method = trio(quick)
    tasks = {owner.submit(method) for _ in range(4)}
    one.pull(2)
    two.pull(2)
    one.rpc.raw.close()
    two.rpc.raw.close()
    late = node(quick, method)
    assert {late.next()["id"] for _ in tasks} == tasks
