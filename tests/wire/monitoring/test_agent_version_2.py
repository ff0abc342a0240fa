"""Our agent with a Helen of version 2: accepted, ping, schedule, report and ack, redirect (PROTOCOL 10)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.fake_helen import AgentConnection, FakeHelen
from tests.wire.monitoring.agent_under_test import AgentUnderTest, agent_under_test

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def agent_and_helens() -> Iterator[tuple[AgentUnderTest, list[FakeHelen]]]:
    with agent_under_test(2) as (agent, helens):
        yield agent, helens


@pytest.fixture
def agent(agent_and_helens: tuple[AgentUnderTest, list[FakeHelen]]) -> Iterator[AgentUnderTest]:
    yield agent_and_helens[0]
    assert agent_and_helens[0].running, agent_and_helens[0].log_text()


@pytest.fixture
def helen(agent_and_helens: tuple[AgentUnderTest, list[FakeHelen]]) -> FakeHelen:
    return agent_and_helens[1][0]


@pytest.fixture
def connection(agent: AgentUnderTest, helen: FakeHelen) -> AgentConnection:
    """The agent's connection with nothing scheduled; a new one if a test ended it."""
    connection = agent.connected_to(helen, 2)
    connection.schedule(version=0)
    acknowledge_all(connection)
    return connection


def acknowledge_all(connection: AgentConnection) -> None:
    """Acknowledge what is still on its way, until nothing comes."""
    while not connection.is_silent(0.2):
        received = connection.message()
        if received.command == "report":
            connection.send(b"ack %d\n" % received.number)


def test_it_speaks_version_2_and_reports_itself_once_accepted(agent: AgentUnderTest, helen: FakeHelen) -> None:
    connection = helen.accept()
    agent.connection = connection
    assert connection.line().split(b" ")[:2] == [b"hello", b"2"]
    assert connection.is_silent(), "it sends nothing of version 2 before accepted"
    connection.send(b"accepted 30\n")
    received = connection.message()
    assert received.words[:3] == [b"report", b"1", b"equus.agent"]
    assert received.json["labels"] == {"role": "db"}
    assert {"fine", "plain", "cpu"} <= set(received.json["checks"])
    connection.send(b"ack 1\n")


def test_every_report_carries_its_spool_and_number(agent: AgentUnderTest, helen: FakeHelen) -> None:
    """PROTOCOL: reports carry `spool` and `n` in their JSON. The one about the agent itself is a report."""
    connection = agent.connected_to(helen, 2)
    connection.schedule({"name": "seen", "check": "fine", "interval": 0.5})
    [received] = connection.reports("seen", 1)
    assert isinstance(received.json["spool"], str)
    assert isinstance(received.json["n"], int)
    agent.disconnect()
    connection = agent.connected_to(helen, 2)
    [received] = connection.reports("equus.agent", 1)
    assert {"spool", "n"} <= set(received.json), received.json


def test_a_ping_is_answered_by_its_pong(connection: AgentConnection) -> None:
    connection.send(b"ping 0\nping 2147483647\n")
    assert connection.message().words == [b"pong", b"0"]
    assert connection.message().words == [b"pong", b"2147483647"]


def test_checks_work_as_in_version_1(connection: AgentConnection) -> None:
    assert connection.run("echo", {"x": "y"})["message"] == "y"
    assert connection.run("no-such")["state"] == "unknown"


def test_the_schedule_is_run_by_itself_and_reported_in_order(connection: AgentConnection) -> None:
    connection.schedule({"name": "my-echo", "check": "echo", "args": {"x": "1"}, "interval": 0.5}, version=2)
    began = time.monotonic()
    received = connection.reports("my-echo", 4)
    took = time.monotonic() - began
    assert 1.0 < took < 5, f"four runs, every 0.5 s, took {took:.1f} s"
    assert [message.json["message"] for message in received] == ["1"] * 4
    assert {message.json["state"] for message in received} == {"ok"}
    sequences = [message.number for message in received]
    assert sequences == sorted(set(sequences))
    assert len({message.json["spool"] for message in received}) == 1
    numbers = [message.json["n"] for message in received]
    assert numbers == sorted(set(numbers))
    assert all("started" in message.json and "seconds" in message.json for message in received)


# Promise: AGENT-11
def test_a_new_schedule_takes_the_place_of_the_old(connection: AgentConnection) -> None:
    connection.schedule({"name": "old", "check": "fine", "interval": 0.3}, version=3)
    connection.reports("old", 1)
    connection.schedule({"name": "new", "check": "fine", "interval": 0.3}, version=4)
    connection.reports("new", 2)
    connection.send(b"ping 5\n")
    after = []
    while (received := connection.message()).command != "pong":
        after.append(received)
        connection.send(b"ack %d\n" % received.number)
    for received in connection.reports("new", 2):
        assert received.words[2] == b"new"
    assert b"old" not in {received.words[2] for received in after}


def test_a_scheduled_check_that_is_unknown_or_too_slow_reports_that(connection: AgentConnection) -> None:
    connection.schedule(
        {"name": "gone", "check": "no-such-check", "interval": 1},
        {"name": "slow", "check": "sleepy", "args": {"seconds": "30"}, "interval": 1, "timeout": 0.5},
        version=5,
    )
    found: dict[str, Any] = {}
    while len(found) < 2:
        received = connection.message()
        connection.send(b"ack %d\n" % received.number)
        found[received.name] = received.json
    assert {name: result["state"] for name, result in found.items()} == {"gone": "unknown", "slow": "unknown"}


# Promise: AGENT-7
def test_what_was_not_acknowledged_comes_again_and_what_was_does_not(
    agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection
) -> None:
    """Acks are cumulative: the second covers the first; the third result is still the agent's."""
    connection.schedule({"name": "kept", "check": "fine", "interval": 0.3}, version=6)
    received = connection.reports("kept", 3, ack=False)
    connection.send(b"ack %d\n" % received[1].number)
    connection.send(b"ping 1\n")
    while connection.message().command != "pong":
        pass
    agent.disconnect()
    connection = agent.connected_to(helen, 2)
    connection.schedule(version=7)
    seen: dict[int, str] = {}
    sequences = []
    while not connection.is_silent(0.7):
        message = connection.message()
        if message.command == "report":
            sequences.append(message.number)
            if message.words[2] == b"kept":
                assert message.json["n"] not in seen
                seen[message.json["n"]] = message.json["spool"]
            connection.send(b"ack %d\n" % message.number)
    assert sequences == list(range(1, len(sequences) + 1)), "a sequence counts from 1 on each connection"
    assert received[2].json["n"] in seen
    assert seen[received[2].json["n"]] == received[2].json["spool"]
    assert received[0].json["n"] not in seen
    assert received[1].json["n"] not in seen


# Promise: AGENT-7
def test_results_of_an_outage_arrive_once_though_the_agent_was_killed(
    agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection
) -> None:
    """Helen is away: it goes on by its schedule, and the results wait on disk, over kill -9 too."""
    connection.schedule({"name": "alone", "check": "fine", "interval": 0.2}, version=8)
    [first] = connection.reports("alone", 1)
    connection.send(b"error go away\n")
    agent.disconnect()
    time.sleep(1.0)  # results are made while nobody listens
    agent.close()
    agent.start()
    connection = agent.connected_to(helen, 2)
    connection.schedule(version=9)
    seen = []
    while not connection.is_silent(1):
        message = connection.message()
        if message.command == "report":
            if message.words[2] == b"alone":
                seen.append((message.json["spool"], message.json["n"]))
            connection.send(b"ack %d\n" % message.number)
    assert len(seen) >= 2, f"results were lost: {seen}"
    assert len(seen) == len(set(seen))
    assert (first.json["spool"], first.json["n"]) not in seen


UNWANTED = (
    b"frobnicate 1\n",
    b'upgrade 1 15\n{"version":"9"}\n',
    b'open 1 17\n{"command": "sh"}\n',
    b"data 1 3\nls\n\n",
    b"resize 1 80 24\n",
    b"file 1 stage0 4\nevil\n",
    b"ack 2147483647\n",
    b"pong 9\n",
    b"accepted 30\n",
    b"redirect not-a-place\n",
    b"redirect 127.0.0.1:99999\n",
    b"schedule 1 2\n{}\n",
    b"schedule 1 3\nabc\n",
    b'schedule 1 27\n{"version":1,"checks":[{}]}\n',
)


def test_unwanted_messages_change_nothing(agent: AgentUnderTest, helen: FakeHelen, connection: AgentConnection) -> None:
    """Unknown, switched off, or nonsense: a terminal is off unless its own file allows it."""
    for data in UNWANTED:
        connection.send(data + b"ping 77\n")
        try:
            while (received := connection.message()).command != "pong":
                assert received.command == "report", (data, received)
        except AssertionError:  # nonsense may be answered by leaving her; then it comes back
            if not connection.is_closed():
                raise
            agent.restart()
            connection = agent.connected_to(helen, 2)
        assert connection.run("echo", {"x": "still here"})["message"] == "still here", data


def test_json_of_a_report_is_small_and_plain(connection: AgentConnection) -> None:
    connection.schedule({"name": "plain", "check": "plain", "interval": 0.5}, version=20)
    [received] = connection.reports("plain", 1)
    assert json.loads(received.blob)["metrics"][0]["name"] == "/"
    assert b"\n" not in received.blob


def test_a_redirect_is_followed_and_one_to_nowhere_leads_back_home(
    agent: AgentUnderTest, agent_and_helens: tuple[AgentUnderTest, list[FakeHelen]]
) -> None:
    first, second = agent_and_helens[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusing = taken.getsockname()[1]
    agent.restart()
    connection = agent.connected_to(first, 2)
    connection.send(b"redirect 127.0.0.1:%d\n" % refusing)
    assert b"result" not in connection.read_to_end()
    connection = agent.connected_to(first, 2)
    assert connection.run("fine")["state"] == "ok"
    connection.send(b"redirect 127.0.0.1:%d\n" % second.port)
    began = time.monotonic()
    moved = second.welcome(2)
    try:
        assert time.monotonic() - began < 5
        assert moved.common_name == "web-1"
        assert moved.run("fine")["state"] == "ok"
    finally:
        moved.close()


# Promise: AGENT-12
def test_a_silent_helen_is_asked_and_left_after_three_heartbeats(agent: AgentUnderTest, helen: FakeHelen) -> None:
    agent.restart()
    connection = helen.accept()
    agent.connection = connection
    connection.line()
    connection.send(b"accepted 1\n")
    connection.schedule(version=30)
    acknowledge_all(connection)  # the last that Helen says; it cost a moment of listening
    began = time.monotonic()
    rest = connection.read_to_end(8)
    took = time.monotonic() - began
    assert b"ping " in rest
    assert 2 < took < 6, f"left after {took:.1f} s, where three heartbeats are 3 s"
