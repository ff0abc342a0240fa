"""Backends that come and go, and a broker that is killed, while tasks run: each ends once (PROTOCOL 2.3, 6, 9)."""

# Promise: TASK-5
# Promise: TASK-10
# Promise: TASK-11
from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from tests.fakes.broker_process import BrokerProcess
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raws
from tests.wire.scale0.rpc import Backend, Client, Rpc, client

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TASKS = 400
KILLS = 4
SECONDS = 40.0
"""The longest that a storm may take."""


class Ledger:
    """What all backends together were handed and were told."""

    def __init__(self) -> None:
        self.handed: dict[tuple[str, int], str] = {}
        self.stored: dict[str, set[int]] = {}


class Careless(Backend):
    """A backend that keeps to the protocol and to nothing else: it loses work, connections and patience."""

    def __init__(self, net: Raws, dice: random.Random, ledger: Ledger) -> None:
        self.dice, self.ledger = dice, ledger
        self.held: dict[str, dict[str, Any]] = {}
        self.done_: dict[str, dict[str, Any]] = {}
        super().__init__(net, "m", slots=4, prefetch=4, batch=dice.random() < 0.5)

    def step(self) -> None:
        """Hear what there is, and do one thing."""
        while (heard := self.raw.hear_or_none(0)) is not None:
            if heard.command == "TASKS":
                self.unread.extend(heard.body)
            for id_, attempt, code in heard.body if heard.command == "TASKSOK" else ():
                self.acknowledged(id_, attempt, code)
            for id_, attempt in heard.body if heard.command == "TASKSCANCEL" else ():
                mine = self.held.get(id_, {}).get("attempt") == attempt
                assert not mine, f"nobody cancelled {id_}, and attempt {attempt} is held by {self.identity}"
        while self.unread:
            self.take(self.unread.popleft())
        todo = self.dice.choices([self.finish, self.start, self.cut, self.forget, self.depart], [60, 30, 3, 3, 2])[0]
        todo()

    def take(self, task: dict[str, Any]) -> None:
        key = task["id"], task["attempt"]
        assert self.ledger.handed.setdefault(key, self.identity) == self.identity, "one lease has one holder"
        self.held[task["id"]] = task
        assert len(self.held) <= 8, "slots and prefetch are a bound"

    def acknowledged(self, id_: str, attempt: int, code: int) -> None:
        assert code in (200, 409, 404)
        if code == 200:
            self.ledger.stored.setdefault(id_, set()).add(attempt)
        if id_ in self.done_ and self.done_[id_]["attempt"] == attempt:
            del self.done_[id_]

    def start(self) -> None:
        if self.held:
            self.running(self.dice.choice(list(self.held.values())))

    def finish(self) -> None:
        if self.held:
            task = self.held.pop(self.dice.choice(list(self.held)))
            self.done_[task["id"]] = {"id": task["id"], "attempt": task["attempt"], "result": task["params"]}
            self.say("TASKSDONE", [self.done_[task["id"]]])

    def cut(self) -> None:
        """A new connection: all work is still there."""
        self.raw.close()
        self.again()

    def forget(self) -> None:
        """A new connection, and some work was lost."""
        self.raw.close()
        self.held = {id_: task for id_, task in self.held.items() if self.dice.random() < 0.5}
        self.again()

    def depart(self) -> None:
        """Leave in order, come back with nothing but results."""
        self.leave()
        self.held.clear()
        self.again()

    def again(self) -> None:
        holding = [*self.held.values(), *self.done_.values()]
        self.connect(slots=4, prefetch=4, holds=[[row["id"], row["attempt"]] for row in holding])
        if self.done_:
            self.say("TASKSDONE", list(self.done_.values()))


class Submitter:
    """Submits with keys, and again whatever was not acknowledged."""

    def __init__(self, net: Raws) -> None:
        self.net, self.owner = net, client(net)
        self.known: dict[int, str] = {}

    def step(self) -> None:
        numbers = [n for n in range(min(TASKS, len(self.known) + 50)) if n not in self.known][:20]
        if numbers:
            made = self.owner.submit_many(
                [self.owner.new("m", [n], None, key=f"k{n}", max_attempts=10_000) for n in numbers]
            )
            self.known.update(zip(numbers, made, strict=True))

    def again(self) -> None:
        self.owner = Client(Rpc(self.net.frontend()), self.owner.id, connect=False)


def power_cut(broker: BrokerProcess, submitter: Submitter, crew: list[Careless]) -> None:
    """Everybody has said something that may be lost."""
    submitter.owner.rpc.ask("client_new_task", **submitter.owner.new("m", [0], None, key="k0"))
    for worker in crew:
        worker.finish()
    broker.kill9()
    for worker in crew:
        worker.raw.close()
        worker.unread.clear()
    broker.restart()
    submitter.again()
    for worker in crew:
        worker.again()


# Promise: STORE-1
@pytest.mark.parametrize("seed", [1, 2])
def test_every_task_ends_once_whatever_happens(tmp_path, seed):
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        dice, ledger = random.Random(seed), Ledger()
        submitter = Submitter(net)
        crew = [Careless(net, dice, ledger) for _ in range(3)]
        end, kills = time.monotonic() + SECONDS, 0
        while len(ledger.stored) < TASKS:
            assert time.monotonic() < end, f"{len(ledger.stored)} of {TASKS} tasks ended; {len(submitter.known)} known"
            if dice.random() < 0.2:
                submitter.step()
            dice.choice(crew).step()
            if kills < KILLS and len(ledger.stored) > TASKS * (kills + 1) / (KILLS + 2):
                kills += 1
                power_cut(broker, submitter, crew)
        owner = submitter.owner
        assert [owner.result(task) for task in submitter.known.values()] == [[n] for n in submitter.known]
        assert all(len(attempts) == 1 for attempts in ledger.stored.values()), "one attempt stores a result"
        assert ledger.stored.keys() == set(submitter.known.values()), json.dumps(sorted(ledger.stored))
