"""What handshakes of anybody cost a ZMTP server: time between the messages of others, and memory."""

from __future__ import annotations

import gc
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq
import zmq.utils.z85 as z85

from scale0.transport.core.zmtp_curve import CurveClient
from scale0.transport.edge.zmtp_connection import ZmtpConnection
from scale0.transport.edge.zmtp_server import (
    ACCEPT_SECONDS,
    DRAIN_SECONDS,
    HANDSHAKE_SHARE,
    MAX_SHARE_SECONDS,
    ZmtpServer,
)
from tests.fakes import zmtp_bytes as zmtp
from tests.fakes.waiting import PATIENCE_SECONDS
from tests.processes.transport.test_zmtp_server import Bench, Clock, open_connection

pytestmark = pytest.mark.processes

HANDSHAKES = 40
STEP_SECONDS = DRAIN_SECONDS / 2
"""What a step takes by the clock of these tests, which moves when a handshake is read."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def hello(server_key: bytes) -> bytes:
    """What a client sends first that has no key of its own."""
    public, secret = (z85.decode(key) for key in zmq.curve_keypair())
    client = CurveClient(public, secret, server_key, b"DEALER", lambda size: b"r" * size)
    return zmtp.greeting(b"CURVE") + zmtp.frame(client.begin(), 4)


def alive(server: ZmtpServer) -> int:
    return sum(isinstance(one, ZmtpConnection) and one.server is server for one in gc.get_objects())


def dial(bench: Bench, data: bytes) -> socket.socket:
    """A connection that the server has accepted, and whose bytes it has not read."""
    made = bench.dialer.dial()
    made.sendall(data)
    count = len(bench.server._unread)
    while len(bench.server._unread) == count:
        assert select.select([bench.server.descriptor], [], [], PATIENCE_SECONDS)[0]
        bench.server._poll()
    return made


# Promise: ZMTP-6
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["another key", "our key", "no HELLO", "no ZMTP"])
def test_a_connection_that_ended_before_its_handshake_is_freed_at_once(stack: ExitStack, kind: str) -> None:
    bench = Bench(stack, curve=True)
    keys = {"another key": zmq.curve_keypair()[0], "our key": bench._server_key}
    data = hello(z85.decode(keys[kind])) if kind in keys else {"no HELLO": zmtp.greeting(b"CURVE")}.get(kind, b"GET /")
    for _ in range(5):
        made = bench.dialer.dial()
        made.sendall(data)
        made.shutdown(socket.SHUT_WR)
    while bench.server._number < 5 or len(bench.server):
        list(bench.server.drain(100))  # and nothing is sent: the owner flushes only what it sent
    assert alive(bench.server) == 0


# Promise: ZMTP-6
@pytest.mark.usefixtures("no_collector")
def test_a_connection_that_ended_after_its_handshake_is_freed_at_once(stack: ExitStack) -> None:
    bench = Bench(stack)
    for made in [open_connection(bench) for _ in range(5)]:
        made.close()
    while len(bench.server):
        list(bench.server.drain(100))
    assert alive(bench.server) == 0


def await_message(bench: Bench) -> None:
    """Until a ready connection has something to read."""
    while not bench.server._turns:
        bench.server._poll()


class Work:
    """A clock that moves with each read before a handshake is complete, and the log of what the server did."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        read = ZmtpServer._read

        def counted(server: ZmtpServer, connection: ZmtpConnection) -> None:
            if not connection.is_ready:
                self.steps += 1
                bench.clock.mono += STEP_SECONDS
            read(server, connection)

        monkeypatch.setattr(ZmtpServer, "_read", counted)


# Promise: ZMTP-6
def test_between_two_messages_of_a_ready_connection_handshakes_get_a_bounded_time(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(stack)
    honest = open_connection(bench)
    honest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    work = Work(bench, monkeypatch)
    for _ in range(HANDSHAKES):
        dial(bench, zmtp.greeting() + zmtp.ready())
    steps = []
    while bench.server._unread:
        honest.sendall(zmtp.message([b"honest"]))
        before = work.steps
        await_message(bench)
        assert bench.take()
        steps.append(work.steps - before)
    assert max(steps) <= 1 + DRAIN_SECONDS / STEP_SECONDS, "one slice of time for each message, whatever waits"
    assert sum(steps) == HANDSHAKES


# Promise: ZMTP-6
def test_handshakes_have_a_share_while_ready_connections_always_have_messages(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(stack)
    honest = open_connection(bench)
    honest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    work = Work(bench, monkeypatch)
    for _ in range(HANDSHAKES):
        dial(bench, zmtp.greeting() + zmtp.ready())
    started, turns, turn_seconds = bench.clock.mono, 0, 0.0
    while bench.server._unread:
        honest.sendall(zmtp.message([b"honest"]) * 2)
        await_message(bench)
        reading = bench.server.drain(100)
        next(reading)
        bench.clock.mono += 0.001
        turn_seconds += 0.001
        del reading  # the turn was too long for the second message: it waits for the next turn
        turns += 1
        assert turns < 20 * HANDSHAKES, "handshakes starve"
    spent = bench.clock.mono - started - turn_seconds
    assert spent == pytest.approx(HANDSHAKES * STEP_SECONDS)
    slack = MAX_SHARE_SECONDS + STEP_SECONDS
    assert spent <= HANDSHAKE_SHARE * turn_seconds + turns * STEP_SECONDS + slack
    assert work.steps == HANDSHAKES


# Promise: ZMTP-6
def test_a_flood_of_connections_is_accepted_for_a_bounded_time_in_each_turn(stack: ExitStack) -> None:
    bench = Bench(stack)
    for _ in range(20):
        bench.dialer.dial().sendall(b"\xff")
    bench.server.clock = Clock(step=ACCEPT_SECONDS / 4)
    select.select([bench.server.descriptor], [], [], PATIENCE_SECONDS)
    bench.server._poll()
    assert 1 <= len(bench.server) <= 5
    while len(bench.server) < 20:
        bench.server._poll()
