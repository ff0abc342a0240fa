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
from tests.fakes.simulated_helen import SimulatedHelen, report

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
def test_a_fault_gets_one_error_and_the_end(helen: SimulatedHelen, connection: bytes, what: str):
    received = helen.receive_bytes(connection, FAULTS[what] + b"ping 7\nping 8\n")
    assert [type(message) for message in received] == [Error]
    assert connection in helen.closed
    assert helen.kinds()[-2:] == ["agent.refused", "client.lost"]
    assert helen.receive_bytes(connection, b"ping 9\n") == []
    assert helen.evaluation.results == []


# Promise: AGENT-2
@pytest.mark.parametrize(
    "data", [b"ping 1\n", b"result 1 load 2\n{}\n", b"report 1 load 2\n{}\n", b"data 1 1\nx\n", b"\n", b"\0\n"]
)
def test_nothing_comes_before_hello(helen: SimulatedHelen, data: bytes):
    connection = helen.connect()
    assert [type(message) for message in helen.receive_bytes(connection, data)] == [Error]
    assert connection in helen.closed


# Promise: AGENT-3
def test_version_1_receives_no_other_messages(helen: SimulatedHelen):
    helen.evaluation.plans[""] = [{"name": "load", "check": "load", "args": {}, "interval": 60, "timeout": 10}]
    connection = helen.connect()
    assert helen.receive(connection, Hello(1, "typed-by-hand")) == []
    helen.configure()
    helen.pass_time(3_600)
    assert helen.sent(connection) == []
    helen.request("helen.check", {"agent": "web-1", "check": "load", "args": {"a": 1}})
    assert helen.sent(connection) == [Check("load", 1, b'{"a":1}')]
    assert helen.receive_bytes(connection, b'result 1 load 14\r\n{"state":"ok"}\r\n') == []
    assert helen.replies()[0][0] == b"reply"


# Promise: AGENT-3
@pytest.mark.parametrize("data", [b"ping 1\n", b"report 1 load 2\n{}\n", b"fetch 1 x\n", b"open 1 2\n{}\n"])
def test_messages_of_version_2_are_unknown_in_version_1(helen: SimulatedHelen, data: bytes):
    connection = helen.agent(version=1)
    assert [type(message) for message in helen.receive_bytes(connection, data)] == [Error]
    assert connection in helen.closed


def test_a_later_version_is_answered_in_version_2(helen: SimulatedHelen):
    helen.agent(version=3)
    assert helen.machine.state.agents.by_identity["web-1"].protocol == 2


def test_a_ping_is_answered_and_a_fetch_finds_nothing(helen: SimulatedHelen, connection: bytes):
    assert helen.receive_bytes(connection, b"ping 5\nfetch 6 stage0\n") == [Pong(5), File(6, "stage0", b"")]


def test_a_terminal_is_nobodys_yet(helen: SimulatedHelen, connection: bytes):
    assert helen.receive_bytes(connection, b"open 1 2\n{}\nresize 1 80 25\nclose 1 0\npong 77\n") == []
    assert helen.receive(connection, Data(1, b"ls")) == []
    assert connection not in helen.closed


# Promise: AGENT-4
def test_numbers_run_out_before_they_repeat():
    connection = AgentConnection(b"c", ConnectionOpened("web-1", "", 0, ""), Now(0.0, 0.0))
    connection._next_id = MAX_INT
    assert connection.issue() == MAX_INT
    assert connection.issue() is None
    assert connection.issue() is None


def test_a_connection_whose_numbers_ran_out_must_come_again(helen: SimulatedHelen, connection: bytes):
    helen.machine.state.connections[connection]._next_id = MAX_INT + 1
    assert helen.refuses("helen.check", {"agent": "web-1", "check": "load"}) == 503
    assert [type(message) for message in helen.sent(connection)] == [Error]
    assert connection in helen.closed


# Promise: AGENT-4
def test_a_result_is_taken_once():
    connection = AgentConnection(b"c", ConnectionOpened("web-1", "", 0, ""), Now(0.0, 0.0))
    asked = PendingRequest(Requester(b"r"), "load", "r", False)
    number = connection.issue()
    assert number == 1
    connection.expect(number, asked)
    assert connection.settle_result(Result(1, "load", b"{}")) is asked
    assert "once" in str(connection.settle_result(Result(1, "load", b"{}")))
    assert "never" in str(connection.settle_result(Result(2, "load", b"{}")))
    assert "never" in str(connection.settle_result(Result(0, "load", b"{}")))


def test_an_agent_that_answers_nothing_is_disconnected(helen: SimulatedHelen):
    connection = helen.agent(version=1)
    for number in range(MAX_GIVEN_UP):
        helen.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 20}, name=b"r%d" % number)
    helen.pass_time(21)
    assert connection in helen.closed
    assert helen.machine.view()["open_checks"] == 0
    assert helen.error_code(b"r0") == 504


# Promise: AGENT-2
def test_requests_with_short_timeouts_disconnect_no_agent(helen: SimulatedHelen, connection: bytes):
    for number in range(2 * MAX_GIVEN_UP):
        helen.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 0.001}, name=b"r%d" % number)
    helen.pass_time(1)
    assert helen.error_code(b"r0") == 504
    assert connection not in helen.closed


def test_an_agent_that_answers_now_and_then_stays(helen: SimulatedHelen, connection: bytes):
    for number in range(1, 2 * MAX_GIVEN_UP):
        helen.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 20}, name=b"r%d" % number)
        if number % (MAX_GIVEN_UP - 1) == 0:
            helen.pass_time(21)
            helen.sent(connection)
            helen.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 20}, name=b"answered")
            (check,) = [message for message in helen.sent(connection) if isinstance(message, Check)]
            helen.receive(connection, Result(check.message_id, "load", b'{"state":"ok"}'))
    helen.pass_time(21)
    assert connection not in helen.closed


# Promise: AGENT-2
@examples(200, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([*FAULTS.values(), b"hello 2 x\n", b"\n"])), max_size=8)
)
def test_no_bytes_raise_or_disturb_another(pieces: list[bytes]):
    helen = SimulatedHelen()
    other = helen.agent("db-1")
    strange = helen.connect("web-1")
    for piece in pieces:
        helen.receive_bytes(strange, piece)
    helen.receive(other, report(1))
    assert [agent for agent, _ in helen.evaluation.results if agent == "db-1"] == ["db-1"]


# Promise: AGENT-1
def test_messages_count_the_same_however_they_are_cut():
    data = b"hello 2 0.1.0\n" + encode(report(1)) + b"ping 3\n"
    whole, cut = SimulatedHelen(), SimulatedHelen()
    one, other = whole.connect(), cut.connect()
    expected = whole.receive_bytes(one, data)
    received = []
    for at in range(len(data)):
        received += cut.receive_bytes(other, data[at : at + 1])
    assert sorted(map(str, received)) == sorted(map(str, expected))
    assert cut.evaluation.results == whole.evaluation.results
    assert len(cut.evaluation.results) == 1
