"""`equus.alive`: an agent that goes silent is a problem; Helen's own absence is not."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from scale0.config import CheckDefinition, ClientConfig, NotificationHandler, Silence
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agent_connection import AgentConnection
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.evaluation import Evaluation, StoredChecks
from scale0.monitoring.helen.core.keepalive import GRACE_SECONDS, SETTLE_SECONDS, Keepalive
from scale0.monitoring.helen.core.socket_events import ConnectionOpened, NetworkTask
from scale0.monitoring.helen.core.state import HelenSettings, HelenState
from tests.fakes.simulated_helen import SimulatedHelen
from tests.fakes.simulated_network import TOKEN, NetworkAgent, NetworkHelen, SimulatedNetwork

PAGER = NotificationHandler(name="pager", type="webhook", url="http://127.0.0.1:1/x")
ALIVE = CheckDefinition(name="alive", check="equus.alive", interval=60.0, max_attempts=2, handlers=("pager",))
DISK = CheckDefinition(name="disk", interval=60.0, max_attempts=1, handlers=("pager",), depends_on=("alive",))
PART = ClientConfig(checks=(ALIVE, DISK), handlers=(PAGER,))


def network_of(*names: str, part: ClientConfig = PART) -> SimulatedNetwork:
    network = SimulatedNetwork(*names, part=part)
    network.run(1.0)
    return network


def connected(network: SimulatedNetwork, name: str = "web-1", *addresses: str) -> NetworkAgent:
    agent = network.agent(name, *addresses)
    network.until(lambda: agent.at and not agent.spool)
    return agent


@pytest.fixture
def network() -> SimulatedNetwork:
    return network_of("h1")


@pytest.fixture
def helen(network: SimulatedNetwork) -> NetworkHelen:
    return network.helens["h1"]


@pytest.fixture
def agent(network: SimulatedNetwork) -> NetworkAgent:
    return connected(network)


def test_an_agent_that_is_there_is_ok_once_in_an_interval_and_its_schedule_knows_nothing_of_it(network, agent):
    network.run(600.0)
    answered = [event for event in network.events("check.answered") if event["service"] == "alive"]
    assert 9 <= len(answered) <= 11
    assert {event["state"] for event in answered} == {"ok"}
    assert len({event["ref"] for event in answered}) == len(answered)
    assert all(event["ref"].startswith("alive:web-1:") for event in answered)
    assert [check["name"] for check in msgspec.json.decode(agent.schedules[-1])["checks"]] == ["disk"]
    found = network.helens["h1"].check("web-1", "alive")
    assert found is not None
    assert found["message"].startswith("connected since 20")


# Promise: CHECK-17
def test_an_agent_that_is_silent_is_a_problem_after_its_attempts_and_well_when_it_comes_back(network, agent):
    network.run(GRACE_SECONDS)
    agent.switch_off()
    network.run(91.0)  # Helen notices
    assert network.notices() == []
    network.run(121.0)
    assert network.notices() == [("web-1", "alive", "critical")]
    (incident,) = network.helens["h1"].incidents(open=True)
    assert incident["message"].startswith("not connected since 20")
    agent.switch_on()
    network.run(150.0)
    assert network.notices() == [("web-1", "alive", "critical"), ("web-1", "alive", "ok")]
    assert network.helens["h1"].incidents(open=True) == []


def test_it_obeys_silences_and_other_checks_can_depend_on_it():
    silenced = msgspec.structs.replace(PART, silences=(Silence(name="s", agents=("web-*",)),))
    network = network_of("h1", part=silenced)
    agent = connected(network)
    network.run(GRACE_SECONDS)
    agent.switch_off()
    network.run(300.0)
    assert network.notices() == []
    found = network.helens["h1"].check("web-1", "alive")
    assert found is not None
    assert (found["state"], found["hard"], found["suppressed"]) == ("critical", True, ["silence s"])
    helen = network.helens["h1"]
    evaluation = helen.machine.state.evaluation
    assert evaluation.selects("web-1", {}, "disk") is not None
    agent.switch_on()
    agent.report("critical")
    network.until(lambda: not agent.spool, 100.0)
    disk = helen.check("web-1", "disk")
    assert disk is not None
    assert "depends_on alive" in disk["suppressed"]


# Promise: CHECK-17
def test_after_a_start_agents_get_the_time_that_they_need_to_come_back(network: SimulatedNetwork, agent: NetworkAgent):
    network.run(GRACE_SECONDS)
    network.helens["h1"].crash()
    agent.switch_off()
    network.run(30.0)
    network.helens["h1"].start()
    network.run(GRACE_SECONDS - 5.0)
    found = network.helens["h1"].check("web-1", "alive")
    assert found is not None
    assert found["state"] == "ok"
    network.run(130.0)
    assert network.notices() == [("web-1", "alive", "critical")]
    (incident,) = network.helens["h1"].incidents(open=True)
    assert "not connected since" in incident["message"]


# Promise: CHECK-17
def test_a_helen_who_slept_judges_nobody_by_it(network: SimulatedNetwork):
    agents = [connected(network, f"web-{number}") for number in range(5)]
    network.run(GRACE_SECONDS)
    helen = network.helens["h1"]
    helen.asleep = True
    network.run(400.0)  # every agent has given her up
    assert all(agent.at == "" for agent in agents)
    helen.asleep = False
    network.run(300.0)
    assert all(agent.at == "h1" for agent in agents)
    answered = [event for event in network.events("check.answered") if event["service"] == "alive"]
    assert {event["state"] for event in answered} == {"ok"}
    assert helen.machine.state.counts["sleeps_noticed"] > 0


def test_a_jump_of_the_wall_clock_is_taken_for_sleep():
    helen = SimulatedHelen(evaluates=True)
    part = msgspec.json.encode(PART)
    helen.configure(part)
    connection = helen.agent(version=1)
    helen.pass_time(GRACE_SECONDS + 1.0)
    helen.wall += 3_600.0  # suspended, and the monotonic clock with it
    helen.disconnect_agent(connection, orderly=False)
    helen.pass_time(GRACE_SECONDS - 1.0)
    assert not [event for event in helen.events if event.kind == "check.answered" and event.state == "critical"]
    helen.pass_time(62.0)
    assert [event for event in helen.events if event.kind == "check.answered" and event.state == "critical"]


# Promise: CHECK-17
def test_an_agent_with_another_helen_is_not_missed():
    network = network_of("h1", "h2")
    agent = connected(network, "web-1", "h1", "h2")
    network.run(GRACE_SECONDS)
    network.partitions = {("h1", "h2")}
    first = agent.at
    while agent.at in ("", first):
        agent.break_off()
        network.until(lambda: agent.at)
    network.partitions = set()
    network.run(400.0)
    answered = [event for event in network.events("check.answered") if event["service"] == "alive"]
    assert {event["state"] for event in answered[-4:]} == {"ok"}
    assert network.notices() == []


# Promise: CHECK-17
def test_an_agent_that_dies_while_it_migrates_is_missed_by_one_helen():
    network = network_of("h1", "h2")
    agent = connected(network, "web-1", "h1", "h2")
    network.run(GRACE_SECONDS)
    first = agent.at
    while agent.at in ("", first) and agent.session.state != "greeted":
        agent.break_off()
        network.until(lambda: agent.session.state in ("greeted", "accepted"))
    agent.switch_off()
    network.run(600.0)
    assert network.notices() == [("web-1", "alive", "critical")]


# Promise: CHECK-17
def test_who_is_forgotten_or_revoked_is_not_judged(network: SimulatedNetwork):
    agents = [connected(network, name) for name in ("gone-1", "bad-1")]
    network.run(GRACE_SECONDS)
    for agent in agents:
        agent.switch_off()
    network.run(95.0)
    helen = network.helens["h1"]
    assert network.call("h1", "helen.forget", {"agent": "gone-1", "token": TOKEN}) == {"forgotten": "gone-1"}
    helen.do(lambda now, effects: helen.machine.revoke(lambda name, serial, issued: name == "bad-1", now, effects))
    before = len(network.events("check.answered"))
    network.run(600.0)
    assert len(network.events("check.answered")) == before
    assert network.notices() == []


def test_who_was_away_when_it_was_revoked_is_not_judged_after_a_restart_either(network, agent):
    agent.switch_off()
    network.run(95.0)
    helen = network.helens["h1"]
    helen.crash()
    helen.start()
    helen.do(lambda now, effects: helen.machine.revoke(lambda name, serial, issued: serial == "a1", now, effects))
    network.run(2 * GRACE_SECONDS)
    assert network.notices() == []


def test_a_recheck_is_answered_at_once(network: SimulatedNetwork, agent: NetworkAgent):
    network.run(GRACE_SECONDS)
    helen = network.helens["h1"]

    def recheck() -> Any:
        found: list[Any] = []
        helen.callers[b"t1"] = found.append
        helen.turn(b"t1", NetworkTask("t-1", "helen.recheck", b'{"agent":"web-1","check":"alive"}'), "network")
        network.until(lambda: found)
        return msgspec.json.decode(found[0])

    assert recheck()["state"] == "ok"
    agent.break_off()
    agent.mute = True
    network.run(SETTLE_SECONDS)
    assert recheck()["state"] == "critical"


def test_a_result_that_is_late_is_stale_and_not_notified(network: SimulatedNetwork, agent: NetworkAgent):
    agent.report("ok")
    network.run(60.0 + 10.0 + 59.0)
    found = network.helens["h1"].check("web-1", "disk")
    assert found is not None
    assert not found["stale"]
    network.run(2.0)
    (item,) = network.call("h1", "helen.checks", {"check": "disk"})["items"]
    assert item["stale"]
    assert item["fresh_until"] < network.now.wall
    (item,) = network.call("h1", "helen.checks", {"check": "alive"})["items"]
    assert not item["stale"]
    assert network.notices() == []


# What it costs.


class Fleet:
    """So many agents, and no connections behind them."""

    def __init__(self, count: int, interval: float = 60.0) -> None:
        self.state = HelenState(HelenSettings(identity="h1"), Evaluation(StoredChecks()))
        self.now = Now(1_000.0, 1_900_000_000.0)
        self.agents = []
        for number in range(count):
            agent = self.state.agents.enter(f"agent-{number:05}")
            assert agent is not None
            self.agents.append(agent)
            line = AgentConnection(b"%d" % number, ConnectionOpened(agent.identity, "a1", 0, "10.0.0.1:1"), self.now)
            self.state.agents.connect(agent, line, 2, "0.1.0", self.now)
        alive = msgspec.structs.replace(ALIVE, interval=interval)
        self.state.evaluation.configure(ClientConfig(checks=(alive,)), self.now, Effects())
        self.alive = Keepalive(self.state)
        self.alive.start(self.now)
        self.turns: list[int] = []

    def run(self, seconds: float) -> dict[str, int]:
        """How often each agent was looked at."""
        looked: dict[str, int] = {}
        end = self.now.mono + seconds
        while True:
            due = self.alive.deadline()
            assert due is not None
            if due > end:
                return looked
            mono = max(due, self.now.mono)
            self.now = Now(mono, self.now.wall + mono - self.now.mono)
            effects = Effects()
            self.alive.tick(self.now, effects)
            found = [event.agent for event in effects.events if event.kind == "check.answered"]
            for name in found:
                looked[name] = looked.get(name, 0) + 1
            self.turns.append(len(found))


@pytest.mark.parametrize("count", [1, 7, 599, 5_000])
def test_every_agent_is_looked_at_once_in_each_interval(count: int):
    fleet = Fleet(count)
    looked = fleet.run(10 * 60.0 - 1.0)
    assert len(looked) == count
    assert set(looked.values()) <= {9, 10}
    assert max(fleet.turns) <= count / 60.0 * 0.1 + 2  # a tenth of a second's worth at a time


def test_more_than_can_be_looked_at_are_done_in_slices():
    fleet = Fleet(3_000, interval=0.1)
    looked = fleet.run(2.0)
    assert max(fleet.turns) <= 500
    assert len(looked) == 3_000


def test_an_agent_costs_a_place_in_a_list():
    fleet = Fleet(10_000)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    fleet.alive.tick(fleet.now, Effects())
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    grown = sum(
        stat.size_diff
        for stat in after.compare_to(before, "filename")
        if stat.traceback[0].filename.endswith("alive.py")
    )
    assert grown < 10_000 * 20


def test_agents_that_come_and_go_during_a_round_do_no_harm():
    fleet = Fleet(100)
    fleet.run(20.0)
    for agent in fleet.agents[::2]:
        agent.connection = None
        fleet.state.agents.forget(agent, Effects())
    fleet.state.agents.enter("new-1")
    looked = fleet.run(120.0)
    assert set(looked) <= {agent.identity for agent in fleet.agents[1::2]} | {
        agent.identity for agent in fleet.agents[:34:2]
    }
    assert isinstance(fleet.state.agents.get("new-1"), Agent)  # it never was connected: nobody misses it
