"""An attempt has one result: the same again is confirmed, another one is refused and recorded."""

# Promise: TASK-5
from __future__ import annotations

from typing import Any

import pytest

from scale0.broker.core.audit_limit import MAX_SINGLE, WINDOW_SECONDS
from tests.unit.tasks.harness import Refused, TaskBroker

NOT_YOURS = -32021
ERROR = {"code": 7, "message": "no", "data": {"why": 1}}


def refusals(broker: TaskBroker) -> list[tuple[str, int]]:
    return [(one.task_id, one.code) for one in broker.events if one.kind == "task.refused"]


def fetched(broker: TaskBroker, id_: str = "t") -> str:
    node = broker.node("n", "m")
    broker.submit(id_)
    assert broker.fetch(node, id_)["attempt"] == 1
    return node


def finish(broker: TaskBroker, node: str, result: Any, *attempt: int) -> Any:
    return broker.call("node_task_finished", "n", "t", result, *attempt, connection=node)


def fail(broker: TaskBroker, node: str, error: Any) -> Any:
    return broker.call("node_task_failed", "n", "t", error, 1, connection=node)


@pytest.mark.parametrize("restart", [False, True])
def test_another_result_of_a_node_is_refused(broker, restart):
    node = fetched(broker)
    assert finish(broker, node, {"a": 1, "b": [2]}, 1) is True
    if restart:
        broker.restart()
        node = broker.node("n", "m")
    assert finish(broker, node, {"a": 1, "b": [2]}, 1) is True
    assert finish(broker, node, {"b": [2], "a": 1}) is True, "the same value"
    assert refusals(broker) == []
    for again in (finish(broker, node, {"a": 1}, 1), finish(broker, node, 0), fail(broker, node, ERROR)):
        assert isinstance(again, Refused)
        assert again.code == NOT_YOURS
        assert "another result" in again.message
    assert refusals(broker) == [("t", NOT_YOURS)] * 3
    assert broker.result("t") == {"a": 1, "b": [2]}


# Promise: QUOTA-8
def test_a_flood_of_refused_results_is_recorded_as_a_number(broker):
    node = broker.node("n", "m")
    broker.events.clear()
    for number in range(500):
        assert isinstance(broker.call("node_task_finished", "n", f"no-{number}", 1, connection=node), Refused)
    assert len(refusals(broker)) == MAX_SINGLE
    broker.events.clear()
    broker.pass_time(WINDOW_SECONDS + 1)
    [summary] = [one for one in broker.events if one.kind == "task.refused"]
    assert (summary.node, summary.more) == ("n", 500 - MAX_SINGLE)
    broker.pass_time(WINDOW_SECONDS + 1)
    assert len(refusals(broker)) == 1, "one summary"


def test_another_failure_of_a_node_is_refused(broker):
    node = fetched(broker)
    assert fail(broker, node, ERROR) is True
    assert fail(broker, node, ERROR) is True
    assert fail(broker, node, {**ERROR, "message": "other"}).code == NOT_YOURS
    assert finish(broker, node, 1, 1).code == NOT_YOURS
    assert broker.result("t") == Refused(7, "no")


def test_another_result_of_a_worker_is_refused(broker):
    worker = broker.worker("w", "m", slots=4)
    broker.submit_many(["good", "bad", "deep"])
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    for _ in range(2):
        broker.done(worker, "good", result={"x": 1, "y": 2})
        broker.fail(worker, "bad", data=3)
        broker.done(worker, "deep", result=deep)
        assert sorted(broker.acknowledged(worker)) == [["bad", 1, 200], ["deep", 1, 200], ["good", 1, 200]]
    broker.done(worker, "good", "bad", "deep", result=5)
    assert sorted(broker.acknowledged(worker)) == [["bad", 1, 409], ["deep", 1, 409], ["good", 1, 409]]
    broker.fail(worker, "good")
    assert broker.acknowledged(worker) == [["good", 1, 409]]
    assert len(refusals(broker)) == 4
    assert broker.result("good") == {"x": 1, "y": 2}


def test_two_results_in_one_turn_are_one(broker):
    node = fetched(broker)
    told = broker.together(
        node,
        ("node_task_finished", "n", "t", 1, 1),
        ("node_task_finished", "n", "t", 1, 1),
        ("node_task_finished", "n", "t", 2, 1),
    )
    assert told[:2] == [True, True]
    assert told[2].code == NOT_YOURS


def test_many_large_results_that_are_sent_again_are_compared_in_portions():
    broker = TaskBroker(max_message_bytes=64 * 1024)
    worker = broker.worker("w", "m", slots=10)
    ids = [f"t{number}" for number in range(10)]
    broker.submit_many(ids)
    for _ in range(2):
        with_results = [{"id": id_, "attempt": 1, "result": "x" * 30_000} for id_ in ids]
        for first in range(0, 10, 2):
            broker.send(worker, "TASKSDONE", {}, with_results[first : first + 2])
        assert sorted(broker.acknowledged(worker)) == [[id_, 1, 200] for id_ in ids]
