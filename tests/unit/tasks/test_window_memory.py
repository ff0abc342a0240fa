"""Params of queued tasks in memory: those of all methods together are bounded, and each method goes on."""

# Promise: QUOTA-7
from __future__ import annotations

import pytest

from scale0.tasks.core import method_queues
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

METHODS = [f"m{number:02}" for number in range(20)]
SIZE = 10_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_queues, "WINDOW_BYTES", 5 * SIZE)
    monkeypatch.setattr(method_queues, "ALL_WINDOWS_BYTES", 12 * SIZE)


def queue(broker: TaskBroker, count: int = 5) -> set[str]:
    ids = [(method, f"{method}.{number}") for method in METHODS for number in range(count)]
    for method, id_ in ids:
        assert broker.call("client_new_task", CLIENT, method, ["x" * SIZE], id_, connection=FRONT) == id_
    return {id_ for _, id_ in ids}


def held(broker: TaskBroker) -> int:
    return sum(len(task.params) for task in broker.machine.tasks.backlog.tasks.values())


def test_windows_of_all_methods_together_are_bounded(broker):
    queue(broker)
    broker.node("n", *METHODS)
    broker.run(2.0)
    assert held(broker) <= (12 + 5 + len(METHODS)) * (SIZE + 100), "the limit, and one task of each method"
    memory = broker.machine.tasks.queue.method_queues.memory
    assert 0 <= memory.used <= held(broker)


def test_each_method_goes_on_when_the_windows_are_full(broker):
    ids = queue(broker)
    worker = broker.worker("w", *METHODS, slots=1)
    assert set(broker.finish_all(worker)) == ids
    memory = broker.machine.tasks.queue.method_queues.memory
    assert memory.used == 0


def test_new_tasks_wait_in_the_store_when_the_windows_are_full(broker):
    broker.node("n", *METHODS)
    broker.run(1.0)
    queue(broker)
    broker.run(1.0)
    assert held(broker) <= (12 + 5 + len(METHODS)) * (SIZE + 100)


def test_a_queue_that_is_dropped_uses_no_memory(broker):
    queue(broker, 1)
    node = broker.node("n", *METHODS)
    broker.run(1.0)
    memory = broker.machine.tasks.queue.method_queues.memory
    broker.ask(node, "node_disconnect", "n")
    broker.nodes.clear()
    broker.run(200.0)
    assert (memory.used, memory.levels) == (0, 0)
