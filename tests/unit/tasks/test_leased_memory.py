"""Params of leased tasks are in the store and at the node, and not in memory; another attempt reads them again."""

# Promise: QUOTA-7, WIRE-5
from __future__ import annotations

import pytest

from scale0.storage.task_rows import KEPT_PARAMS_BYTES
from scale0.tasks.core import method_queues
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker
from tests.unit.tasks.test_damaged import damage

SIZE = 10_000
COUNT = 6
ATTEMPTS: dict[str, int] = {}
"""The last attempt of each task that a worker got."""


def queue(broker: TaskBroker, count: int = COUNT, size: int = SIZE) -> list[str]:
    ids = [f"t{number}" for number in range(count)]
    for number, id_ in enumerate(ids):
        params = [f"{number}" * size]
        assert broker.call("client_new_task", CLIENT, "m", params, id_, {"max_attempts": 5}, connection=FRONT) == id_
    return ids


def in_memory(broker: TaskBroker) -> int:
    return sum(len(task.params) for task in broker.machine.tasks.backlog.tasks.values())


def given(broker: TaskBroker, worker: str) -> list[tuple[str, str]]:
    """The ids and params of the tasks that a worker got."""
    tasks = [task for one in broker.received(worker, "TASKS") for task in one.body]
    ATTEMPTS.update((task["id"], task["attempt"]) for task in tasks)
    return [(task["id"], task["params"][0]) for task in tasks]


def lose(broker: TaskBroker, worker: str) -> None:
    broker.exchange(worker, "DISCONNECT")
    del broker.workers[worker]


def meant(ids: list[str], size: int = SIZE) -> list[tuple[str, str]]:
    return [(id_, id_[1:] * size) for id_ in ids]


def test_the_params_of_a_leased_task_are_not_in_memory(broker):
    worker = broker.worker("w", "m", slots=COUNT)
    ids = queue(broker)
    broker.run(1.0)
    assert sorted(given(broker, worker)) == meant(ids)
    assert in_memory(broker) == 0
    broker.done(worker, *ids)
    assert [broker.status(id_) for id_ in ids] == ["finished"] * COUNT


def test_nor_are_those_of_a_task_that_waited_in_the_store(broker):
    ids = queue(broker)
    broker.restart()
    worker = broker.worker("w", "m", slots=COUNT)
    broker.run(1.0)
    assert sorted(given(broker, worker)) == meant(ids)
    assert in_memory(broker) == 0


def test_nor_are_those_that_a_node_asked_for(broker):
    ids = queue(broker)
    node = broker.node("n", "m")
    broker.run(1.0)
    assert sorted(broker.pull(node)) == ids
    assert in_memory(broker) == 0


def test_small_params_stay(broker):
    broker.worker("w", "m", slots=COUNT)
    queue(broker, size=KEPT_PARAMS_BYTES // 2)
    broker.run(1.0)
    assert in_memory(broker) > 0


def test_a_task_whose_backend_is_lost_is_given_to_another_with_its_params_in_order(broker):
    worker = broker.worker("w", "m", slots=COUNT)
    ids = queue(broker)
    broker.run(1.0)
    lose(broker, worker)
    broker.run(1.0)
    other = broker.worker("v", "m", slots=1)
    for id_ in ids:
        broker.run(2.0)
        assert given(broker, other) == meant([id_])
        broker.done(other, id_, attempt=ATTEMPTS[id_])
    assert in_memory(broker) == 0


def test_a_task_that_failed_is_tried_again_with_its_params(broker):
    worker = broker.worker("w", "m", slots=COUNT)
    ids = queue(broker, 1)
    broker.run(1.0)
    assert given(broker, worker) == meant(ids)
    broker.fail(worker, ids[0], retry=True)
    broker.run(60.0)
    assert given(broker, worker) == meant(ids)


def test_a_lease_from_before_a_restart_is_resumed_without_params_and_lost_with_them(broker):
    worker = broker.worker("w", "m", slots=COUNT)
    ids = queue(broker)
    broker.run(1.0)
    assert given(broker, worker)
    broker.restart()
    broker.run(1.0)
    assert in_memory(broker) == 0
    broker.run(60.0)
    other = broker.worker("v", "m", slots=COUNT)
    broker.run(60.0)
    assert sorted(given(broker, other)) == meant(ids)


def test_params_that_were_damaged_meanwhile_are_found_at_the_next_hand_out(broker):
    worker = broker.worker("w", "m", slots=COUNT)
    ids = queue(broker, 2)
    broker.run(1.0)
    lose(broker, worker)
    damage(broker, ids[0], params=b"[7]")
    other = broker.worker("v", "m", slots=COUNT)
    broker.run(60.0)
    assert given(broker, other) == meant(ids[1:])
    assert broker.status(ids[0]) == "failed"


def test_a_lost_task_that_is_cancelled_before_its_params_are_read_is_cancelled(broker):
    worker = broker.worker("w", "m", slots=COUNT)
    ids = queue(broker, 1)
    broker.run(1.0)
    lose(broker, worker)
    broker.cancel(ids[0])
    other = broker.worker("v", "m", slots=COUNT)
    broker.run(5.0)
    assert given(broker, other) == []
    assert broker.status(ids[0]) == "cancelled"


@pytest.mark.parametrize("rounds", [3])
def test_tasks_that_are_lost_again_and_again_leave_nothing_in_memory(broker, rounds):
    ids = queue(broker)
    for number in range(rounds):
        worker = broker.worker(f"w{number}", "m", slots=COUNT)
        broker.run(5.0)
        assert sorted(given(broker, worker)) == meant(ids)
        lose(broker, worker)
    worker = broker.worker("last", "m", slots=COUNT)
    assert set(broker.finish_all(worker)) == set(ids)
    memory = broker.machine.tasks.queue.method_queues.memory
    assert (in_memory(broker), memory.used) == (0, 0)


def test_lost_tasks_of_many_methods_have_no_more_memory_than_queued_ones(broker, monkeypatch):
    monkeypatch.setattr(method_queues, "WINDOW_BYTES", 3 * SIZE)
    monkeypatch.setattr(method_queues, "ALL_WINDOWS_BYTES", 12 * SIZE)
    methods = [f"m{number}" for number in range(10)]
    worker = broker.worker("w", *methods, slots=100)
    for method in methods:
        for number in range(5):
            broker.call("client_new_task", CLIENT, method, ["x" * SIZE], f"{method}.{number}", connection=FRONT)
    broker.run(2.0)
    assert len(given(broker, worker)) == 50
    lose(broker, worker)
    for _ in range(5):
        broker.run(1.0)
        assert in_memory(broker) <= (12 + len(methods)) * (SIZE + 100), "the limit, and one task of each method"
    other = broker.worker("v", *methods, slots=3)
    assert len(finish(broker, other, 50)) == 50
    assert (in_memory(broker), broker.machine.tasks.queue.method_queues.memory.used) == (0, 0)


def finish(broker: TaskBroker, worker: str, count: int) -> set[str]:
    done: set[str] = set()
    for _ in range(200):
        broker.run(0.5)
        for id_, _params in given(broker, worker):
            broker.done(worker, id_, attempt=ATTEMPTS[id_])
            done.add(id_)
        if len(done) == count:
            break
    broker.run(1.0)
    return done
