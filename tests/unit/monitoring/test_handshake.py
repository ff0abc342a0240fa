"""Hello and enrol: one connection per identity, within the limits, not too old, not revoked."""

from __future__ import annotations

import msgspec
import pytest

from scale0.monitoring.helen.core.agent_connection import SignCertificate
from scale0.monitoring.helen.core.agents import TAKEOVER_SECONDS, TAKEOVERS, host_of, is_older
from scale0.monitoring.helen.core.handshake import (
    HELLO_SECONDS,
    MAX_ANONYMOUS,
    MAX_AWAITING_HELLO,
    MAX_CONNECTIONS_PER_NAME,
)
from scale0.monitoring.helen.core.helen import MAX_HANDSHAKE_BYTES
from scale0.monitoring.helen.core.pending_requests import ForwardRequest
from scale0.monitoring.protocol.messages import Accepted, Enrol, Error, Hello, Redirect, Reload, Schedule
from tests.fakes.simulated_helen import SimulatedHelen, report

PLAN = {"name": "load", "check": "load", "args": {}, "interval": 60, "timeout": 10}


# Promise: AGENT-11
def test_an_agent_is_accepted_and_gets_its_schedule():
    helen = SimulatedHelen(heartbeat_seconds=20)
    helen.evaluation.plans[""] = [PLAN]
    connection = helen.connect()
    accepted, schedule = helen.receive(connection, Hello(2, "0.1.0"))
    assert accepted == Accepted(20)
    assert msgspec.json.decode(schedule.body)["checks"] == [PLAN]
    assert helen.kinds() == ["client.joined"]
    joined = helen.events[-1]
    assert (joined.identity, joined.role, joined.slots) == ("web-1", "agent", 0)


def test_an_empty_schedule_is_sent_as_well(helen: SimulatedHelen):
    _, schedule = helen.receive(helen.connect(), Hello(2, "0.1.0"))
    assert schedule == Schedule(1, b'{"version":1,"checks":[]}')


# Promise: AGENT-11
def test_until_helen_is_configured_an_agent_keeps_its_schedule(helen: SimulatedHelen):
    helen.evaluation.configured = False
    connection = helen.connect()
    assert helen.receive(connection, Hello(2, "0.1.0")) == [Accepted(30)]
    helen.configure()
    helen.pass_time(1)
    assert [type(message) for message in helen.sent(connection)] == [Schedule]


# Promise: AGENT-16
def test_the_newcomer_takes_over(helen: SimulatedHelen):
    old = helen.agent()
    new = helen.agent()
    (error,) = helen.sent(old)
    assert isinstance(error, Error)
    assert old in helen.closed
    assert new not in helen.closed
    assert helen.kinds() == ["client.joined", "client.replaced", "client.joined"]
    assert helen.machine.view()["agents"] == 1
    helen.disconnect_agent(old)  # the socket may report it later, when the connection belongs to no agent
    assert helen.machine.view()["agents"] == 1
    helen.receive(new, report(1))
    assert len(helen.evaluation.results) == 1


# Promise: AGENT-16
def test_one_certificate_on_two_machines_is_noticed_and_shown():
    helen = SimulatedHelen(heartbeat_seconds=600)
    for number in range(TAKEOVERS + 2):
        helen.pass_time(5)
        helen.agent(address=f"10.0.0.{number % 2}:{4_000 + number}")
    doubled = [event for event in helen.events if event.kind == "agent.doubled"]
    assert [event.addresses for event in doubled] == [("10.0.0.0", "10.0.0.1")]
    (item,) = helen.call("helen.agents")["items"]
    assert item["state"] == "doubled"
    helen.pass_time(TAKEOVER_SECONDS)
    (item,) = helen.call("helen.agents")["items"]
    assert item["state"] == "connected"


def test_an_agent_that_reconnects_now_and_then_is_not_doubled(helen: SimulatedHelen):
    for _ in range(3 * TAKEOVERS):
        helen.agent()
        helen.pass_time(TAKEOVER_SECONDS / TAKEOVERS)
    assert "agent.doubled" not in helen.kinds()


# Promise: AGENT-22
def test_no_more_than_max_agents_come_in():
    helen = SimulatedHelen(max_agents=2)
    helen.agent("a")
    helen.agent("b")
    (error,) = helen.receive(turned_away := helen.connect("c"), Hello(2, "0.1.0"))
    assert isinstance(error, Error)
    assert turned_away in helen.closed
    helen.agent("a")  # who takes its own place takes nobody else's
    assert helen.machine.view()["agents"] == 2


# Promise: AGENT-22
def test_an_agent_without_room_is_redirected_to_the_helen_with_most_room():
    helen = SimulatedHelen(max_agents=1)
    helen.agent("a")
    helen.learn_replicas("helen-1", "helen-2", "helen-3", "not one")
    asks = [ask for ask in helen.asks if isinstance(ask, ForwardRequest)]
    assert [ask.service for ask in asks] == ["helen.helen-2.status", "helen.helen-3.status"]
    for ask, room in zip(asks, (5, 7), strict=True):
        status = {"advertise": f"10.9.9.{room}:4166", "agents": 3, "max_agents": 3 + room}
        helen.answer(ask, msgspec.json.encode(status))
    assert helen.receive(redirected := helen.connect("b"), Hello(2, "0.1.0")) == [Redirect("10.9.9.7:4166")]
    assert redirected in helen.closed
    (error,) = helen.receive(helen.connect("c"), Hello(1, "0.1.0"))
    assert isinstance(error, Error)  # version 1 does not know the message


@pytest.mark.parametrize(
    "status", [b"", b"{", b"[]", b'{"advertise":"a b","max_agents":9}', b'{"advertise":7}', b"[" * 100_000, None]
)
def test_the_status_of_another_helen_is_not_trusted(status: bytes | None):
    helen = SimulatedHelen(max_agents=0)
    helen.learn_replicas("helen-2")
    helen.answer(helen.asks[0], status)
    (error,) = helen.receive(helen.connect("b"), Hello(2, "0.1.0"))
    assert isinstance(error, Error)


@pytest.mark.parametrize(("version", "software"), [(0, "9.9.9"), (2, "0.9.9"), (1, "unknown")])
def test_an_agent_too_old_is_sent_reload_and_then_refused(version: int, software: str):
    helen = SimulatedHelen(min_equus_version="1.2")
    first = helen.connect()
    assert helen.receive(first, Hello(version, software)) == [Reload()]
    assert (
        helen.receive_bytes(first, b"ping 1\nreport 1 load 2\n{}\n") == []
    )  # it goes on as it can, and counts for nothing
    assert helen.evaluation.results == []
    helen.disconnect_agent(first)
    (error,) = helen.receive(second := helen.connect(), Hello(version, software))
    assert isinstance(error, Error)
    assert second in helen.closed
    helen.agent(version=2, software="1.2.0")
    assert helen.receive(helen.connect("db-1"), Hello(version, software)) == [Reload()]


def test_an_agent_too_old_that_does_not_go_is_closed(helen: SimulatedHelen):
    connection = helen.connect()
    helen.receive(connection, Hello(0, "0.1.0"))
    helen.pass_time(59)
    assert connection not in helen.closed
    helen.pass_time(2)
    assert connection in helen.closed


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
def test_a_connection_that_sends_nothing_is_closed_in_time(helen: SimulatedHelen):
    connection = helen.connect()
    helen.pass_time(HELLO_SECONDS - 1)
    assert connection not in helen.closed
    helen.pass_time(1.1)
    assert connection in helen.closed
    assert helen.machine.view()["connections"] == 0


# Promise: AGENT-14
def test_strangers_are_few(helen: SimulatedHelen):
    first = [helen.connect("") for _ in range(MAX_ANONYMOUS)]
    late = helen.connect("")
    assert helen.closed & {*first, late} == {first[0]}
    helen.agent()  # who has a certificate comes in all the same
    helen.pass_time(HELLO_SECONDS + 1)
    assert helen.closed >= {*first, late}
    assert helen.connect("") not in helen.closed


# Promise: AGENT-14
def test_silent_strangers_of_one_address_keep_nobody_from_enrolling(helen: SimulatedHelen):
    newcomer = helen.connect("", address="10.0.0.2")
    crowd = [helen.connect("", address="10.0.0.66") for _ in range(3 * MAX_ANONYMOUS)]
    assert sum(connection not in helen.closed for connection in crowd) == MAX_ANONYMOUS - 1
    late = helen.connect("", address="10.0.0.3")
    assert not helen.closed & {newcomer, late, crowd[-1]}
    (error,) = helen.sent(crowd[0])
    assert "too many connections without a certificate" in error.message
    for connection in (newcomer, late):
        helen.receive(connection, Enrol(b"{}"))
    assert [type(ask) for ask in helen.asks] == [SignCertificate, SignCertificate]
    for _ in range(2 * MAX_ANONYMOUS):  # who has sent enrol is not ended by those who come later
        helen.connect("", address="10.0.0.2")
    assert newcomer not in helen.closed


# Promise: AGENT-14
def test_refusals_without_end_do_not_fill_the_journal(helen: SimulatedHelen):
    for _ in range(200):
        helen.receive_bytes(helen.connect(""), b"hello 1 x\n")
    assert helen.kinds().count("agent.refused") < 50
    assert helen.machine.view()["counts"]["connections_refused"] == 200


# Promise: AGENT-15
def test_a_certificate_whose_name_is_no_identity_is_refused(helen: SimulatedHelen):
    assert helen.connect("web 1") in helen.closed


# Promise: AGENT-17
def test_a_revoked_certificate_ends_its_connection_at_once_and_opens_no_other(helen: SimulatedHelen):
    kept, ended = helen.agent("a", serial="01"), helen.agent("b", serial="02")
    assert (
        helen.do(lambda now, effects: helen.machine.revoke(lambda name, serial, issued: serial == "02", now, effects))
        == 1
    )
    assert ended in helen.closed
    assert kept not in helen.closed
    assert helen.kinds()[-2:] == ["agent.refused", "client.left"]
    again = helen.connect("b", serial="02")
    assert again in helen.closed
    helen.agent("b", serial="03")


def test_who_goes_in_order_left_and_who_does_not_was_lost(helen: SimulatedHelen):
    orderly, cut = helen.agent("a"), helen.agent("b")
    helen.pass_time(3)
    helen.disconnect_agent(orderly)
    helen.disconnect_agent(cut, orderly=False)
    left, lost = helen.events[-2:]
    assert (left.kind, left.identity) == ("client.left", "a")
    assert (lost.kind, lost.identity) == ("client.lost", "b")
    assert lost.last_received_wall == helen.wall - 3


def test_an_agent_is_known_again_after_a_restart(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(1, "equus.agent", labels={"role": "web"}, checks=["disk", "load"]))
    helen.disconnect_agent(connection)
    again = SimulatedHelen(agents=helen.agent_rows())
    again.evaluation.plans["web"] = [PLAN]
    (item,) = again.call("helen.agents", {"all": True})["items"]
    assert (item["state"], item["labels"], item["left"]) == ("away", {"role": "web"}, helen.wall)
    again.pass_time(1)
    _, schedule = again.receive(again.connect(), Hello(2, "0.1.0"))
    assert msgspec.json.decode(schedule.body)["checks"] == [PLAN]
    assert again.events[-1].services == ("disk", "load")


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.1:4000", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("fe80::1", "fe80::1"), ("[::1]:7", "[::1]")],
)
def test_an_address_has_a_host(address: str, host: str):
    assert host_of(address) == host


# Promise: AGENT-14
def test_one_certificate_does_not_take_the_room_of_others(helen: SimulatedHelen):
    crowd = [helen.connect("web-1") for _ in range(MAX_AWAITING_HELLO)]
    assert sum(connection not in helen.closed for connection in crowd) == MAX_CONNECTIONS_PER_NAME
    assert isinstance(helen.receive(helen.connect("db-1"), Hello(2, "0.1.0"))[0], Accepted)
    helen.pass_time(HELLO_SECONDS + 1)
    assert helen.machine.view()["connections"] == 1
    assert helen.machine.state.connections_by_name == {"db-1": 1}
    helen.agent("web-1")


def test_connections_that_were_sent_reload_count_as_well(helen: SimulatedHelen):
    for number in range(10 * MAX_CONNECTIONS_PER_NAME):
        helen.receive(helen.connect("web-1"), Hello(0, f"0.{number}"))
    assert helen.machine.view()["connections"] == MAX_CONNECTIONS_PER_NAME


@pytest.mark.parametrize("name", ["", "web-1"])
def test_no_connection_makes_helen_buffer_a_long_message_before_it_is_accepted(helen: SimulatedHelen, name: str):
    connection = helen.connect(name)
    head = b"enrol 1048576\n"
    assert helen.receive_bytes(connection, head + b"x" * MAX_HANDSHAKE_BYTES) == []
    assert isinstance(helen.receive_bytes(connection, b"x")[0], Error)
    assert connection in helen.closed
