"""A hand-out by JSON-RPC whose answer was lost is found and handed out again; one that arrived never is."""

# Promise: TASK-7
from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tasks.harness import CLIENT, TaskBroker


def pull(broker: TaskBroker, node: str, *holds: tuple[str, int]) -> dict[str, int]:
    tasks = broker.call("node_tasks_request", "n", 10, holds, connection=node)
    return {task["id"]: task["attempt"] for task in tasks}


def attempts(broker: TaskBroker) -> list[tuple[str, str]]:
    return [(one.task_id, one.state) for one in broker.events if one.kind == "task.attempt_ended"]


def starts(broker: TaskBroker, id_: str) -> int:
    (row,) = [row for row in broker.manage("list_tasks").body["items"] if row["task_id"] == id_]
    return int(row["starts"])


@pytest.mark.parametrize("restart", [False, True])
def test_the_next_request_shows_what_a_node_did_not_receive(broker, restart):
    node = broker.node("n", "m")
    broker.submit("kept", max_attempts=1)
    assert pull(broker, node) == {"kept": 1}
    broker.submit("lost", max_attempts=1)
    assert pull(broker, node, ("kept", 1)) == {"lost": 1}  # and this answer is lost
    if restart:
        broker.restart()
        node = broker.node("n", "m")
    assert pull(broker, node, ("kept", 1)) == {"lost": 2}
    assert attempts(broker)[-1] == ("lost", "lost")
    assert starts(broker, "lost") == 1, "what did not arrive is no start"
    for id_, attempt in (("kept", 1), ("lost", 2)):
        assert broker.call("node_task_finished", "n", id_, 1, attempt, connection=node) is True


def test_a_heartbeat_shows_it_too_and_another_node_gets_the_task(broker):
    node, other = broker.node("n", "m"), broker.node("n2", "m")
    broker.submit("lost")
    assert broker.fetch(node, "lost")["attempt"] == 1
    assert broker.call("node_heartbeat", "n", connection=node) is True
    assert broker.pull(other) == [], "a heartbeat without a report changes nothing"
    assert broker.call("node_heartbeat", "n", [], connection=node) is True
    assert broker.pull(other) == ["lost"]
    late = broker.call("node_task_finished", "n", "lost", 1, 1, connection=node)
    assert late.code == -32021


def test_a_report_that_names_another_attempt_does_not_keep_the_lease(broker):
    node = broker.node("n", "m")
    broker.submit("t")
    assert pull(broker, node) == {"t": 1}
    assert pull(broker, node, ("t", 2), ("unknown", 1)) == {"t": 2}


def test_a_task_that_the_node_had_started_and_does_not_have_any_more_counts(broker):
    node = broker.node("n", "m")
    broker.submit("t", max_attempts=1)
    assert pull(broker, node) == {"t": 1}
    assert broker.call("task_status", "n", "t", "running", connection=node) is True
    assert pull(broker, node) == {}
    assert broker.status("t") == "failed"


def test_a_hand_out_that_is_not_sent_yet_is_not_judged(broker):
    """Its answer waits for the disk: the node cannot have received it."""
    node = broker.node("n", "m")
    broker.submit("t")
    told: list[Any] = broker.together(node, *(("node_tasks_request", "n", 10, []) for _ in range(3)))
    assert [[task["attempt"] for task in answer] for answer in told] == [[1], [], []]
    assert attempts(broker) == []
    assert pull(broker, node, ("t", 1)) == {}


@pytest.mark.parametrize("method", ["node_tasks_request", "node_task_request"])
def test_an_answer_that_cannot_be_sent_is_no_hand_out(broker, method):
    node, other = broker.node("n", "m"), broker.node("n2", "m")
    huge = [10**400]  # a number that a decoder may refuse
    assert broker.call("client_new_task", CLIENT, "m", huge, "t", {"max_attempts": 1}) == "t"
    broker.disconnected.add(node)
    broker.ask(node, method, "n", *((10,) if method == "node_tasks_request" else ("t",)))
    assert broker.status("t") == "queued"
    assert broker.pull(other) == ["t"]
    assert starts(broker, "t") == 1


def test_an_answer_in_an_array_that_cannot_be_sent_is_no_hand_out(broker):
    node = broker.node("n", "m")
    broker.submit_many(["a", "b"])
    broker.disconnected.add(node)
    with pytest.raises(AssertionError, match="not answered"):
        broker.together(node, ("node_heartbeat", "n"), ("node_task_request", "n", "b"), ("node_tasks_request", "n", 1))
    assert [broker.status(id_) for id_ in ("a", "b")] == ["queued", "queued"]


def test_invalid_reports_are_refused(broker):
    node = broker.node("n", "m")
    for holds in ("t", [["t"]], [["t", "1"]], {"t": 1}):
        assert broker.call("node_heartbeat", "n", holds, connection=node).code == -32602
    assert broker.call("client_task_status", CLIENT, "nobody").code == -32020
