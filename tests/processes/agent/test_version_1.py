"""The real agent with a Helen of protocol version 1."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from tests.fakes.waiting import until
from tests.processes.agent.agents import AgentProcess
from tests.processes.agent.credentials import Credentials
from tests.processes.agent.helen_version_1 import Helen

pytestmark = pytest.mark.processes


@pytest.fixture
def helen(credentials: Credentials) -> Iterator[Helen]:
    helen = Helen(*credentials.helen, credentials.ca)
    yield helen
    helen.close()


class SlowServer:
    """A port that accepts, and answers only when it is told to: `tcp` checks of it take as long."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)

    def answer(self) -> None:
        for connection in self.connections:
            connection.sendall(b"hello\n")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(5)
        for connection in self.connections:
            connection.close()


# Promise: AGENT-4
def test_checks_run_at_once_and_answer_in_any_order(helen, credentials, tmp_path):
    slow = SlowServer()
    args = json.dumps({"host": "127.0.0.1", "port": slow.port, "expect": "hello"}).encode()
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            for number in range(1, 11):
                equus.check("tcp", number, args)
            equus.check("load", 11)
            message_id, name, body = equus.result()
            assert (message_id, name) == (11, "load"), "the last one is quick, and need not wait"
            assert json.loads(body)["state"] in ("ok", "warning", "critical")
            until(lambda: len(slow.connections) == 10)  # so all ten are in hand at once
            slow.answer()
            found = [equus.result() for _ in range(10)]
            assert sorted(message_id for message_id, _, _ in found) == list(range(1, 11))
            assert {name for _, name, _ in found} == {"tcp"}
            assert {json.loads(body)["state"] for _, _, body in found} == {"ok"}
    slow.close()


# Promise: CHECK-1
def test_a_check_that_is_unknown_or_asked_wrongly_or_too_slow_answers_so(helen, credentials, tmp_path):
    slow = SlowServer()
    args = json.dumps({"host": "127.0.0.1", "port": slow.port, "expect": "hello"}).encode()
    with AgentProcess(tmp_path, credentials, [helen.port], check_timeout=0.5) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            equus.check("nobody-knows-it", 1)
            equus.check("load", 2, b"this is not JSON")
            equus.check("load", 3, b"")
            equus.check("tcp", 4, args)
            found = {message_id: json.loads(body) for message_id, _, body in (equus.result() for _ in range(4))}
            assert "nobody-knows-it" in found[1]["message"]
            assert found[2]["state"] == "unknown"
            assert found[3]["state"] in ("ok", "warning", "critical")  # however busy this machine is
            assert found[4]["state"] in ("critical", "unknown")
            assert found[4]["seconds"] < 2
    slow.close()


# Promise: AGENT-3, AGENT-4
def test_nothing_of_version_2_is_said_and_the_same_id_is_answered_once(helen, credentials, tmp_path):
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            assert equus.version >= 1
            for _ in range(2):
                equus.check("uptime", 1)
            equus.check("uptime", 2)
            assert [equus.result()[0] for _ in range(2)] == [1, 2]
            equus.say("a command that nobody knows")
            equus.check("uptime", 3)
            assert equus.result()[0] == 3


# Promise: AGENT-21
def test_reload_gives_a_fresh_process(helen, credentials, tmp_path):
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            equus.check("uptime", 1)
            equus.result()
            first = agent.child
            equus.say("reload")
            with pytest.raises(EOFError):
                equus.line()
        with helen.accept() as equus:
            equus.check("uptime", 1)
            assert equus.result()[0] == 1
            assert agent.child not in (0, first)


# Promise: AGENT-13
def test_an_error_is_logged_and_the_agent_comes_back_after_a_while(helen, credentials, tmp_path):
    with AgentProcess(tmp_path, credentials, [helen.port]) as agent:
        agent.wait_ready()
        with helen.accept() as equus:
            equus.say("error you did something wrong")
            agent.wait_log("you did something wrong")
            agent.wait_log("next attempt in")
            with pytest.raises(EOFError):
                equus.line()
        with helen.accept() as equus:
            equus.check("uptime", 1)
            assert equus.result()[0] == 1


# Promise: AGENT-15
def test_a_helen_whom_nobody_vouches_for_hears_nothing(credentials, tmp_path):
    stranger = Helen(*Credentials(tmp_path / "stranger").helen, credentials.ca)
    with AgentProcess(tmp_path, credentials, [stranger.port]) as agent:
        agent.wait_ready()
        with pytest.raises(ssl.SSLError), stranger.accept():
            pass
        agent.wait_log("certificate")
    stranger.close()
