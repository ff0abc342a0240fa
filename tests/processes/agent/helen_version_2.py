"""A small Helen of version 2 in a thread: it accepts, sends a schedule, receives reports and acknowledges them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.waiting import until
from tests.processes.agent.helen_version_1 import Equus, Helen


class Report:
    """One report as it came."""

    def __init__(self, sequence: int, name: str, body: bytes) -> None:
        self.sequence = sequence
        self.name = name
        self.body: dict[str, Any] = json.loads(body)
        self.arrived_wall = time.time()

    @property
    def ref(self) -> tuple[str, int]:
        return self.body["spool"], self.body["n"]


class Helen2:
    """Every agent that comes is accepted, unless `first_words` says something else."""

    def __init__(self, certificate: Path, key: Path, ca: Path, port: int = 0) -> None:
        self._helen = Helen(certificate, key, ca)
        if port:
            self._helen.listener.close()
            self._helen.listener = socket.create_server(("127.0.0.1", port))
        self._helen.listener.settimeout(0.1)
        self.port: int = self._helen.listener.getsockname()[1]
        self.heartbeat = 30
        self.schedule: list[dict[str, Any]] | None = None
        self.acks = True
        self.first_words: Callable[[Equus], bool] = lambda _: True
        """False: this connection is not accepted, and closed."""
        self.reports: list[Report] = []
        self.introductions: list[dict[str, Any]] = []
        self.results: list[tuple[int, str, dict[str, Any]]] = []
        self.lines: list[str] = []
        self.agents: list[Equus] = []
        self.connections = 0
        self._ended = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended:
            try:
                raw, _ = self._helen.listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.connections += 1
            raw.settimeout(60)
            with contextlib.suppress(OSError, EOFError, ValueError):
                self._talk(raw)

    def _talk(self, raw: socket.socket) -> None:
        with raw, self._helen.context.wrap_socket(raw, server_side=True) as tls, tls.makefile("rb") as file:
            agent = Equus(tls, file)
            if not self.first_words(agent):
                return
            agent.say(f"accepted {self.heartbeat}")
            if self.schedule is not None:
                self.send_schedule(agent)
            self.agents.append(agent)
            try:
                while not self._ended:
                    self._hear(agent, agent.line())
            finally:
                self.agents.remove(agent)

    def send_schedule(self, agent: Equus) -> None:
        body = json.dumps({"version": 1, "checks": self.schedule}).encode()
        agent.connection.sendall(b"schedule 1 %d\n%s\n" % (len(body), body))

    def _hear(self, agent: Equus, words: list[str]) -> None:
        self.lines.append(" ".join(words))
        if words[0] == "report":
            body = agent.file.read(int(words[3]) + 1)[:-1]
            report = Report(int(words[1]), words[2], body)
            if report.name == "equus.agent":
                self.introductions.append(report.body)
            else:
                self.reports.append(report)
            if self.acks:
                agent.say(f"ack {words[1]}")
        elif words[0] == "result":
            body = agent.file.read(int(words[3]) + 1)[:-1]
            self.results.append((int(words[1]), words[2], json.loads(body)))
        elif words[0] == "ping":
            agent.say(f"pong {words[1]}")

    @property
    def agent(self) -> Equus:
        """The agent that is connected, when it is."""
        found: Equus = until(lambda: self.agents and self.agents[0])
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
        self._helen.close()
        for agent in tuple(self.agents):
            with contextlib.suppress(OSError):
                agent.connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)

    def __enter__(self) -> Helen2:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
