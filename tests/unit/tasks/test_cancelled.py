"""A task does not begin after the answer to its cancellation, wherever it is."""

# Promise: TASK-22
from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.kernel.clock import Now
from scale0.tasks.core.reclaim import CONFIRM_SECONDS
from scale0.tasks.node.assigned_tasks import AssignedTasks, TasksAssigned
from tests.unit.tasks.harness import ADMIN, CLIENT, FRONT, TaskBroker


def cancel(broker: TaskBroker, id_: str = "t") -> int:
    return broker.ask(FRONT, "client_task_cancel", CLIENT, id_)


def is_answered(broker: TaskBroker, number: int) -> bool:
    try:
        return broker.answer(number) is True
    except AssertionError:
        return False


def handed(broker: TaskBroker, **options: Any) -> str:
    """A worker was sent a task, and has not said that it runs."""
    worker = broker.worker("w", "m", returns=True, **options)
    broker.submit("t")
    assert broker.handed(worker) == ["t"]
    return worker


def status(broker: TaskBroker, worker: str, how: str, attempt: int = 1) -> None:
    broker.send(worker, "TASKSTATUS", {}, [{"id": "t", "attempt": attempt, "status": how}])


@pytest.mark.parametrize("how", ["returned", "running", "done"])
def test_the_answer_waits_until_the_worker_has_dropped_the_task_or_had_begun_it(broker, how):
    worker = handed(broker)
    number = cancel(broker)
    assert broker.status("t") == "cancelled"
    told = [(one.options.get("recall", False), one.body) for one in broker.received(worker, "TASKSCANCEL")]
    assert told == [(True, [["t", 1]]), (False, [["t", 1]])], "first return it if it has not begun, else stop it"
    broker.run(CONFIRM_SECONDS / 2)
    assert not is_answered(broker, number)
    if how == "done":
        broker.done(worker, "t")
        assert broker.acknowledged(worker) == [["t", 1, 409]]
    else:
        status(broker, worker, how)
    assert is_answered(broker, number)
    assert broker.status("t") == "cancelled"


def test_two_cancellations_are_both_answered(broker):
    worker = handed(broker)
    first, second = cancel(broker), cancel(broker)
    assert not is_answered(broker, second), "it has ended, and may begin all the same"
    status(broker, worker, "returned")
    assert is_answered(broker, first)
    assert is_answered(broker, second)
    assert is_answered(broker, cancel(broker))


def test_a_task_that_is_retried_and_cancelled_again_answers_both_cancellations(broker):
    """Promise: TASK-1. The second cancellation dropped those that waited for the first."""
    worker = handed(broker, slots=2)
    first = cancel(broker)
    assert broker.manage("retry_task", task_id="t").code == 200
    assert broker.handed(worker) == ["t"]
    second = cancel(broker)
    status(broker, worker, "returned", attempt=2)
    assert not is_answered(broker, second), "its first attempt may begin"
    status(broker, worker, "returned", attempt=1)
    assert is_answered(broker, first)
    assert is_answered(broker, second)


def test_without_a_confirmation_both_cancellations_are_answered_in_time(broker):
    """Promise: TASK-1."""
    handed(broker, slots=2)
    first = cancel(broker)
    broker.run(1.0)
    assert broker.manage("retry_task", task_id="t").code == 200
    second = cancel(broker)
    broker.run(CONFIRM_SECONDS - 0.9)
    assert is_answered(broker, first)
    assert not is_answered(broker, second)
    broker.run(1.0)
    assert is_answered(broker, second)


def test_a_worker_that_does_not_answer_delays_the_answer_for_a_limited_time(broker):
    handed(broker)
    number = cancel(broker)
    broker.run(CONFIRM_SECONDS - 0.1)
    assert not is_answered(broker, number)
    broker.run(0.2)
    assert is_answered(broker, number)


def test_a_worker_that_leaves_can_begin_nothing(broker):
    worker = handed(broker)
    number = cancel(broker)
    del broker.workers[worker]
    broker.send(worker, "DISCONNECT")
    assert is_answered(broker, number)


def test_the_word_of_another_worker_does_not_count(broker):
    handed(broker)
    other = broker.worker("w2", "other", returns=True)
    number = cancel(broker)
    status(broker, other, "returned")
    assert not is_answered(broker, number)


@pytest.mark.parametrize("where", ["queued", "delayed", "after", "running", "pulled", "old worker"])
def test_where_nothing_can_begin_any_more_the_answer_comes_at_once(broker, where):
    if where in ("running", "old worker"):
        worker = broker.worker("w", "m", returns=where == "running")
    broker.submit("first", "first")
    options: dict[str, dict[str, Any]] = {"delayed": {"delay": 60}, "after": {"after": ["first"]}}
    broker.submit("t", **options.get(where, {}))
    if where == "running":
        status(broker, worker, "running")
    if where == "pulled":
        assert broker.fetch(broker.node("n", "m"), "t")["id"] == "t"
    assert is_answered(broker, cancel(broker))
    late = broker.worker("late", "m", "first", slots=5)
    broker.run(65.0)
    assert "t" not in broker.handed(late)


def test_an_administrator_is_answered_likewise(broker):
    worker = handed(broker)
    broker.send(ADMIN, "MANAGEMENTREQ", {"command": "cancel_task", "id": "m", "auth_token": "s0_test", "task_id": "t"})
    assert broker.received(ADMIN, "MANAGEMENTREP") == []
    status(broker, worker, "returned")
    (answer,) = broker.received(ADMIN, "MANAGEMENTREP")
    assert answer.body == {"task_id": "t", "cancelled": True}


@pytest.mark.parametrize("started", [False, True])
def test_a_worker_of_ours_returns_what_has_not_begun_and_reports_what_has(started):
    """The two messages of a cancellation, in their order."""
    assigned = AssignedTasks()
    notifications: list[Any] = []
    task = {"id": "t", "method": "m", "params": [], "attempt": 1, "timeout": 60, "owner": ""}
    assigned.receive_tasks("TASKS", json.dumps([task]).encode(), notifications)
    (held,) = notifications
    assert isinstance(held, TasksAssigned)
    if started:
        assert assigned.start(held.tasks)
    assigned.recall(b'[["t",1]]')
    assigned.receive_tasks("TASKSCANCEL", b'[["t",1]]', notifications)
    assert assigned.start(held.tasks) == []
    said = [(command, json.loads(body)) for command, body in assigned.take_messages(Now(1.0, 1.0))]
    assert said == [("TASKSTATUS", [{"id": "t", "attempt": 1, "status": "running" if started else "returned"}])]
