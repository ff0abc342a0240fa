"""Tasks pushed to native backends: how many, to whom, in which order, and how they end (PROTOCOL 2.3)."""

# Promise: TASK-3
# Promise: TASK-5
# Promise: TASK-10
from __future__ import annotations

import json
from typing import Any

import pytest

from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.raw import Raws, unique
from tests.wire.scale0.rpc import Backend, Client, client, node

pytestmark = pytest.mark.processes

MAX_MESSAGE = 8 * 1024 * 1024


@pytest.fixture(params=[False, True], ids=["single", "batch"])
def batch(request):
    """Whether the backend says and hears BATCH."""
    return request.param


def crew(net: Raws, **options: Any) -> tuple[Client, Backend, str]:
    """A client and a native backend."""
    method = unique("method")
    return client(net), Backend(net, method, **options), method


@pytest.fixture
def worker(net: Raws, method: str) -> Backend:
    return Backend(net, method)


def ids(tasks: list[dict[str, Any]]) -> list[str]:
    return [task["id"] for task in tasks]


def test_a_task_is_pushed_run_and_stored(net, batch):
    owner, worker, method = crew(net, batch=batch)
    task = owner.submit(method, {"x": [1, None]}, timeout=77)
    pushed = worker.tasks()[0]
    assert set(pushed) >= {"id", "method", "params", "attempt", "timeout", "owner"}
    assert (pushed["id"], pushed["method"], pushed["params"]) == (task, method, {"x": [1, None]})
    assert (pushed["attempt"], pushed["timeout"], pushed["owner"]) == (1, 77, "broker-1")
    status = owner.status(task)
    assert (status["code"], status["node_id"], status["attempt"]) == (3000, worker.identity, 1)
    worker.running(pushed)
    assert owner.until_code(task, 5000)["started"]
    assert worker.codes(pushed, result={"y": 2}) == [200]
    assert owner.result(task) == {"y": 2}
    assert owner.code(task) == 7000


def test_the_default_timeout_is_an_hour(owner, worker, method):
    owner.submit(method)
    assert worker.tasks()[0]["timeout"] == 3_600


def test_what_was_submitted_before_a_backend_came_is_pushed_when_it_comes(owner, method, net, batch):
    tasks = [owner.submit(method) for _ in range(3)]
    worker = Backend(net, method, slots=3, batch=batch)
    assert ids(worker.tasks(3)) == tasks


def test_no_more_than_the_slots_are_pushed_without_prefetch(net, batch):
    owner, worker, method = crew(net, slots=2, batch=batch)
    tasks = owner.submit_many([owner.new(method, [n]) for n in range(5)])
    held = worker.tasks(2)
    assert ids(held) == tasks[:2]
    assert worker.idle()
    worker.running(*held)
    assert worker.idle()
    assert worker.codes(held[1]) == [200]
    assert ids(worker.tasks()) == tasks[2:3]
    assert worker.idle()
    assert [owner.code(task) for task in tasks] == [5000, 7000, 3000, 1000, 1000]


@pytest.mark.parametrize(("slots", "prefetch"), [(1, 4), (3, 2), (2, 100)])
def test_unfinished_tasks_are_never_more_than_slots_and_prefetch(net, slots, prefetch):
    owner, worker, method = crew(net, slots=slots, prefetch=prefetch)
    tasks = owner.submit_many([owner.new(method, [n]) for n in range(60)])
    held: list[dict[str, Any]] = worker.tasks(slots)
    ran: list[str] = []
    while len(ran) < len(tasks):
        worker.idle(0.02 if len(ran) % 20 else 0.1)
        held += worker.tasks(len(worker.unread))
        assert len(held) <= slots + prefetch
        started = held[:slots] or worker.tasks()
        held = held or started
        worker.running(*started)
        assert worker.codes(*started) == [200] * len(started)
        held = held[len(started) :]
        ran += ids(started)
    assert ran == tasks
    assert worker.idle(0.1)


def test_slots_can_change_in_real_time(net):
    owner, worker, method = crew(net, slots=1)
    tasks = owner.submit_many([owner.new(method) for _ in range(6)])
    first = worker.tasks()
    assert worker.idle(0.1)
    worker.ready(slots=3)
    assert ids(first + worker.tasks(2)) == tasks[:3]
    assert worker.idle()
    worker.ready(slots=1)
    assert worker.codes(first[0]) == [200]
    assert worker.idle()
    assert [owner.code(task) for task in tasks[:4]] == [7000, 3000, 3000, 1000]


def test_a_backend_that_drains_gets_nothing_new_and_may_finish(owner, worker, method):
    owner.submit(method)
    held = worker.tasks()[0]
    worker.ready(services=[])
    task = owner.submit(method)
    assert worker.codes(held, result="last") == [200]
    assert worker.idle()
    assert owner.result(held["id"]) == "last"
    assert owner.code(task) == 1000
    worker.ready()
    assert ids(worker.tasks()) == [task]


def test_work_goes_to_who_was_handed_work_longest_ago(net, owner, worker, method):
    two, three = Backend(net, method), Backend(net, method)
    for _ in range(2):
        for one in (worker, two, three):
            task = owner.submit(method)
            held = one.tasks()
            assert ids(held) == [task]
            assert one.codes(*held) == [200]


def test_tasks_come_in_order_and_the_important_ones_first(owner, method, net, batch):
    tasks = owner.submit_many([owner.new(method, [n], None, priority=n % 3) for n in range(30)])
    worker = Backend(net, method, slots=30, batch=batch)
    order = sorted(range(30), key=lambda n: (-(n % 3), n))
    assert ids(worker.tasks(30)) == [tasks[n] for n in order]


def test_many_results_at_once_are_each_acknowledged(net, batch):
    owner, worker, method = crew(net, slots=100, batch=batch)
    tasks = owner.submit_many([owner.new(method, [n]) for n in range(100)])
    held = worker.tasks(100)
    unknown = {"id": unique("never"), "attempt": 1}
    assert worker.codes(*held[:50], unknown, *held[50:]) == [200] * 50 + [404] + [200] * 50
    assert [owner.result(task) for task in tasks] == [[n] for n in range(100)]


def test_messages_in_one_batch_count_in_their_order(net):
    owner, worker, method = crew(net, slots=2, batch=True)
    tasks = [owner.submit(method) for _ in range(2)]
    held = worker.tasks(2)
    rows = [{"id": task["id"], "attempt": 1} for task in held]
    running = json.dumps([{**row, "status": "running"} for row in rows]).encode()
    done = [json.dumps([{**row, "result": n}]).encode() for n, row in enumerate(rows)]
    worker.raw.batch(["TASKSTATUS", {}, running], *[["TASKSDONE", {}, body] for body in done])
    heard: list[Any] = []
    while len(heard) < 2:
        heard += worker.hear("TASKSOK").body
    assert sorted(heard) == sorted([task, 1, 200] for task in tasks)
    assert [owner.result(task) for task in tasks] == [0, 1]


def test_the_same_result_again_is_acknowledged_again(net, batch):
    owner, worker, method = crew(net, batch=batch)
    task = owner.submit(method)
    held = worker.tasks()[0]
    assert [worker.codes(held, result="once") for _ in range(3)] == [[200]] * 3
    worker.done(held, result="changed")
    assert owner.result(task) == "once"


def test_only_the_attempt_that_owns_a_task_may_end_it(owner, worker, method, net):
    task = owner.submit(method)
    held = worker.tasks()[0]
    assert Backend(net, unique("other")).codes(held, result="stolen") == [409]
    assert worker.codes({**held, "attempt": 2}, result="from the future") == [409]
    assert worker.codes({**held, "id": unique("never")}) == [404]
    assert owner.code(task) == 3000
    assert worker.codes(held, result="mine") == [200]
    assert owner.result(task) == "mine"


def test_an_error_is_final_unless_it_says_otherwise(net, batch):
    owner, worker, method = crew(net, batch=batch)
    error = {"code": 12, "message": "no", "data": [1]}
    for wrong in (error, {**error, "retry": False}):
        task = owner.submit(method)
        assert worker.codes(worker.tasks()[0], error=wrong) == [200]
        heard = owner.error(task)
        assert {name: heard.get(name) for name in error} == error
        assert owner.code(task) == 9000
    assert worker.idle(0.1)


def test_an_error_that_says_so_is_tried_again(net, batch):
    owner, worker, method = crew(net, batch=batch)
    task = owner.submit(method, [], max_attempts=2)
    for attempt in (1, 2):
        held = worker.tasks()[0]
        assert (held["id"], held["attempt"]) == (task, attempt)
        worker.running(held)
        assert worker.codes(held, error={"code": 1, "message": "try", "retry": True}) == [200]
    assert owner.until_code(task, 9000)
    assert owner.error(task)["code"] in (1, -32090)
    assert worker.idle(0.1)


def test_a_started_task_that_outlasts_its_timeout_is_pushed_again(owner, worker, method, net):
    task = owner.submit(method, [], timeout=0.3)
    old = worker.tasks()[0]
    worker.running(old)
    worker.ready(services=[])
    new = Backend(net, method).tasks()[0]
    assert (new["id"], new["attempt"]) == (task, 2)
    assert worker.codes(old, result="late") == [409]
    assert owner.code(task) == 3000


@pytest.mark.parametrize("started", [False, True])
def test_who_has_a_cancelled_task_is_told(owner, worker, method, started):
    task = owner.submit(method)
    held = worker.tasks()[0]
    if started:
        worker.running(held)
        owner.until_code(task, 5000)
    assert owner.cancel(task) is True
    assert worker.hear("TASKSCANCEL").body == [[task, 1]]
    assert worker.codes(held, result="late")[0] in (404, 409)
    assert owner.code(task) == 9500
    other = owner.submit(method)
    assert ids(worker.tasks()) == [other], "its slot is free"


def test_a_started_task_and_a_request_share_the_slots(owner, worker, method, net):
    owner.submit(method)
    held = worker.tasks()[0]
    worker.running(held)
    owner.until_code(held["id"], 5000)
    caller = net.frontend()
    assert caller.request(method, timeout=0.3).code == 504
    assert worker.codes(held) == [200]
    caller.say("REQUEST", {"service": method, "id": 2})
    assert worker.hear("REQUEST").options["service"] == method


def test_a_native_backend_and_a_node_may_offer_the_same(owner, worker, method, net):
    puller = node(net, method)
    tasks = [owner.submit(method) for _ in range(2)]
    held = worker.tasks()[0]
    pulled = puller.next()
    assert {held["id"], pulled["id"]} == set(tasks)
    assert puller.rpc.code("node_task_finished", puller.id, held["id"], 1, 1) == -32021
    assert worker.codes(held) == [200]
    assert puller.finish(pulled) is True


def test_params_and_results_pass_as_the_bytes_they_came_in(owner, worker, method):
    odd = b'{"n": 1.10, "big":123456789012345678901234567890,"e":1E+2,"u":"\\u00e9" }'
    said = '{"jsonrpc":"2.0","method":"zerotask.broker.client_new_task","id":1,"params":["%s","%s",%s]}'
    task = owner.rpc.reply((said % (owner.id, method, odd.decode())).encode())["result"]
    heard = worker.hear("TASKS")
    assert odd in heard.bodies[0]
    worker.raw.say("TASKSDONE", {}, b'[{"id":"%s","attempt":1,"result":%s}]' % (task.encode(), odd))
    assert worker.hear("TASKSOK").body == [[task, 1, 200]]
    owner.rpc.ask("client_task_result", owner.id, task)
    assert odd in (owner.rpc.hear_bytes() or b"")


# Promise: WIRE-5
def test_no_message_with_tasks_is_over_the_limit_of_a_message(owner, method, net):
    tasks = [owner.submit(method, ["x" * (3 << 20), n]) for n in range(4)]
    worker = Backend(net, method, slots=4, batch=True)
    sizes, rows = [], worker.tasks(len(worker.unread))
    while len(rows) < 4:
        heard = worker.hear("TASKS")
        sizes.append(sum(map(len, heard.bodies)))
        rows += worker.tasks(len(worker.unread))
    assert ids(rows) == tasks
    assert all(size <= MAX_MESSAGE for size in sizes)
    worker.leave()
    puller = node(net, method)
    assert [puller.next()["id"] for _ in tasks] == tasks


# Promise: WIRE-7
@pytest.mark.parametrize("command", ["TASKS", "TASKSTATUS", "TASKSDONE", "TASKSOK", "TASKSCANCEL"])
def test_commands_of_backends_are_refused_on_the_frontend_socket(net, command):
    heard = net.frontend().ask(command, {}, b"[]")
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 403)


# Promise: WIRE-3
@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b"[1]", b'[{"id":1}]', b'[{"id":"a"}]', b"[NaN]", b"\xff", b"[" * 9999]
)
@pytest.mark.parametrize("command", ["TASKSTATUS", "TASKSDONE"])
def test_a_malformed_body_is_refused_and_disturbs_nobody(owner, worker, method, net, command, body):
    bad = Backend(net, method)
    bad.raw.say(command, {}, body)
    assert bad.hear("DISCONNECTERROR").code in (400, 413)
    task = owner.submit(method)
    held = worker.tasks(seconds=2)
    assert worker.codes(*held) == [200]
    assert owner.code(task) == 7000


@pytest.fixture
def policed(tmp_path):
    """Connections to a broker whose network document has policies for two methods."""
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        manager, auth = net.frontend(), token_of(broker)
        current = manager.manage("get_config", auth).body
        policies = [{"name": "few", "concurrency": 2}, {"name": "short", "timeout": 55, "max_attempts": 1}]
        wanted = {**current["config"], "services": policies}
        assert manager.manage("set_config", auth, config=wanted, base=current["version"]).code == 200
        yield net


def test_a_method_runs_no_more_often_at_once_than_its_policy_allows(policed):
    owner, one, two = client(policed), Backend(policed, "few", slots=9), Backend(policed, "few", slots=9)
    tasks = owner.submit_many([owner.new("few") for _ in range(5)])
    held: list[dict[str, Any]] = []
    for done in range(5):
        codes = [owner.code(task) for task in tasks]
        assert codes == [7000] * done + [3000] * min(2, 5 - done) + [1000] * max(0, 3 - done)
        for worker in (one, two):
            worker.idle(0.05)
            held += [{**task, "worker": worker} for task in worker.tasks(len(worker.unread))]
        assert sorted(ids(held)) == sorted(tasks[done : done + 2])
        first = next(task for task in held if task["id"] == tasks[done])
        held.remove(first)
        assert first["worker"].codes(first) == [200]


def test_the_limit_of_a_method_counts_for_nodes_too(policed):
    owner, worker = client(policed), node(policed, "few", "many")
    few, many = [owner.submit_many([owner.new(name) for _ in range(4)]) for name in ("few", "many")]
    held = worker.pull()
    assert sorted(ids(held)) == sorted(few[:2] + many), "another method is not limited"
    assert worker.take(few[2]) == {}
    worker.finish(next(task for task in held if task["id"] == few[1]))
    assert ids(worker.pull()) == few[2:3]


def test_a_policy_gives_the_timeout_and_the_attempts_that_a_task_does_not_bring(policed):
    owner, worker = client(policed), Backend(policed, "short", slots=2)
    plain, own = owner.submit("short"), owner.submit("short", [], timeout=5, max_attempts=2)
    held = worker.tasks(2)
    assert [task["timeout"] for task in held] == [55, 5]
    worker.running(*held)
    owner.until_code(own, 5000)
    worker.leave()
    assert owner.until_code(plain, 9000)
    assert owner.error(plain)["code"] == -32090
    assert owner.until_code(own, 1000)
