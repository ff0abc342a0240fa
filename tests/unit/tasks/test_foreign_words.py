"""What others say of tasks: names, depths and protocols that do not fit are refused, and nobody else notices."""

# Promise: TASK-13
from __future__ import annotations

from typing import Any

import pytest

from scale0.kernel.effects import Effects
from tests.unit.tasks.harness import CLIENT, Refused, TaskBroker

INVALID_PARAMS = -32602
BAD_NODE = -32030


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def code_of(told: object) -> int:
    assert isinstance(told, Refused), told
    return told.code


def subscribe(broker: TaskBroker, frame: bytes) -> None:
    """What a subscriber says on the socket of announcements."""
    effects = Effects()
    broker.machine.receive_subscription([frame], broker.now, effects)
    for ask in effects.asks:
        broker.host.ask(ask)


# Announcements.


@pytest.mark.parametrize("first", [b"X", b"\x02", b"0", b""])
def test_what_is_no_subscription_takes_nobody_elses_away(broker, first):
    subscribe(broker, b"\x01task.add")
    subscribe(broker, first + b"task.add")
    publisher = broker.machine.tasks.publisher
    assert publisher.is_wanted(b"task.add")
    subscribe(broker, b"\x00task.add")
    assert not publisher.is_wanted(b"task.add")


@pytest.mark.parametrize("method", ["scale0.x", "mmi.service", "\x01\x02", ""])
def test_a_method_that_nobody_could_offer_is_refused_although_somebody_listens(broker, method):
    assert code_of(broker.submit("before", method)) == INVALID_PARAMS
    subscribe(broker, b"\x01task." + method.encode())
    assert code_of(broker.submit("after", method)) == INVALID_PARAMS
    assert broker.open == set()


# Depth.


@pytest.mark.parametrize("depth", [70, 500, 900])
def test_an_error_that_nests_too_deep_is_refused(broker, depth):
    node = broker.node("n", "m")
    broker.submit("deep")
    broker.fetch(node, "deep")
    error = {"code": 1, "message": "", "data": nested(depth)}
    assert code_of(broker.call("node_task_failed", "n", "deep", error, connection=node)) == INVALID_PARAMS
    assert broker.status("deep") == "assigned"


def test_an_error_of_a_backend_that_nests_too_deep_is_replaced(broker):
    worker = broker.worker("w", "m")
    broker.submit("deep")
    broker.fail(worker, "deep", code=77, data=nested(500))
    assert broker.acknowledged(worker) == [["deep", 1, 200]]
    assert code_of(broker.result("deep")) == INVALID_PARAMS


def test_an_error_as_deep_as_allowed_is_kept(broker):
    worker = broker.worker("w", "m")
    broker.submit("deep")
    broker.fail(worker, "deep", code=77, data=nested(60))
    assert code_of(broker.result("deep")) == 77


def test_a_status_that_nests_too_deep_is_refused(broker):
    node = broker.node("n", "m")
    broker.submit("deep")
    broker.fetch(node, "deep")
    told = broker.call("task_status", "n", "deep", "half", {"more": nested(500)}, connection=node)
    assert code_of(told) == INVALID_PARAMS
    assert broker.call("client_task_status", CLIENT, "deep")["info"] == {}


def test_a_status_of_a_backend_that_nests_too_deep_is_kept_without_it(broker):
    worker = broker.worker("w", "m")
    broker.submit("deep")
    said = {"id": "deep", "attempt": 1, "status": "running", "more": nested(500)}
    broker.send(worker, "TASKSTATUS", {}, [said])
    told = broker.call("client_task_status", CLIENT, "deep")
    assert (told["status"], told["info"]) == ("running", {})


# Promise: WIRE-5
@pytest.mark.parametrize("depth", [64, 65, 500, 900])
def test_a_status_of_a_node_nests_at_most_as_deep_as_allowed_and_does_not_spoil_the_list(broker, depth):
    node = broker.node("n", "m")
    told = broker.call("node_status", "n", nested(depth), connection=node)
    if depth == 64:
        assert told is True
    else:
        assert code_of(told) == INVALID_PARAMS
    (answer,) = broker.exchange("frontend-x", "REQUEST", {"service": "scale0.clients", "id": 1})
    assert answer.command == "REPLY"
    assert [row["identity"] for row in answer.body["items"]] == ["n"]


@pytest.mark.parametrize("depth", [63, 64, 850])
def test_a_status_of_a_task_is_judged_before_it_is_decoded(broker, depth):
    node = broker.node("n", "m")
    broker.submit("deep")
    broker.fetch(node, "deep")
    for more in ([{"more": nested(depth)}], []):
        told = broker.call("task_status", "n", "deep", "half", *more, connection=node)
        assert told is True if depth == 63 or not more else code_of(told) == INVALID_PARAMS


@pytest.mark.parametrize("depth", [63, 64, 850])
def test_a_status_that_nests_too_deep_counts_without_its_other_keys(broker, depth):
    worker = broker.worker("w", "m", slots=2)
    broker.submit_many(["deep", "flat"])
    more = {"deep": nested(depth), "flat": 1}
    said = [{"id": id_, "attempt": 1, "status": "running", "more": more[id_]} for id_ in more]
    broker.send(worker, "TASKSTATUS", {}, said)
    assert [broker.status(id_) for id_ in more] == ["running", "running"]
    infos = [broker.call("client_task_status", CLIENT, id_)["info"] for id_ in more]
    assert infos == [{"more": more["deep"]} if depth == 63 else {}, {"more": 1}]


# Two protocols on one connection.


def test_a_majordomo_worker_cannot_be_a_node_too(broker):
    broker.send_frames("backend-d", [b"", b"MDPW01", b"\x01", b"echo"])
    assert code_of(broker.call("node_connect", "n", ["m"], connection="backend-d")) == BAD_NODE
    broker.submit("task")
    assert broker.pull(broker.node("n", "m")) == ["task"]


def test_a_majordomo_client_may_submit_tasks_too(broker):
    broker.send_frames("frontend-d", [b"", b"MDPC01", b"echo", b"hello"])
    assert broker.call("client_connect", "other", connection="frontend-d") == "other"
    assert broker.call("client_new_task", "other", "m", [], "theirs", {}, connection="frontend-d") == "theirs"


# Reports.


# Promise: WIRE-5
@pytest.mark.parametrize("command", ["TASKSTATUS", "TASKSDONE"])
def test_a_report_has_a_limited_number_of_entries(command: str) -> None:
    broker = TaskBroker(max_batch_messages=5)
    worker = broker.worker("w", "m", slots=10)
    entry = {"id": "unknown", "attempt": 1, "status": "running"}
    for count, told in ((5, []), (6, [413])):
        broker.send(worker, command, {}, [entry] * count)
        assert [one.code for one in broker.received(worker, "DISCONNECTERROR")] == told
