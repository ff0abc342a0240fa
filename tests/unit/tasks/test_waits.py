"""Who wants to hear of an end: each hears it once, is not forgotten meanwhile, and is forgotten afterwards."""

# Promise: TASK-8
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.tasks.core import completion_waits
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, TaskBroker

QUEUE_FULL = -32070
BAD_TASK = -32020
MOST = 3


@pytest.fixture(name="few")
def _few(monkeypatch: pytest.MonkeyPatch) -> TaskBroker:
    """A broker in which one connection may wait three times at once."""
    monkeypatch.setattr(completion_waits, "MAX_CONNECTION_WAITS", MOST)
    return TaskBroker()


def wait(broker: TaskBroker, *ids: str, seconds: float = 5.0, connection: str = FRONT) -> int:
    return broker.ask(connection, "client_task_wait", CLIENT, ids, seconds)


def test_a_connection_waits_only_so_many_times_at_once(few):
    few.submit("open")
    waits = [wait(few, "open") for _ in range(MOST)]
    told = few.answer(wait(few, "open"))
    assert isinstance(told, Refused)
    assert told.code == QUEUE_FULL
    other = wait(few, "open", connection="frontend-other")
    few.cancel("open")
    for number in (*waits, other):
        assert [row["task_id"] for row in few.answer(number)] == ["open"]
    assert few.machine.tasks.counts()["waits"] == 0


@pytest.mark.parametrize("ending", ["end", "timeout", "unknown"])
def test_a_wait_that_is_over_makes_room_for_another(few, ending):
    few.submit("open")
    for _ in range(MOST):
        if ending == "unknown":
            assert few.answer(wait(few, "open", "nobody-knows")).code == BAD_TASK
        else:
            wait(few, "open")
    if ending == "end":
        few.cancel("open")
    elif ending == "timeout":
        few.run(6.0)
    assert few.machine.tasks.counts()["waits"] == 0
    few.submit("next")
    number = wait(few, "next")
    few.cancel("next")
    assert [row["task_id"] for row in few.answer(number)] == ["next"]


def test_a_task_that_is_named_many_times_in_a_wait_is_told_once(broker):
    broker.submit("open")
    number = wait(broker, *["open"] * 100)
    broker.cancel("open")
    assert [row["task_id"] for row in broker.answer(number)] == ["open"]


def test_a_wait_is_over_at_its_time_and_costs_nothing_afterwards(broker):
    broker.submit("open")
    number = wait(broker, "open", seconds=2.0)
    broker.run(1.9)
    with pytest.raises(AssertionError, match="not answered"):
        broker.answer(number)
    broker.run(0.2)
    assert broker.answer(number) == []
    assert broker.machine.tasks.counts()["waits"] == 0


def test_a_task_that_ends_twice_is_told_twice_and_its_connection_is_forgotten(broker):
    node = broker.node("n", "m")
    broker.submit("twice", notify=True)
    connection = broker.connection(FRONT)
    assert connection.waits == 1
    for _ in range(2):
        assert broker.fetch(node, "twice")["id"] == "twice"
        broker.call("node_task_failed", "n", "twice", {"code": 1, "message": ""}, connection=node)
        assert [note["status"] for note in broker.notified()] == ["failed"]
        assert connection.waits == 0
        broker.manage("retry_task", task_id="twice")
    broker.run(120.0)
    assert broker.machine.connections.find("frontend", FRONT.encode()) is None


def test_a_connection_with_an_open_wait_is_not_forgotten():
    broker = TaskBroker(frontend_idle=2.0)
    broker.submit("open")
    number = wait(broker, "open", seconds=20.0)
    broker.run(19.0)
    assert broker.machine.connections.find("frontend", FRONT.encode()) is not None
    broker.run(2.0)
    assert broker.answer(number) == []
    broker.run(10.0)
    assert broker.machine.connections.find("frontend", FRONT.encode()) is None


def test_a_disabled_broker_does_not_answer_a_wait(broker):
    broker.submit("open")
    number = wait(broker, "open", seconds=2.0)
    assert broker.manage("disable").code == 200
    broker.run(3.0)
    with pytest.raises(AssertionError, match="not answered"):
        broker.answer(number)
    assert broker.machine.tasks.counts()["waits"] == 0


def test_nobody_hears_twice_of_one_end(broker):
    worker = broker.worker("w", "m")
    broker.submit("told", notify=True)
    number = wait(broker, "told")
    broker.done(worker, "told", result=7)
    broker.done(worker, "told", result=7)  # the same again: it has not heard that it is stored
    assert [code for _, _, code in broker.acknowledged(worker)] == [200, 200]
    assert broker.answer(number) == [{"task_id": "told", "status": "finished", "result": 7}]
    assert [note["task_id"] for note in broker.notified()] == ["told"]


# Promise: QUOTA-6
def test_waits_are_bounded_by_bytes_for_a_client_and_in_total():
    broker = TaskBroker(max_wait_bytes=24_000, max_key_wait_bytes=10_000)
    ids = [f"t{number:02}" for number in range(20)]
    broker.submit_many(ids)
    first = wait(broker, *ids)
    told = broker.answer(wait(broker, *ids))
    assert isinstance(told, Refused)
    assert told.code == QUEUE_FULL
    assert "10000 bytes (max_key_wait_bytes)" in str(told)
    others = [wait(broker, *ids, connection=f"frontend-{number}") for number in range(2)]
    assert "24000 bytes (max_wait_bytes)" in str(broker.answer(others[1]))
    broker.cancel("t00")
    for number in (first, others[0]):
        assert [row["task_id"] for row in broker.answer(number)] == ["t00"]
    waits = broker.machine.tasks.completion_waits
    assert waits.bytes == 0
    assert not waits._of_owner
    wait(broker, *ids[1:])
    assert waits.bytes > 0
    broker.run(6.0)
    assert waits.bytes == 0


# Promise: QUOTA-6
def test_waits_of_a_key_count_over_all_its_connections():
    keys = Keys(lambda socket, _: f"{socket}/web", KeyTable([Key("", "frontend", "web")]))
    broker = TaskBroker(keys=keys, max_key_wait_bytes=10_000)
    ids = [f"t{number:02}" for number in range(20)]
    broker.submit_many(ids)
    wait(broker, *ids)
    told = broker.answer(wait(broker, *ids, connection="frontend-other"))
    assert isinstance(told, Refused)
    assert "max_key_wait_bytes" in str(told)
