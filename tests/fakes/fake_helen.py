"""A fake Helen for real agents, written from the protocol alone: a TLS server that a test or a thread answers from."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from tests.fakes.fake_agent import Connection, Message
from tests.fakes.waiting import PATIENCE_SECONDS, until

ACCEPT_SECONDS = 15.0
"""An agent that was sent away waits up to a second, then up to two, four and so on."""


class AgentConnection(Connection):
    """One agent's connection, seen from Helen."""

    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        super().__init__(wrapped, "the agent")
        self._last_id = 0
        peer: Any = wrapped.getpeercert()
        self.certificate: dict[str, Any] = peer or {}
        subject = dict(pair[0] for pair in self.certificate.get("subject", ()))
        self.common_name: str = subject.get("commonName", "")

    def check(self, name: str, args: Any = None, number: int | None = None) -> int:
        """Send a check; its message id."""
        self._last_id += 1
        number = self._last_id if number is None else number
        self.send_blob(b"check %b %d" % (name.encode(), number), {} if args is None else args)
        return number

    def result(self, seconds: float = 15.0) -> Message:
        """The next result; reports and pings of version 2 may come between."""
        received = self.message(seconds)
        while received.command in ("report", "ping"):
            received = self.message(seconds)
        assert received.command == "result", received
        return received

    def run(self, name: str, args: Any = None, seconds: float = 15.0) -> Any:
        """Check, and the JSON of the result."""
        number = self.check(name, args)
        received = self.result(seconds)
        assert (received.number, received.name) == (number, name)
        return received.json

    def schedule(self, *checks: dict[str, Any], version: int = 1) -> None:
        """These are the checks to run now."""
        entries = [{"check": check["name"], "args": {}, "timeout": 5, **check} for check in checks]
        self.send_blob(b"schedule 1", {"version": version, "checks": entries})

    def reports(self, name: str, count: int, seconds: float = 10.0, ack: bool = True) -> list[Message]:
        """The next reports of this name; all that come are acknowledged on the way, if so wished."""
        found: list[Message] = []
        while len(found) < count:
            received = self.expect("report", seconds)
            if ack:
                self.send(b"ack %d\n" % received.number)
            if received.name == name:
                found.append(received)
        return found


class FakeHelen:
    """Listens on loopback."""

    def __init__(self, context: ssl.SSLContext, port: int = 0) -> None:
        self.context = context
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._accepted: list[AgentConnection] = []

    def accept(self, seconds: float = ACCEPT_SECONDS) -> AgentConnection:
        """The next agent; its handshake is done, its hello is not read."""
        self._listener.settimeout(seconds)
        plain, _ = self._listener.accept()
        plain.settimeout(ACCEPT_SECONDS)
        try:
            self._accepted.append(AgentConnection(self.context.wrap_socket(plain, server_side=True)))
        except BaseException:
            plain.close()
            raise
        return self._accepted[-1]

    def welcome(self, version: int = 1, heartbeat_seconds: int = 30) -> AgentConnection:
        """The next agent, its hello read; version 2: accepted."""
        connection = self.accept()
        words = connection.line().split(b" ")
        assert words[:2] == [b"hello", b"2"], words
        assert len(words) == 3, words
        if version == 2:
            connection.send(b"accepted %d\n" % heartbeat_seconds)
        return connection

    def close(self) -> None:
        self._listener.close()
        for connection in self._accepted:
            connection.close()


class ServingHelen(FakeHelen):
    """Serves one connection at a time in a thread: accepts each agent, and acknowledges what it reports."""

    def __init__(self, context: ssl.SSLContext, port: int = 0) -> None:
        super().__init__(context, port)
        self.heartbeat_seconds = 30
        self.checks: list[dict[str, Any]] | None = None
        """The schedule; None: none is sent."""
        self.acks = True
        self.on_hello: Callable[[AgentConnection], bool] = lambda _: True
        """False: this connection is not accepted, and closed."""
        self.reports: list[Report] = []
        self.introductions: list[dict[str, Any]] = []
        self.results: list[Message] = []
        self.connections = 0
        self._agents: list[AgentConnection] = []
        self._ended = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            with contextlib.suppress(OSError, AssertionError):
                connection = self.accept(0.1)
                self.connections += 1
                try:
                    self._talk(connection)
                finally:
                    connection.close()

    def _talk(self, agent: AgentConnection) -> None:
        agent.expect("hello")
        if not self.on_hello(agent):
            return
        agent.send(b"accepted %d\n" % self.heartbeat_seconds)
        if self.checks is not None:
            agent.schedule(*self.checks)
        self._agents.append(agent)
        try:
            while not self._ended:
                self._receive(agent, agent.message())
        finally:
            self._agents.remove(agent)

    def _receive(self, agent: AgentConnection, received: Message) -> None:
        match received.command:
            case "report":
                if received.name == "equus.agent":
                    self.introductions.append(received.json)
                else:
                    self.reports.append(Report(received))
                if self.acks:
                    agent.send(b"ack %d\n" % received.number)
            case "result":
                self.results.append(received)
            case "ping":
                agent.send(b"pong %d\n" % received.number)

    def reschedule(self, *checks: dict[str, Any]) -> None:
        """For the agent that is connected, and for the next."""
        self.checks = list(checks)
        self.agent.schedule(*checks)

    @property
    def agent(self) -> AgentConnection:
        """The agent that is connected, once it is."""
        found: AgentConnection = until(lambda: self._agents and self._agents[0])
        return found

    @property
    def refs(self) -> list[tuple[str, int]]:
        return [report.ref for report in self.reports]

    @property
    def all_refs(self) -> list[tuple[str, int]]:
        """With those of introductions, which have numbers of the same spool."""
        return [*self.refs, *((body["spool"], body["n"]) for body in self.introductions)]

    def close(self) -> None:
        """Away: the port is closed, and every connection."""
        self._ended = True
        for agent in tuple(self._agents):
            with contextlib.suppress(OSError):
                # SSLSocket.shutdown would let the serving thread read what is left in the clear, as messages.
                socket.socket.shutdown(agent.socket, socket.SHUT_RDWR)
        self._thread.join(PATIENCE_SECONDS)
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Report:
    """One report as it came."""

    def __init__(self, message: Message) -> None:
        self.sequence, self.name = message.number, message.name
        self.body: dict[str, Any] = json.loads(message.blob)
        self.arrived_wall = time.time()

    @property
    def ref(self) -> tuple[str, int]:
        return self.body["spool"], self.body["n"]
