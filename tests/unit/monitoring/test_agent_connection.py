"""The messages of a connection: each violation of the protocol is answered with `error` and closes the connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.clock import Now
from scale0.monitoring.helen.core.agent_connection import MAX_GIVEN_UP, AgentConnection
from scale0.monitoring.helen.core.pending_requests import PendingRequest, Requester
from scale0.monitoring.helen.core.socket_events import ConnectionOpened
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import MAX_INT, Check, Data, Error, File, Hello, Pong, Result
from tests.fakes.examples import examples
from tests.unit.monitoring.helen_world import HelenWorld, report

FAULTS = {
    "a line over 8 KiB": b"x" * 8_193,
    "a bad number": b"result 01 load 2\n{}\n",
    "a number with foreign digits": "result ٣ load 2\n{}\n".encode(),
    "a sign": b"ping +1\n",
    "invalid UTF-8": b"result 1 \xff 2\n{}\n",
    "a blob too long": b"report 1 load 1048577\n",
    "a blob without its end": b"report 1 load 2\n{}x",
    "a result that was never asked for": b"result 1 load 2\n{}\n",
    "a second hello": b"hello 2 0.1.0\n",
    "an unknown command": b"helo\n",
    "enrol after hello": b"enrol 2\n{}\n",
    "a report that counts backwards": b"report 0 load 2\n{}\n",
    "a name that cannot be printed": b"report 1 lo\x01ad 2\n{}\n",
    "a name without end": b"report 1 " + b"n" * 300 + b" 2\n{}\n",
    "a name that would break a line": b"fetch 1 a\rb\n",
}


# Promise: AGENT-2
@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_gets_one_error_and_the_end(what: str):
    world = HelenWorld()
    connection = world.agent()
    heard = world.data(connection, FAULTS[what] + b"ping 7\nping 8\n")
    assert [type(word) for word in heard] == [Error]
    assert connection in world.closed
    assert world.kinds()[-2:] == ["agent.refused", "client.lost"]
    assert world.data(connection, b"ping 9\n") == []
    assert world.evaluation.taken == []


# Promise: AGENT-2
@pytest.mark.parametrize(
    "said", [b"ping 1\n", b"result 1 load 2\n{}\n", b"report 1 load 2\n{}\n", b"data 1 1\nx\n", b"\n", b"\0\n"]
)
def test_nothing_comes_before_hello(said: bytes):
    world = HelenWorld()
    connection = world.connect()
    assert [type(word) for word in world.data(connection, said)] == [Error]
    assert connection in world.closed


# Promise: AGENT-3
def test_version_1_hears_nothing_but_its_own_words():
    world = HelenWorld()
    world.evaluation.plans[""] = [{"name": "load", "check": "load", "args": {}, "interval": 60, "timeout": 10}]
    connection = world.connect()
    assert world.say(connection, Hello(1, "typed-by-hand")) == []
    world.configure()
    world.pass_time(3_600)
    assert world.hear(connection) == []
    world.request("helen.check", {"agent": "web-1", "check": "load", "args": {"a": 1}})
    assert world.hear(connection) == [Check("load", 1, b'{"a":1}')]
    assert world.data(connection, b'result 1 load 14\r\n{"state":"ok"}\r\n') == []
    assert world.answers()[0][0] == b"reply"


# Promise: AGENT-3
@pytest.mark.parametrize("said", [b"ping 1\n", b"report 1 load 2\n{}\n", b"fetch 1 x\n", b"open 1 2\n{}\n"])
def test_words_of_version_2_are_no_words_of_version_1(said: bytes):
    world = HelenWorld()
    connection = world.agent(version=1)
    assert [type(word) for word in world.data(connection, said)] == [Error]
    assert connection in world.closed


def test_a_later_version_is_answered_in_version_2():
    world = HelenWorld()
    world.agent(version=3)
    assert world.helen.state.agents.by_identity["web-1"].protocol == 2


def test_a_ping_is_answered_and_a_fetch_finds_nothing():
    world = HelenWorld()
    connection = world.agent()
    assert world.data(connection, b"ping 5\nfetch 6 stage0\n") == [Pong(5), File(6, "stage0", b"")]


def test_a_terminal_is_nobodys_yet():
    world = HelenWorld()
    connection = world.agent()
    assert world.data(connection, b"open 1 2\n{}\nresize 1 80 25\nclose 1 0\npong 77\n") == []
    assert world.say(connection, Data(1, b"ls")) == []
    assert connection not in world.closed


# Promise: AGENT-4
def test_numbers_run_out_before_they_repeat():
    line = AgentConnection(b"c", ConnectionOpened("web-1", "", 0, ""), Now(0.0, 0.0))
    line._next_id = MAX_INT
    assert line.issue() == MAX_INT
    assert line.issue() is None
    assert line.issue() is None


def test_a_connection_whose_numbers_ran_out_must_come_again():
    world = HelenWorld()
    connection = world.agent()
    world.helen.state.connections[connection]._next_id = MAX_INT + 1
    (answer,) = world.request("helen.check", {"agent": "web-1", "check": "load"})
    assert answer[:2] == [b"error", b"503"]
    assert [type(word) for word in world.hear(connection)] == [Error]
    assert connection in world.closed


# Promise: AGENT-4
def test_a_result_is_taken_once():
    line = AgentConnection(b"c", ConnectionOpened("web-1", "", 0, ""), Now(0.0, 0.0))
    asked = PendingRequest(Requester(b"r"), "load", "r", False)
    number = line.issue()
    assert number == 1
    line.expect(number, asked)
    assert line.settle_result(Result(1, "load", b"{}")) is asked
    assert "once" in str(line.settle_result(Result(1, "load", b"{}")))
    assert "never" in str(line.settle_result(Result(2, "load", b"{}")))
    assert "never" in str(line.settle_result(Result(0, "load", b"{}")))


def test_an_agent_that_answers_nothing_is_let_go():
    world = HelenWorld()
    connection = world.agent(version=1)
    for number in range(MAX_GIVEN_UP):
        world.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 20}, name=b"r%d" % number)
    world.pass_time(21)
    assert connection in world.closed
    assert world.helen.view()["open_checks"] == 0
    assert world.answers(b"r0")[0][:2] == [b"error", b"504"]


# Promise: AGENT-2
def test_an_impatient_asker_has_no_agent_thrown_out():
    world = HelenWorld()
    connection = world.agent()
    for number in range(2 * MAX_GIVEN_UP):
        world.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 0.001}, name=b"r%d" % number)
    world.pass_time(1)
    assert world.answers(b"r0")[0][:2] == [b"error", b"504"]
    assert connection not in world.closed


def test_an_agent_that_answers_now_and_then_stays():
    world = HelenWorld()
    connection = world.agent()
    for number in range(1, 2 * MAX_GIVEN_UP):
        world.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 20}, name=b"r%d" % number)
        if number % (MAX_GIVEN_UP - 1) == 0:
            world.pass_time(21)
            world.hear(connection)
            world.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 20}, name=b"answered")
            (check,) = [word for word in world.hear(connection) if isinstance(word, Check)]
            world.say(connection, Result(check.message_id, "load", b'{"state":"ok"}'))
    world.pass_time(21)
    assert connection not in world.closed


# Promise: AGENT-2
@examples(200, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([*FAULTS.values(), b"hello 2 x\n", b"\n"])), max_size=8)
)
def test_no_bytes_raise_or_disturb_another(pieces: list[bytes]):
    world = HelenWorld()
    other = world.agent("db-1")
    strange = world.connect("web-1")
    for piece in pieces:
        world.data(strange, piece)
    world.say(other, report(1))
    assert [agent for agent, _ in world.evaluation.taken if agent == "db-1"] == ["db-1"]


# Promise: AGENT-1
def test_words_count_the_same_however_they_are_cut():
    said = b"hello 2 0.1.0\n" + encode(report(1)) + b"ping 3\n"
    whole, cut = HelenWorld(), HelenWorld()
    one, other = whole.connect(), cut.connect()
    expected = whole.data(one, said)
    heard = []
    for at in range(len(said)):
        heard += cut.data(other, said[at : at + 1])
    assert sorted(map(str, heard)) == sorted(map(str, expected))
    assert cut.evaluation.taken == whole.evaluation.taken
    assert len(cut.evaluation.taken) == 1
