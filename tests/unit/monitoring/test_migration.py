"""Agents that move between Helens: a result counts once, an incident continues, and no notification is repeated."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from scale0.config import CheckDefinition, ClientConfig, Downtime, NotificationHandler
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.agent_bundles import AgentBundle, open_bundle
from scale0.monitoring.helen.core.migrated_agents import KEPT_SECONDS, RETURN_SECONDS
from scale0.monitoring.helen.core.migration import MIGRATION_SECONDS
from scale0.monitoring.helen.core.replicas import SILENT_AFTER
from scale0.monitoring.protocol.messages import Accepted, Hello, Redirect, Report, Schedule
from tests.fakes.examples import seeds
from tests.fakes.simulated_helen import SimulatedHelen
from tests.fakes.simulated_network import NetworkAgent, SimulatedNetwork

PAGER = NotificationHandler(name="pager", type="webhook", url="http://127.0.0.1:1/x", limit=10_000)
DISK = CheckDefinition(name="disk", interval=60.0, max_attempts=1, handlers=("pager",))
PART = ClientConfig(checks=(DISK,), handlers=(PAGER,))


@pytest.fixture
def network() -> SimulatedNetwork:
    network = SimulatedNetwork("h1", "h2", part=PART)
    network.run(1.0)
    return network


@pytest.fixture
def agent(network: SimulatedNetwork) -> NetworkAgent:
    return connected_to_h1(network, "web-1")


def connected_to_h1(network: SimulatedNetwork, name: str) -> NetworkAgent:
    """An agent with a critical check, of which a notification was sent."""
    agent = network.agent(name, "h1", "h2")
    network.until(lambda: agent.at == "h1")
    agent.report("critical")
    network.until(lambda: not agent.spool)
    return agent


def move(network: SimulatedNetwork, agent: Any, **how: Any) -> None:
    """Its connection breaks, and it comes to the other one."""
    before = agent.at
    while agent.at in ("", before):
        agent.break_off(**how)
        network.run(0.2)
        network.until(lambda: agent.at)
        if agent.at == before:
            network.run(40.0)
    network.run(0.2)


# Promise: AGENT-23
def test_a_check_goes_on_with_its_state_its_incident_and_its_notifications(network, agent):
    (incident,) = network.helens["h1"].incidents(open=True)
    move(network, agent)
    assert agent.at == "h2"
    assert [one["id"] for one in network.helens["h2"].incidents()] == [incident["id"]]
    assert network.helens["h1"].incidents() == []
    assert (network.helens["h1"].knows("web-1"), network.helens["h2"].holds("web-1")) == (False, True)
    agent.report("critical")
    network.run(5.0)
    assert network.notices() == [("web-1", "disk", "critical")]
    agent.report("ok")
    network.run(5.0)
    assert network.notices() == [("web-1", "disk", "critical"), ("web-1", "disk", "ok")]
    opened, closed = network.events("incident.opened"), network.events("incident.closed")
    assert ([one["source"] for one in opened], [one["source"] for one in closed]) == (["h1"], ["h2"])
    assert opened[0]["ref"] == closed[0]["ref"]
    (moved,) = network.events("agent.moved")
    assert (moved["source"], moved["data"]) == ("h2", '{"checks":1,"from":"h1","incidents":1}')


# Promise: AGENT-23
def test_a_report_whose_ack_was_lost_is_not_counted_again_elsewhere(network: SimulatedNetwork, agent: NetworkAgent):
    network.delay = 0.5
    number = agent.report("ok")
    network.run(0.6)  # stored, and the ack is on its way
    assert network.counted()["web-1", f"s-web-1:{number}"] == 1
    network.delay = 0.005
    move(network, agent)
    network.run(5.0)
    assert not agent.spool
    assert network.helens["h2"].machine.state.counts["reports_repeated"] > 0
    assert set(network.counted().values()) == {1}


def test_an_agent_is_not_accepted_before_the_others_have_answered_and_their_answers_are_stored(network, agent):
    network.helens["h1"].commit_seconds = network.helens["h2"].commit_seconds = 0.5
    agent.break_off()
    agent.session._turn = 1
    network.until(lambda: agent.helen is network.helens["h2"])
    network.run(0.8)
    assert agent.at == ""
    network.helens["h2"].crash()  # between the answer and the commit: nothing is lost with it
    network.helens["h2"].start()
    network.until(lambda: agent.at, 120.0)
    network.learn_now()
    network.run(30.0)
    owner = network.helens[agent.at]
    assert [one["agent"] for one in owner.incidents(open=True)] == ["web-1"]
    assert network.notices() == [("web-1", "disk", "critical")]
    assert len(network.events("incident.opened")) == 1


def test_a_connection_that_hangs_at_the_old_helen_is_ended_by_her(network: SimulatedNetwork, agent: NetworkAgent):
    move(network, agent, half_open=True)
    assert agent.at == "h2"
    assert not network.helens["h1"].holds("web-1")
    assert [one["source"] for one in network.events("client.left")] == ["h1"]


# Promise: AGENT-23
def test_a_helen_who_is_dead_holds_nobody_up_and_hands_over_when_she_comes_back(network, agent):
    network.helens["h1"].crash()
    network.until(lambda: agent.at == "h2")
    agent.report("critical")  # h2 knows nothing: for her it is a new problem
    network.until(lambda: not agent.spool)
    network.run(20.0)
    network.helens["h1"].start()
    network.run(3 * 10.0)
    assert not network.helens["h1"].knows("web-1")
    (incident,) = network.helens["h2"].incidents(open=True)
    first, second = network.events("incident.opened")
    assert incident["id"] == first["ref"]  # the one that was opened first goes on
    (closed,) = network.events("incident.closed")
    assert (closed["ref"], closed["seconds"], msgspec.json.decode(closed["data"])["reason"]) == (
        second["ref"],
        0.0,
        "merged",
    )
    expected = len(network.notices())
    agent.report("critical")
    network.run(20.0)
    assert len(network.notices()) == expected
    agent.report("ok")
    network.run(20.0)
    assert network.notices()[expected:] == [("web-1", "disk", "ok")]
    assert network.helens["h2"].incidents(open=True) == []


def test_a_problem_that_a_dead_helen_notified_ends_with_a_recovery_of_the_other(
    network: SimulatedNetwork, agent: NetworkAgent
):
    network.helens["h1"].crash()
    network.until(lambda: agent.at == "h2")
    agent.report("ok")  # h2 never heard of the problem
    network.run(5.0)
    assert network.notices() == [("web-1", "disk", "critical")]
    network.helens["h1"].start()
    network.run(30.0)
    assert network.notices() == [("web-1", "disk", "critical"), ("web-1", "disk", "ok")]
    (closed,) = network.events("incident.closed")
    assert (closed["source"], msgspec.json.decode(closed["data"])["reason"]) == ("h2", "up")
    assert network.helens["h1"].incidents(open=True) == network.helens["h2"].incidents(open=True) == []


def test_an_answer_that_is_lost_loses_nothing(network: SimulatedNetwork, agent: NetworkAgent):
    network.loss = 1.0
    move(network, agent)
    assert agent.at == "h2"
    assert network.helens["h2"].incidents() == []
    network.loss = 0.0
    network.run(40.0)
    assert [one["agent"] for one in network.helens["h2"].incidents(open=True)] == ["web-1"]
    assert not network.helens["h1"].knows("web-1")


def test_what_nobody_confirms_is_ours_again(network: SimulatedNetwork, agent: NetworkAgent):
    helen = network.helens["h1"]
    agent.break_off()
    agent.mute = True
    # h2 says that it is there, and then nothing more is heard of either.
    helen.do(lambda now, effects: helen.machine._migration._release_agent("web-1", "h2", now, effects))
    network.run(1.0)
    assert not helen.knows("web-1")
    helen.crash()
    helen.start()
    assert not helen.knows("web-1")
    network.run(2 * RETURN_SECONDS + 10.0)
    assert helen.knows("web-1")
    assert [one["agent"] for one in helen.incidents(open=True)] == ["web-1"]
    assert len(network.events("incident.opened")) == 1


def test_what_went_is_kept_for_an_hour_and_taken_back_if_the_other_helen_is_gone(network, agent):
    move(network, agent)
    network.run(30.0)
    kept = network.helens["h1"].machine._bundles.moved.get("web-1")
    assert kept is not None
    assert kept.confirmed
    network.helens["h2"].crash()
    network.until(lambda: agent.at == "h1")
    assert [one["agent"] for one in network.helens["h1"].incidents(open=True)] == ["web-1"]
    agent.report("critical")
    network.run(5.0)
    assert network.notices() == [("web-1", "disk", "critical")]


def test_what_was_confirmed_is_forgotten_after_an_hour(network: SimulatedNetwork, agent: NetworkAgent):
    move(network, agent)
    network.run(KEPT_SECONDS + 2 * RETURN_SECONDS)
    assert len(network.helens["h1"].machine._bundles.moved) == 0
    assert network.helens["h2"].holds("web-1")
    network.helens["h1"].crash()
    network.helens["h1"].start()
    assert not network.helens["h1"].knows("web-1")


# Promise: AGENT-23
def test_to_and_fro_repeats_no_event_and_no_notice(network: SimulatedNetwork, agent: NetworkAgent):
    for state in ("critical", "ok", "ok", "critical", "critical", "ok"):
        move(network, agent)
        agent.report(state)
        network.run(5.0)
    states = [state for _, _, state in network.notices()]
    assert states == ["critical", "ok", "critical", "ok"]
    assert len(network.events("incident.opened")) == len(network.events("incident.closed")) == 2
    assert len({one["ref"] for one in network.events("incident.closed")}) == 2
    assert set(network.counted().values()) == {1}


def test_labels_come_along_so_that_the_first_schedule_is_right():
    part = ClientConfig(checks=(CheckDefinition(name="db", labels={"role": "db"}),))
    network = SimulatedNetwork("h1", "h2", part=part)
    network.run(1.0)
    agent = network.agent("db-1", "h1", "h2")
    agent.labels = {"role": "db"}
    network.until(lambda: agent.at == "h1" and not agent.spool)
    agent.schedules.clear()
    move(network, agent)
    assert [[check["name"] for check in msgspec.json.decode(body)["checks"]] for body in agent.schedules] == [["db"]]


@pytest.mark.parametrize("wrong", ["h1", "h2"])
def test_the_labels_that_an_agent_reports_are_kept_when_the_former_helen_answers_late(wrong: str):
    # By the clock of h1, or because that of h2 was set back, the older labels are the newer ones. Seed 7500182.
    part = ClientConfig(checks=(CheckDefinition(name="db", labels={"role": "db"}),))
    network = SimulatedNetwork("h1", "h2", part=part)
    network.run(1.0)
    network.helens["h1"].wall_offset = 60.0 if wrong == "h1" else 0.0
    agent = network.agent("web-1", "h1", "h2")
    agent.labels = {"role": "web"}
    network.until(lambda: agent.at == "h1")
    network.run(1.0)
    network.partitions.add(("h1", "h2"))
    agent.labels = {"role": "db"}
    move(network, agent)
    network.run(5.0)
    network.helens["h2"].wall_offset = -60.0 if wrong == "h2" else 0.0
    network.partitions.clear()
    network.run(30.0)
    assert not network.helens["h1"].knows("web-1")
    assert network.helens["h2"].machine.state.agents.by_identity["web-1"].labels == {"role": "db"}
    assert [one["name"] for one in msgspec.json.decode(agent.schedules[-1])["checks"]] == ["db"]


def test_a_downtime_that_began_at_one_helen_ends_at_the_other_once():
    wall = SimulatedNetwork().now.wall
    part = ClientConfig(checks=(DISK,), downtimes=(Downtime(name="d", starts=wall, ends=wall + 300.0),))
    network = SimulatedNetwork("h1", "h2", part=part)
    agent = network.agent("web-1", "h1", "h2")
    network.until(lambda: agent.at == "h1" and not agent.spool)
    move(network, agent)
    network.run(400.0)
    assert [one["source"] for one in network.events("downtime.started")] == ["h1"]
    assert [one["source"] for one in network.events("downtime.ended")] == ["h2"]


# Anybody on the network can call a service.


# Promise: AGENT-23
def test_only_a_helen_who_has_the_agent_gets_what_is_known_of_it(network: SimulatedNetwork, agent: NetworkAgent):
    for body in ({"agent": "web-1", "to": "h2"}, {"agent": "web-1", "to": "nobody"}):
        answer = network.call("h1", "helen.h1.release", body)
        assert isinstance(answer, Refusal)
        assert answer.code == 403
    answer = network.call("h1", "helen.h1.release", {"agent": "web-1", "to": "h1"})
    assert isinstance(answer, Refusal)
    assert answer.code == 400
    assert agent.at == "h1"
    assert network.helens["h1"].check("web-1", "disk") is not None
    assert network.call("h1", "helen.h1.release", {"agent": "unknown", "to": "h2"}) == {"rows": None}


def test_services_between_helens_have_no_common_name(network: SimulatedNetwork):
    for service in ("release", "has"):
        answer = network.call("h1", f"helen.{service}", {"agent": "web-1", "agents": [], "to": "h2"})
        assert isinstance(answer, Refusal)
        assert answer.code == 404


def test_a_stranger_who_takes_the_answer_takes_nothing_away(network: SimulatedNetwork, agent: NetworkAgent):
    network.partitions = {("h1", "h2")}
    move(network, agent)
    network.partitions = set()
    # The agent is at h2, and h1 still has its states. A stranger asks for them before h2 does.
    stolen = network.call("h1", "helen.h1.release", {"agent": "web-1", "to": "h2"})
    assert stolen["rows"]["watch"]["states"]
    network.run(40.0)
    assert [one["agent"] for one in network.helens["h2"].incidents(open=True)] == ["web-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": "x" * 300},
        {"agent": b"[]"},
        {"agent": b'{"merged":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}'},
        {"spools": [("a b", b"\x90", 1)]},
        {"spools": [("s", b"\x92\x05\x01", 1)]},
        {"spools": [("s", b"x", 1)]},
        {"spools": [("s", msgspec.msgpack.encode(list(range(1, 2_000, 1))), 1)]},
        {"watch": {"states": {"a b": "kA=="}}},
        {"watch": {"states": {"disk": msgspec.msgpack.encode(["nonsense"])}}},
        {"watch": {"states": {"disk": msgspec.msgpack.encode(["ok", True, 0, False, 0, 0, "", float("nan")])}}},
        {"watch": {"states": {"disk": msgspec.msgpack.encode(["ok", True, -1])}}},
        {"watch": {"states": {}, "incidents": [b"\xc0"]}},
        {"watch": {"own": msgspec.msgpack.encode([{}, [["d", "", float("inf")]]])}},
    ],
)
def test_a_bundle_that_makes_no_sense_counts_for_nothing(change: dict[str, Any]):
    plain = {
        "id": "h2@1.0",
        "agent": b"{}",
        "spools": [],
        "watch": {"own": b"", "states": {}, "incidents": []},
        **change,
    }
    bundle = msgspec.json.decode(msgspec.json.encode(plain), type=AgentBundle)
    with pytest.raises(ValueError):
        open_bundle(bundle, "web-1")


# Who waits, and for how long.


@pytest.fixture
def helen() -> SimulatedHelen:
    """She knows another."""
    helen = SimulatedHelen()
    helen.learn_replicas("helen-2")
    helen.asks.clear()
    return helen


def test_silence_of_the_others_costs_two_seconds_and_then_nothing(helen: SimulatedHelen):
    for number in range(SILENT_AFTER):
        connection = helen.connect(f"web-{number}")
        assert helen.receive(connection, Hello(2, "0.1.0")) == []
        helen.pass_time(MIGRATION_SECONDS - 0.1)
        assert helen.sent(connection) == []
        helen.pass_time(0.2)
        assert [type(message) for message in helen.sent(connection)] == [Accepted, Schedule]
        helen.answer(helen.asks.pop(), Refusal(504, "no answer"))
    assert [type(message) for message in helen.receive(helen.connect("web-9"), Hello(2, "0.1.0"))] == [
        Accepted,
        Schedule,
    ]


def test_version_1_waits_for_nobody(helen: SimulatedHelen):
    connection = helen.connect("old-1")
    assert helen.receive(connection, Hello(1, "0.1.0")) == []
    assert helen.machine.state.agents.connected == 1
    assert [ask.service for ask in helen.asks] == ["helen.helen-2.release"]


def test_an_agent_that_reports_before_it_is_accepted_is_refused(helen: SimulatedHelen):
    connection = helen.connect()
    helen.receive(connection, Hello(2, "0.1.0"), Report(1, "disk", b"{}"))
    assert connection in helen.closed


def test_an_agent_that_goes_while_it_waits_is_nobody(helen: SimulatedHelen):
    connection = helen.connect()
    helen.receive(connection, Hello(2, "0.1.0"))
    helen.disconnect_agent(connection)
    helen.pass_time(MIGRATION_SECONDS + 1.0)
    assert helen.machine.state.agents.connected == 0
    assert helen.kinds() == []


def test_no_more_wait_than_there_is_room_for():
    helen = SimulatedHelen(max_agents=1)
    helen.learn_replicas("helen-2")
    helen.receive(helen.connect("a"), Hello(2, "0.1.0"))
    (refused,) = helen.receive(other := helen.connect("b"), Hello(2, "0.1.0"))
    assert type(refused).__name__ == "Error"
    assert other in helen.closed


# Promise: AGENT-16
def test_one_certificate_at_two_helens_is_noticed(network: SimulatedNetwork):
    agents = [network.agent("web-1", name) for name in ("h1", "h2")]
    network.run(600.0)
    assert network.events("agent.doubled")
    assert all(agent.connections > 3 for agent in agents)


# The end.


def learn_room(helen: SimulatedHelen, **room: int) -> None:
    helen.learn_replicas(*room)
    for ask in [ask for ask in helen.asks if ask.service.endswith(".status")]:
        name = ask.service.split(".")[1]
        status = {"advertise": f"{name}:1", "agents": 0, "max_agents": room[name]}
        helen.answer(ask, msgspec.json.encode(status))


# Promise: AGENT-23
def test_a_helen_who_stops_sends_her_agents_to_those_who_have_room():
    helen = SimulatedHelen()
    connections = [helen.agent(f"web-{number}") for number in range(5)]
    old = helen.agent("old", version=1)
    learn_room(helen, h2=1, h3=3)
    helen.do(helen.machine.stop)
    sent = [helen.sent(connection) for connection in connections]
    assert sorted(str(messages[0].endpoint) for messages in sent if messages) == ["h2:1", "h3:1", "h3:1", "h3:1"]
    assert helen.sent(old) == []
    assert {*connections, old} <= helen.closed


def test_a_drained_helen_hands_over_everything_before_she_stops(network: SimulatedNetwork):
    agents = [connected_to_h1(network, f"web-{number}") for number in range(20)]
    helen = network.helens["h1"]
    network.learn_now()
    helen.do(helen.machine.drain)
    network.until(lambda: helen.machine.undrained == 0, 5.0)
    helen.stop()
    network.run(10.0)
    assert {agent.at for agent in agents} == {"h2"}
    assert len(network.helens["h2"].incidents(open=True)) == 20
    assert len(network.notices()) == len(network.events("incident.opened")) == 20


def test_who_comes_to_a_helen_that_drains_is_sent_on(helen: SimulatedHelen):
    learn_room(helen, h2=5)
    helen.do(helen.machine.drain)
    assert helen.receive(helen.connect("late"), Hello(2, "0.1.0")) == [Redirect("h2:1")]


# All of it at once.


def check_everything(network: SimulatedNetwork, once: bool) -> None:
    """What is promised, whatever happened; `once`: no Helen died, and none was out of reach."""
    for helen in network.helens.values():
        if not helen.up:
            helen.start()
    network.loss, network.partitions = 0.0, set()
    for agent in network.agents.values():
        agent.mute = False
    network.run(300.0)
    counted = network.counted()
    for agent in network.agents.values():
        assert not agent.spool, agent.name
        holders = [name for name, helen in network.helens.items() if helen.knows(agent.name)]
        assert holders == [agent.at], (agent.name, holders, agent.at)
        assert {ref for name, ref in counted if name == agent.name} == agent.reported
    opened = [one["ref"] for one in network.events("incident.opened")]
    closed = [one["ref"] for one in network.events("incident.closed")]
    open_now = [one["id"] for helen in network.helens.values() for one in helen.incidents(open=True)]
    assert sorted(open_now) == sorted(set(opened) - set(closed))
    if once:
        assert set(counted.values()) <= {1}
        assert len(opened) == len(set(opened))
        assert len(closed) == len(set(closed))
        for agent in network.agents.values():
            expected = ["ok"]
            for state in agent.states:
                if state != expected[-1]:
                    expected.append(state)
            notified = [state for name, _, state in network.notices() if name == agent.name]
            assert sorted(notified) == sorted(expected[1:])
            down = sum(
                now == "critical" != before for before, now in zip(["ok", *agent.states], agent.states, strict=False)
            )
            assert sum(ref.startswith(f"{agent.name}/") for ref in opened) == down


def disturb(network: SimulatedNetwork, dice: random.Random, crashes: bool) -> None:
    agent = dice.choice(list(network.agents.values()))
    match dice.randrange(10):
        case 0 | 1:
            agent.break_off()
        case 2:
            agent.break_off(half_open=True)
        case 3:
            network.delay = dice.choice((0.002, 0.02, 0.1))
        case 4 if crashes:
            network.loss = dice.choice((0.0, 0.3))
        case 5 if crashes:
            helen = dice.choice(list(network.helens.values()))
            if helen.up:
                helen.crash()
            else:
                helen.start()
        case _:
            agent.report(dice.choice(("ok", "critical", "warning")))


# Promise: AGENT-23
@pytest.mark.parametrize("seed", seeds(30))
def test_whatever_agents_do_each_result_counts_once_over_all_journals(seed: int):
    """As long as the Helen who had an agent answers, which she does within 2 seconds here."""
    dice = random.Random(seed)
    network = SimulatedNetwork("h1", "h2", "h3", part=PART, seed=seed)
    network.run(1.0)
    for number in range(4):
        network.agent(f"a{number}", *dice.sample(["h1", "h2", "h3"], dice.choice((2, 3))))
    for _ in range(60):
        disturb(network, dice, crashes=False)
        network.run(dice.choice((0.01, 0.1, 1.0, 5.0)))
    check_everything(network, once=True)


# Promise: AGENT-23
@pytest.mark.parametrize("seed", seeds(30))
def test_whatever_helens_do_nothing_is_lost_and_one_of_them_has_each_agent_in_the_end(seed: int):
    dice = random.Random(seed)
    network = SimulatedNetwork("h1", "h2", "h3", part=PART, seed=seed)
    network.run(1.0)
    for number in range(4):
        network.agent(f"a{number}", "h1", "h2", "h3")
    for _ in range(60):
        disturb(network, dice, crashes=True)
        network.run(dice.choice((0.01, 0.1, 1.0, 5.0)))
    check_everything(network, once=False)
