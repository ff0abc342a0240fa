"""A real broker and a real HTTP server for tests, and clients with each role. All processes end with the test."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

import scale0
from scale0.kernel.edge.passwords import hash_password
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.processes import ServerProcess

API: Final = "/api/v1"
ROLES: Final = ("viewer", "operator", "admin")
PEOPLE: Final = {"vera": "viewer", "otto": "operator", "ada": "admin"}
NAMES: Final = {role: name for name, role in PEOPLE.items()}
PASSWORD: Final = "correct horse 7"
"""Hashing that costs tests nothing."""


def admins() -> list[dict[str, str]]:
    """People of every role, for a broker's file."""
    hashed = hash_password(PASSWORD, 1, 65_536)
    return [{"auth_id": name, "password_hash": hashed, "role": role} for name, role in PEOPLE.items()]


class HttpServer(ServerProcess):
    def __init__(self, folder: Path, broker: BrokerProcess, **settings: Any) -> None:
        self.broker = broker
        place = {"endpoint": broker.endpoints["frontend"], "data_dir": broker.config["data_dir"], "port": 0}
        line = json.dumps({**place, **settings}).encode() + b"\n"
        super().__init__(folder / "management.log", [sys.executable, "-P", "-m", "scale0.http"], line)
        self.url = self.link = ""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 0

    def start(self) -> str:
        line = super().start()
        ready = json.loads(line.removeprefix("ready "))
        self.url, self.link = ready["url"], ready["link"]
        return line


class Site:
    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.broker = server.broker
        self._open: list[httpx.Client] = []

    def nobody(self) -> httpx.Client:
        """Somebody whom the broker does not know."""
        client = httpx.Client(base_url=self.server.url + API, timeout=30, trust_env=False)
        self._open.append(client)
        return client

    def by_token(self, role: str, **issued: Any) -> httpx.Client:
        return self.with_token(self.token(role, **issued))

    def with_token(self, token: str) -> httpx.Client:
        client = self.nobody()
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    def by_cookie(self, role: str, csrf: bool = True) -> httpx.Client:
        client = self.nobody()
        response = client.post("/session", json={"name": NAMES[role], "password": PASSWORD})
        assert response.status_code == 200, response.text
        if csrf:
            client.headers["X-CSRF-Token"] = response.json()["csrf"]
        return client

    def token(self, role: str, name: str = "", ttl: float = 600) -> str:
        found: str = self.manage("issue_token", name=name or f"t-{role}", role=role, ttl=ttl)["token"]
        return found

    def link(self, role: str, name: str) -> str:
        """The secret of a one-time link."""
        found: str = self.manage("issue_token", name=name, role=role, ttl=600, once=True)["token"]
        return found

    def manage(self, command: str, **arguments: Any) -> Any:
        """A command of the broker's own machine."""
        with scale0.Client(self.broker.endpoints["frontend"], timeout=20) as client:
            return client.manage(command, auth_token=self.broker.token, **arguments)

    def raw(self, data: bytes, seconds: float = 10.0) -> bytes:
        """What comes back for these bytes, until the server closes or is silent for `seconds`."""
        with socket.create_connection(self.server.address, timeout=seconds) as sock:
            sock.sendall(data)
            return received(sock)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


def received(sock: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while piece := sock.recv(65_536):
            found += piece
    return found


@contextlib.contextmanager
def served(folder: Path, broker: BrokerProcess, **settings: Any) -> Iterator[Site]:
    """A running server; it must not log an exception."""
    server = HttpServer(folder, broker, **settings)
    try:
        server.start()
        site = Site(server)
        yield site
        site.close()
        server.assert_no_traceback()
    finally:
        server.close()
