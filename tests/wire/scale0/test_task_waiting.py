"""How a client learns of an end: waits and pushes (PROTOCOL 6)."""

# Promise: TASK-8
# Promise: TASK-12
from __future__ import annotations

import time

import pytest
import zmq

from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import unique
from tests.wire.scale0.rpc import Client, Rpc, asked, client, node

pytestmark = pytest.mark.processes

SHORT = 0.3


# --- waits


def test_a_wait_ends_as_soon_as_one_is_complete(owner, worker, method):
    one, two = owner.submit(method, [1]), owner.submit(method, [2])
    waiting = owner.rpc.ask("client_task_wait", owner.id, [one, two], 10)
    assert owner.rpc.silent(0.1)
    start = time.monotonic()
    worker.finish(worker.take(two), "two")
    assert owner.rpc.answer(waiting)["result"] == [{"task_id": two, "status": "finished", "result": "two"}]
    assert time.monotonic() - start < 1


def test_a_wait_for_what_is_complete_tells_all_of_it_at_once(owner, worker, method):
    done, failed, cancelled, open_ = [owner.submit(method) for _ in range(4)]
    worker.finish(worker.take(done), 1)
    worker.fail(worker.take(failed), 2, "two")
    owner.cancel(cancelled)
    rows = {row["task_id"]: row for row in owner.wait(open_, cancelled, failed, done)}
    assert set(rows) == {done, failed, cancelled}
    assert rows[done] == {"task_id": done, "status": "finished", "result": 1}
    assert (rows[failed]["status"], rows[failed]["error"]["code"]) == ("failed", 2)
    assert rows[cancelled]["status"] == "cancelled"


@pytest.mark.parametrize("timeout", [0, SHORT])
def test_a_wait_for_nothing_ends_empty_after_its_timeout(owner, method, timeout):
    task = owner.submit(method)
    start = time.monotonic()
    assert owner.wait(task, timeout=timeout) == []
    assert timeout - 0.02 <= time.monotonic() - start <= timeout + 1


def test_a_wait_inside_a_batch_does_not_wait(owner, method):
    task = owner.submit(method)
    start = time.monotonic()
    waiting = asked("client_task_wait", owner.id, [task], 20)
    answers = owner.rpc.reply([waiting, asked("client_task_status", owner.id, task)])
    assert answers[0]["result"] == []
    assert answers[1]["result"]["code"] == 1000
    assert time.monotonic() - start < 1


def test_a_wait_stops_nobody_from_being_answered(owner, worker, method):
    task = owner.submit(method)
    waits = [owner.rpc.ask("client_task_wait", owner.id, [task], 10) for _ in range(20)]
    assert owner.code(task) == 1000
    worker.finish(worker.take(task), "all")
    assert [owner.rpc.answer(id_)["result"][0]["result"] for id_ in waits] == ["all"] * 20
    assert owner.rpc.silent(0.1)


def test_a_wait_ends_however_its_task_ends(owner, worker, method):
    failed, cancelled = owner.submit(method), owner.submit(method)
    one = owner.rpc.ask("client_task_wait", owner.id, [failed], 10)
    two = owner.rpc.ask("client_task_wait", owner.id, [cancelled], 10)
    worker.fail(worker.take(failed), 6)
    assert owner.rpc.answer(one)["result"][0]["error"]["code"] == 6
    owner.cancel(cancelled)
    assert owner.rpc.answer(two)["result"][0]["status"] == "cancelled"


def test_a_wait_for_tasks_of_others_or_of_nobody_is_refused_at_once(net):
    owner, other = client(net), client(net)
    mine, others = owner.submit("m"), other.submit("m")
    for ids in ([others], [mine, others], [unique("never")], [mine, unique("never")]):
        assert owner.rpc.code("client_task_wait", owner.id, ids, 10) == -32020


def test_a_req_socket_can_wait(method, net):
    owner, worker = Client(Rpc(net("frontend", zmq.REQ))), node(net, method)
    task = owner.submit(method)
    waiting = owner.rpc.ask("client_task_wait", owner.id, [task], 10)
    worker.finish(worker.take(task), "for REQ")
    assert owner.rpc.answer(waiting)["result"][0]["result"] == "for REQ"


def test_a_frontend_that_waits_is_not_forgotten(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=0.2, frontend_idle=0.3) as (_, net):
        owner, worker = client(net), node(net, "m")
        task = owner.submit("m")
        waiting = owner.rpc.ask("client_task_wait", owner.id, [task], 10)
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            worker.rpc.call("node_heartbeat", worker.id)
            owner.rpc.silent(0.05)
        worker.finish(worker.next(), "still there")
        assert owner.rpc.answer(waiting)["result"][0]["result"] == "still there"


# --- pushes


def test_who_asked_to_be_notified_is_sent_the_result(owner, worker, method):
    task = owner.submit(method, [], notify=True)
    worker.finish(worker.take(task), {"a": 1})
    pushed = owner.rpc.push()
    assert pushed["method"] == "zerotask.client.task_complete"
    assert pushed["params"] == {"task_id": task, "status": "finished", "result": {"a": 1}}
    assert owner.result(task) == {"a": 1}
    assert owner.rpc.silent(0.1)


def test_who_asked_to_be_notified_hears_of_every_end(owner, worker, method):
    failed, cancelled = owner.submit(method, [], notify=True), owner.submit(method, [], notify=True)
    worker.fail(worker.take(failed), 8, "eight")
    params = owner.rpc.push()["params"]
    assert (params["task_id"], params["status"]) == (failed, "failed")
    assert (params["error"]["code"], params["error"]["message"]) == (8, "eight")
    owner.rpc.send(asked("client_task_cancel", owner.id, cancelled))
    heard = [owner.rpc.hear(), owner.rpc.hear()]
    params = next(said["params"] for said in heard if "method" in said)
    assert (params["task_id"], params["status"]) == (cancelled, "cancelled")


def test_who_did_not_ask_is_sent_nothing(owner, worker, method):
    for task in (owner.submit(method), owner.submit(method, [], notify=False)):
        worker.finish(worker.take(task), 1)
    assert owner.rpc.silent()


# Promise: WIRE-1
def test_nothing_unasked_goes_to_who_sends_a_delimiter(method, net):
    owner, worker = Client(Rpc(net("frontend", zmq.DEALER, True))), node(net, method)
    task = owner.submit(method, [], notify=True)
    worker.finish(worker.take(task), 1)
    assert owner.rpc.silent()
    assert owner.result(task) == 1


# Promise: WIRE-1
def test_a_req_socket_gets_the_answers_to_its_questions_only(method, net):
    owner, worker = Client(Rpc(net("frontend", zmq.REQ))), node(net, method)
    for n in range(5):
        task = owner.submit(method, [], notify=True)
        worker.finish(worker.take(task), n)
        assert owner.result(task) == n
    assert not owner.rpc.pushed
