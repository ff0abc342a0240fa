"""Submitters take turns: within a method and priority, a backlog of one delays no task of another.

Promise: FAIR-3
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.tasks.core import method_queues
from scale0.tasks.core.fair_queue import PriorityQueue
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.jsonrpc.arguments import StoredOptions
from tests.unit.tasks.harness import TaskBroker

WINDOW = 4
FLOOD = 60
CLIENTS = ("a", "b", "c", "d")

pytestmark = pytest.mark.own_store


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(method_queues, "WINDOW_TASKS", WINDOW)


def submit(broker: TaskBroker, client: str, *ids: str, **options: Any) -> None:
    connection = f"frontend-{client}"
    assert broker.call("client_connect", client, connection=connection) == client
    calls: Any = (("client_new_task", client, "m", [], id_, options) for id_ in ids)
    assert broker.together(connection, *calls) == list(ids)


def flood(broker: TaskBroker, client: str = "flood", count: int = FLOOD, **options: Any) -> list[str]:
    ids = [f"{client}{number:03}" for number in range(count)]
    submit(broker, client, *ids, **options)
    return ids


def work(broker: TaskBroker, worker: str, count: int) -> list[str]:
    """What a worker with one slot gets, one after the other."""
    did: list[str] = []
    while len(did) < count and (told := broker.received(worker, "TASKS")):
        for task in (task for one in told for task in one.body):
            broker.done(worker, task["id"], attempt=task["attempt"])
            did.append(task["id"])
    return did


def test_one_task_does_not_wait_behind_a_backlog_of_another_client(broker):
    worker = broker.worker("w", "m")
    ids = flood(broker)
    submit(broker, "honest", "h")
    did = work(broker, worker, FLOOD + 1)
    assert did.index("h") <= 2
    assert [id_ for id_ in did if id_ != "h"] == ids


def test_a_backlog_that_was_stored_before_the_broker_started_delays_nobody(broker):
    ids = flood(broker)
    submit(broker, "honest", "h1", "h2")
    broker.restart()
    worker = broker.worker("w", "m")
    did = work(broker, worker, FLOOD + 2)
    assert did.index("h1") <= 2
    assert did.index("h2") <= 4
    assert [id_ for id_ in did if id_[0] == "f"] == ids


def test_a_task_whose_method_had_no_worker_waits_behind_nobody_either(broker):
    flood(broker)
    submit(broker, "honest", "h")
    worker = broker.worker("w", "m")
    assert work(broker, worker, 5).index("h") <= 2


def test_priorities_come_before_turns(broker):
    worker = broker.worker("w", "m")
    submit(broker, "busy", "first")
    low = flood(broker, "low", 10, priority=1)
    high = flood(broker, "high", 10, priority=9)
    assert work(broker, worker, 21) == ["first", *high, *low]


def test_a_retried_task_returns_to_the_front_of_its_own_client(broker):
    worker = broker.worker("w", "m")
    ids = flood(broker, "a", 5)
    submit(broker, "b", "b0", "b1")
    assert broker.handed(worker) == ids[:1]
    broker.fail(worker, ids[0], retry=True)
    did = work(broker, worker, 7)
    assert [id_ for id_ in did if id_[0] == "a"] == ids
    assert did.index("b0") <= 2


@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_comes_and_goes_clients_take_turns(seed: int) -> None:
    """The naive model: for each client and priority a list; nobody is passed over for long."""
    rng = random.Random(seed)
    broker = TaskBroker()
    worker = broker.worker("w", "m")
    waiting: dict[tuple[int, str], deque[str]] = {}
    passed: dict[tuple[int, str], int] = {}
    running, number = "", 0

    def given_out() -> None:
        nonlocal running
        for place in [place for place in passed if not waiting[place]]:
            del passed[place]
        got = broker.handed(worker)
        if not got:
            return
        (running,) = got
        priority = max(place[0] for place, ids in waiting.items() if ids)
        place = next(place for place, ids in waiting.items() if ids and ids[0] == running)
        assert place[0] == priority, "the more urgent first"
        waiting[place].popleft()
        for other in [one for one, ids in waiting.items() if ids and one[0] == priority and one != place]:
            passed[other] = passed.get(other, 0) + 1
            # At most once by each while its tasks are being loaded, and once by each until it is its turn.
            assert passed[other] <= 2 * len(CLIENTS), f"{other} was passed over: {passed}"
        passed[place] = 0

    for _ in range(60):
        match rng.randrange(8):
            case 0 | 1:
                client, priority = rng.choice(CLIENTS), rng.choice((4, 4, 4, 9))
                ids = [f"{client}{number + n:04}" for n in range(rng.choice((1, 1, 3, 12)))]
                number += len(ids)
                waiting.setdefault((priority, client), deque()).extend(ids)
                submit(broker, client, *ids, priority=priority)
            case 2 if any(waiting.values()):
                place = rng.choice([place for place, ids in waiting.items() if ids])
                gone = rng.choice(waiting[place])
                waiting[place].remove(gone)
                call = ("client_task_cancel", place[1], gone)
                assert broker.together(f"frontend-{place[1]}", call) == [True]
            case 3 if rng.random() < 0.3:
                broker.restart()
                passed.clear()
                worker = broker.worker("w", "m", holds=[[running, 1]] if running else [])
            case _ if running:
                broker.done(worker, running)
                running = ""
        given_out()
    while running:
        broker.done(worker, running)
        running = ""
        given_out()
    assert not any(waiting.values())


def made(seq: int, client: str) -> QueuedTask:
    zeros = (4, 1_000, 0, 0, "", 0, 0, 0, 0, False, False, None, b"", b"", b"", "", "", 0, 0)
    return QueuedTask(seq, str(seq), client, "m", b"", *zeros, StoredOptions())


def spent(clients: int, count: int) -> float:
    """Seconds for each task, in and out."""
    level = PriorityQueue()
    tasks = [made(seq, str(seq % clients)) for seq in range(count)]
    began = time.process_time()
    for task in tasks:
        level.append(task)
    for _ in tasks:
        level.pop()
    return (time.process_time() - began) / count


def test_the_cost_of_a_task_is_flat() -> None:
    few = min(spent(1, 2_000) for _ in range(5))
    many = min(spent(5_000, 20_000) for _ in range(3))
    assert many < 6 * few + 5e-6, (few, many)


STORED = KeyTable(
    Key(name.ljust(40, "."), role, name) for name, role in (("a", "frontend"), ("b", "frontend"), ("w", "backend"))
)


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
# Promise: FAIR-8
def test_many_client_ids_of_a_key_have_one_turn(stored):
    broker = TaskBroker(keys=Keys(user_of, STORED))
    worker = "" if stored else broker.worker("w", "m")
    for number in range(FLOOD):
        client, connection = f"a.{number}", f"frontend-a-{number}"
        assert broker.call("client_connect", client, connection=connection) == client
        assert broker.call("client_new_task", client, "m", [], f"a{number:03}", None, connection=connection)
    ids = [f"b{number}" for number in range(5)]
    assert broker.call("client_connect", "b", connection="frontend-b") == "b"
    for id_ in ids:
        assert broker.call("client_new_task", "b", "m", [], id_, None, connection="frontend-b") == id_
    if stored:
        broker.restart()
        worker = broker.worker("w", "m")
    did = work(broker, worker, FLOOD + 5)
    assert did.index("b4") <= 11
    assert [id_ for id_ in did if id_[0] == "a"] == [f"a{number:03}" for number in range(FLOOD)]
    assert [id_ for id_ in did if id_[0] == "b"] == ids
