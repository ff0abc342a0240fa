"""Hello and enrol: one connection per identity, within the limits, not too old, not revoked."""

from __future__ import annotations

import msgspec
import pytest

from scale0.monitoring.helen.core.agents import TAKEOVER_SECONDS, TAKEOVERS, host_of, is_older
from scale0.monitoring.helen.core.handshake import (
    HELLO_SECONDS,
    MAX_ANONYMOUS,
    MAX_AWAITING_HELLO,
    MAX_CONNECTIONS_PER_NAME,
)
from scale0.monitoring.helen.core.helen import MAX_HANDSHAKE_BYTES
from scale0.monitoring.helen.core.pending_requests import ForwardRequest
from scale0.monitoring.protocol.messages import Accepted, Error, Hello, Redirect, Reload, Schedule
from tests.unit.monitoring.helen_world import HelenWorld, report

PLAN = {"name": "load", "check": "load", "args": {}, "interval": 60, "timeout": 10}


# Promise: AGENT-11
def test_an_agent_is_accepted_and_gets_its_schedule():
    world = HelenWorld(heartbeat_seconds=20)
    world.evaluation.plans[""] = [PLAN]
    connection = world.connect()
    accepted, schedule = world.say(connection, Hello(2, "0.1.0"))
    assert accepted == Accepted(20)
    assert msgspec.json.decode(schedule.body)["checks"] == [PLAN]
    assert world.kinds() == ["client.joined"]
    joined = world.events[-1]
    assert (joined.identity, joined.role, joined.slots) == ("web-1", "agent", 0)


def test_an_empty_schedule_is_sent_as_well():
    world = HelenWorld()
    _, schedule = world.say(world.connect(), Hello(2, "0.1.0"))
    assert schedule == Schedule(1, b'{"version":1,"checks":[]}')


# Promise: AGENT-11
def test_until_somebody_says_what_to_run_an_agent_keeps_what_it_has():
    world = HelenWorld()
    world.evaluation.configured_at_all = False
    connection = world.connect()
    assert world.say(connection, Hello(2, "0.1.0")) == [Accepted(30)]
    world.configure()
    world.pass_time(1)
    assert [type(word) for word in world.hear(connection)] == [Schedule]


# Promise: AGENT-16
def test_the_newcomer_takes_over():
    world = HelenWorld()
    old = world.agent()
    new = world.agent()
    (error,) = world.hear(old)
    assert isinstance(error, Error)
    assert old in world.closed
    assert new not in world.closed
    assert world.kinds() == ["client.joined", "client.replaced", "client.joined"]
    assert world.helen.view()["agents"] == 1
    world.gone(old)  # the door may say so later: it is nobody's any more
    assert world.helen.view()["agents"] == 1
    world.say(new, report(1))
    assert len(world.evaluation.taken) == 1


# Promise: AGENT-16
def test_one_certificate_on_two_machines_is_noticed_and_shown():
    world = HelenWorld(heartbeat_seconds=600)
    for number in range(TAKEOVERS + 2):
        world.pass_time(5)
        world.agent(address=f"10.0.0.{number % 2}:{4_000 + number}")
    doubled = [event for event in world.events if event.kind == "agent.doubled"]
    assert [event.addresses for event in doubled] == [("10.0.0.0", "10.0.0.1")]
    (item,) = msgspec.json.decode(world.request("helen.agents")[0][1])["items"]
    assert item["state"] == "doubled"
    world.pass_time(TAKEOVER_SECONDS)
    (item,) = msgspec.json.decode(world.request("helen.agents")[0][1])["items"]
    assert item["state"] == "connected"


def test_an_agent_that_reconnects_now_and_then_is_not_doubled():
    world = HelenWorld()
    for _ in range(3 * TAKEOVERS):
        world.agent()
        world.pass_time(TAKEOVER_SECONDS / TAKEOVERS)
    assert "agent.doubled" not in world.kinds()


# Promise: AGENT-22
def test_no_more_than_max_agents_come_in():
    world = HelenWorld(max_agents=2)
    world.agent("a")
    world.agent("b")
    (error,) = world.say(turned_away := world.connect("c"), Hello(2, "0.1.0"))
    assert isinstance(error, Error)
    assert turned_away in world.closed
    world.agent("a")  # who takes its own place takes nobody else's
    assert world.helen.view()["agents"] == 2


# Promise: AGENT-22
def test_whoever_has_no_room_here_is_sent_to_the_helen_who_has_most():
    world = HelenWorld(max_agents=1)
    world.agent("a")
    world.do(
        lambda now, effects: world.helen.learn_replicas(["helen-1", "helen-2", "helen-3", "not one"], now, effects)
    )
    asks = [ask for ask in world.asks if isinstance(ask, ForwardRequest)]
    assert [ask.service for ask in asks] == ["helen.helen-2.status", "helen.helen-3.status"]
    for ask, room in zip(asks, (5, 7), strict=True):
        said = {"advertise": f"10.9.9.{room}:4166", "agents": 3, "max_agents": 3 + room}
        world.tell(ask, msgspec.json.encode(said))
    assert world.say(redirected := world.connect("b"), Hello(2, "0.1.0")) == [Redirect("10.9.9.7:4166")]
    assert redirected in world.closed
    (error,) = world.say(world.connect("c"), Hello(1, "0.1.0"))
    assert isinstance(error, Error)  # version 1 does not know the word


@pytest.mark.parametrize(
    "said", [b"", b"{", b"[]", b'{"advertise":"a b","max_agents":9}', b'{"advertise":7}', b"[" * 100_000, None]
)
def test_what_another_helen_says_is_not_trusted(said: bytes | None):
    world = HelenWorld(max_agents=0)
    world.do(lambda now, effects: world.helen.learn_replicas(["helen-2"], now, effects))
    world.tell(world.asks[0], said)
    (error,) = world.say(world.connect("b"), Hello(2, "0.1.0"))
    assert isinstance(error, Error)


@pytest.mark.parametrize(("version", "software"), [(0, "9.9.9"), (2, "0.9.9"), (1, "unknown")])
def test_an_agent_too_old_is_told_to_reload_and_then_refused(version: int, software: str):
    world = HelenWorld(min_equus_version="1.2")
    first = world.connect()
    assert world.say(first, Hello(version, software)) == [Reload()]
    assert world.data(first, b"ping 1\nreport 1 load 2\n{}\n") == []  # it goes on as it can, and counts for nothing
    assert world.evaluation.taken == []
    world.gone(first)
    (error,) = world.say(second := world.connect(), Hello(version, software))
    assert isinstance(error, Error)
    assert second in world.closed
    world.agent(version=2, software="1.2.0")
    assert world.say(world.connect("db-1"), Hello(version, software)) == [Reload()]


def test_an_agent_too_old_that_does_not_go_is_closed():
    world = HelenWorld()
    connection = world.connect()
    world.say(connection, Hello(0, "0.1.0"))
    world.pass_time(59)
    assert connection not in world.closed
    world.pass_time(2)
    assert connection in world.closed


@pytest.mark.parametrize(
    ("software", "least", "older"),
    [
        *(("1.2.3", "1.2.3", False), ("1.2", "1.2.0", False), ("1.10.0", "1.9", False), ("1.9", "1.10", True)),
        *(("2", "1.99", False), ("", "0.1", True), ("v2", "1", True), ("1.2rc1", "1.2", False), ("٣", "1", True)),
        *(("9" * 400, "1", True), ("1..2", "1.1", True)),
    ],
)
def test_versions_compare_by_their_numbers(software: str, least: str, older: bool):
    assert is_older(software, least) == older


# Promise: AGENT-14
def test_a_connection_that_says_nothing_is_closed_in_time():
    world = HelenWorld()
    connection = world.connect()
    world.pass_time(HELLO_SECONDS - 1)
    assert connection not in world.closed
    world.pass_time(1.1)
    assert connection in world.closed
    assert world.helen.view()["connections"] == 0


# Promise: AGENT-14
def test_strangers_are_few():
    world = HelenWorld()
    first = [world.connect("") for _ in range(MAX_ANONYMOUS)]
    late = world.connect("")
    assert late in world.closed
    assert not world.closed & set(first)
    world.agent()  # who has a certificate comes in all the same
    world.pass_time(HELLO_SECONDS + 1)
    assert world.closed >= set(first)
    assert world.connect("") not in world.closed


# Promise: AGENT-14
def test_refusals_without_end_do_not_fill_the_journal():
    world = HelenWorld()
    for _ in range(200):
        world.data(world.connect(""), b"hello 1 x\n")
    assert world.kinds().count("agent.refused") < 50
    assert world.helen.view()["counts"]["connections_refused"] == 200


# Promise: AGENT-15
def test_a_certificate_whose_name_is_no_identity_is_refused():
    world = HelenWorld()
    assert world.connect("web 1") in world.closed


# Promise: AGENT-17
def test_a_revoked_certificate_ends_its_connection_at_once_and_opens_no_other():
    world = HelenWorld()
    kept, ended = world.agent("a", serial="01"), world.agent("b", serial="02")
    assert (
        world.do(lambda now, effects: world.helen.revoke(lambda name, serial, issued: serial == "02", now, effects))
        == 1
    )
    assert ended in world.closed
    assert kept not in world.closed
    assert world.kinds()[-2:] == ["agent.refused", "client.left"]
    again = world.connect("b", serial="02")
    assert again in world.closed
    world.agent("b", serial="03")


def test_who_goes_in_order_left_and_who_does_not_was_lost():
    world = HelenWorld()
    orderly, cut = world.agent("a"), world.agent("b")
    world.pass_time(3)
    world.gone(orderly)
    world.gone(cut, orderly=False)
    left, lost = world.events[-2:]
    assert (left.kind, left.identity) == ("client.left", "a")
    assert (lost.kind, lost.identity) == ("client.lost", "b")
    assert lost.last_heard_wall == world.wall - 3


def test_an_agent_is_known_again_after_a_restart():
    world = HelenWorld()
    connection = world.agent()
    world.say(connection, report(1, "equus.agent", labels={"role": "web"}, checks=["disk", "load"]))
    world.gone(connection)
    again = HelenWorld(agents=world.agent_rows())
    again.evaluation.plans["web"] = [PLAN]
    (item,) = msgspec.json.decode(again.request("helen.agents", {"all": True})[0][1])["items"]
    assert (item["state"], item["labels"], item["left"]) == ("away", {"role": "web"}, world.wall)
    again.pass_time(1)
    _, schedule = again.say(again.connect(), Hello(2, "0.1.0"))
    assert msgspec.json.decode(schedule.body)["checks"] == [PLAN]
    assert again.events[-1].services == ("disk", "load")


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:4000", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1", "fe80::1"), ("[::1]:7", "[::1]")],
)
def test_an_address_has_a_host(address: str, host: str):
    assert host_of(address) == host


# Promise: AGENT-14
def test_one_certificate_does_not_take_the_room_of_others():
    world = HelenWorld()
    crowd = [world.connect("web-1") for _ in range(MAX_AWAITING_HELLO)]
    assert sum(connection not in world.closed for connection in crowd) == MAX_CONNECTIONS_PER_NAME
    assert isinstance(world.say(world.connect("db-1"), Hello(2, "0.1.0"))[0], Accepted)
    world.pass_time(HELLO_SECONDS + 1)
    assert world.helen.view()["connections"] == 1
    assert world.helen.state.connections_by_name == {"db-1": 1}
    world.agent("web-1")


def test_those_who_are_told_to_reload_are_a_crowd_as_well():
    world = HelenWorld()
    for number in range(10 * MAX_CONNECTIONS_PER_NAME):
        world.say(world.connect("web-1"), Hello(0, f"0.{number}"))
    assert world.helen.view()["connections"] == MAX_CONNECTIONS_PER_NAME


@pytest.mark.parametrize("name", ["", "web-1"])
def test_nobody_makes_helen_hold_a_long_word_before_it_is_taken_in(name: str):
    world = HelenWorld()
    connection = world.connect(name)
    head = b"enrol 1048576\n"
    assert world.data(connection, head + b"x" * MAX_HANDSHAKE_BYTES) == []
    assert isinstance(world.data(connection, b"x")[0], Error)
    assert connection in world.closed
