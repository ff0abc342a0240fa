"""Lanes: whatever empties a window, or comes while it is read, every queued task is handed out, the first one first."""

# Promise: TASK-3
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.storage.task_queries import ReadQueue
from scale0.tasks.core import method_queues
from tests.unit.tasks.harness import CLIENT, FRONT, Scene

WINDOW = 4
BEHIND = 3
"""Tasks that the window does not hold."""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(method_queues, "WINDOW_TASKS", WINDOW)


def ids(count: int) -> list[str]:
    return [f"t.{number:012x}" for number in range(count)]


@pytest.mark.own_store
def test_a_task_that_is_released_while_its_lane_is_read_is_handed_out():
    scene = Scene()
    scene.submit("old", delay=1.0)
    scene.submit_many(ids(2))
    scene.world.hold()
    worker = scene.worker("w", "m", slots=10)
    scene.hold_at(ReadQueue)
    scene.wait(1.1)  # its time comes, while the younger ones are being read
    scene.world.let_go()
    assert scene.handed(worker) == ["old", *ids(2)]


@pytest.mark.own_store
def test_what_is_behind_a_window_of_cancelled_tasks_is_handed_out():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("first")
    scene.submit_many(ids(WINDOW + BEHIND))
    scene.cancel(*ids(WINDOW))
    scene.done(worker, "first")
    assert scene.handed(worker) == ["first"]
    scene.run(1.5)
    assert scene.handed(worker) == ids(WINDOW + 1)[-1:]
    scene.submit("last")
    scene.done(worker, ids(WINDOW + 1)[-1])
    assert scene.finish_all(worker) == [*ids(WINDOW + BEHIND)[WINDOW + 1 :], "last"]


def test_what_is_behind_a_window_that_was_taken_by_name_is_pulled_at_once():
    scene = Scene()
    scene.worker("w", "m")
    node = scene.node("n", "m")
    scene.submit("first")
    scene.submit_many(ids(WINDOW + BEHIND))
    for id_ in ids(WINDOW):
        assert scene.fetch(node, id_)["attempt"] == 1
        assert scene.call("node_task_finished", "n", id_, 1, line=node) is True
    assert scene.pull(node) == ids(WINDOW + BEHIND)[WINDOW:]


def test_a_task_that_was_cancelled_in_the_queue_can_be_tried_again():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("again")
    scene.fetch(node, "again")
    assert scene.call("node_task_failed", "n", "again", {"code": 1, "message": "", "retry": True}, line=node) is True
    scene.cancel("again")  # where it lies in its lane, it is only marked
    assert scene.manage("retry_task", task_id="again") == 200
    scene.run(2.0)
    assert scene.status("again") == "queued"
    assert scene.pull(node) == ["again"]
    assert scene.pull(node) == []


def test_the_first_pull_of_a_node_is_answered_behind_the_reading_of_its_lane():
    scene = Scene()
    scene.submit("waits")
    _, tasks = scene.together("backend-n", ("node_connect", "n", ["m"]), ("node_tasks_request", "n"))
    assert [task["id"] for task in tasks] == ["waits"]


def test_a_pull_is_answered_behind_the_reading_of_what_is_behind_the_window():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit_many(ids(WINDOW + BEHIND))
    scene.cancel(*ids(WINDOW))
    assert scene.pull(node) == ids(WINDOW + BEHIND)[WINDOW:]


def both(scene: Scene) -> None:
    """One of a low priority, then one of a high priority, of two methods."""
    scene.submit("low", "a", priority=0)
    scene.submit("high", "b", priority=9)


@pytest.mark.own_store
def test_of_two_methods_in_one_turn_the_higher_priority_goes_first():
    scene = Scene()
    worker = scene.worker("w", "a", "b")
    low, high = "s.000000000001", "s.000000000002"
    scene.submit("s.000000000000", "c")  # from now on larger ones are known to be new: nobody has to look
    calls = (("a", low, {"priority": 0}), ("b", high, {"priority": 9}))
    scene.together(FRONT, *(("client_new_task", CLIENT, method, [], id_, more) for method, id_, more in calls))
    assert scene.handed(worker) == [high]
    scene.done(worker, high)
    assert scene.handed(worker) == [low]


@pytest.mark.own_store
def test_of_two_methods_that_wait_for_a_slot_the_higher_priority_goes_first():
    scene = Scene()
    worker = scene.worker("w", "a", "b")
    scene.submit("first", "a")
    both(scene)
    scene.done(worker, "first")
    assert scene.handed(worker) == ["first", "high"]


def test_of_two_methods_that_waited_for_the_broker_the_higher_priority_goes_first():
    scene = Scene()
    worker = scene.worker("w", "a", "b")
    scene.submit("first", "a")
    both(scene)
    scene.world.broker.state.draining = True
    scene.done(worker, "first")
    assert scene.handed(worker) == ["first"]
    scene.world.broker.state.draining = False
    scene.run(2.0)
    assert scene.handed(worker) == ["high"]


def limited() -> Scene:
    """A method of which one task may be handed out at once."""
    scene = Scene()
    assert scene.manage("patch_config", set={"services": [{"name": "m", "concurrency": 1}]}) == 200
    return scene


def test_a_request_that_waits_comes_before_the_tasks_of_a_limited_method():
    scene = limited()
    worker = scene.worker("w", "m")
    scene.submit_many(ids(3))
    scene.request("m")
    assert scene.handed(worker) == ids(1)
    scene.done(worker, ids(1)[0])
    assert [one.command for one in scene.hear(worker, "REQUEST", "TASKS")] == ["REQUEST"]
    scene.run(1.5)
    assert scene.handed(worker) == []


@pytest.mark.own_store
def test_tasks_whose_holder_is_awaited_after_a_restart_count_as_handed_out():
    scene = limited()
    first = scene.worker("a", "m")
    scene.submit_many(ids(2))
    scene.running(first, ids(1)[0])
    scene.run(2.0)
    scene.restart()
    second = scene.worker("b", "m")
    scene.run(1.0)
    assert scene.handed(second) == []
    first = scene.worker("a", "m", holds=[[ids(1)[0], 1]])
    assert scene.status(ids(1)[0]) == "running"
    scene.done(first, ids(1)[0])
    assert scene.handed(first) + scene.handed(second) == [ids(2)[1]]


@pytest.mark.own_store
@pytest.mark.parametrize("ending", ["cancelled", "lost"])
def test_an_awaited_task_that_ends_makes_room_for_the_next(ending):
    scene = limited()
    scene.worker("a", "m")
    scene.submit_many(ids(2))
    scene.restart()
    second = scene.worker("b", "m")
    if ending == "cancelled":
        scene.cancel(ids(1)[0])
        assert scene.handed(second) == [ids(2)[1]]
    else:
        scene.run(10.0)  # it is awaited no longer, and is first in its lane again
        assert scene.handed(second) == ids(1)
