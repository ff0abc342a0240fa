"""Nodes with many leases: how many a node may have by pulling, and how they are lost."""

from __future__ import annotations

import itertools

import pytest

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.storage.task_rows import QUEUED
from scale0.tasks.core import leases, lost_leases
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

NOT_YOURS = -32021
PORTION = 10
MANY = 35
GRAIN = 1 / 64
"""Seconds between two portions."""


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_leases, "LOST_TASKS", PORTION)


def ids_of(count: int) -> list[str]:
    return [f"t{number:03}" for number in range(count)]


def stored_queued(broker: TaskBroker) -> int:
    return sum(task.status == QUEUED for task in broker.store.snapshot().tasks.open.values())


# Promise: QUOTA-7
def test_a_node_gets_no_more_tasks_by_pulling_than_its_limit(broker, monkeypatch):
    monkeypatch.setattr(leases, "MAX_NODE_LEASES", 5)
    broker.submit_many(ids_of(12))
    node = broker.node("n", "m")
    assert len(broker.pull(node, 3)) == 3
    assert broker.pull(node, 10) == ids_of(5)[3:]
    assert broker.pull(node, 10) == []
    assert broker.fetch(node, "t011") == {}
    assert len(broker.pull(broker.node("other", "m"), 2)) == 2
    assert broker.call("node_task_finished", "n", "t000", 1, 1, connection=node) is True
    assert len(broker.pull(node, 10)) == 1
    assert broker.call("node_task_finished", "n", "t001", 1, 1, connection=node) is True
    assert broker.fetch(node, "t011")["id"] == "t011"


# Promise: QUOTA-7
def test_one_array_of_pulls_gets_no_more_than_the_limit(broker, monkeypatch):
    monkeypatch.setattr(leases, "MAX_NODE_LEASES", 5)
    broker.submit_many(ids_of(12))
    node = broker.node("n", "m")
    told = broker.together(node, *[("node_tasks_request", "n", 3)] * 4)
    assert sum(len(tasks) for tasks in told) == 5


# Promise: QUOTA-7
def test_all_nodes_of_a_key_share_a_limit(monkeypatch):
    monkeypatch.setattr(leases, "MAX_KEY_LEASES", 5)
    stored = KeyTable([*(Key(name * 40, "backend", name) for name in ("n", "x")), Key("c" * 40, "frontend", "c")])
    broker = TaskBroker(keys=Keys(lambda socket, id_: f"{socket}/{id_.decode().split('-')[1][0]}", stored))
    broker.submit_many(ids_of(12))
    first, second, foreign = broker.node("n.1", "m"), broker.node("n.2", "m"), broker.node("x", "m")
    assert [len(broker.pull(node, 4)) for node in (first, second, foreign)] == [4, 1, 4]
    assert broker.call("node_disconnect", "n.1", connection=first) is True
    del broker.nodes[first]
    broker.run(1.0)
    assert len(broker.pull(second, 10)) == 4


def lose(broker: TaskBroker, node: str, how: str) -> None:
    if how == "disconnect":
        assert broker.call("node_disconnect", "n", connection=node) is True
    elif how == "holds":
        assert broker.call("node_heartbeat", "n", [], connection=node) is True
    elif how == "timeout":
        broker.run(9.9)
    else:
        broker.call("node_connect", "n", ["m"], connection="backend-n-2")


@pytest.mark.own_store
@pytest.mark.parametrize("how", ["disconnect", "holds", "timeout", "die"])
def test_lost_leases_are_queued_again_in_portions_each_of_them_once(broker, how):
    # Promise: TASK-7
    ids = ids_of(MANY)
    broker.submit_many(ids, timeout=10.0)
    node = broker.node("n", "m")
    assert broker.pull(node, MANY) == ids
    if how == "die":
        del broker.nodes[node]
    else:
        lose(broker, node, how)
    counts = [stored_queued(broker)]
    for _ in range(400):
        broker.beat()
        broker.pass_time(GRAIN)
        counts.append(stored_queued(broker))
    steps = [after - before for before, after in itertools.pairwise(counts)]
    assert counts[-1] == MANY
    assert max(counts[0], *steps) == PORTION
    first, last = min(n for n, count in enumerate(counts) if count), counts.index(MANY)
    assert last - first <= MANY // PORTION + 1, "each turn handles a portion"
    other = broker.node("other", "m")
    assert broker.pull(other, 2 * MANY) == ids
    assert {task.attempt for task in broker.store.snapshot().tasks.open.values()} == {2}


# Promise: TASK-5
def test_a_lease_that_waits_to_be_lost_is_not_valid_any_more(broker):
    ids = ids_of(MANY)
    broker.submit_many(ids)
    node = broker.node("n", "m")
    assert broker.pull(node, MANY) == ids
    lose(broker, node, "holds")
    assert broker.status(ids[-1]) == "assigned"
    late = broker.call("node_task_finished", "n", ids[-1], 1, 1, connection=node)
    assert late.code == NOT_YOURS
    broker.cancel(ids[-2])
    other = broker.node("other", "m")
    assert broker.fetch(other, ids[-1]) == {}
    broker.run(1.0)
    assert broker.status(ids[-2]) == "cancelled"
    assert sorted(broker.pull(other, MANY)) == [id_ for id_ in ids if id_ != ids[-2]]
    for id_ in set(ids) - {ids[-2]}:
        assert broker.call("node_task_finished", "other", id_, 1, 2, connection=other) is True
    assert not broker.open
    assert broker.machine.tasks.counts()["leased"] == 0


# Promise: TASK-11
def test_leases_that_wait_to_be_lost_survive_the_end_of_the_broker(broker):
    ids = ids_of(MANY)
    broker.submit_many(ids)
    node = broker.node("n", "m")
    assert broker.pull(node, MANY) == ids
    lose(broker, node, "disconnect")
    broker.restart()
    assert broker.call("client_connect", CLIENT, connection=FRONT) == CLIENT
    broker.run(30.0)
    other = broker.node("other", "m")
    assert sorted(broker.pull(other, MANY)) == ids


# Promise: TASK-10
def test_a_task_whose_lease_waits_to_be_lost_counts_towards_the_concurrency_of_its_method(broker):
    ids = ids_of(PORTION + 5)
    policy = {"name": "m", "concurrency": len(ids)}
    assert broker.manage("patch_config", set={"services": [policy]}).code == 200
    broker.submit_many([*ids, "next"])
    node = broker.node("n", "m")
    assert broker.pull(node, MANY) == ids
    lose(broker, node, "holds")
    other = broker.node("other", "m")
    first = broker.pull(other, MANY)
    assert 0 < len(first) <= PORTION
    broker.run(1.0)
    assert len(first + broker.pull(other, MANY)) == len(ids)
