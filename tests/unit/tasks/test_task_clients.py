"""Client ids: their number is bounded for each key and in all, and those that nobody uses expire."""

# Promise: QUOTA-10
from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.storage.task_queries import CountTaskClients
from scale0.storage.task_rows import PutTaskClient
from scale0.tasks.core import task_clients
from tests.fakes.broker import METHODS
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, TaskBroker
from tests.unit.tasks.test_owners import keyed, keyed_broker, shared_store

__all__ = ["keyed"]

BAD_CLIENT, QUEUE_FULL = -32010, -32070
COUNT_SECONDS, LOOK_SECONDS, HEARD_SECONDS, UNUSED_SECONDS = 5.0, 20.0, 20.0, 300.0
OTHER = "frontend-other"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes in place of a week."""
    for name in ("COUNT_SECONDS", "LOOK_SECONDS", "HEARD_SECONDS", "UNUSED_SECONDS"):
        monkeypatch.setattr(task_clients, name, globals()[name])


def connect(broker: TaskBroker, *ids: str | None, connection: str = FRONT) -> list[Any]:
    """What each is answered: its id, or the code of the error."""
    answers = [broker.call("client_connect", *([] if id_ is None else [id_]), connection=connection) for id_ in ids]
    return [answer.code if isinstance(answer, Refused) else answer for answer in answers]


def stored(broker: TaskBroker) -> set[str]:
    return set(broker.store.snapshot().tasks.clients)


@pytest.mark.parametrize("shared", [False, True])
def test_a_key_has_a_limit_of_client_ids_and_others_have_theirs(shared: bool) -> None:
    broker = keyed_broker(task_client_limit=5, store=shared_store() if shared else None)  # half of them, rounded up
    assert connect(broker, "a", None, "b", "a", CLIENT)[2:] == [QUEUE_FULL, "a", CLIENT], "known ids are always valid"
    refused = broker.call("client_connect", "b")
    assert "max_key_task_clients" in refused.message
    assert connect(broker, "x", "y", "z", connection=OTHER) == ["x", "y", QUEUE_FULL]
    assert broker.call("client_disconnect", "a") is True
    assert connect(broker, "b", "a") == ["b", QUEUE_FULL]


def test_the_number_of_client_ids_is_known_after_a_restart_and_counted_again() -> None:
    broker = keyed_broker(max_key_task_clients=3)
    assert connect(broker, "a", "b") == ["a", "b"]
    broker.restart()
    broker.run(1.5)
    assert connect(broker, "c.1", "a", "b", CLIENT) == [QUEUE_FULL, "a", "b", CLIENT]
    assert broker.store.read(CountTaskClients()) == {"frontend/c": 3}
    clients = broker.machine.tasks.clients
    clients._counts["frontend/c"] = 9  # such as ids that another broker of a group has dropped
    assert broker.call("client_disconnect", "a") is True
    broker.run(COUNT_SECONDS + 1)
    assert connect(broker, "c.1") == ["c.1"]


def test_without_keys_all_client_ids_together_have_a_limit(broker: TaskBroker) -> None:
    broker = TaskBroker(task_client_limit=3)
    assert connect(broker, "a", "b", "d", connection="frontend-x") == ["a", "b", QUEUE_FULL]
    assert connect(broker, "e", connection="frontend-y") == [QUEUE_FULL]
    calls = [{"jsonrpc": "2.0", "method": METHODS + "client_connect", "params": [f"f{n}"], "id": n} for n in range(9)]
    broker.send_frames("frontend-x", [json.dumps(calls).encode()])
    assert len(stored(broker)) == 3


def test_a_client_id_that_nobody_uses_expires_and_may_be_made_again(broker: TaskBroker) -> None:
    assert connect(broker, "waits", "ended", "unused", "alive", connection="frontend-old")[3] == "alive"
    broker.call("client_new_task", "waits", "nobody.does", [], None, {"delay": 30 * 86_400}, connection="frontend-old")
    made = broker.call(
        "client_new_task", "ended", "m", [], None, {"result_ttl": 30 * 86_400}, connection="frontend-old"
    )
    broker.call("client_task_cancel", "ended", made, connection="frontend-old")
    broker.pass_time(UNUSED_SECONDS - LOOK_SECONDS)
    assert stored(broker) == {CLIENT, "waits", "ended", "unused", "alive"}
    assert connect(broker, "alive", connection="frontend-new") == ["alive"]
    broker.pass_time(2 * LOOK_SECONDS + COUNT_SECONDS)
    assert stored(broker) == {"waits", "ended", "alive"}
    unknown = broker.call("client_task_status", "unused", "t", connection="frontend-old")
    assert unknown.code == BAD_CLIENT
    assert connect(broker, "unused", connection="frontend-old") == ["unused"]


def test_a_client_id_in_use_does_not_expire(broker: TaskBroker) -> None:
    """It connects once, and then only submits."""
    for _ in range(10):
        broker.pass_time(UNUSED_SECONDS / 5)
        assert isinstance(broker.submit(None, "nobody.does", result_ttl=1), str)
        [task] = broker.open
        assert broker.call("client_task_cancel", CLIENT, task) is True
    assert stored(broker) == {CLIENT}
    heard_us = broker.store.snapshot().tasks.clients[CLIENT].heard_us
    assert broker.machine.tasks.queue.retained_us(broker.now) - heard_us < 1e6 * HEARD_SECONDS


def test_a_client_id_of_an_earlier_version_has_an_hour_after_the_start_to_be_heard(broker: TaskBroker) -> None:
    assert connect(broker, "used", "unused", connection="frontend-old") == ["used", "unused"]
    for id_ in ("used", "unused"):  # an earlier version stored the time of `client_connect` alone
        broker.store.commit([PutTaskClient(id_, "", round(-1e6 * UNUSED_SECONDS))])
    broker.restart()
    broker.pass_time(LOOK_SECONDS / 2)
    assert isinstance(broker.call("client_new_task", "used", "m", [], connection="frontend-new"), str)
    broker.pass_time(3 * LOOK_SECONDS)
    assert "used" in stored(broker)
    assert "unused" not in stored(broker)


def test_a_connection_that_lives_keeps_its_client_id(broker: TaskBroker) -> None:
    """It may only read what it is notified of."""
    for _ in range(round(UNUSED_SECONDS + 3 * LOOK_SECONDS) // 10):
        broker.request("nobody.offers", connection=FRONT)
        broker.pass_time(10.0)
    assert stored(broker) == {CLIENT}


def test_a_jump_of_the_clock_does_not_end_a_client_id(broker: TaskBroker) -> None:
    made = broker.submit(None, "m", result_ttl=10 * UNUSED_SECONDS)
    assert broker.call("client_task_cancel", CLIENT, made) is True
    broker.wall += 20 * UNUSED_SECONDS
    broker.pass_time(2 * LOOK_SECONDS)
    assert stored(broker) == {CLIENT}


def test_many_unused_client_ids_are_deleted_a_few_at_a_time(
    broker: TaskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_clients, "MAX_UNUSED", 20)
    monkeypatch.setattr(task_clients, "DROPPED_AT_ONCE", 3)
    connect(broker, *(f"i{number}" for number in range(50)), connection="frontend-old")
    broker.pass_time(UNUSED_SECONDS + 2 * LOOK_SECONDS)
    assert stored(broker) == set()
