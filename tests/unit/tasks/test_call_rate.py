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
