"""Turns that go on while commits are under way, and crashes in between: no promise is broken by what was in flight."""

# Promise: TASK-13
from __future__ import annotations

import random
from typing import Any

import pytest

from scale0.storage.task_queries import FindTasks
from simulator.invariants.task_memory import usage_of
from tests.fakes.broker import FakeBroker
from tests.unit.tasks.storm import NODE, TaskStorm

pytestmark = pytest.mark.slow

SEEDS = 150
STEPS = 120
BEAT = 0.5
NAME = "broker-1"
SETTINGS: dict[str, Any] = {"default_heartbeat_interval": 1.0, "heartbeat_liveness": 3, "error_client_limit": 0}


class HeldStorm(TaskStorm):
    """One broker whose commits are held back, and which crashes."""

    def __init__(self, seed: int) -> None:
        self.broker = FakeBroker(rng=random.Random(seed), **SETTINGS)
        super().__init__(seed, {NAME: self.broker})

    def row(self, id_: str) -> Any:
        return self.broker.store.read(FindTasks((id_,)))[0]

    def holds(self, who: str) -> list[tuple[str, int]]:
        """Some of what it had is lost."""
        kept = [lease for lease in self.hand[who].items() if self.rng.random() < 0.7]
        self.hand[who] = dict(kept)
        return kept

    def take(self, who: str, id_: str, attempt: int) -> None:
        super().take(who, id_, attempt)
        row = self.row(id_)
        assert row is not None, f"{id_} was handed out, and is not stored"
        assert row.attempt >= attempt, f"attempt {attempt} of {id_} was handed out, and is not stored"

    def leave(self) -> None:
        who = self.rng.choice(self.workers)
        if who in self.back:
            self.send(*self.back.pop(who), "DISCONNECT")
            self.hand[who].clear()

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT)):
            self.beat(NAME)
            for _ in self.broker.turns(BEAT):
                self.receive_all()

    def crash(self) -> None:
        self.receive_all()
        self.broker.crash(stored=self.rng.random() < 0.5)
        self.asked.clear()
        self.meet(NAME)
        self.check()

    def step(self) -> None:
        acts = [self.submit] * 6 + [self.about] * 3 + [self.report] * 5 + [self.ready, self.connect, self.pull]
        acts += [self.broker.hold] * 2 + [self.broker.host.end_one] * 3 + [self.broker.let_go, self.leave]
        acts += [lambda: self.pass_time(0.5), lambda: self.pass_time(5.0)]
        acts += [self.crash] if self.rng.random() < 0.3 else []
        self.rng.choice(acts)()
        self.receive_all()

    def finish(self) -> None:
        """Commits return again: every task ends."""
        self.broker.let_go()
        self.receive_all()
        self.check()
        if NODE in self.back:
            self.ask(*self.back.pop(NODE), "leave", None, "node_disconnect", NODE)
        self.pass_time(8.0)
        for _ in range(60):
            stored = self.broker.store.snapshot().tasks
            open_ = stored.open
            assert stored.usage == usage_of(stored)
            assert self.broker.machine.tasks.queue.open == len(open_)
            if not open_:
                return
            if len(self.back) < len(self.workers):
                self.ready()
            self.report()
            self.pass_time(1.0)
            self.receive_all()
        raise AssertionError(f"stuck: {open_}")


@pytest.mark.parametrize("part", range(3))
def test_no_promise_is_broken_by_what_is_in_flight(part):
    for seed in range(part, SEEDS, 3):
        storm = HeldStorm(seed)
        try:
            for _ in range(STEPS):
                storm.step()
            storm.finish()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
