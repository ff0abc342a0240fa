"""The schedule: of more tasks than fit into memory each one is released, whatever happens while they are read."""

# Promise: TASK-3
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.storage.task_queries import ReadSchedule
from scale0.tasks.core import delayed_tasks, method_queues
from tests.unit.tasks.harness import CLIENT, FRONT, Scene

SCHEDULED = 4
LONG = 1_000.0


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(delayed_tasks, "SCHEDULE_TASKS", SCHEDULED)


def ids(name: str, count: int) -> list[str]:
    return [f"{name}.{number:012x}" for number in range(count)]


def crowd(scene: Scene, rest: float) -> str:
    """Some tasks come in a second, and more than fit into memory after `rest`; a worker, and the disk is held."""
    scene.submit_many(ids("soon", SCHEDULED), delay=1.0)
    scene.submit_many(ids("late", 2 * SCHEDULED), delay=rest)
    worker = scene.worker("w", "m", slots=100)
    scene.world.hold()
    return worker


def test_more_tasks_than_fit_into_memory_come_at_their_time():
    scene = Scene()
    worker = crowd(scene, 3.0)
    scene.world.let_go()
    scene.run(2.0)
    assert scene.handed(worker) == ids("soon", SCHEDULED)
    scene.run(2.0)
    assert scene.handed(worker) == ids("late", 2 * SCHEDULED)


@pytest.mark.own_store
def test_a_task_that_is_scheduled_while_a_full_page_is_read_comes_at_its_time():
    scene = Scene()
    worker = crowd(scene, LONG)
    scene.wait(1.1)
    scene.hold_at(ReadSchedule)
    between = scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], None, {"delay": 0.5})
    scene.world.let_go()
    assert scene.handed(worker) == ids("soon", SCHEDULED)
    scene.run(2.0)
    assert scene.handed(worker) == [scene.answer(between)]


def test_a_scheduled_task_that_is_waited_for_while_it_is_read_comes_at_its_time():
    scene = Scene()
    worker = crowd(scene, 3.0)
    # The store is asked about a late one, and before that is answered the schedule is read as well.
    scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "follower", {"after": ids("late", 1)})
    scene.wait(1.1)
    scene.world.let_go()
    assert set(scene.finish_all(worker, 20.0)) >= {*ids("late", 2 * SCHEDULED), "follower"}
    assert scene.open == set()


def test_tasks_that_are_due_without_room_are_not_passed_over(monkeypatch):
    monkeypatch.setattr(delayed_tasks, "SCHEDULE_TASKS", 20)
    monkeypatch.setattr(delayed_tasks, "DUE_PER_LOOK", 10)
    monkeypatch.setattr(method_queues, "WINDOW_TASKS", 40)
    due, more = 49, 33  # those without room, and half of the others, are more than the schedule keeps
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("busy")
    scene.submit_many(ids("due", due), delay=1.0)
    scene.submit("plain")  # the window is behind them from now on
    scene.run(10.0)
    scene.submit_many(ids("more", more), delay=0.05)
    scene.run(1.0)
    assert scene.handed(worker) == ["busy"]
    scene.done(worker, "busy")
    scene.ready(worker, "m", slots=20)
    did = scene.finish_all(worker, 120.0)
    assert scene.open == set()
    assert sorted(did) == sorted(["plain", *ids("due", due), *ids("more", more)])


def test_few_of_many_scheduled_tasks_are_in_memory():
    scene = Scene()
    for part in range(10):
        scene.submit_many(ids(f"part{part}", SCHEDULED), delay=LONG - part)
    assert scene.world.broker.tasks.counts()["in_memory"] <= 2 * SCHEDULED
    scene.restart()
    assert scene.world.broker.tasks.counts()["in_memory"] <= 2 * SCHEDULED
