"""Subscriptions to several methods: however many there are, the queue is scanned for all of them, once a second.

Promise: FAIR-10
"""

from __future__ import annotations

from typing import Any

import pytest

from scale0.kernel.effects import Effects, StoreQuery
from scale0.storage.task_queries import ListTasks
from scale0.tasks.core.admin_commands import MAX_LISTS
from tests.fakes.broker import TOKEN, FakeBroker


class SlowReader:
    """A broker whose aside queries are read when the test says so."""

    def __init__(self) -> None:
        self.broker = FakeBroker(frontend_idle=100_000.0)
        self.waiting: list[StoreQuery] = []
        host_ask = self.broker.host.ask

        def keep(ask: Any) -> None:
            if isinstance(ask, StoreQuery) and isinstance(ask.ask, ListTasks):
                self.waiting.append(ask)
            else:
                host_ask(ask)

        self.broker.host.ask = keep  # type: ignore[method-assign]

    def subscribe(self, *frames: bytes) -> None:
        effects = Effects()
        for frame in frames:
            self.broker.machine.receive_subscription([frame], self.broker.now, effects)
        self.broker.host.finish(effects)

    def read(self) -> StoreQuery:
        query, effects = self.waiting.pop(0), Effects()
        self.broker.machine.answer(query, self.broker.store.read(query.ask), self.broker.now, effects)
        self.broker.host.finish(effects)
        return query


@pytest.fixture
def slow() -> SlowReader:
    return SlowReader()


def test_a_flood_of_subscriptions_has_one_scan_at_a_time(slow):
    for _ in range(1_000):
        slow.subscribe(b"\x01task.", b"\x00task.")
    slow.subscribe(b"\x01task.", b"\x01", b"\x01task.a")
    assert len(slow.waiting) == 1
    slow.broker.pass_time(30)
    assert len(slow.waiting) == 1, "the next one waits for the first one's answer"
    slow.read()
    assert len(slow.waiting) == 1
    slow.read()
    slow.broker.pass_time(30)
    assert not slow.waiting


def test_a_second_has_one_scan_and_a_subscription_that_ended_has_none(slow):
    slow.subscribe(b"\x01task.")
    slow.read()
    slow.subscribe(b"\x01task.b")
    slow.subscribe(b"\x01task.c")
    assert not slow.waiting
    slow.broker.pass_time(1.1)
    slow.read()
    slow.subscribe(b"\x01task.d", b"\x00task.d")
    slow.broker.pass_time(5)
    assert not slow.waiting


def lists(slow: SlowReader, who: str, count: int) -> None:
    for number in range(count):
        slow.broker.send(who, "MANAGEMENTREQ", {"command": "list_tasks", "id": number, "auth_token": TOKEN})


def codes_of(slow: SlowReader, who: str) -> list[int]:
    return [options["code"] for _, options, _ in slow.broker.received(who)]


def test_lists_of_one_sender_that_are_being_read_are_bounded(slow):
    lists(slow, "frontend-a", MAX_LISTS + 3)
    assert codes_of(slow, "frontend-a") == [429] * 3
    lists(slow, "frontend-b", 1)
    assert codes_of(slow, "frontend-b") == []
    senders = {slow.read().sender for _ in range(MAX_LISTS + 1)}
    assert len(senders) == 2, "they are read in turn by sender"
    assert codes_of(slow, "frontend-a") == [200] * MAX_LISTS
    lists(slow, "frontend-a", 1)
    slow.read()
    assert codes_of(slow, "frontend-a") == [200]
