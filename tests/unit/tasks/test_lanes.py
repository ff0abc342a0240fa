"""Lanes: whatever empties a window, or comes while it is read, every queued task is handed out, the first one first."""

# Promise: TASK-3
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.storage.task_queries import ReadQueue
from scale0.tasks.core import method_queues
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

WINDOW = 4
BEHIND = 3
"""Tasks that the window does not hold."""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(method_queues, "WINDOW_TASKS", WINDOW)


def ids(count: int) -> list[str]:
    return [f"t.{number:012x}" for number in range(count)]


@pytest.mark.own_store
def test_a_task_that_is_released_while_its_lane_is_read_is_handed_out(broker):
    broker.submit("old", delay=1.0)
    broker.submit_many(ids(2))
    broker.hold()
    worker = broker.worker("w", "m", slots=10)
    broker.hold_at(ReadQueue)
    broker.pass_time(1.1)  # its time comes, while the younger ones are being read
    broker.let_go()
    # Its params are read meanwhile, so the younger ones may be first.
    assert sorted(broker.handed(worker)) == sorted(["old", *ids(2)])


@pytest.mark.own_store
def test_what_is_behind_a_window_of_cancelled_tasks_is_handed_out(broker):
    worker = broker.worker("w", "m")
    broker.submit("first")
    broker.submit_many(ids(WINDOW + BEHIND))
    broker.cancel(*ids(WINDOW))
    broker.done(worker, "first")
    assert broker.handed(worker) == ["first"]
    broker.run(1.5)
    assert broker.handed(worker) == ids(WINDOW + 1)[-1:]
    broker.submit("last")
    broker.done(worker, ids(WINDOW + 1)[-1])
    assert broker.finish_all(worker) == [*ids(WINDOW + BEHIND)[WINDOW + 1 :], "last"]


def test_what_is_behind_a_window_that_was_taken_by_name_is_pulled_at_once(broker):
    broker.worker("w", "m")
    node = broker.node("n", "m")
    broker.submit("first")
    broker.submit_many(ids(WINDOW + BEHIND))
    for id_ in ids(WINDOW):
        assert broker.fetch(node, id_)["attempt"] == 1
        assert broker.call("node_task_finished", "n", id_, 1, connection=node) is True
    assert broker.pull(node) == ids(WINDOW + BEHIND)[WINDOW:]


def test_a_task_that_was_cancelled_in_the_queue_can_be_tried_again(broker):
    node = broker.node("n", "m")
    broker.submit("again")
    broker.fetch(node, "again")
    assert (
        broker.call("node_task_failed", "n", "again", {"code": 1, "message": "", "retry": True}, connection=node)
        is True
    )
    broker.cancel("again")  # where it lies in its lane, it is only marked
    assert broker.manage("retry_task", task_id="again").code == 200
    broker.run(2.0)
    assert broker.status("again") == "queued"
    assert broker.pull(node) == ["again"]
    assert broker.pull(node) == []


def test_the_first_pull_of_a_node_is_answered_behind_the_reading_of_its_lane(broker):
    broker.submit("waits")
    _, tasks = broker.together("backend-n", ("node_connect", "n", ["m"]), ("node_tasks_request", "n"))
    assert [task["id"] for task in tasks] == ["waits"]


def test_a_pull_is_answered_behind_the_reading_of_what_is_behind_the_window(broker):
    node = broker.node("n", "m")
    broker.submit_many(ids(WINDOW + BEHIND))
    broker.cancel(*ids(WINDOW))
    assert broker.pull(node) == ids(WINDOW + BEHIND)[WINDOW:]


def both(broker: TaskBroker) -> None:
    """One of a low priority, then one of a high priority, of two methods."""
    broker.submit("low", "a", priority=0)
    broker.submit("high", "b", priority=9)


@pytest.mark.own_store
def test_of_two_methods_in_one_turn_the_higher_priority_goes_first(broker):
    worker = broker.worker("w", "a", "b")
    low, high = "s.000000000001", "s.000000000002"
    broker.submit("s.000000000000", "c")  # from now on larger ones are known to be new: nobody has to look
    calls = (("a", low, {"priority": 0}), ("b", high, {"priority": 9}))
    broker.together(FRONT, *(("client_new_task", CLIENT, method, [], id_, more) for method, id_, more in calls))
    assert broker.handed(worker) == [high]
    broker.done(worker, high)
    assert broker.handed(worker) == [low]


@pytest.mark.own_store
def test_of_two_methods_that_wait_for_a_slot_the_higher_priority_goes_first(broker):
    worker = broker.worker("w", "a", "b")
    broker.submit("first", "a")
    both(broker)
    broker.done(worker, "first")
    assert broker.handed(worker) == ["first", "high"]


def test_of_two_methods_that_waited_for_the_broker_the_higher_priority_goes_first(broker):
    worker = broker.worker("w", "a", "b")
    broker.submit("first", "a")
    both(broker)
    broker.machine.state.draining = True
    broker.done(worker, "first")
    assert broker.handed(worker) == ["first"]
    broker.machine.state.draining = False
    broker.run(2.0)
    assert broker.handed(worker) == ["high"]


def limited() -> TaskBroker:
    """A method of which one task may be handed out at once."""
    broker = TaskBroker()
    assert broker.manage("patch_config", set={"services": [{"name": "m", "concurrency": 1}]}).code == 200
    return broker


def test_a_request_that_waits_comes_before_the_tasks_of_a_limited_method():
    broker = limited()
    worker = broker.worker("w", "m")
    broker.submit_many(ids(3))
    broker.request("m")
    assert broker.handed(worker) == ids(1)
    broker.done(worker, ids(1)[0])
    assert [one.command for one in broker.received(worker, "REQUEST", "TASKS")] == ["REQUEST"]
    broker.run(1.5)
    assert broker.handed(worker) == []


@pytest.mark.own_store
def test_tasks_whose_holder_is_awaited_after_a_restart_count_as_handed_out():
    broker = limited()
    first = broker.worker("a", "m")
    broker.submit_many(ids(2))
    broker.running(first, ids(1)[0])
    broker.run(2.0)
    broker.restart()
    second = broker.worker("b", "m")
    broker.run(1.0)
    assert broker.handed(second) == []
    first = broker.worker("a", "m", holds=[[ids(1)[0], 1]])
    assert broker.status(ids(1)[0]) == "running"
    broker.done(first, ids(1)[0])
    assert broker.handed(first) + broker.handed(second) == [ids(2)[1]]


@pytest.mark.own_store
@pytest.mark.parametrize("ending", ["cancelled", "lost"])
def test_an_awaited_task_that_ends_makes_room_for_the_next(ending):
    broker = limited()
    broker.worker("a", "m")
    broker.submit_many(ids(2))
    broker.restart()
    second = broker.worker("b", "m")
    if ending == "cancelled":
        broker.cancel(ids(1)[0])
        assert broker.handed(second) == [ids(2)[1]]
    else:
        broker.run(10.0)  # it is awaited no longer, and is first in its lane again
        assert broker.handed(second) == ids(1)
