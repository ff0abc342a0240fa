"""Our agent with a Helen of version 2: accepted, ping, schedule, report and ack, redirect (PROTOCOL 10)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.monitoring.agent_process import House, house
from tests.wire.monitoring.helen_1 import Line
from tests.wire.monitoring.helen_2 import Helen2, reports, schedule

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def agent_and_helens() -> Iterator[tuple[House, list[Helen2]]]:
    with house(Helen2, 2) as (agent, helens):
        yield agent, helens  # type: ignore[misc]  # a house builds the kind that it is told


@pytest.fixture
def agent(agent_and_helens: tuple[House, list[Helen2]]) -> Iterator[House]:
    yield agent_and_helens[0]
    assert agent_and_helens[0].process.running, agent_and_helens[0].process.said()


@pytest.fixture
def helen(agent_and_helens: tuple[House, list[Helen2]]) -> Helen2:
    return agent_and_helens[1][0]


@pytest.fixture
def line(agent: House, helen: Helen2) -> Line:
    """The agent's connection with nothing scheduled; made anew if a test ended it."""
    line = agent.on_line(helen)
    schedule(line, version=0)
    quiet(line)
    return line


def quiet(line: Line) -> None:
    """Acknowledge what is still on its way, until nothing comes."""
    while not line.silent(0.2):
        heard = line.message()
        if heard.command == "report":
            line.send(b"ack %d\n" % heard.number)


def test_it_speaks_version_2_and_reports_itself_once_accepted(agent: House, helen: Helen2) -> None:
    line = helen.accept()
    agent.line = line
    assert line.line().split(b" ")[:2] == [b"hello", b"2"]
    assert line.silent(), "it sends nothing of version 2 before accepted"
    line.send(b"accepted 30\n")
    heard = line.message()
    assert heard.words[:3] == [b"report", b"1", b"equus.agent"]
    assert heard.json["labels"] == {"role": "db"}
    assert {"fine", "plain", "cpu"} <= set(heard.json["checks"])
    line.send(b"ack 1\n")


def test_every_report_carries_its_spool_and_number(agent: House, helen: Helen2) -> None:
    """PROTOCOL: reports carry `spool` and `n` in their JSON. The one about the agent itself is a report."""
    line = agent.on_line(helen)
    schedule(line, {"name": "seen", "check": "fine", "interval": 0.5})
    [heard] = reports(line, "seen", 1)
    assert isinstance(heard.json["spool"], str)
    assert isinstance(heard.json["n"], int)
    agent.hang_up()
    line = agent.on_line(helen)
    [heard] = reports(line, "equus.agent", 1)
    assert {"spool", "n"} <= set(heard.json), heard.json


def test_a_ping_is_answered_by_its_pong(line: Line) -> None:
    line.send(b"ping 0\nping 2147483647\n")
    assert line.message().words == [b"pong", b"0"]
    assert line.message().words == [b"pong", b"2147483647"]


def test_checks_work_as_in_version_1(line: Line) -> None:
    assert line.run("echo", {"x": "y"})["message"] == "y"
    assert line.run("no-such")["state"] == "unknown"


def test_the_schedule_is_run_by_itself_and_reported_in_order(line: Line) -> None:
    schedule(
        line, {"name": "my echo".replace(" ", "-"), "check": "echo", "args": {"x": "1"}, "interval": 0.5}, version=2
    )
    began = time.monotonic()
    heard = reports(line, "my-echo", 4)
    took = time.monotonic() - began
    assert 1.0 < took < 5, f"four runs, every 0.5 s, took {took:.1f} s"
    assert [message.json["message"] for message in heard] == ["1"] * 4
    assert {message.json["state"] for message in heard} == {"ok"}
    sequences = [message.number for message in heard]
    assert sequences == sorted(set(sequences))
    assert len({message.json["spool"] for message in heard}) == 1
    numbers = [message.json["n"] for message in heard]
    assert numbers == sorted(set(numbers))
    assert all("started" in message.json and "seconds" in message.json for message in heard)


# Promise: AGENT-11
def test_a_new_schedule_takes_the_place_of_the_old(line: Line) -> None:
    schedule(line, {"name": "old", "check": "fine", "interval": 0.3}, version=3)
    reports(line, "old", 1)
    schedule(line, {"name": "new", "check": "fine", "interval": 0.3}, version=4)
    reports(line, "new", 2)
    line.send(b"ping 5\n")
    after = []
    while (heard := line.message()).command != "pong":
        after.append(heard)
        line.send(b"ack %d\n" % heard.number)
    for heard in reports(line, "new", 2):
        assert heard.words[2] == b"new"
    assert b"old" not in {heard.words[2] for heard in after}


def test_a_scheduled_check_that_is_unknown_or_too_slow_reports_that(line: Line) -> None:
    schedule(
        line,
        {"name": "gone", "check": "no-such-check", "interval": 1},
        {"name": "slow", "check": "sleepy", "args": {"seconds": "30"}, "interval": 1, "timeout": 0.5},
        version=5,
    )
    found: dict[str, Any] = {}
    while len(found) < 2:
        heard = line.message()
        line.send(b"ack %d\n" % heard.number)
        found[heard.words[2].decode()] = heard.json
    assert {name: result["state"] for name, result in found.items()} == {"gone": "unknown", "slow": "unknown"}


# Promise: AGENT-7
def test_what_was_not_acknowledged_comes_again_and_what_was_does_not(agent: House, helen: Helen2, line: Line) -> None:
    """Acks are cumulative: the second covers the first; the third result is still the agent's."""
    schedule(line, {"name": "kept", "check": "fine", "interval": 0.3}, version=6)
    heard = reports(line, "kept", 3, ack=False)
    line.send(b"ack %d\n" % heard[1].number)
    line.send(b"ping 1\n")
    while line.message().command != "pong":
        pass
    agent.hang_up()
    line = agent.on_line(helen)
    schedule(line, version=7)
    seen: dict[int, str] = {}
    sequences = []
    while not line.silent(0.7):
        message = line.message()
        if message.command == "report":
            sequences.append(message.number)
            if message.words[2] == b"kept":
                assert message.json["n"] not in seen
                seen[message.json["n"]] = message.json["spool"]
            line.send(b"ack %d\n" % message.number)
    assert sequences == list(range(1, len(sequences) + 1)), "a sequence counts from 1 on each connection"
    assert heard[2].json["n"] in seen
    assert seen[heard[2].json["n"]] == heard[2].json["spool"]
    assert heard[0].json["n"] not in seen
    assert heard[1].json["n"] not in seen


# Promise: AGENT-7
def test_results_of_an_outage_arrive_once_though_the_agent_was_killed(agent: House, helen: Helen2, line: Line) -> None:
    """Helen is away: it goes on by its schedule, and the results wait on disk, over kill -9 too."""
    schedule(line, {"name": "alone", "check": "fine", "interval": 0.2}, version=8)
    [first] = reports(line, "alone", 1)
    line.send(b"error go away\n")
    agent.hang_up()
    time.sleep(1.0)  # results are made while nobody listens
    agent.process.close()
    agent.process.start()
    line = agent.on_line(helen)
    schedule(line, version=9)
    seen = []
    while not line.silent(1):
        message = line.message()
        if message.command == "report":
            if message.words[2] == b"alone":
                seen.append((message.json["spool"], message.json["n"]))
            line.send(b"ack %d\n" % message.number)
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


def test_words_that_it_does_not_want_change_nothing(agent: House, helen: Helen2, line: Line) -> None:
    """Unknown, switched off, or nonsense: a terminal is off unless its own file allows it."""
    for said in UNWANTED:
        line.send(said + b"ping 77\n")
        try:
            while (heard := line.message()).command != "pong":
                assert heard.command == "report", (said, heard)
        except AssertionError:  # nonsense may be answered by leaving her; then it comes back
            if not line.is_over():
                raise
            agent.anew()
            line = agent.on_line(helen)
        assert line.run("echo", {"x": "still here"})["message"] == "still here", said


def test_json_of_a_report_is_small_and_plain(line: Line) -> None:
    schedule(line, {"name": "plain", "check": "plain", "interval": 0.5}, version=20)
    [heard] = reports(line, "plain", 1)
    assert json.loads(heard.blob)["metrics"][0]["name"] == "/"
    assert b"\n" not in heard.blob


def test_a_redirect_is_followed_and_one_to_nowhere_leads_back_home(
    agent: House, agent_and_helens: tuple[House, list[Helen2]]
) -> None:
    first, second = agent_and_helens[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusing = taken.getsockname()[1]
    agent.anew()
    line = agent.on_line(first)
    line.send(b"redirect 127.0.0.1:%d\n" % refusing)
    assert b"result" not in line.rest()
    line = agent.on_line(first)
    assert line.run("fine")["state"] == "ok"
    line.send(b"redirect 127.0.0.1:%d\n" % second.port)
    began = time.monotonic()
    moved = second.welcome()
    try:
        assert time.monotonic() - began < 5
        assert moved.common_name == "web-1"
        assert moved.run("fine")["state"] == "ok"
    finally:
        moved.close()


# Promise: AGENT-12
def test_a_silent_helen_is_asked_and_left_after_three_heartbeats(agent: House, helen: Helen2) -> None:
    agent.anew()
    line = helen.accept()
    agent.line = line
    line.line()
    line.send(b"accepted 1\n")
    schedule(line, version=30)
    quiet(line)  # the last that Helen says; it cost a moment of listening
    began = time.monotonic()
    rest = line.rest(8)
    took = time.monotonic() - began
    assert b"ping " in rest
    assert 2 < took < 6, f"left after {took:.1f} s, where three heartbeats are 3 s"
