"""Two Helens that cannot reach each other: an incident is closed once, and its recovery is notified once."""

from __future__ import annotations

from collections import Counter

import pytest

from scale0.config import CheckDefinition, ClientConfig, NotificationHandler, Silence
from scale0.monitoring.helen.core.check_state import CheckState, join_states
from scale0.monitoring.helen.core.migrated_agents import DOUBT_SECONDS
from scale0.monitoring.helen.core.replicas import SEPARATED_SECONDS
from tests.fakes.simulated_helen import configured_helen
from tests.fakes.simulated_network import NetworkAgent, SimulatedNetwork

PAGER = NotificationHandler(name="pager", type="webhook", url="http://127.0.0.1:1/x", limit=10_000)
DISK = CheckDefinition(name="disk", interval=60.0, max_attempts=1, handlers=("pager",))
ALIVE = CheckDefinition(name="alive", check="equus.alive", interval=10.0, max_attempts=1, handlers=("pager",))
PART = ClientConfig(checks=(DISK,), handlers=(PAGER,))

CRITICAL, OK = ("web-1", "disk", "critical"), ("web-1", "disk", "ok")


def start(part: ClientConfig = PART) -> tuple[SimulatedNetwork, NetworkAgent]:
    """An agent at h1 with a critical check, of which a notification was sent."""
    network = SimulatedNetwork("h1", "h2", part=part)
    network.run(130.0)
    agent = network.agent("web-1", "h1", "h2")
    network.until(lambda: agent.at == "h1")
    agent.report("critical")
    network.run(1.0)
    return network, agent


def move(network: SimulatedNetwork, agent: NetworkAgent, to: str) -> None:
    for _ in range(50):
        agent.break_off()
        network.until(lambda: agent.at)
        if agent.at == to:
            network.run(0.5)
            return
    raise AssertionError(f"it does not come to {to}")


def separate(network: SimulatedNetwork) -> None:
    network.partitions.add(("h1", "h2"))


def join(network: SimulatedNetwork) -> None:
    network.partitions.clear()
    network.run(30.0)


def report(network: SimulatedNetwork, agent: NetworkAgent, state: str) -> None:
    network.run(1.0)
    agent.report(state)
    network.run(1.0)


def closed(network: SimulatedNetwork) -> list[int]:
    """How often each incident was closed."""
    return sorted(Counter(event["ref"] for event in network.events("incident.closed")).values())


@pytest.fixture
def moved() -> tuple[SimulatedNetwork, NetworkAgent]:
    """The agent has moved to h2, and h1 has confirmed that and keeps a copy; now they are separated."""
    network, agent = start()
    move(network, agent, "h2")
    network.run(25.0)
    separate(network)
    return network, agent


# Promise: AGENT-24
def test_an_incident_that_the_other_helen_closed_is_not_closed_again(moved):
    network, agent = moved
    report(network, agent, "ok")
    assert network.notices() == [CRITICAL, OK]
    move(network, agent, "h1")
    report(network, agent, "ok")
    report(network, agent, "ok")
    assert (closed(network), network.notices()) == ([1], [CRITICAL, OK])
    assert network.helens["h1"].recorded("check.state_changed")[-1]["data"]["suppressed"] == ["helen h2"]
    join(network)
    report(network, agent, "ok")
    assert (closed(network), network.notices()) == ([1], [CRITICAL, OK])
    assert network.helens["h1"].incidents(open=True) == []


# Promise: AGENT-24
@pytest.mark.parametrize("restarted", [False, True])
def test_what_the_other_helen_did_not_close_is_closed_when_she_answers(moved, restarted: bool):
    network, agent = moved
    move(network, agent, "h1")
    report(network, agent, "ok")
    assert (closed(network), network.notices()) == ([], [CRITICAL])
    if restarted:
        network.helens["h1"].crash()
        network.helens["h1"].start()
        network.until(lambda: agent.at)
        if agent.at != "h1":
            move(network, agent, "h1")
    join(network)
    network.run(60.0)
    assert (closed(network), network.notices()) == ([1], [CRITICAL, OK])
    assert network.queue.notices()[-1]["incident"] == network.queue.notices()[0]["incident"]


# Promise: AGENT-24
def test_after_a_bound_the_only_helen_that_is_left_decides(moved):
    network, agent = moved
    network.helens["h2"].crash()
    network.until(lambda: agent.at == "h1")
    report(network, agent, "ok")
    network.run(DOUBT_SECONDS - 60.0)
    assert (closed(network), network.notices()) == ([], [CRITICAL])
    network.run(120.0)
    assert (closed(network), network.notices()) == ([1], [CRITICAL, OK])


# Promise: AGENT-24
def test_a_new_problem_is_notified_although_the_last_recovery_is_in_doubt(moved):
    network, agent = moved
    report(network, agent, "ok")
    move(network, agent, "h1")
    report(network, agent, "ok")
    report(network, agent, "critical")
    assert network.notices() == [CRITICAL, OK, CRITICAL]
    join(network)
    report(network, agent, "ok")
    assert network.notices() == [CRITICAL, OK, CRITICAL, OK]
    assert set(closed(network)) == {1}


# Promise: AGENT-24
def test_a_helen_that_lost_sight_of_the_other_reports_no_agent_as_missing_for_a_while():
    network, agent = start(ClientConfig(checks=(DISK, ALIVE), handlers=(PAGER,)))
    separate(network)
    move(network, agent, "h2")
    network.run(SEPARATED_SECONDS - 20.0)
    assert ("web-1", "alive", "critical") not in network.notices()
    join(network)
    network.run(300.0)
    assert ("web-1", "alive", "critical") not in network.notices()


# Promise: AGENT-24
def test_an_agent_that_no_helen_has_is_reported_as_missing_when_the_other_one_is_lost():
    network, agent = start(ClientConfig(checks=(DISK, ALIVE), handlers=(PAGER,)))
    separate(network)
    agent.switch_off()
    network.run(SEPARATED_SECONDS + 150.0)
    assert network.notices().count(("web-1", "alive", "critical")) == 1


# Promise: AGENT-24
def test_a_helen_without_the_agent_closes_no_incident_of_a_removed_check_and_ends_no_silence():
    silenced = ClientConfig(checks=(DISK,), handlers=(PAGER,), silences=(Silence(name="s"),))
    network, agent = start(silenced)
    assert network.notices() == []
    separate(network)
    move(network, agent, "h2")
    h1 = network.helens["h1"]
    h1.define(checks=(DISK,), handlers=(PAGER,))
    network.run(30.0)
    assert network.notices() == []
    h1.define(handlers=(PAGER,))
    network.run(30.0)
    assert (closed(network), len(h1.incidents(open=True))) == ([], 1)


# Promise: AGENT-24
def test_a_clock_that_was_set_back_does_not_make_an_old_notification_the_newest():
    helen = configured_helen(checks=(DISK,), handlers=(PAGER,))
    helen.result("critical")
    before = CheckState(state="critical", hard=True, notified="critical", notified_at=helen.wall, at=helen.wall)
    helen.pass_time(10.0, wall=-60.0)
    helen.result("ok")
    state = helen.evaluation._agents["web-1"].states["disk"]
    assert join_states(before, state).notified == "ok"


# Promise: AGENT-24
def test_a_check_that_is_down_has_an_incident_although_the_other_helen_closed_it_when_she_removed_the_check(moved):
    network, agent = moved
    h1, h2 = network.helens["h1"], network.helens["h2"]
    move(network, agent, "h1")
    report(network, agent, "critical")
    h2.define(handlers=(PAGER,))
    network.run(SEPARATED_SECONDS + 30.0)
    assert (closed(network), h2.incidents(open=True)) == ([1], [])
    join(network)
    (incident,) = h1.incidents(open=True)
    assert (incident["check"], incident["state"]) == ("disk", "critical")
    report(network, agent, "ok")
    assert (closed(network), h1.incidents(open=True)) == ([1, 1], [])
    assert network.notices() == [CRITICAL, OK]
    assert network.queue.notices()[-1]["incident"] == incident["id"]


@pytest.fixture
def left() -> tuple[SimulatedNetwork, NetworkAgent]:
    """The agent is at h2, and h1 does not know that: they are separated, and h1 has its state and an open incident."""
    network, agent = start()
    separate(network)
    move(network, agent, "h2")
    return network, agent


# Promise: AGENT-24
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
def test_a_helen_that_starts_decides_about_the_agents_of_others_only_after_these_had_time_to_answer(left, listed: bool):
    network, _ = left
    h1 = network.helens["h1"]
    h1.crash()
    network.run(1.0)
    h1.start()
    h1.learn_replicas(*(("h1", "h2") if listed else ("h1",)))
    h1.define(handlers=(PAGER,))
    network.run(SEPARATED_SECONDS - 20.0)
    assert (closed(network), len(h1.incidents(open=True))) == ([], 1)
    network.run(60.0)
    assert (closed(network), h1.incidents(open=True)) == ([1], [])


# Promise: AGENT-24
def test_a_helen_that_is_new_in_the_list_may_have_an_agent_until_she_answers(left):
    network, _ = left
    h1 = network.helens["h1"]
    network.run(SEPARATED_SECONDS - 20.0)
    h1.learn_replicas("h1", "h3")
    network.run(40.0)  # h2 counts as dead
    h1.define(handlers=(PAGER,))
    network.run(SEPARATED_SECONDS - 60.0)
    assert (closed(network), len(h1.incidents(open=True))) == ([], 1)
    network.run(60.0)
    assert (closed(network), h1.incidents(open=True)) == ([1], [])
