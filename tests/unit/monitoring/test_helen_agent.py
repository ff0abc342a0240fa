"""Helen and an agent together: whatever is cut, killed or repeated, a result counts once and none is lost."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.effects import AgentEffects, Delivered, RunCheck, TakeSchedule, Undelivered
from scale0.monitoring.agent.core.session import ACCEPTED, AgentSession
from scale0.monitoring.helen.core.evaluation import Evaluation, StoredChecks
from scale0.monitoring.helen.core.socket_events import BytesReceived
from tests.fakes.examples import seeds
from tests.unit.monitoring.helen_world import HelenWorld

PART = msgspec.json.encode({"checks": [{"name": "load", "interval": 60}]})


class Machine:
    """An agent's session, a spool in memory, and a wire to whichever Helen is up."""

    def __init__(self, world: HelenWorld, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.session = AgentSession([("helen", 4166)], "0.1.0", chance)
        self.spool: dict[int, None] = {}
        self.offered: set[int] = set()
        self.delivered: set[int] = set()
        self.updates: list[Any] = []
        self.connection: bytes | None = None
        self.mono = 50.0
        self.session.start(self.now, AgentEffects())

    @property
    def now(self) -> Now:
        return Now(self.mono, 1_000.0)  # its wall clock is far off, and that changes nothing

    def pass_time(self, seconds: float) -> None:
        self.mono += seconds
        self.world.pass_time(seconds)
        out = AgentEffects()
        self.session.tick(self.now, out)
        self.do(out)

    def do(self, out: AgentEffects) -> None:
        """What the session wants done, and what Helen says to it."""
        while True:
            self._hear(out)
            if out.close and self.connection is not None:
                self.world.gone(self.connection)
                self.connection = None
            if out.open is not None:
                self.connection = self.world.connect("web-1")
                out = AgentEffects()
                self.session.opened(self.now, out)
                continue
            if self.connection is None:
                return
            said = b"".join(out.sends)
            while said:
                cut = self.chance.randint(1, len(said))
                self.world.turn(self.connection, BytesReceived(said[:cut]))
                said = said[cut:]
            heard = self.world.take_bytes(self.connection)
            closed = self.connection in self.world.closed
            if not heard and not closed:
                return
            out = AgentEffects()
            self.session.received(heard, self.now, out)
            if closed:
                self.connection = None
                self.session.lost("closed", self.now, out)

    def _hear(self, out: AgentEffects) -> None:
        self.updates += out.updates
        for news in out.updates:
            if isinstance(news, Delivered):
                for n in news.tokens:
                    self.spool.pop(n, None)
                    self.delivered.add(n)
                self.offered -= set(news.tokens)
            elif isinstance(news, Undelivered):
                self.offered -= set(news.tokens)

    def send_some(self) -> None:
        out = AgentEffects()
        for n in list(self.spool):
            if n not in self.offered and self.session.room > 0:
                self.offered.add(n)
                body = msgspec.json.encode({"state": "ok", "spool": "s1", "n": n, "age": 1})
                self.session.offer("load", body, n, self.now, out)
        self.do(out)

    def cut(self) -> None:
        """The network fails."""
        if self.connection is not None:
            self.world.gone(self.connection, orderly=False)
            self.connection = None
        out = AgentEffects()
        self.session.lost("cut", self.now, out)
        self.do(out)

    def move(self, world: HelenWorld) -> None:
        """Helen was killed, and is up again."""
        self.connection = None
        self.world = world
        self.cut()

    def connect(self) -> None:
        for _ in range(200):
            if self.session.state == ACCEPTED:
                return
            self.pass_time(1)
        raise AssertionError("it never came back")


def helen(before: HelenWorld | None = None) -> HelenWorld:
    agents, spools = ([], []) if before is None else (before.agent_rows(), before.spool_rows())
    world = HelenWorld(agents, spools, Evaluation(StoredChecks()))
    world.configure(PART)
    return world


def test_an_agent_of_ours_is_accepted_scheduled_and_asked():
    world = helen()
    machine = Machine(world, random.Random(1))
    machine.connect()
    schedules = [news for news in machine.updates if isinstance(news, TakeSchedule)]
    assert [check["name"] for check in msgspec.json.decode(schedules[0].body)["checks"]] == ["load"]
    world.request("helen.check", {"agent": "web-1", "check": "uptime"})
    machine.do(AgentEffects())
    run = machine.updates[-1]
    assert isinstance(run, RunCheck)
    out = AgentEffects()
    machine.session.finished(run.run_id, b'{"state":"ok","message":"up"}', machine.now, out)
    machine.do(out)
    assert msgspec.json.decode(world.answers()[0][1])["message"] == "up"


def test_an_idle_pair_stays_together():
    world = helen()
    machine = Machine(world, random.Random(2))
    machine.connect()
    for _ in range(1_000):
        machine.pass_time(1)
    assert machine.session.state == ACCEPTED
    assert world.kinds() == ["client.joined"]


# Promise: AGENT-6, AGENT-7
@pytest.mark.parametrize("seed", seeds(25))
def test_every_result_counts_once_whatever_is_cut_or_killed(seed: int):
    chance = random.Random(seed)
    world = helen()
    machine = Machine(world, chance)
    stored: list[Any] = []
    made = 0
    for _ in range(150):
        for _ in range(chance.randint(0, 4)):
            made += 1
            machine.spool[made] = None
        world.holds_commits = chance.random() < 0.5
        machine.send_some()
        match chance.randint(0, 9):
            case 0:
                machine.cut()
            case 1:
                stored += world.stored  # what was held is lost with her
                world = helen(world)
                machine.move(world)
            case 2 | 3 | 4:
                world.commit()
                machine.do(AgentEffects())
        machine.pass_time(chance.random() * 5)
    world.holds_commits = False
    world.commit()
    for _ in range(100):
        if not machine.spool:
            break
        machine.connect()
        machine.send_some()
        machine.pass_time(1)
    stored += world.stored
    refs = [event.ref for event in stored if event.kind == "check.answered"]
    assert sorted(refs) == sorted(f"s1:{n}" for n in range(1, made + 1))
    assert machine.delivered == set(range(1, made + 1))
