"""Agents that move between Helens: a result counts once, an incident continues, and no notification is repeated."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from scale0.config import CheckDefinition, ClientConfig, Downtime, Reaction
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.agent_bundles import AgentBundle, open_bundle
from scale0.monitoring.helen.core.migrated_agents import KEPT_SECONDS, RETURN_SECONDS
from scale0.monitoring.helen.core.migration import MIGRATION_SECONDS
from scale0.monitoring.helen.core.replicas import SILENT_AFTER
from scale0.monitoring.protocol.messages import Accepted, Hello, Redirect, Report, Schedule
from tests.fakes.examples import seeds
from tests.unit.monitoring.helen_world import HelenWorld
from tests.unit.monitoring.migration_world import World

PAGER = Reaction(name="pager", type="webhook", url="http://127.0.0.1:1/x", limit=10_000)
DISK = CheckDefinition(name="disk", interval=60.0, max_attempts=1, handlers=("pager",))
PART = ClientConfig(checks=(DISK,), handlers=(PAGER,))


def two(**more: Any) -> World:
    world = World("h1", "h2", part=PART, **more)
    world.run(1.0)
    return world


def at_h1(world: World, name: str = "web-1") -> Any:
    """An agent with a critical check, whose people were told."""
    agent = world.agent(name, "h1", "h2")
    world.until(lambda: agent.at == "h1")
    agent.report("critical")
    world.until(lambda: not agent.spool)
    return agent


def move(world: World, agent: Any, **how: Any) -> None:
    """Its connection breaks, and it comes to the other one."""
    before = agent.at
    while agent.at in ("", before):
        agent.break_off(**how)
        world.run(0.2)
        world.until(lambda: agent.at)
        if agent.at == before:
            world.run(40.0)
    world.run(0.2)


# Promise: AGENT-23
def test_a_check_goes_on_with_its_state_its_incident_and_what_people_were_told():
    world = two()
    agent = at_h1(world)
    (incident,) = world.nodes["h1"].incidents(open=True)
    move(world, agent)
    assert agent.at == "h2"
    assert [one["id"] for one in world.nodes["h2"].incidents()] == [incident["id"]]
    assert world.nodes["h1"].incidents() == []
    assert (world.nodes["h1"].knows("web-1"), world.nodes["h2"].holds("web-1")) == (False, True)
    agent.report("critical")
    world.run(5.0)
    assert world.notices() == [("web-1", "disk", "critical")]
    agent.report("ok")
    world.run(5.0)
    assert world.notices() == [("web-1", "disk", "critical"), ("web-1", "disk", "ok")]
    opened, closed = world.events("incident.opened"), world.events("incident.closed")
    assert ([one["source"] for one in opened], [one["source"] for one in closed]) == (["h1"], ["h2"])
    assert opened[0]["ref"] == closed[0]["ref"]
    (moved,) = world.events("agent.moved")
    assert (moved["source"], moved["data"]) == ("h2", '{"checks":1,"from":"h1","incidents":1}')


# Promise: AGENT-23
def test_a_report_whose_ack_was_lost_is_not_counted_again_elsewhere():
    world = two()
    agent = at_h1(world)
    world.delay = 0.5
    number = agent.report("ok")
    world.run(0.6)  # stored, and the ack is on its way
    assert world.counted()["web-1", f"s-web-1:{number}"] == 1
    world.delay = 0.005
    move(world, agent)
    world.run(5.0)
    assert not agent.spool
    assert world.nodes["h2"].helen.state.counts["reports_repeated"] > 0
    assert set(world.counted().values()) == {1}


def test_an_agent_is_not_accepted_before_the_others_have_answered_and_their_answers_are_stored():
    world = two()
    agent = at_h1(world)
    world.nodes["h1"].commit_seconds = world.nodes["h2"].commit_seconds = 0.5
    agent.break_off()
    agent.session._turn = 1
    world.until(lambda: agent.node is world.nodes["h2"])
    world.run(0.8)
    assert agent.at == ""
    world.nodes["h2"].crash()  # between the answer and the commit: nothing is lost with it
    world.nodes["h2"].start()
    world.until(lambda: agent.at, 120.0)
    world.learn_now()
    world.run(30.0)
    owner = world.nodes[agent.at]
    assert [one["agent"] for one in owner.incidents(open=True)] == ["web-1"]
    assert world.notices() == [("web-1", "disk", "critical")]
    assert len(world.events("incident.opened")) == 1


def test_a_connection_that_hangs_at_the_old_helen_is_ended_by_her():
    world = two()
    agent = at_h1(world)
    move(world, agent, half_open=True)
    assert agent.at == "h2"
    assert not world.nodes["h1"].holds("web-1")
    assert [one["source"] for one in world.events("client.left")] == ["h1"]


# Promise: AGENT-23
def test_a_helen_who_is_dead_holds_nobody_up_and_hands_over_when_she_comes_back():
    world = two()
    agent = at_h1(world)
    world.nodes["h1"].crash()
    world.until(lambda: agent.at == "h2")
    agent.report("critical")  # h2 knows nothing: for her it is a new problem
    world.until(lambda: not agent.spool)
    world.run(20.0)
    world.nodes["h1"].start()
    world.run(3 * 10.0)
    assert not world.nodes["h1"].knows("web-1")
    (incident,) = world.nodes["h2"].incidents(open=True)
    first, second = world.events("incident.opened")
    assert incident["id"] == first["ref"]  # the one that was opened first goes on
    (closed,) = world.events("incident.closed")
    assert (closed["ref"], closed["seconds"], msgspec.json.decode(closed["data"])["reason"]) == (
        second["ref"],
        0.0,
        "merged",
    )
    told = len(world.notices())
    agent.report("critical")
    world.run(20.0)
    assert len(world.notices()) == told
    agent.report("ok")
    world.run(20.0)
    assert world.notices()[told:] == [("web-1", "disk", "ok")]
    assert world.nodes["h2"].incidents(open=True) == []


def test_what_a_dead_helen_told_ends_with_a_word_of_the_one_who_goes_on():
    world = two()
    agent = at_h1(world)
    world.nodes["h1"].crash()
    world.until(lambda: agent.at == "h2")
    agent.report("ok")  # h2 never heard of the problem
    world.run(5.0)
    assert world.notices() == [("web-1", "disk", "critical")]
    world.nodes["h1"].start()
    world.run(30.0)
    assert world.notices() == [("web-1", "disk", "critical"), ("web-1", "disk", "ok")]
    (closed,) = world.events("incident.closed")
    assert (closed["source"], msgspec.json.decode(closed["data"])["reason"]) == ("h2", "up")
    assert world.nodes["h1"].incidents(open=True) == world.nodes["h2"].incidents(open=True) == []


def test_an_answer_that_is_lost_loses_nothing():
    world = two()
    agent = at_h1(world)
    world.loss = 1.0
    move(world, agent)
    assert agent.at == "h2"
    assert world.nodes["h2"].incidents() == []
    world.loss = 0.0
    world.run(40.0)
    assert [one["agent"] for one in world.nodes["h2"].incidents(open=True)] == ["web-1"]
    assert not world.nodes["h1"].knows("web-1")


def test_what_nobody_confirms_is_ours_again():
    world = two()
    agent = at_h1(world)
    node = world.nodes["h1"]
    agent.break_off()
    agent.mute = True
    # h2 says that it is there, and then nothing more is heard of either.
    node.do(lambda now, effects: node.helen._migration._release_agent("web-1", "h2", now, effects))
    world.run(1.0)
    assert not node.knows("web-1")
    node.crash()
    node.start()
    assert not node.knows("web-1")
    world.run(2 * RETURN_SECONDS + 10.0)
    assert node.knows("web-1")
    assert [one["agent"] for one in node.incidents(open=True)] == ["web-1"]
    assert len(world.events("incident.opened")) == 1


def test_what_went_is_kept_for_an_hour_and_taken_back_if_the_other_helen_is_gone():
    world = two()
    agent = at_h1(world)
    move(world, agent)
    world.run(30.0)
    kept = world.nodes["h1"].helen._bundles.moved.get("web-1")
    assert kept is not None
    assert kept.confirmed
    world.nodes["h2"].crash()
    world.until(lambda: agent.at == "h1")
    assert [one["agent"] for one in world.nodes["h1"].incidents(open=True)] == ["web-1"]
    agent.report("critical")
    world.run(5.0)
    assert world.notices() == [("web-1", "disk", "critical")]


def test_what_was_confirmed_is_forgotten_after_an_hour():
    world = two()
    agent = at_h1(world)
    move(world, agent)
    world.run(KEPT_SECONDS + 2 * RETURN_SECONDS)
    assert len(world.nodes["h1"].helen._bundles.moved) == 0
    assert world.nodes["h2"].holds("web-1")
    world.nodes["h1"].crash()
    world.nodes["h1"].start()
    assert not world.nodes["h1"].knows("web-1")


# Promise: AGENT-23
def test_to_and_fro_repeats_no_event_and_no_notice():
    world = two()
    agent = at_h1(world)
    for state in ("critical", "ok", "ok", "critical", "critical", "ok"):
        move(world, agent)
        agent.report(state)
        world.run(5.0)
    states = [state for _, _, state in world.notices()]
    assert states == ["critical", "ok", "critical", "ok"]
    assert len(world.events("incident.opened")) == len(world.events("incident.closed")) == 2
    assert len({one["ref"] for one in world.events("incident.closed")}) == 2
    assert set(world.counted().values()) == {1}


def test_labels_come_along_so_that_the_first_schedule_is_right():
    part = ClientConfig(checks=(CheckDefinition(name="db", labels={"role": "db"}),))
    world = World("h1", "h2", part=part)
    world.run(1.0)
    agent = world.agent("db-1", "h1", "h2")
    agent.labels = {"role": "db"}
    world.until(lambda: agent.at == "h1" and not agent.spool)
    agent.schedules.clear()
    move(world, agent)
    assert [[check["name"] for check in msgspec.json.decode(body)["checks"]] for body in agent.schedules] == [["db"]]


def test_a_downtime_that_began_at_one_helen_ends_at_the_other_once():
    wall = World().now.wall
    part = ClientConfig(checks=(DISK,), downtimes=(Downtime(name="d", starts=wall, ends=wall + 300.0),))
    world = World("h1", "h2", part=part)
    agent = world.agent("web-1", "h1", "h2")
    world.until(lambda: agent.at == "h1" and not agent.spool)
    move(world, agent)
    world.run(400.0)
    assert [one["source"] for one in world.events("downtime.started")] == ["h1"]
    assert [one["source"] for one in world.events("downtime.ended")] == ["h2"]


# Anybody on the network can call a service.


# Promise: AGENT-23
def test_only_a_helen_who_has_the_agent_gets_what_is_known_of_it():
    world = two()
    agent = at_h1(world)
    for body in ({"agent": "web-1", "to": "h2"}, {"agent": "web-1", "to": "nobody"}):
        answer = world.call("h1", "helen.h1.release", body)
        assert isinstance(answer, Refusal)
        assert answer.code == 403
    answer = world.call("h1", "helen.h1.release", {"agent": "web-1", "to": "h1"})
    assert isinstance(answer, Refusal)
    assert answer.code == 400
    assert agent.at == "h1"
    assert world.nodes["h1"].check("web-1", "disk") is not None
    assert world.call("h1", "helen.h1.release", {"agent": "unknown", "to": "h2"}) == {"rows": None}


def test_services_between_helens_have_no_common_name():
    world = two()
    for service in ("release", "has"):
        answer = world.call("h1", f"helen.{service}", {"agent": "web-1", "agents": [], "to": "h2"})
        assert isinstance(answer, Refusal)
        assert answer.code == 404


def test_a_stranger_who_takes_the_answer_takes_nothing_away():
    world = two()
    agent = at_h1(world)
    world.cut = {("h1", "h2")}
    move(world, agent)
    world.cut = set()
    # The agent is at h2, and h1 still has its states. A stranger asks for them before h2 does.
    stolen = world.call("h1", "helen.h1.release", {"agent": "web-1", "to": "h2"})
    assert stolen["rows"]["watch"]["states"]
    world.run(40.0)
    assert [one["agent"] for one in world.nodes["h2"].incidents(open=True)] == ["web-1"]


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


def joined(*siblings: str) -> HelenWorld:
    world = HelenWorld()
    world.do(lambda now, effects: world.helen.learn_replicas(siblings, now, effects))
    world.asks.clear()
    return world


def test_silence_of_the_others_costs_two_seconds_and_then_nothing():
    world = joined("helen-2")
    for number in range(SILENT_AFTER):
        connection = world.connect(f"web-{number}")
        assert world.say(connection, Hello(2, "0.1.0")) == []
        world.pass_time(MIGRATION_SECONDS - 0.1)
        assert world.hear(connection) == []
        world.pass_time(0.2)
        assert [type(word) for word in world.hear(connection)] == [Accepted, Schedule]
        world.tell(world.asks.pop(), Refusal(504, "no answer"))
    assert [type(word) for word in world.say(world.connect("web-9"), Hello(2, "0.1.0"))] == [Accepted, Schedule]


def test_version_1_waits_for_nobody():
    world = joined("helen-2")
    connection = world.connect("old-1")
    assert world.say(connection, Hello(1, "0.1.0")) == []
    assert world.helen.state.agents.connected == 1
    assert [ask.service for ask in world.asks] == ["helen.helen-2.release"]


def test_an_agent_that_reports_before_it_is_accepted_is_refused():
    world = joined("helen-2")
    connection = world.connect()
    world.say(connection, Hello(2, "0.1.0"), Report(1, "disk", b"{}"))
    assert connection in world.closed


def test_an_agent_that_goes_while_it_waits_is_nobody():
    world = joined("helen-2")
    connection = world.connect()
    world.say(connection, Hello(2, "0.1.0"))
    world.gone(connection)
    world.pass_time(MIGRATION_SECONDS + 1.0)
    assert world.helen.state.agents.connected == 0
    assert world.kinds() == []


def test_no_more_wait_than_there_is_room_for():
    world = HelenWorld(max_agents=1)
    world.do(lambda now, effects: world.helen.learn_replicas(["helen-2"], now, effects))
    world.say(world.connect("a"), Hello(2, "0.1.0"))
    (refused,) = world.say(other := world.connect("b"), Hello(2, "0.1.0"))
    assert type(refused).__name__ == "Error"
    assert other in world.closed


# Promise: AGENT-16
def test_one_certificate_at_two_helens_is_noticed():
    world = two()
    agents = [world.agent("web-1", name) for name in ("h1", "h2")]
    world.run(600.0)
    assert world.events("agent.doubled")
    assert all(agent.connections > 3 for agent in agents)


# The end.


def sibling_with_room(world: HelenWorld, **room: int) -> None:
    world.do(lambda now, effects: world.helen.learn_replicas(room, now, effects))
    for ask in [ask for ask in world.asks if ask.service.endswith(".status")]:
        name = ask.service.split(".")[1]
        said = {"advertise": f"{name}:1", "agents": 0, "max_agents": room[name]}
        world.tell(ask, msgspec.json.encode(said))


# Promise: AGENT-23
def test_a_helen_who_stops_sends_her_agents_to_those_who_have_room():
    world = HelenWorld()
    lines = [world.agent(f"web-{number}") for number in range(5)]
    old = world.agent("old", version=1)
    sibling_with_room(world, h2=1, h3=3)
    effects = Effects()
    world.helen.stop(world.now, effects)
    world.end(effects)
    heard = [world.hear(line) for line in lines]
    assert sorted(str(words[0].endpoint) for words in heard if words) == ["h2:1", "h3:1", "h3:1", "h3:1"]
    assert world.hear(old) == []
    assert {*lines, old} <= world.closed


def test_a_drained_helen_hands_over_everything_before_she_stops():
    world = two()
    agents = [at_h1(world, f"web-{number}") for number in range(20)]
    node = world.nodes["h1"]
    world.learn_now()
    node.do(node.helen.drain)
    world.until(lambda: node.helen.undrained == 0, 5.0)
    node.stop()
    world.run(10.0)
    assert {agent.at for agent in agents} == {"h2"}
    assert len(world.nodes["h2"].incidents(open=True)) == 20
    assert len(world.notices()) == len(world.events("incident.opened")) == 20


def test_who_comes_to_a_helen_that_drains_is_sent_on():
    world = HelenWorld()
    sibling_with_room(world, h2=5)
    world.do(world.helen.drain)
    assert world.say(world.connect("late"), Hello(2, "0.1.0")) == [Redirect("h2:1")]


# All of it at once.


def check_everything(world: World, once: bool) -> None:
    """What is promised, whatever happened; `once`: no Helen died, and none was out of reach."""
    for node in world.nodes.values():
        if not node.up:
            node.start()
    world.loss, world.cut = 0.0, set()
    for agent in world.agents.values():
        agent.mute = False
    world.run(300.0)
    counted = world.counted()
    for agent in world.agents.values():
        assert not agent.spool, agent.name
        holders = [name for name, node in world.nodes.items() if node.knows(agent.name)]
        assert holders == [agent.at], (agent.name, holders, agent.at)
        assert {ref for name, ref in counted if name == agent.name} == agent.reported
    opened = [one["ref"] for one in world.events("incident.opened")]
    closed = [one["ref"] for one in world.events("incident.closed")]
    open_now = [one["id"] for node in world.nodes.values() for one in node.incidents(open=True)]
    assert sorted(open_now) == sorted(set(opened) - set(closed))
    if once:
        assert set(counted.values()) <= {1}
        assert len(opened) == len(set(opened))
        assert len(closed) == len(set(closed))
        for agent in world.agents.values():
            told = ["ok"]
            for state in agent.states:
                if state != told[-1]:
                    told.append(state)
            heard = [state for name, _, state in world.notices() if name == agent.name]
            assert sorted(heard) == sorted(told[1:])
            down = sum(
                now == "critical" != before for before, now in zip(["ok", *agent.states], agent.states, strict=False)
            )
            assert sum(ref.startswith(f"{agent.name}/") for ref in opened) == down


def disturb(world: World, dice: random.Random, crashes: bool) -> None:
    agent = dice.choice(list(world.agents.values()))
    match dice.randrange(10):
        case 0 | 1:
            agent.break_off()
        case 2:
            agent.break_off(half_open=True)
        case 3:
            world.delay = dice.choice((0.002, 0.02, 0.1))
        case 4 if crashes:
            world.loss = dice.choice((0.0, 0.3))
        case 5 if crashes:
            node = dice.choice(list(world.nodes.values()))
            if node.up:
                node.crash()
            else:
                node.start()
        case _:
            agent.report(dice.choice(("ok", "critical", "warning")))


# Promise: AGENT-23
@pytest.mark.parametrize("seed", seeds(30))
def test_whatever_agents_do_each_result_counts_once_over_all_journals(seed: int):
    """As long as the Helen who had an agent answers, which she does within 2 seconds here."""
    dice = random.Random(seed)
    world = World("h1", "h2", "h3", part=PART, seed=seed)
    world.run(1.0)
    for number in range(4):
        world.agent(f"a{number}", *dice.sample(["h1", "h2", "h3"], dice.choice((2, 3))))
    for _ in range(60):
        disturb(world, dice, crashes=False)
        world.run(dice.choice((0.01, 0.1, 1.0, 5.0)))
    check_everything(world, once=True)


# Promise: AGENT-23
@pytest.mark.parametrize("seed", seeds(30))
def test_whatever_helens_do_nothing_is_lost_and_one_of_them_has_each_agent_in_the_end(seed: int):
    dice = random.Random(seed)
    world = World("h1", "h2", "h3", part=PART, seed=seed)
    world.run(1.0)
    for number in range(4):
        world.agent(f"a{number}", "h1", "h2", "h3")
    for _ in range(60):
        disturb(world, dice, crashes=True)
        world.run(dice.choice((0.01, 0.1, 1.0, 5.0)))
    check_everything(world, once=False)
