"""In which order and when: priorities, delays, keys, dependencies, cancelling, lifetimes (PROTOCOL 6, `options`)."""

# Promise: TASK-3
# Promise: TASK-4
from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.raw import unique
from tests.wire.scale0.rpc import Client, Refused, Rpc, asked, client, node, told

pytestmark = pytest.mark.processes

SHORT = 0.4
"""Seconds of a delay: long enough to look before it is over."""
LATE = 1.0
"""What may be added to a delay on a busy machine."""


def test_tasks_of_one_priority_come_in_the_order_in_which_they_were_accepted(owner, worker, method):
    tasks = owner.submit_many([owner.new(method, [n]) for n in range(50)])
    tasks += [owner.submit(method) for _ in range(5)]
    first = [task["id"] for task in worker.pull(7)]
    assert first + [task["id"] for task in worker.pull(1_000)] == tasks


def test_a_long_queue_has_no_gaps(owner, worker, method):
    tasks = owner.submit_many([owner.new(method, [n]) for n in range(3_000)])
    pulled: list[str] = []
    while len(pulled) < len(tasks):
        more = worker.pull(700)
        assert more, "asking is the truth"
        pulled += [task["id"] for task in more]
    assert pulled == tasks


def test_a_higher_priority_comes_first(owner, worker, method):
    given = [0, 9, None, 4, 5, 3, 9, 0]
    said: list[dict[str, Any]] = [{} if priority is None else {"priority": priority} for priority in given]
    tasks = [owner.submit(method, [], **options) for options in said]
    order = sorted(range(len(given)), key=lambda n: (-said[n].get("priority", 4), n))
    assert [task["id"] for task in worker.pull()] == [tasks[n] for n in order]


# Promise: FAIR-3
def test_clients_take_turns_each_in_the_order_of_acceptance(net, owner, worker, method):
    other = client(net)
    first, second, third, fourth, fifth = [one.submit(method) for one in (owner, other, other, owner, other)]
    assert [task["id"] for task in worker.pull()] == [first, second, fourth, third, fifth]


@pytest.mark.parametrize("word", ["delay", "at"])
def test_a_task_for_later_is_scheduled_until_then(owner, worker, method, word):
    start = time.monotonic()
    later: dict[str, Any] = {"delay": SHORT} if word == "delay" else {"at": time.time() + SHORT}
    task = owner.submit(method, [], **later)
    assert worker.pull() == []
    status = owner.status(task)
    assert (status["status"], status["code"]) == ("scheduled", 500)
    assert owner.error(task)["data"]["status"] == "scheduled"
    assert worker.next()["id"] == task
    taken = time.monotonic() - start
    assert SHORT - 0.02 <= taken <= SHORT + LATE


@pytest.mark.parametrize("options", [{"delay": 0}, {"at": 0}, {"at": 1_000_000}])
def test_a_time_that_is_over_means_now(owner, worker, method, options):
    task = owner.submit(method, [], **options)
    assert worker.next()["id"] == task


def test_a_scheduled_task_can_be_cancelled(owner, worker, method):
    task = owner.submit(method, [], delay=SHORT)
    assert owner.cancel(task) is True
    assert owner.code(task) == 9500
    later = owner.submit(method, [], delay=SHORT)
    assert worker.next()["id"] == later
    assert worker.pull() == []


def test_the_same_key_is_the_same_task(owner, worker, method, net):
    key = unique("key")
    task = owner.submit(method, ["first"], key=key)
    assert owner.submit(method, ["first"], key=key) == task
    for other in ((method, ["second"]), (unique("method"), ["first"])):
        with pytest.raises(Refused) as refused:
            owner.submit(*other, key=key)
        assert refused.value.code == -32022
    assert owner.submit(method, ["other"], key=unique("key")) != task
    assert client(net).submit(method, ["another's"], key=key) != task
    assert [given["params"] for given in worker.pull()] == [["first"], ["another's"], ["other"]]
    assert owner.submit(method, ["first"], key=key) == task, "while it is assigned"


def test_a_key_is_known_after_its_task_is_complete(owner, worker, method):
    done, failed, cancelled = [owner.submit(method, [], key=f"{method}-{n}") for n in range(3)]
    worker.finish(worker.take(done), "once")
    worker.fail(worker.take(failed))
    owner.cancel(cancelled)
    assert [owner.submit(method, [], key=f"{method}-{n}") for n in range(3)] == [done, failed, cancelled]
    assert owner.result(done) == "once"
    assert worker.pull() == []


def test_the_same_key_twice_in_one_batch_is_one_task(owner, worker, method):
    tasks = owner.submit_many([owner.new(method, [1], None, key="k") for _ in range(10)])
    assert len(set(tasks)) == 1
    assert [given["params"] for given in worker.pull()] == [[1]]


def test_a_task_waits_for_those_that_must_finish_first(owner, worker, method):
    one, two = owner.submit(method, ["one"]), owner.submit(method, ["two"])
    last = owner.submit(method, ["last"], after=[one, two], priority=9)
    held = worker.pull()
    assert [task["id"] for task in held] == [one, two]
    worker.finish(held[0])
    assert worker.pull() == []
    assert owner.error(last)["code"] == -32050
    worker.finish(held[1])
    assert worker.next()["id"] == last


def test_a_chain_of_three_runs_in_its_order(owner, worker, method):
    one = owner.submit(method, [1])
    two = owner.submit(method, [2], after=[one])
    three = owner.submit(method, [3], after=[two, one])
    ran = []
    for _ in range(3):
        task = worker.next()
        assert worker.pull() == []
        ran.append(task["id"])
        worker.finish(task, task["params"])
    assert ran == [one, two, three]
    assert owner.result(three) == [3]


def test_what_a_chain_waits_for_fails_all_of_it(owner, worker, method):
    one = owner.submit(method)
    two = owner.submit(method, [], after=[one])
    three = owner.submit(method, [], after=[two])
    worker.fail(worker.take(one), 17, "broken")
    assert owner.until_code(two, 9000)
    assert owner.until_code(three, 9000)
    assert [owner.error(task)["code"] for task in (one, two, three)] == [17, -32091, -32091]
    assert worker.pull() == []
    four = owner.submit(method, [], after=[one])
    assert owner.until_code(four, 9000)
    assert owner.error(four)["code"] == -32091


def test_after_what_has_finished_means_now(owner, worker, method):
    one = owner.submit(method)
    worker.finish(worker.take(one))
    two = owner.submit(method, [], after=[one])
    assert worker.next()["id"] == two


def test_one_can_wait_only_for_tasks_of_its_own_client(owner, method, net):
    others = client(net).submit(method)
    for unknown in (unique("never"), others):
        mine = unique("task")
        with pytest.raises(Refused) as refused:
            owner.submit(method, [], mine, after=[unknown])
        assert refused.value.code == -32020
        assert owner.rpc.code("client_task_status", owner.id, mine) == -32020


def test_after_and_delay_both_count(owner, worker, method):
    one = owner.submit(method)
    start = time.monotonic()
    two = owner.submit(method, [], after=[one], delay=SHORT)
    worker.finish(worker.take(one))
    assert worker.next()["id"] == two
    assert time.monotonic() - start >= SHORT - 0.02


def test_a_result_is_forgotten_after_its_time_and_not_before(owner, worker, method):
    task = owner.submit(method, [], result_ttl=SHORT)
    held = worker.take(task)
    worker.rpc.call("task_status", worker.id, task, "running")
    assert owner.code(task) == 5000
    start = time.monotonic()
    worker.finish(held, "soon gone")
    results = []

    def gone() -> bool:
        answer = owner.rpc.answer(owner.rpc.ask("client_task_result", owner.id, task))
        results.append(answer.get("result"))
        return bool(answer.get("error", {}).get("code") == -32020)

    until(gone)
    assert time.monotonic() - start >= SHORT - 0.02
    assert set(results[:-1]) == {"soon gone"}
    assert len(results) > 2
    assert owner.rpc.code("client_task_status", owner.id, task) == -32020


def test_a_queued_task_that_is_cancelled_never_runs(owner, worker, method):
    task, other = owner.submit(method), owner.submit(method)
    assert owner.cancel(task) is True
    assert owner.cancel(task) is True
    status = owner.status(task)
    assert (status["status"], status["code"]) == ("cancelled", 9500)
    assert [given["id"] for given in worker.pull()] == [other]
    assert owner.wait(task)[0]["status"] == "cancelled"
    assert owner.rpc.refused("client_task_result", owner.id, task)


@pytest.mark.parametrize("running", [False, True])
def test_a_task_that_is_cancelled_while_a_node_has_it_stays_cancelled(owner, worker, method, running):
    task = owner.submit(method)
    held = worker.take(task)
    if running:
        worker.rpc.call("task_status", worker.id, task, "running")
    assert owner.cancel(task) is True
    assert owner.code(task) == 9500
    late = worker.rpc.code("node_task_finished", worker.id, task, "late", held["attempt"])
    assert late in (-32020, -32021)
    assert owner.code(task) == 9500
    assert worker.pull() == []


def test_a_complete_task_that_is_cancelled_keeps_its_outcome(owner, worker, method):
    done, failed = owner.submit(method), owner.submit(method)
    worker.finish(worker.take(done), "kept")
    worker.fail(worker.take(failed), 3)
    assert owner.cancel(done) is True
    assert owner.cancel(failed) is True
    assert owner.result(done) == "kept"
    assert (owner.code(done), owner.code(failed)) == (7000, 9000)


def test_a_full_disk_refuses_writes_and_nothing_else(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        owner, worker = client(net, "owner"), node(net, "m", node_id="worker")
        done, held, queued = [owner.submit("m") for _ in range(3)]
        worker.finish(worker.take(done), "before")
        worker.take(held)
        broker.config["min_free_bytes"] = 1 << 62
        broker.restart()
        # The client need not connect again, and the node need not hear that it has.
        owner, again = Client(Rpc(net.frontend()), "owner", connect=False), Rpc(net("backend"))
        again.send(told("node_connect", "worker", ["m"]))
        assert owner.rpc.code("client_new_task", "owner", "m", []) == -32060
        assert owner.rpc.code("client_disconnect", "owner") == -32060
        assert again.code("node_task_finished", "worker", held, 1, 1) == -32060
        assert owner.result(done) == "before"
        assert owner.code(queued) == 1000
        assert owner.code(held) in (1000, 3000)
        broker.config["min_free_bytes"] = 1
        broker.restart()
        owner = client(net, "owner")
        assert owner.submit("m")
        assert owner.code(queued) == 1000


# Promise: MGMT-4
def test_a_disabled_broker_answers_no_json_rpc_and_keeps_its_tasks(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        owner, manager, auth = client(net), net.frontend(), token_of(broker)
        task = owner.submit("m")
        assert manager.manage("disable", auth).code == 200
        owner.rpc.ask("client_task_status", owner.id, task)
        assert owner.rpc.silent(0.2)
        assert manager.manage("enable", auth).code == 200
        assert owner.code(task) == 1000, "an answer in the protocol that it speaks"
        assert node(net, "m").next()["id"] == task


# Promise: WIRE-5
def test_a_full_queue_refuses_until_something_has_ended(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=60, task_queue_limit=5, max_key_tasks=5) as (_, net):
        owner, worker = client(net), node(net, "m")
        for _ in range(5):
            owner.submit("m")
        mine = unique("task")
        with pytest.raises(Refused) as refused:
            owner.submit("m", [], mine)
        assert refused.value.code == -32070
        assert owner.rpc.code("client_task_status", owner.id, mine) == -32020
        worker.finish(worker.next())
        assert owner.submit("m", [], mine) == mine
        owner.cancel(mine)
        answers = owner.rpc.reply([asked("client_new_task", owner.id, "m", []) for _ in range(3)])
        assert [answer.get("error", {}).get("code") for answer in answers] == [None, -32070, -32070]


def test_a_key_is_known_though_the_queue_is_full(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=60, task_queue_limit=1) as (_, net):
        owner = client(net)
        task = owner.submit("m", [], key="k")
        assert owner.submit("m", [], key="k") == task, "what is there already takes no room"
