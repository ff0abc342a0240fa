"""Clients that take their time, or all the room: each is given its share, and no more."""

# Promise: HTTP-5
from __future__ import annotations

import contextlib
import select
import socket
import time

import psutil
import pytest

from scale0.http.auth.middleware import BODY_SECONDS
from scale0.http.listener import HEAD_SECONDS, MAX_ADDRESS_CONNECTIONS, MAX_HEAD_BYTES, SEND_SECONDS
from scale0.http.server import KEEP_ALIVE_SECONDS
from tests.processes.http.site import Site, received

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LONG = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n"
GRACE = 6.0
"""A busy machine's."""
LOOK_SECONDS = 0.2


class Slow:
    """A client that says a byte now and then, or nothing."""

    def __init__(self, site: Site, first: bytes, drip: bytes, limit: float) -> None:
        self.socket = socket.create_connection(site.server.address, timeout=5)
        self.socket.sendall(first)
        self.drip = drip
        self.limit = limit
        self.began = time.monotonic()
        self.lasted: float | None = None

    def look(self) -> None:
        if self.lasted is not None:
            return
        try:
            if self.drip:
                self.socket.sendall(self.drip)
            while select.select([self.socket], [], [], 0)[0]:
                if not self.socket.recv(65_536):
                    raise ConnectionError
        except ConnectionError:
            self.lasted = time.monotonic() - self.began


def test_slow_clients_are_disconnected_and_others_do_not_notice(site):
    slow = {
        "silent": Slow(site, b"", b"", HEAD_SECONDS),
        "dripping": Slow(site, HEAD, b"X: y\r\n", HEAD_SECONDS),
        "half": Slow(site, HEAD + b"X-", b"x", HEAD_SECONDS),
        "body": Slow(site, POST + b"Content-Length: 1000\r\n\r\n{", b" ", BODY_SECONDS),
        "chunked": Slow(site, POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", BODY_SECONDS),
        "idle": Slow(site, HEAD + b"\r\n", b"", KEEP_ALIVE_SECONDS),
        "second": Slow(site, HEAD + b"\r\n" + HEAD, b"X: y\r\n", HEAD_SECONDS),
    }
    client = site.by_token("viewer")
    until = time.monotonic() + max(one.limit for one in slow.values()) + GRACE
    while time.monotonic() < until and any(one.lasted is None for one in slow.values()):
        assert client.get("/session").elapsed.total_seconds() < 2
        for one in slow.values():
            one.look()
        select.select([], [], [], LOOK_SECONDS)
    for one in slow.values():
        one.socket.close()
    assert {name: one.lasted for name, one in slow.items() if one.lasted is None} == {}
    assert [name for name, one in slow.items() if (one.lasted or 0) > one.limit + GRACE] == []


def test_an_answer_that_nobody_reads_is_thrown_away(site):
    token = site.token("viewer").encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.settimeout(1.0)
        sock.connect(site.server.address)
        with contextlib.suppress(TimeoutError, ConnectionError):
            for _ in range(20_000):
                sock.sendall(LONG % token)
        port = sock.getsockname()[1]
        process = psutil.Process(site.server.process.pid)

        def is_held() -> bool:
            return any(tuple(one.raddr)[1:] == (port,) for one in process.net_connections("tcp"))

        assert is_held()
        client = site.nobody()
        until = time.monotonic() + SEND_SECONDS + GRACE
        while time.monotonic() < until and is_held():
            assert client.get(site.server.url + "/healthz").elapsed.total_seconds() < 2
            select.select([], [], [], LOOK_SECONDS)
        assert not is_held()


def test_a_head_without_end_is_refused(site):
    with socket.create_connection(site.server.address, timeout=10) as sock:
        sock.sendall(HEAD + b"X: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 100 * MAX_HEAD_BYTES:
                sent += sock.send(b"y" * 4_096)
        assert b" 431 " in received(sock) or sent < 100 * MAX_HEAD_BYTES


def test_one_address_does_not_take_all_the_room(site):
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_ADDRESS_CONNECTIONS):
            stack.enter_context(socket.create_connection(site.server.address, timeout=5))
        more = [stack.enter_context(socket.create_connection(site.server.address, timeout=5)) for _ in range(20)]
        assert [received(sock) for sock in more] == [b""] * 20
    assert site.nobody().get(site.server.url + "/healthz").status_code == 200
