"""The schedule: of more tasks than fit into memory each one is released, whatever happens while they are read."""

# Promise: TASK-3
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.storage.task_queries import ReadSchedule
from scale0.storage.task_rows import SCHEDULED as NOT_DUE
from scale0.tasks.core import delayed_tasks, method_queues
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

SCHEDULED = 4
LONG = 1_000.0


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(delayed_tasks, "SCHEDULE_TASKS", SCHEDULED)


def ids(name: str, count: int) -> list[str]:
    return [f"{name}.{number:012x}" for number in range(count)]


def crowd(broker: TaskBroker, rest: float) -> str:
    """Some tasks come in a second, and more than fit into memory after `rest`; a worker, and the disk is held."""
    broker.submit_many(ids("soon", SCHEDULED), delay=1.0)
    broker.submit_many(ids("late", 2 * SCHEDULED), delay=rest)
    worker = broker.worker("w", "m", slots=100)
    broker.hold()
    return worker


def test_more_tasks_than_fit_into_memory_come_at_their_time(broker):
    worker = crowd(broker, 3.0)
    broker.let_go()
    broker.run(2.0)
    assert broker.handed(worker) == ids("soon", SCHEDULED)
    broker.run(2.0)
    assert broker.handed(worker) == ids("late", 2 * SCHEDULED)


@pytest.mark.own_store
def test_a_task_that_is_scheduled_while_a_full_page_is_read_comes_at_its_time(broker):
    worker = crowd(broker, LONG)
    broker.pass_time(1.1)
    broker.hold_at(ReadSchedule)
    between = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], None, {"delay": 0.5})
    broker.let_go()
    assert broker.handed(worker) == ids("soon", SCHEDULED)
    broker.run(2.0)
    assert broker.handed(worker) == [broker.answer(between)]


def test_a_scheduled_task_that_is_waited_for_while_it_is_read_comes_at_its_time(broker):
    worker = crowd(broker, 3.0)
    # The store is asked about a late one, and before that is answered the schedule is read as well.
    broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "follower", {"after": ids("late", 1)})
    broker.pass_time(1.1)
    broker.let_go()
    assert set(broker.finish_all(worker, 20.0)) >= {*ids("late", 2 * SCHEDULED), "follower"}
    assert broker.open == set()


def test_tasks_that_are_due_without_room_are_not_passed_over(monkeypatch):
    monkeypatch.setattr(delayed_tasks, "SCHEDULE_TASKS", 20)
    monkeypatch.setattr(delayed_tasks, "DUE_PER_LOOK", 10)
    monkeypatch.setattr(method_queues, "WINDOW_TASKS", 40)
    due, more = 49, 33  # those without room, and half of the others, are more than the schedule keeps
    broker = TaskBroker()
    worker = broker.worker("w", "m")
    broker.submit("busy")
    broker.submit_many(ids("due", due), delay=1.0)
    broker.submit("plain")  # the window is behind them from now on
    broker.run(10.0)
    broker.submit_many(ids("more", more), delay=0.05)
    broker.run(1.0)
    assert broker.handed(worker) == ["busy"]
    broker.done(worker, "busy")
    broker.ready(worker, "m", slots=20)
    did = broker.finish_all(worker, 120.0)
    assert broker.open == set()
    assert sorted(did) == sorted(["plain", *ids("due", due), *ids("more", more)])


def test_few_of_many_scheduled_tasks_are_in_memory(broker):
    for part in range(10):
        broker.submit_many(ids(f"part{part}", SCHEDULED), delay=LONG - part)
    assert broker.machine.tasks.counts()["in_memory"] <= 2 * SCHEDULED
    broker.restart()
    assert broker.machine.tasks.counts()["in_memory"] <= 2 * SCHEDULED


JUMPS = pytest.mark.parametrize("jump", [86_400.0, -86_400.0])


# Promise: TASK-19
@JUMPS
def test_a_delay_passes_by_the_monotonic_clock_whatever_the_wall_clock_does(broker, jump):
    worker = broker.worker("w", "m", slots=100)
    broker.submit_many(ids("before", 3 * SCHEDULED), delay=10.0)
    broker.wall += jump
    broker.submit_many(ids("after", 3 * SCHEDULED), delay=20.0)
    broker.run(9.5)
    assert broker.handed(worker) == []
    broker.run(1.5)
    assert sorted(broker.handed(worker)) == ids("before", 3 * SCHEDULED)
    broker.run(8.0)
    assert broker.handed(worker) == []
    broker.wall -= jump
    broker.run(2.5)
    assert sorted(broker.handed(worker)) == sorted(ids("after", 3 * SCHEDULED))


# Promise: TASK-19
@JUMPS
def test_a_retry_waits_for_its_backoff_whatever_the_wall_clock_does(broker, jump):
    worker = broker.worker("w", "m")
    broker.submit("t", backoff=10.0, max_attempts=2)
    assert broker.handed(worker) == ["t"]
    broker.running(worker, "t")
    broker.fail(worker, "t", retry=True)
    broker.wall += jump
    broker.run(9.5)
    assert broker.handed(worker) == []
    broker.run(6.5)
    assert broker.handed(worker) == ["t"]


# Promise: TASK-19
@pytest.mark.own_store
def test_retries_that_are_read_while_the_clock_is_wrong_wait_no_longer_than_that(broker):
    worker = broker.worker("w", "m", slots=100)
    tasks = ids("again", 4 * SCHEDULED)
    broker.submit_many(tasks, backoff=3.0, max_attempts=2)
    assert sorted(broker.handed(worker)) == tasks
    for task in tasks:
        broker.running(worker, task)
        broker.fail(worker, task, retry=True)
    broker.wall -= 86_400.0
    broker.run(10.0)  # those in memory are due, and others are read
    early = broker.handed(worker)
    assert early
    broker.wall += 86_400.0
    broker.run(10.0)
    assert sorted([*early, *broker.handed(worker)]) == tasks


# Promise: TASK-19
@pytest.mark.own_store
def test_a_calendar_time_and_a_delay_of_an_earlier_process_follow_the_wall_clock(broker):
    broker.submit_many(ids("early", 2), delay=1_000.0)
    broker.restart()
    worker = broker.worker("w", "m", slots=100)
    broker.submit("dated", at=broker.wall + 1_000.0)
    broker.submit("later", delay=1_000.0)
    broker.wall += 1_001.0
    broker.run(2.0)
    assert sorted(broker.handed(worker)) == sorted([*ids("early", 2), "dated"])


# Promise: TASK-19
@pytest.mark.own_store
def test_a_dependency_that_ends_while_the_clock_is_wrong_holds_its_follower_no_longer_than_that(broker):
    broker.submit("first")
    broker.submit("then", after=["first"])
    broker.restart()
    worker = broker.worker("w", "m", slots=100)
    broker.wall -= 86_400.0
    assert broker.handed(worker) == ["first"]
    broker.done(worker, "first")
    broker.wall += 86_400.0
    broker.run(2.0)
    assert broker.handed(worker) == ["then"]


def in_memory(broker: TaskBroker) -> list[tuple[int, int]]:
    """Bytes of params in memory, and the size, of the tasks that are not due."""
    tasks = broker.machine.tasks.backlog.tasks.values()
    return [(len(task.params), task.size) for task in tasks if task.status == NOT_DUE]


# Promise: START-2
@pytest.mark.parametrize("restart", [False, True])
def test_params_of_delayed_tasks_are_not_in_memory_before_they_are_due(restart):
    broker = TaskBroker()
    params = {f"t{number}": ["x" * 1_000 * (number + 1)] for number in range(3 * SCHEDULED)}
    for number, (id_, each) in enumerate(params.items()):
        broker.call("client_new_task", CLIENT, "m", each, id_, {"delay": 3.0 + number / 10})
        assert all(held == 0 for held, _ in in_memory(broker))
    if restart:
        broker.restart()
        broker.run(0.1)
    assert all(held == 0 and size > 1_000 for held, size in in_memory(broker))
    assert len(in_memory(broker)) <= 2 * SCHEDULED
    worker = broker.worker("w", "m", slots=100)
    broker.run(6.0)
    handed = [task for one in broker.received(worker, "TASKS") for task in one.body]
    assert {task["id"]: task["params"] for task in handed} == params


# Promise: START-2
@pytest.mark.own_store
def test_due_tasks_are_read_by_bytes_and_wait_while_there_is_no_room(monkeypatch):
    monkeypatch.setattr(delayed_tasks, "DUE_BYTES", 6_000)
    monkeypatch.setattr(method_queues, "WINDOW_BYTES", 12_000)
    monkeypatch.setattr(delayed_tasks, "SCHEDULE_TASKS", 20)
    broker = TaskBroker()
    worker = broker.worker("w", "m", slots=1)
    for number in range(8):
        broker.call("client_new_task", CLIENT, "m", ["x" * 4_996], f"t{number}", {"delay": 2.0})
    broker.submit_many(ids("newer", 3))
    broker.run(3.5)
    held = sum(len(task.params) for task in broker.machine.tasks.backlog.tasks.values())
    assert held <= 12_000 + 100
    assert sorted(broker.finish_all(worker)) == sorted([*ids("newer", 3), *(f"t{number}" for number in range(8))])
