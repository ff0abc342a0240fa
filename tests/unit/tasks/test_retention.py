"""Retention: no jump of the wall clock costs a result or a key, and a correct clock deletes both in time."""

# Promise: TASK-20
from __future__ import annotations

import pytest

from tests.fakes.broker import WALL
from tests.unit.tasks.harness import Refused, TaskBroker

DAY = 86_400.0
TTL = 600.0


def end(broker: TaskBroker, *ids: str, ttl: float = TTL) -> None:
    """Tasks whose results are kept for a while, each with its id as the key."""
    worker = broker.worker("w", "m", slots=100)
    for id_ in ids:
        assert broker.submit(id_, key=id_, result_ttl=ttl) == id_
    broker.done(worker, *broker.handed(worker), result=7)


def is_kept(broker: TaskBroker, id_: str) -> bool:
    """Whether the result can be read and the key is known."""
    readable = not isinstance(broker.result(id_), Refused)
    return readable and broker.submit(None, key=id_) == id_


def stored(broker: TaskBroker) -> set[str]:
    return {row.id for row in broker.store.snapshot().tasks.ended.values()}


@pytest.mark.parametrize("jump", [TTL + 60, 40 * 365 * DAY])
def test_a_jump_forward_deletes_no_result_and_no_key_before_its_time(broker, jump):
    end(broker, "before")
    broker.run(90.0)
    broker.wall += jump
    end(broker, "after", ttl=2 * TTL)
    broker.run(TTL - 100.0)
    assert is_kept(broker, "before")
    assert is_kept(broker, "after")
    broker.run(300.0)
    assert stored(broker) == {"after"}
    broker.run(TTL)
    assert stored(broker) == set()


@pytest.mark.own_store
def test_a_broker_that_starts_with_a_clock_that_is_ahead_keeps_what_it_has(broker):
    end(broker, "before")
    broker.wall += 30 * DAY
    broker.restart()
    broker.run(TTL - 100.0)
    assert is_kept(broker, "before")
    broker.run(200.0)
    assert stored(broker) == set()


@pytest.mark.own_store
@pytest.mark.parametrize("jumped", ["before the start", "while it ran"])
def test_a_second_start_with_a_clock_that_is_ahead_keeps_what_the_first_one_kept(broker, jumped):
    """Events of the first start have the time of the wrong clock."""
    end(broker, "before")
    if jumped == "while it ran":
        broker.run(30.0)
        broker.wall += 30 * DAY
        broker.run(30.0)
    else:
        broker.wall += 30 * DAY
    for _ in range(4):
        broker.restart()
        broker.run(100.0)
        assert is_kept(broker, "before")
        confirmed = broker.store.snapshot().settings["time:confirmed"]
        assert int(confirmed) < (WALL + DAY) * 1_000_000, "expiry of keys and tokens begins from it"
    broker.run(TTL)
    assert stored(broker) == set()
    assert int(broker.store.snapshot().settings["time:retention"]) > (broker.wall - DAY) * 1_000_000, "it counts again"


def test_a_jump_back_and_a_second_jump_delete_nothing_early(broker):
    end(broker, "one")
    broker.run(90.0)
    broker.wall += DAY
    broker.run(90.0)
    end(broker, "two")
    broker.wall += DAY
    broker.run(90.0)
    end(broker, "three")
    broker.wall -= 2 * DAY
    broker.run(200.0)
    assert all(is_kept(broker, id_) for id_ in ("one", "two", "three"))
