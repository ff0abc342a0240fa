"""Every method of JSON-RPC on its socket, by position and by name: results and errors (PROTOCOL 6)."""

# Promise: TASK-1
# Promise: TASK-12
from __future__ import annotations

import json
import time
from typing import Any

import pytest
import zmq

from tests.wire.scale0.raw import unique
from tests.wire.scale0.rpc import Client, Node, Refused, Rpc, client, node

pytestmark = pytest.mark.processes

CLIENT_METHODS = (
    "client_connect",
    "client_disconnect",
    "client_new_task",
    "client_task_status",
    "client_task_result",
    "client_task_wait",
    "client_task_cancel",
)
NODE_METHODS = (
    "node_connect",
    "node_heartbeat",
    "node_status",
    "node_disconnect",
    "node_task_request",
    "node_tasks_request",
    "task_status",
    "node_task_finished",
    "node_task_failed",
)
BAD_IDS = ["x" * 129, "", "with space", "slash/", "é", "new\nline", "nul\x00"]


# Promise: WIRE-7
@pytest.mark.parametrize(
    ("socket", "method"),
    [("backend", name) for name in CLIENT_METHODS] + [("frontend", name) for name in NODE_METHODS],
)
def test_a_method_of_the_other_role_is_not_found_on_this_socket(net, socket, method):
    assert Rpc(net(socket)).code(method, "somebody") == -32601


@pytest.mark.parametrize("socket", ["frontend", "backend"])
@pytest.mark.parametrize("method", ["no_such_method", "", "__init__", "client_connect.", "CLIENT_CONNECT"])
def test_an_unknown_method_is_not_found(net, socket, method):
    assert Rpc(net(socket)).code(method) == -32601


def test_a_method_without_its_prefix_is_not_found(net):
    rpc = Rpc(net.frontend())
    for name in ("client_connect", "zerotask.client_connect", "zerotask.node.broker_new_task"):
        answer = rpc.reply({"jsonrpc": "2.0", "method": name, "params": [], "id": name})
        assert (answer["id"], answer["error"]["code"]) == (name, -32601)


def test_a_client_brings_its_id_or_gets_one(net):
    one, two = Rpc(net.frontend()), Rpc(net.frontend())
    mine = unique("mine")
    assert one.call("client_connect", mine) == mine
    assert one.call("client_connect", client_id=mine) == mine
    made, other = two.call("client_connect"), Rpc(net.frontend()).call("client_connect")
    assert 1 <= len(made) <= 128
    assert made != other


def test_params_may_be_left_out_where_none_is_needed(net):
    answer = Rpc(net.frontend()).reply(b'{"jsonrpc":"2.0","method":"zerotask.broker.client_connect","id":7}')
    assert answer["id"] == 7
    assert answer["result"]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_an_id_that_breaks_the_rule_is_refused(net, bad):
    assert Rpc(net.frontend()).code("client_connect", bad) == -32010
    assert Rpc(net("backend")).code("node_connect", bad, ["m"]) == -32030
    with pytest.raises(Refused) as refused:
        client(net).submit("m", [], bad)
    assert refused.value.code == -32020


def test_an_id_of_128_characters_of_the_rule_is_taken(net):
    long = (unique("A.z_0:-") + "x" * 128)[:128]
    owner = client(net, long)
    assert owner.submit("m", [], long) == long
    assert node(net, "n", node_id=long).id == long


def test_a_clients_id_that_another_connection_uses_is_taken(net):
    mine = client(net).id
    assert Rpc(net.frontend()).code("client_connect", mine) == -32010


def test_a_nodes_id_that_another_connection_uses_is_taken(net):
    first = node(net, "m")
    assert Rpc(net("backend")).code("node_connect", first.id, ["m"]) == -32030
    assert first.rpc.call("node_heartbeat", first.id) is True


def test_a_client_and_a_node_may_have_the_same_id(net):
    name = unique("both")
    assert client(net, name).id == node(net, "m", node_id=name).id == name


def test_a_client_that_disconnected_is_unknown(net):
    one = client(net)
    assert one.rpc.call("client_disconnect", one.id) is True
    assert one.rpc.code("client_new_task", one.id, "m", []) == -32010
    assert one.rpc.code("client_disconnect", one.id) == -32010
    two = client(net)
    assert two.rpc.call("client_disconnect", client_id=two.id) is True


def test_a_client_that_never_connected_cannot_submit(net):
    assert Rpc(net.frontend()).code("client_new_task", unique("stranger"), "m", []) == -32010


def test_a_client_id_is_good_on_another_connection(net):
    one = client(net)
    task = one.submit("m")
    other = Rpc(net.frontend())
    assert other.call("client_task_status", one.id, task)["code"] == 1000


def test_a_task_from_start_to_end_by_position(owner, worker, method):
    mine = unique("task")
    task = owner.rpc.call("client_new_task", owner.id, method, [1, {"a": None}], mine, {"priority": 5})
    assert task == mine
    assert owner.code(task) == 1000
    assert owner.error(task)["code"] == -32050
    assert owner.error(task)["data"]["status"] == "queued"
    given = worker.rpc.call("node_task_request", worker.id, task)
    assert given == {"method": method, "params": [1, {"a": None}], "id": task, "attempt": 1}
    assert owner.error(task)["data"]["status"] == "assigned"
    assert worker.rpc.call("task_status", worker.id, task, "begun") is True
    assert owner.error(task)["data"]["status"] == "running"
    assert worker.rpc.call("node_task_finished", worker.id, task, {"sum": 1}, 1) is True
    assert [owner.result(task) for _ in range(3)] == [{"sum": 1}] * 3


def test_a_task_from_start_to_end_by_name(owner, worker, method):
    ids = {"client_id": owner.id, "task_id": unique("task")}
    said = {**ids, "method": method, "params": {"x": 1}, "options": {"priority": 5}}
    assert owner.rpc.call("client_new_task", **said) == ids["task_id"]
    held = {"node_id": worker.id, "task_id": ids["task_id"]}
    given = worker.rpc.call("node_task_request", **held)
    assert given == {"method": method, "params": {"x": 1}, "id": ids["task_id"], "attempt": 1}
    assert worker.rpc.call("task_status", **held, status="half", percent=50, note="fine") is True
    status = owner.rpc.call("client_task_status", **ids)
    assert (status["status"], status["info"]["percent"], status["info"]["note"]) == ("running", 50, "fine")
    assert "half" in json.dumps(status["info"])
    assert worker.rpc.call("node_task_finished", **held, task_result="done", attempt=1) is True
    assert owner.rpc.call("client_task_result", **ids) == "done"
    waited = owner.rpc.call("client_task_wait", client_id=owner.id, task_ids=[ids["task_id"]], timeout=1)
    assert waited == [{"task_id": ids["task_id"], "status": "finished", "result": "done"}]
    assert owner.rpc.call("client_task_cancel", **ids) is True
    assert owner.rpc.call("client_task_result", **ids) == "done"


def test_a_node_from_start_to_end_by_name(net):
    rpc, name = Rpc(net("backend")), unique("node")
    assert rpc.call("node_connect", node_id=name, methods=[unique("method")]) == name
    assert rpc.call("node_heartbeat", node_id=name) is True
    assert rpc.call("node_status", node_id=name, status={"load": 1}) is True
    assert rpc.call("node_tasks_request", node_id=name, limit=1) == []
    assert rpc.call("node_disconnect", node_id=name) is True
    assert rpc.code("node_heartbeat", node_id=name) == -32030


def test_a_node_from_start_to_end_by_position(net):
    rpc = Rpc(net("backend"))
    name = rpc.call("node_connect")
    assert rpc.call("node_heartbeat", name) is True
    assert rpc.call("node_status", name) is True
    assert rpc.call("node_status", name, "well") is True
    assert isinstance(rpc.call("node_tasks_request", name), list)
    assert rpc.call("node_disconnect", name) is True
    for method in ("node_heartbeat", "node_status", "node_tasks_request", "node_disconnect"):
        assert rpc.code(method, name) == -32030


def test_the_short_forms_take_the_node_from_the_connection(owner, worker, method):
    good, bad = owner.submit(method, ["good"]), owner.submit(method, ["bad"])
    assert worker.rpc.call("node_task_request", good)["params"] == ["good"]
    assert worker.rpc.call("node_task_request", task_id=bad)["params"] == ["bad"]
    assert owner.status(good)["node_id"] == worker.id
    assert worker.rpc.call("node_task_finished", good, [1, 2]) is True
    assert worker.rpc.call("node_task_failed", bad, {"code": 5, "message": "broken"}) is True
    assert owner.result(good) == [1, 2]
    assert owner.error(bad)["code"] == 5


def test_the_short_forms_need_a_node_on_the_connection(owner, worker, method, net):
    task = owner.submit(method)
    stranger = Rpc(net("backend"))
    assert stranger.code("node_task_request", task) == -32030
    assert stranger.code("node_task_request", unique("nobody"), task) == -32030
    worker.take(task)
    assert stranger.code("node_task_finished", task, 1) in (-32030, -32021)
    assert owner.code(task) == 3000


def test_a_task_that_somebody_has_is_given_as_an_empty_object(owner, worker, method, net):
    task = owner.submit(method)
    assert worker.take(task)["attempt"] == 1
    assert node(net, method).take(task) == {}
    assert worker.take(task) == {}


def test_a_task_that_is_unknown_or_complete_cannot_be_taken(owner, worker, method):
    done, cancelled = owner.submit(method), owner.submit(method)
    worker.finish(worker.take(done))
    owner.cancel(cancelled)
    for task in (done, cancelled, unique("unknown")):
        assert worker.rpc.code("node_task_request", worker.id, task) == -32020


def test_a_node_pulls_tasks_of_its_methods_only_and_as_many_as_it_wants(owner, worker, method):
    other = owner.submit(unique("other"))
    tasks = [owner.submit(method, [n]) for n in range(5)]
    first = worker.pull(2)
    assert [(task["id"], task["params"], task["attempt"], task["method"]) for task in first] == [
        (tasks[0], [0], 1, method),
        (tasks[1], [1], 1, method),
    ]
    assert [task["id"] for task in worker.pull()] == tasks[2:]
    assert worker.pull() == []
    assert owner.code(other) == 1000


def test_connecting_again_replaces_a_nodes_methods(owner, worker, method):
    task = owner.submit(method)
    assert worker.rpc.call("node_connect", worker.id, [unique("none")]) == worker.id
    assert worker.pull() == []
    assert worker.rpc.call("node_connect", worker.id, [method]) == worker.id
    assert [given["id"] for given in worker.pull()] == [task]


def test_connecting_again_keeps_what_a_node_holds(owner, worker, method):
    task = owner.submit(method)
    held = worker.take(task)
    worker.rpc.call("node_connect", worker.id, [method])
    assert owner.code(task) == 3000
    assert worker.finish(held, "kept") is True
    assert owner.result(task) == "kept"


def test_the_fields_of_a_status(owner, worker, method):
    before = time.time()
    task = owner.submit(method)
    queued = owner.status(task)
    fields = {"task_id", "status", "code", "attempt", "node_id", "submitted", "started", "finished", "info"}
    assert set(queued) == fields
    assert (queued["task_id"], queued["status"], queued["code"]) == (task, "queued", 1000)
    assert (queued["attempt"], queued["node_id"], queued["started"], queued["finished"]) == (0, None, None, None)
    assert before - 1 <= queued["submitted"] <= time.time() + 1
    held = worker.take(task)
    assigned = owner.status(task)
    assert (assigned["status"], assigned["code"]) == ("assigned", 3000)
    assert (assigned["attempt"], assigned["node_id"]) == (1, worker.id)
    worker.rpc.call("task_status", worker.id, task, "running")
    running = owner.status(task)
    assert (running["status"], running["code"]) == ("running", 5000)
    worker.finish(held, 1)
    finished = owner.status(task)
    assert (finished["status"], finished["code"], set(finished)) == ("finished", 7000, fields)
    assert queued["submitted"] <= finished["started"] <= finished["finished"] <= time.time() + 1


def test_a_failed_task_gives_its_own_error(owner, worker, method):
    task = owner.submit(method)
    error: dict[str, Any] = {"code": -7, "message": "disk full", "data": {"free": 0}}
    assert worker.fail(worker.take(task), **error) is True
    assert owner.code(task) == 9000
    assert {name: owner.error(task)[name] for name in error} == error
    row = owner.wait(task)[0]
    assert (row["task_id"], row["status"], row["error"]["code"]) == (task, "failed", -7)
    assert worker.rpc.call("node_task_failed", worker.id, task, error, 1) is True


@pytest.mark.parametrize(
    "error", ["text", 5, None, [], {}, {"code": 1}, {"message": "x"}, {"code": "a", "message": "x"}]
)
def test_an_error_that_is_no_error_object_is_refused(owner, worker, method, error):
    task = owner.submit(method)
    worker.take(task)
    assert worker.rpc.code("node_task_failed", task, error) == -32602
    assert owner.code(task) == 3000


def test_another_clients_task_is_unknown(owner, worker, method, net):
    task = owner.submit(method)
    worker.finish(worker.take(task), "secret")
    spy = client(net)
    for name in ("client_task_status", "client_task_result", "client_task_cancel"):
        assert spy.rpc.code(name, spy.id, task) == -32020
        assert owner.rpc.code(name, owner.id, unique("never")) == -32020
    assert spy.rpc.code("client_task_wait", spy.id, [task], 1) == -32020


def test_a_task_id_can_be_used_once(net):
    owner, other, mine = client(net), client(net), unique("task")
    owner.submit("m", ["first"], mine)
    for somebody in (owner, other):
        with pytest.raises(Refused) as refused:
            somebody.submit("m", ["second"], mine)
        assert refused.value.code == -32020


def test_task_ids_that_the_broker_makes_are_unique_and_keep_the_rule(owner):
    made = owner.submit_many([owner.new("m") for _ in range(20)])
    assert len(set(made)) == 20
    assert all(1 <= len(task) <= 128 for task in made)


@pytest.mark.parametrize("result", [None, True, 0, "", [], {}, 1.5, "é\u2028\U0001f600", [[[]]], {"a": {"b": [1]}}])
def test_any_json_is_a_result(owner, worker, method, result):
    task = owner.submit(method)
    assert worker.finish(worker.take(task), result) is True
    assert owner.result(task) == result


def test_params_and_results_pass_as_the_bytes_they_came_in(owner, worker, method):
    odd = b'{"n": 1.10, "big":123456789012345678901234567890,"e":1E+2,"u":"\\u00e9" }'
    said = '{"jsonrpc":"2.0","method":"zerotask.broker.client_new_task","id":1,"params":["%s","%s",%s]}'
    task = owner.rpc.reply((said % (owner.id, method, odd.decode())).encode())["result"]
    worker.rpc.ask("node_task_request", worker.id, task)
    assert odd in (worker.rpc.hear_bytes() or b"")
    said = '{"jsonrpc":"2.0","method":"zerotask.broker.node_task_finished","id":1,"params":["%s",%s]}'
    assert worker.rpc.reply((said % (task, odd.decode())).encode())["result"] is True
    owner.rpc.ask("client_task_result", owner.id, task)
    assert odd in (owner.rpc.hear_bytes() or b"")


# Promise: WIRE-1
@pytest.mark.parametrize(("kind", "delimiter"), [(zmq.REQ, False), (zmq.DEALER, True), (zmq.DEALER, False)])
def test_every_framing_does_the_same(method, net, kind, delimiter):
    owner = Client(Rpc(net("frontend", kind, delimiter)))
    worker = Node(Rpc(net("backend", kind, delimiter)), method)
    task = owner.submit(method, [kind])
    assert worker.next()["params"] == [kind]
    assert worker.rpc.call("node_task_finished", task, "done") is True
    assert owner.wait(task)[0]["result"] == "done"
    assert owner.result(task) == "done"


def test_one_connection_may_speak_both_protocols(caller):
    owner = Client(Rpc(caller))
    assert caller.request("scale0.ping").command == "REPLY"
    assert owner.code(owner.submit("m")) == 1000
    assert caller.request("scale0.ping").command == "REPLY"
