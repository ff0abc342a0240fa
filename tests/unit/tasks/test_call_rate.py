"""Calls by JSON-RPC count in the request rate of their sender: `max_requests_per_second`."""

from __future__ import annotations

import json

from tests.fakes.broker import METHODS
from tests.fakes.messages import RPC
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

RATE_LIMITED = -32073


def codes(broker: TaskBroker, count: int, first: int = 0) -> list[int | None]:
    """The errors of an array of submissions, in order; None: accepted."""
    calls = [
        {"jsonrpc": "2.0", "method": METHODS + "client_new_task", "params": [CLIENT, "m", [], f"t{id_}"], "id": id_}
        for id_ in range(first, first + count)
    ]
    broker.received(FRONT, RPC)
    broker.send_frames(FRONT, [json.dumps(calls).encode()])
    answers = [one.body for one in broker.received(FRONT, RPC)]
    assert [answer["id"] for answer in answers] == list(range(first, first + count))
    return [answer.get("error", {}).get("code") for answer in answers]


def test_each_element_of_an_array_counts_in_the_request_rate():
    broker = TaskBroker(max_requests_per_second=10)
    broker.pass_time(1.1)  # the harness has called, too
    assert codes(broker, 15) == [None] * 10 + [RATE_LIMITED] * 5
    broker.pass_time(1.1)
    assert codes(broker, 5, first=10) == [None] * 5, "a second later the same calls are accepted"


def test_results_of_a_node_are_never_refused_for_their_rate():
    broker = TaskBroker(max_requests_per_second=10)
    broker.pass_time(1.1)
    ids = [f"t{number}" for number in range(10)]
    broker.submit_many(ids)
    node = broker.node("n", "m")
    assert broker.pull(node) == ids
    for id_ in ids * 2:  # a repeated report is a call of its own
        broker.call("node_task_finished", "n", id_, None, connection=node)
    broker.pass_time(1.1)
    assert {broker.status(id_) for id_ in ids} == {"finished"}


# Promise: PERM-5
def test_calls_of_a_node_count_in_its_rate_but_results_and_heartbeats_are_never_refused():
    broker = TaskBroker(max_requests_per_second=10)
    broker.submit("t")
    node = broker.node("n", "m")
    assert broker.pull(node) == ["t"]
    broker.pass_time(1.1)
    answers = broker.together(node, *(("node_status", "n", {}) for _ in range(15)))
    assert [getattr(answer, "code", None) for answer in answers] == [None] * 10 + [RATE_LIMITED] * 5
    for method, *params in (("node_task_request", "t"), ("node_connect", ["m"]), ("node_tasks_request",)):
        refused = broker.call(method, "n", *params, connection=node)
        assert refused.code == RATE_LIMITED
    assert broker.call("node_heartbeat", "n", connection=node) is True
    assert broker.call("node_task_finished", "n", "t", None, connection=node) is True


# Promise: PERM-5
def test_a_result_that_is_looked_up_in_the_store_costs_a_request():
    broker = TaskBroker(max_requests_per_second=10)
    node = broker.node("n", "m")
    broker.pass_time(1.1)
    for _ in range(20):
        broker.call("node_task_finished", "n", "unknown", None, connection=node)
    assert broker.call("node_status", "n", {}, connection=node).code == RATE_LIMITED


# Promise: FAIR-4
def test_a_wait_for_many_tasks_costs_as_many_requests():
    broker = TaskBroker(max_requests_per_second=100)
    broker.pass_time(1.1)
    ids = [f"t{number}" for number in range(60)]
    broker.submit_many(ids)
    broker.pass_time(1.1)
    assert broker.call("client_task_wait", CLIENT, ids, 0) == []
    refused = [code for code in codes(broker, 60, first=100) if code == RATE_LIMITED]
    assert len(refused) == 20


# Promise: FAIR-4
def test_a_call_that_costs_more_than_the_rate_is_accepted_and_owed():
    broker = TaskBroker(max_requests_per_second=20)
    ids = [f"t{number}" for number in range(50)]
    for start in range(0, 50, 10):
        broker.pass_time(1.1)
        broker.submit_many(ids[start : start + 10])
    broker.pass_time(1.1)
    assert broker.call("client_task_wait", CLIENT, ids, 0) == []
    broker.pass_time(1.1)
    assert codes(broker, 1, first=100) == [RATE_LIMITED], "50 were used: the next second is owed, too"
    broker.pass_time(1.1)
    assert codes(broker, 1, first=100) == [None]
