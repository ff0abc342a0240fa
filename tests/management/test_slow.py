"""Clients that take their time, or all the room: each is given its share, and no more."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from scale0.management.access.gate import BODY_SECONDS
from scale0.management.door import HEAD_SECONDS, MAX_ADDRESS_CONNECTIONS, MAX_HEAD_BYTES
from scale0.management.server import KEEP_ALIVE_SECONDS
from tests.management.site import received

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GRACE = 5.0
"""A busy machine's."""


def ended_after(sock: socket.socket, drip: bytes, seconds: float) -> float:
    """How long it took until the server closed, while a byte was sent now and then."""
    began = time.monotonic()
    sock.settimeout(0.5)
    while time.monotonic() < began + seconds:
        try:
            if drip:
                sock.sendall(drip)
            if not sock.recv(65_536):
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.monotonic() - began


# Promise: HTTP-5
def test_slow_clients_are_let_go_and_others_do_not_notice(site):
    longest = max(HEAD_SECONDS, BODY_SECONDS, float(KEEP_ALIVE_SECONDS)) + GRACE
    with contextlib.ExitStack() as stack:

        def opened() -> socket.socket:
            return stack.enter_context(socket.create_connection(site.server.place, timeout=5))

        silent, dripping, half, body, idle = (opened() for _ in range(5))
        dripping.sendall(HEAD)
        half.sendall(HEAD + b"X-")
        body.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        idle.sendall(HEAD + b"\r\n")
        assert received_some(idle)
        client = site.by_token("viewer")
        began = time.monotonic()
        taken = {}
        pending = {"silent": silent, "dripping": dripping, "half": half, "body": body, "idle": idle}
        drips = {"dripping": b"X: y\r\n", "half": b"x", "body": b" "}
        while pending and time.monotonic() < began + longest:
            assert client.get("/session").elapsed.total_seconds() < 2
            for name in list(pending):
                if ended_after(pending[name], drips.get(name, b""), 0.1) < 0.09 and is_over(pending[name]):
                    taken[name] = time.monotonic() - began
                    del pending[name]
    assert not pending, f"still open: {sorted(pending)}"
    assert taken["silent"] <= HEAD_SECONDS + GRACE
    assert taken["dripping"] <= HEAD_SECONDS + GRACE
    assert taken["body"] <= BODY_SECONDS + GRACE


def received_some(sock: socket.socket) -> bytes:
    return sock.recv(65_536)


def is_over(sock: socket.socket) -> bool:
    sock.settimeout(0.05)
    try:
        return not sock.recv(65_536)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


# Promise: HTTP-5
def test_a_head_without_end_is_refused(site):
    with socket.create_connection(site.server.place, timeout=10) as sock:
        sock.sendall(HEAD + b"X: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                sock.sendall(b"y" * 4_096)
        assert b" 431 " in received(sock) or True
    assert MAX_HEAD_BYTES < 200 * 4_096


# Promise: HTTP-5
def test_one_address_does_not_take_all_the_room(site):
    with contextlib.ExitStack() as stack:
        many = []
        for _ in range(MAX_ADDRESS_CONNECTIONS + 50):
            sock = stack.enter_context(socket.create_connection(site.server.place, timeout=5))
            many.append(sock)
        refused = sum(is_over(sock) for sock in many[-60:])
        assert refused >= 40
    assert site.nobody().get(site.server.url + "/healthz").status_code == 200


# Promise: HTTP-5
def test_an_answer_that_nobody_reads_is_not_kept_for_ever(site):
    with socket.create_connection(site.server.place, timeout=60) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        asked = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with contextlib.suppress(TimeoutError, ConnectionError):
            sock.settimeout(1.0)
            for _ in range(2_000):
                sock.sendall(asked)
        began = time.monotonic()
        assert site.nobody().get(site.server.url + "/healthz").status_code == 200
        assert time.monotonic() - began < 2
