"""Helen with the real evaluation and with sessions of agents: schedules, states, rechecks, and each result once."""

from __future__ import annotations

import random

import msgspec
import pytest

from scale0.config import CheckDefinition, ClientConfig
from scale0.monitoring.agent.core.effects import RunCheck
from scale0.monitoring.protocol.messages import Ack, Hello, Result
from scale0.storage.check_rows import PutCheckState, PutIncident, PutSpool
from tests.fakes.examples import seeds
from tests.fakes.simulated_helen import SimulatedHelen, report
from tests.fakes.simulated_network import SimulatedNetwork

PART = {
    "checks": [
        {"name": "root-disk", "check": "disk", "args": {"path": "/"}, "labels": {"role": "db"}, "max_attempts": 1},
        {"name": "load", "interval": 30},
    ]
}


@pytest.fixture
def helen() -> SimulatedHelen:
    helen = SimulatedHelen(evaluates=True, token="secret")
    helen.configure(msgspec.json.encode(PART))
    assert helen.machine.config_error == ""
    return helen


def names(body: bytes) -> list[str]:
    return sorted(check["name"] for check in msgspec.json.decode(body)["checks"])


# Promise: AGENT-11
def test_labels_choose_what_an_agent_runs(helen: SimulatedHelen):
    connection = helen.connect()
    _, schedule = helen.receive(connection, Hello(2, "0.1.0"))
    assert names(schedule.body) == ["load"]
    schedule, ack = helen.receive(connection, report(1, "equus.agent", labels={"role": "db"}, checks=["disk", "load"]))
    assert names(schedule.body) == ["load", "root-disk"]
    assert ack == Ack(1)


# Promise: CHECK-10
def test_a_report_becomes_a_state_and_an_incident_in_one_commit(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(1, "equus.agent", labels={"role": "db"}, checks=["disk"]))
    helen.holds_commits = True
    helen.receive(connection, report(2, "root-disk", state="critical", seconds=0.1, age=2))
    kinds = helen.kinds()
    assert kinds[-3:] == ["check.answered", "check.state_changed", "incident.opened"]
    answered = next(event for event in helen.events if event.kind == "check.answered")
    assert (answered.ref, answered.at, answered.scheduled) == ("s1:2", helen.wall - 2, True)
    assert {PutCheckState, PutIncident, PutSpool} <= {type(write) for write in helen.writes}
    assert helen.sent(connection) == []
    helen.commit_all()
    assert helen.sent(connection)[-1] == Ack(2)
    helen.holds_commits = False
    page = helen.call("helen.checks", {"agent": "web-*"})
    assert [(item["check"], item["state"], item["hard"]) for item in page["items"]] == [("root-disk", "critical", True)]
    page = helen.call("helen.incidents", {"open": True})
    assert len(page["items"]) == 1
    assert helen.refuses("helen.checks", {"limit": 0}) == 400


# Promise: CHECK-9
def test_a_recheck_ends_an_incident_and_a_check_by_hand_does_not(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(1, "equus.agent", labels={"role": "db"}, checks=["disk"]))
    helen.receive(connection, report(2, "root-disk", state="critical"))
    helen.pass_time(1)
    helen.sent(connection)
    helen.request("helen.check", {"agent": "web-1", "check": "root-disk"})
    (check,) = helen.sent(connection)
    helen.receive(connection, Result(check.message_id, check.name, b'{"state":"ok"}'))
    assert helen.kinds()[-1] == "check.answered"
    params = b'{"agent":"web-1","check":"root-disk"}'
    helen.task(b"t", "helen.recheck", params)
    (check,) = helen.sent(connection)
    assert (check.name, check.args) == ("disk", b'{"path":"/"}')
    helen.receive(connection, Result(check.message_id, check.name, b'{"state":"ok"}'))
    assert "incident.closed" in helen.kinds()[-3:]


def test_an_agent_that_is_forgotten_leaves_no_state_behind(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(1, "load", state="warning"))
    helen.disconnect_agent(connection)
    helen.request("helen.forget", {"agent": "web-1", "token": "secret"})
    page = helen.call("helen.checks")
    assert page["items"] == []


# With the session of an agent.


@pytest.fixture
def network() -> SimulatedNetwork:
    return SimulatedNetwork("h1", part=ClientConfig(checks=(CheckDefinition(name="load", interval=60.0),)))


def test_an_agent_of_ours_is_accepted_scheduled_and_asked(network: SimulatedNetwork):
    agent = network.agent("web-1")
    network.until(lambda: agent.schedules)
    assert names(agent.schedules[0]) == ["load"]
    replies: list[bytes] = []
    body = b'{"agent": "web-1", "check": "uptime"}'
    network.helens["h1"].request_later("helen.check", body, replies.append)
    network.until(lambda: isinstance(agent.updates[-1], RunCheck))
    agent.step("finished", agent.updates[-1].run_id, b'{"state":"ok","message":"up"}')
    network.until(lambda: replies)
    assert msgspec.json.decode(replies[0])["message"] == "up"


def test_an_idle_pair_stays_connected(network: SimulatedNetwork):
    agent = network.agent("web-1")
    network.run(1_000.0)
    assert agent.at == "h1"
    assert [event["kind"] for event in network.helens["h1"].recorded()] == ["client.joined"]


# Promise: AGENT-6, AGENT-7
@pytest.mark.parametrize("seed", seeds(25))
def test_every_result_counts_once_whatever_is_cut_or_killed(seed: int, network: SimulatedNetwork):
    """Bytes arrive in pieces, commits take long, the connection breaks, and Helen is killed."""
    chance = random.Random(seed)
    network.splits_bytes = True
    network.random.seed(seed)
    helen, agent = network.helens["h1"], network.agent("web-1")
    for _ in range(150):
        helen.commit_seconds = chance.choice((0.0, 3.0))
        for _ in range(chance.randint(0, 4)):
            agent.report()
        match chance.randint(0, 9):
            case 0:
                agent.break_off()
            case 1:
                helen.crash()  # what was not committed is lost with her
                helen.start()
        network.run(chance.random() * 5)
    helen.commit_seconds = 0.0
    network.until(lambda: not agent.spool, 300.0)
    assert network.counted() == {("web-1", ref): 1 for ref in agent.reported}
