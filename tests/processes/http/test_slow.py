"""Clients that take their time, or all the room: each is given its share, and no more."""

# Promise: HTTP-5
from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from scale0.http.auth.middleware import BODY_SECONDS
from scale0.http.listener import HEAD_SECONDS, MAX_ADDRESS_CONNECTIONS, MAX_CONNECTIONS, MAX_HEAD_BYTES, SEND_SECONDS
from scale0.http.server import KEEP_ALIVE_SECONDS, STOP_SECONDS
from tests.fakes.broker_process import BrokerProcess
from tests.processes.http.site import Site, received, served

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LONG = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n"
GRACE = 6.0
"""A busy machine's."""
LOOK_SECONDS = 0.2
UNREAD_BYTES = 16 * 1024 * 1024
"""More than the buffers of both systems hold."""


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
        "blank": Slow(site, HEAD + b"\r\n", b"\r\n", HEAD_SECONDS),
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
        size = len(site.by_token("viewer").get("/openapi.json").content)
        for _ in range(UNREAD_BYTES // size + 1):
            sock.sendall(LONG % token)
            select.select([], [], [], 0.02)  # so that few requests wait for responses
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


def silent(stack: contextlib.ExitStack, site: Site, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that send nothing."""
    opened = []
    for _ in range(count):
        sock = socket.create_connection(site.server.address, timeout=5, source_address=(source, 0))
        opened.append(stack.enter_context(sock))
    return opened


def ended(connections: list[socket.socket]) -> list[socket.socket]:
    return select.select(connections, [], [], 0)[0]


def is_admitted(site: Site) -> bool:
    try:
        return is_served(site)
    except httpx.TransportError:
        return False


def is_served(site: Site) -> bool:
    with httpx.Client(verify=False, trust_env=False, timeout=5) as client:
        return client.get(site.server.url + "/healthz").status_code == 200


@pytest.fixture(scope="module")
def secure(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same server with TLS."""
    folder = tmp_path_factory.mktemp("secure")
    run = [sys.executable, "-m", "scale0", "helen", "init", str(folder / "helen"), "--name", "127.0.0.1", "--port", "0"]
    subprocess.run([*run, "--identity", "h"], check=True, capture_output=True, timeout=60)
    files = {"certificate": "helen.pem", "private_key": "helen-key.pem"}
    with served(folder, broker, **{name: str(folder / "helen" / file) for name, file in files.items()}) as running:
        yield running


@pytest.fixture(params=["site", "secure"])
def either(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


def test_one_address_does_not_take_all_the_room(either):
    with contextlib.ExitStack() as stack:
        silent(stack, either, MAX_ADDRESS_CONNECTIONS)
        more = silent(stack, either, 20)
        other = silent(stack, either, 1, "127.0.0.2")
        until = time.monotonic() + GRACE
        while len(ended(more)) < len(more) and time.monotonic() < until:
            select.select([], [], [], LOOK_SECONDS)
        assert ended(more) == more
        assert ended(other) == []
    until = time.monotonic() + GRACE
    while not is_admitted(either) and time.monotonic() < until:
        select.select([], [], [], LOOK_SECONDS)  # the server has not seen all ends yet
    assert is_served(either)


def test_the_oldest_connection_without_a_request_makes_room(either):
    with contextlib.ExitStack() as stack:
        first = silent(stack, either, MAX_CONNECTIONS // 2, "127.0.0.2")
        last = silent(stack, either, MAX_CONNECTIONS // 2, "127.0.0.3")
        for _ in range(5):
            assert is_served(either)
        assert ended(first)
        assert ended(last) == []


def test_a_server_without_descriptors_serves_when_some_are_free(either):
    process = psutil.Process(either.server.process.pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 5, before[1]))
    try:
        with contextlib.ExitStack() as stack:
            silent(stack, either, 20)
            time_used = sum(process.cpu_times()[:2])
            select.select([], [], [], 5 * LOOK_SECONDS)
            assert sum(process.cpu_times()[:2]) - time_used < 0.5  # it does not try all the time
        assert is_served(either)
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)


def test_a_tls_handshake_that_does_not_begin_is_ended(secure):
    with contextlib.ExitStack() as stack:
        (sock,) = silent(stack, secure, 1)
        began = time.monotonic()
        sock.settimeout(HEAD_SECONDS + GRACE)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
        assert time.monotonic() - began > HEAD_SECONDS - 1


def test_a_server_ends_while_handshakes_are_incomplete(secure):
    with contextlib.ExitStack() as stack:
        silent(stack, secure, 10)
        assert is_served(secure)
        secure.server.process.send_signal(signal.SIGTERM)
        assert secure.server.process.wait(STOP_SECONDS - 1) == 0
