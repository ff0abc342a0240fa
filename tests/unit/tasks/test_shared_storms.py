"""Brokers on one store under faults: they die, sleep, lose the database and come back; workers move between them.

Promise: TASK-15, TASK-16.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scale0.storage.interface import StoreFailed, StoreFenced, check_writes
from scale0.storage.task_queries import FindTasks
from scale0.tasks.core.shared_store import SharedStore
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore
from simulator.fake_postgres.tasks import Epoch, SharedTasks, _Commit
from tests.fakes.broker import FakeBroker
from tests.unit.tasks.storm import NODE, TaskStorm

pytestmark = pytest.mark.slow

BROKERS = ("ann", "bob", "cat")
SEEDS = int(os.environ.get("NETWORK_SEEDS", "30"))
PLANTED_SEEDS = 60
"""In so many a planted bug must show."""
STEPS = 150
TICK = 0.25
CALM_SECONDS = 120.0


class SharedStorm(TaskStorm):
    """Three brokers on one database."""

    workers = ("w0", "w1", "w2")
    max_attempts = 3
    pulls_may_fail = True

    def __init__(self, seed: int) -> None:
        self.time = 100.0
        self.database = FakeDatabase(lambda: int(self.time * 1_000_000))
        self.up = set(BROKERS)
        self.asleep: dict[str, float] = {}
        stores = {name: FakePostgresStore(self.database, name) for name in BROKERS}
        rngs = [random.Random(seed * 10 + number) for number in range(len(BROKERS))]
        brokers = {
            name: FakeBroker(rng=rng, store=stores[name], identity=name, group="g")
            for name, rng in zip(BROKERS, rngs, strict=True)
        }
        super().__init__(seed, brokers)

    def row(self, id_: str) -> Any:
        rows: Any = self.database.tasks.answer(Epoch("", 0), FindTasks((id_,)), lambda _: True)
        return rows[0]

    # Which brokers are there.

    def is_there(self, name: str) -> bool:
        return name in self.up and name not in self.asleep

    def act(self, name: str, do: Callable[[FakeBroker], Any]) -> Any:
        """A broker that is fenced starts again."""
        if not self.is_there(name):
            return None
        try:
            return do(self.brokers[name])
        except StoreFenced:
            self.start(name)
            return None

    def start(self, name: str) -> None:
        self.brokers[name].store.unreachable = False  # a broker that cannot reach the database does not start
        self.up.add(name)
        self.asleep.pop(name, None)
        self.brokers[name].crash()
        self.meet(name)

    # What is done.

    def new_id(self) -> str:
        return f"t{self.made if self.rng.random() < 0.8 else max(1, self.made - 1)}"

    def submit_to(self, name: str, key: str | None, *params: Any) -> None:
        if self.rng.random() < 0.7:
            super().submit_to(name, key, *params)
            return
        # The client receives nothing, and asks another broker while the first one is at it.
        self.act(name, FakeBroker.hold)
        super().submit_to(name, key, *params)
        self.act(name, lambda broker: broker.host.end_one())
        super().submit_to(self.rng.choice(BROKERS), key, *params)

    def die(self) -> None:
        who = self.rng.choice(self.workers)
        self.back.pop(who, None)
        self.hand[who].clear()

    def kill(self) -> None:
        name = self.rng.choice(BROKERS)
        self.receive_all()
        self.up.discard(name)
        self.asleep.pop(name, None)
        self.brokers[name].sent.clear()
        self.back = {who: place for who, place in self.back.items() if place[0] != name}

    def revive(self) -> None:
        for name in BROKERS:
            if name not in self.up:
                self.start(name)
                return

    def sleep(self) -> None:
        self.asleep[self.rng.choice(BROKERS)] = self.time + self.rng.choice([1.0, 4.0, 12.0])

    def cut(self) -> None:
        self.brokers[self.rng.choice(BROKERS)].store.unreachable = True

    def mend(self) -> None:
        for broker in self.brokers.values():
            broker.store.unreachable = False

    def lose_answer(self) -> None:
        self.brokers[self.rng.choice(BROKERS)].store.lose_answer(away=False)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.time += TICK
            for name in BROKERS:
                if self.asleep.get(name, 0.0) and self.asleep[name] <= self.time:
                    del self.asleep[name]
                self.beat(name)
                self.act(name, lambda broker: broker.pass_time(TICK))
                self.act(name, lambda broker: broker.host.go_on())
            self.receive_all()

    def step(self) -> None:
        acts = [self.submit] * 6 + [self.about] * 3 + [self.report] * 6 + [self.ready] * 3 + [self.connect, self.pull]
        acts += [self.die, self.kill, self.revive, self.revive, self.sleep, self.cut, self.mend, self.mend]
        acts += [self.lose_answer, *[lambda: self.pass_time(0.5)] * 2, lambda: self.pass_time(4.0)]
        name = self.rng.choice(BROKERS)
        acts += [lambda: self.act(name, FakeBroker.hold)] + [lambda: self.act(name, FakeBroker.let_go)] * 3
        self.rng.choice(acts)()
        self.receive_all()

    def finish(self) -> None:
        """All is well again: every task ends."""
        self.mend()
        self.asleep.clear()
        for name in BROKERS:
            if name not in self.up:
                self.start(name)
            self.act(name, FakeBroker.let_go)
        self.back.pop(NODE, None)
        self.hand[NODE].clear()
        end = self.time + CALM_SECONDS
        while self.time < end:
            for who in self.workers:
                if who not in self.back:
                    self.ready()
            self.report()
            self.pass_time(1.0)
            self.check()
            if not self.database.tasks.snapshot().open:
                return
        raise AssertionError(f"stuck: {self.database.tasks.snapshot().open}")


def run(seed: int) -> None:
    """Faults, and the calm after them."""
    storm = SharedStorm(seed)
    for _ in range(STEPS):
        storm.step()
        storm.check()
    storm.finish()


@pytest.mark.own_store  # it brings its own
@pytest.mark.parametrize("part", range(3))
def test_whatever_happens_nothing_is_lost_and_nothing_ends_twice(part):
    for seed in range(part, SEEDS, 3):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# Bugs that are planted, and what they break.


def two_hold_one_task(patch: pytest.MonkeyPatch) -> str:
    """Whoever takes a task leaves it where it is; and nobody asks whose it is."""
    patch.setattr(SharedTasks, "take", lambda _self, _identity, rows: tuple(rows))
    patch.setattr(_Commit, "_check_holder", lambda _self, _seq: None)
    return "handed out twice|two results|cannot be changed"


def nobody_is_fenced(patch: pytest.MonkeyPatch) -> str:
    """A broker that others took for dead goes on, and writes what is theirs."""
    patch.setattr(FakePostgresStore, "_fence", lambda _self: None)
    patch.setattr(_Commit, "_check_holder", lambda _self, _seq: None)
    return "handed out twice|two results|cannot be changed|not reserved"


def nothing_is_reserved(patch: pytest.MonkeyPatch) -> str:
    """Two brokers may use one id or key."""
    patch.setattr(_Commit, "_use", lambda _self, _write: None)
    found = SharedTasks._look_up

    def never_busy(self: Any, epoch: Any, query: Any, is_alive: Any) -> Any:
        return found(self, epoch, msgspec.structs.replace(query, reserve=None), is_alive)

    patch.setattr(SharedTasks, "_look_up", never_busy)
    return "has two tasks|given twice|exists already|is in use"


def orphans_are_forgotten(patch: pytest.MonkeyPatch) -> str:
    """What a dead broker's dead worker had stays theirs for ever."""
    patch.setattr(SharedStore, "_orphans", lambda _self, _rows, _mark, _now, _step: None)
    return "stuck"


def leases_stay_behind(patch: pytest.MonkeyPatch) -> str:
    """Work that its node brings along is cancelled, and nobody does it."""
    patch.setattr(SharedStore, "_resume", lambda _self, _row, _holder, _now, _step: None)
    return "stuck"


def lost_answers_count_as_no(patch: pytest.MonkeyPatch) -> str:
    """A commit whose answer got lost is done again."""
    patch.setattr(FakePostgresStore, "lose_answer", do_twice)
    return "journal row|exists already|not held|cannot be changed"


def do_twice(self: Any, away: bool = True) -> None:
    commit = self._apply

    def twice(writes: Any) -> None:
        self._apply = commit
        commit(writes)
        check_writes(writes, self._member.own.next_seq)
        commit(writes)

    self._apply = twice


@pytest.mark.own_store
@pytest.mark.parametrize(
    "plant",
    [
        two_hold_one_task,
        nobody_is_fenced,
        nothing_is_reserved,
        orphans_are_forgotten,
        leases_stay_behind,
        lost_answers_count_as_no,
    ],
)
def test_a_planted_bug_is_seen(plant: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            run(seed)
        except (AssertionError, StoreFailed, ValueError) as error:
            seen = str(error)
            break
    else:
        seen = f"nothing in {PLANTED_SEEDS} seeds"
    assert re.search(wanted, seen), seen
