"""Params and results that changed in the store are found when they are read: they reach neither a node nor a client."""

# Promise: STORE-11
from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.storage.memory.store import MemoryStore
from scale0.tasks.jsonrpc.messages import DAMAGED
from tests.unit.tasks.harness import CLIENT, TaskBroker


def damage(broker: TaskBroker, id_: str, **fields: Any) -> None:
    """The store returns other bytes than were written."""
    store: Any = broker.store
    tasks: Any = store._tasks if isinstance(store, MemoryStore) else store.database.tasks._tasks
    for rows in (tasks._open, tasks._ended):
        for seq, row in rows.items():
            if row.id == id_:
                rows[seq] = msgspec.structs.replace(row, **fields)
                return
    raise AssertionError(f"{id_} is not stored")


def completed(broker: TaskBroker, id_: str) -> list[int | None]:
    return [event.code for event in broker.events if event.kind == "task.completed" and event.task_id == id_]


@pytest.mark.parametrize("by", ["push", "request", "one"])
@pytest.mark.parametrize("delay", [None, 5.0])
def test_a_task_with_damaged_params_fails_and_does_not_run(broker, by, delay):
    options = {} if delay is None else {"delay": delay}
    for id_ in ("before", "damaged", "after"):
        broker.submit(id_, **options)
    broker.restart()  # nothing is in memory
    assert broker.call("client_connect", CLIENT) == CLIENT
    damage(broker, "damaged", params=b"[7]")
    if delay is not None:
        broker.run(delay + 2.0)
    if by == "push":
        worker = broker.worker("w", "m", slots=8)
        broker.run(1.0)
        assert sorted(broker.handed(worker)) == ["after", "before"]
    elif by == "request":
        node = broker.node("n", "m")
        broker.run(1.0)
        assert sorted(broker.pull(node)) == ["after", "before"]
    else:
        node = broker.node("n", "m")
        assert broker.fetch(node, "damaged").code == DAMAGED
    assert broker.status("damaged") == "failed"
    refused = broker.result("damaged")
    assert refused.code == DAMAGED
    assert "submit it again" in refused.message
    assert completed(broker, "damaged") == [DAMAGED]


def test_the_slot_of_a_damaged_task_is_free(broker):
    broker.submit("damaged")
    broker.submit("whole")
    broker.restart()
    assert broker.call("client_connect", CLIENT) == CLIENT
    damage(broker, "damaged", params=b"")
    worker = broker.worker("w", "m", slots=1)
    broker.run(1.0)
    assert broker.handed(worker) == ["whole"]
    broker.done(worker, "whole")
    broker.submit("next")
    broker.run(1.0)
    assert broker.handed(worker) == ["next"]


def test_a_damaged_result_is_an_error_and_never_other_bytes(broker):
    worker = broker.worker("w", "m", slots=2)
    broker.submit_many(["a", "b"])
    broker.run(0.5)
    broker.done(worker, "a", "b", result=[1, 2])
    damage(broker, "a", result=b"[1,3]")
    assert broker.result("a").code == DAMAGED
    assert broker.result("b") == [1, 2]
    ends = {end["task_id"]: end for end in broker.call("client_task_wait", CLIENT, ["a", "b"], 0)}
    assert ends["a"]["error"]["code"] == DAMAGED
    assert "result" not in ends["a"]
    assert ends["b"]["result"] == [1, 2]


def test_a_task_without_a_checksum_is_as_before(broker):
    """A version without checksums stored it."""
    broker.submit("old")
    broker.restart()
    assert broker.call("client_connect", CLIENT) == CLIENT
    damage(broker, "old", params_sum=0)
    worker = broker.worker("w", "m", slots=1)
    broker.run(1.0)
    assert broker.handed(worker) == ["old"]
    broker.done(worker, "old", result=1)
    damage(broker, "old", result_sum=0)
    assert broker.result("old") == 1
