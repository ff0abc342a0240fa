"""A real broker and a real HTTP server for tests, and clients with each role. All processes end with the test."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import argon2
import httpx

import scale0
from tests.fakes.broker_process import READY_SECONDS, STOP_SECONDS, BrokerProcess
from tests.processes.client.net import token_of

API: Final = "/api/v1"
ROLES: Final = ("viewer", "operator", "admin")
PEOPLE: Final = {"vera": "viewer", "otto": "operator", "ada": "admin"}
NAMES: Final = {role: name for name, role in PEOPLE.items()}
PASSWORD: Final = "correct horse 7"
CHEAP: Final = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
"""Hashing that costs tests nothing."""


def admins() -> list[dict[str, str]]:
    """People of every role, for a broker's file."""
    hashed = CHEAP.hash(PASSWORD)
    return [{"auth_id": name, "password_hash": hashed, "role": role} for name, role in PEOPLE.items()]


class Server:
    """One management server, its files in `folder`."""

    def __init__(self, folder: Path, broker: BrokerProcess, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.broker = broker
        self.settings: dict[str, Any] = {
            "endpoint": broker.endpoints["frontend"],
            "data_dir": broker.config["data_dir"],
            "port": 0,
            **settings,
        }
        self.log = folder / "management.log"
        self.url = self.link = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def place(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scale0.http"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self.settings).encode() + b"\n")
        self._process.stdin.flush()
        ready = json.loads(self._line().removeprefix("ready "))
        self.url, self.link = ready["url"], ready["link"]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def _line(self) -> str:
        assert self.process.stdout is not None
        until, said = time.monotonic() + READY_SECONDS, b""
        descriptor = self.process.stdout.fileno()
        while not said.endswith(b"\n") and (left := until - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left)[0]:
                break
            more = os.read(descriptor, 65_536)
            if not more:
                break
            said += more
        assert said.startswith(b"ready "), f"it said {said!r}\n{self.said()[-3_000:]}"
        return said.decode()


class Site:
    """A network, its management server, and who uses it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.broker = server.broker
        self._open: list[httpx.Client] = []

    def nobody(self) -> httpx.Client:
        """Somebody whom the broker does not know."""
        client = httpx.Client(base_url=self.server.url + API, timeout=30, trust_env=False)
        self._open.append(client)
        return client

    def by_token(self, role: str, **issued: Any) -> httpx.Client:
        """Somebody with an API token of this role."""
        client = self.nobody()
        client.headers["Authorization"] = f"Bearer {self.token(role, **issued)}"
        return client

    def by_cookie(self, role: str, csrf: bool = True) -> httpx.Client:
        """Somebody of this role who has logged in with a password."""
        client = self.nobody()
        said = client.post("/session", json={"name": NAMES[role], "password": PASSWORD})
        assert said.status_code == 200, said.text
        if csrf:
            client.headers["X-CSRF-Token"] = said.json()["csrf"]
        return client

    def token(self, role: str, name: str = "", ttl: float = 600) -> str:
        found: str = self.manage("issue_token", name=name or f"t-{role}", role=role, ttl=ttl)["token"]
        return found

    def manage(self, command: str, **arguments: Any) -> Any:
        """A command of the broker's own machine."""
        with scale0.Client(self.broker.endpoints["frontend"], timeout=20) as client:
            return client.manage(command, auth_token=token_of(self.broker), **arguments)

    def raw(self, data: bytes, seconds: float = 10.0) -> bytes:
        """What comes back for these bytes, until the server closes or is silent for `seconds`."""
        with socket.create_connection(self.server.place, timeout=seconds) as sock:
            sock.sendall(data)
            return received(sock)

    def let_go(self) -> None:
        while self._open:
            self._open.pop().close()


def received(sock: socket.socket) -> bytes:
    """All that comes until the end, or until the socket's own timeout."""
    found = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while piece := sock.recv(65_536):
            found += piece
    return found


@contextlib.contextmanager
def served(folder: Path, broker: BrokerProcess, **settings: Any) -> Iterator[Site]:
    """A running server; it must not log an exception."""
    server = Server(folder, broker, **settings)
    try:
        server.start()
        site = Site(server)
        yield site
        site.let_go()
        assert "Traceback" not in server.said(), server.said()[-4_000:]
    finally:
        server.close()
