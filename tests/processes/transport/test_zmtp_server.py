"""The ZMTP server on loopback: who is served when, and what one connection may use."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
import zmq.utils.z85 as z85

from scale0.kernel.limits import Limits
from scale0.transport.core.zmtp import ROUTER, XPUB, NullMechanism
from scale0.transport.core.zmtp_curve import CurveServer
from scale0.transport.edge.zmtp_publisher import ZmtpPublisher
from scale0.transport.edge.zmtp_server import (
    HANDSHAKE_SECONDS,
    MAX_HANDSHAKES,
    MAX_UNSENT_BYTES,
    PING_SECONDS,
    PONG_SECONDS,
    ZmtpServer,
)
from tests.fakes import zmtp_bytes as zmtp
from tests.fakes.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.processes

Dealer = Any


class Clock:
    def __init__(self) -> None:
        self.mono = 100.0

    def __call__(self) -> float:
        return self.mono


class Bench:
    """A server, its clients, and what arrived."""

    def __init__(self, stack: ExitStack, curve: bool = False, socket_type: bytes = ROUTER, **limits: Any) -> None:
        self.clock = Clock()
        self.admitted: set[bytes] = set()
        public, secret = zmq.curve_keypair()
        self._server_key = public

        def mechanism(kind: bytes) -> CurveServer:
            return CurveServer(z85.decode(secret), kind, self.admitted.__contains__, os.urandom)

        made = mechanism if curve else NullMechanism
        self.server = ZmtpServer("frontend", socket_type, "127.0.0.1", 0, Limits(**limits), made, self.clock)
        stack.callback(self.server.close)
        self.dialer = stack.enter_context(zmtp.Dialer(f"tcp://127.0.0.1:{self.server.port}"))
        self._context: zmq.Context[Any] = zmq.Context()
        stack.callback(self._context.term)
        self._stack = stack

    def dealer(self, pair: tuple[bytes, bytes] | None = None, kind: int = zmq.DEALER) -> Dealer:
        made = self._context.socket(kind)
        self._stack.callback(made.close, 0)
        if pair is not None:
            made.curve_publickey, made.curve_secretkey = pair
            made.curve_serverkey = self._server_key
        made.connect(f"tcp://127.0.0.1:{self.server.port}")
        return made

    def new_pair(self) -> tuple[bytes, bytes]:
        public, secret = zmq.curve_keypair()
        self.admitted.add(z85.decode(public))
        return public, secret

    def take(self, most: int = 1_000) -> list[list[bytes]]:
        """What arrived, at most so much of it."""
        found = list(self.server.drain(most))
        self.server.flush()
        return found

    def until(self, enough: Callable[[list[list[bytes]]], bool]) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        while not enough(found):
            if not self.server.pending():
                assert select.select([self.server.descriptor], [], [], PATIENCE_SECONDS)[0], f"no more than {found}"
            found += self.take()
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("curve", [False, True], ids=["NULL", "CURVE"])
def test_a_message_of_libzmq_and_its_answer_arrive_whole(stack: ExitStack, curve: bool) -> None:
    bench = Bench(stack, curve)
    client = bench.dealer(bench.new_pair() if curve else None)
    frames = [b"SCALE0/1", b"", b"x" * 300, os.urandom(300_000)]
    client.send_multipart(frames)
    [[number, *found]] = bench.until(bool)
    assert found == frames
    assert bench.server.send(number, frames[::-1]) == "sent"
    bench.server.flush()
    while not client.poll(10):
        bench.take()
    assert client.recv_multipart() == frames[::-1]


# Promise: CURVE-1
def test_an_unknown_key_and_a_client_without_one_get_nowhere(stack: ExitStack) -> None:
    bench = Bench(stack, curve=True)
    bench.dealer(zmq.curve_keypair()).send(b"from nobody")
    plain = bench.dialer.dial()
    plain.sendall(zmtp.greeting())
    known = bench.dealer(bench.new_pair())
    known.send(b"known")
    found = bench.until(lambda found: bench.server.refused >= 2 and bool(found))
    assert [frames for _, *frames in found] == [[b"known"]]
    assert zmtp.ends(plain)


# Promise: ZMTP-5
def test_keys_are_served_in_turn_whatever_one_of_them_sends(stack: ExitStack) -> None:
    bench = Bench(stack, curve=True)
    flood, honest = bench.new_pair(), bench.new_pair()
    clients = [bench.dealer(flood) for _ in range(3)] + [bench.dealer(honest)]
    for client in clients:
        client.send(b"hello")
    bench.until(lambda found: len(found) == 4)
    for client in clients[:3]:
        for _ in range(200):
            client.send(b"flood")
    for _ in range(5):
        clients[3].send(b"honest")
    while sum(len(one.inbox) + one.readable for one in bench.server._by_id.values()) < 4:
        bench.server._poll()
    found = [frames[1] for frames in bench.until(lambda found: sum(f[1] == b"honest" for f in found) == 5)]
    last = max(position for position, body in enumerate(found) if body == b"honest")
    assert last <= 20, "each message of the honest key waits for one of the others"


def test_the_connections_of_one_key_are_counted_at_the_handshake(stack: ExitStack) -> None:
    bench = Bench(stack, curve=True, max_key_connections=2)
    pair = bench.new_pair()
    clients = [bench.dealer(pair) for _ in range(3)]
    for client in clients:
        client.send(b"hello")
    bench.until(lambda found: bench.server.refused > 0 and len(found) == 2)
    assert len(bench.server._by_id) == 2
    other = bench.dealer(bench.new_pair())
    other.send(b"other")
    bench.until(lambda found: [b"other"] in [frames for _, *frames in found])


def test_the_connections_of_a_revoked_key_are_closed_and_its_messages_are_dropped(stack: ExitStack) -> None:
    bench = Bench(stack, curve=True)
    pair = bench.new_pair()
    bench.server.users = {pair[0].decode(): "frontend/web"}
    client = bench.dealer(pair)
    client.send(b"before")
    bench.until(bool)
    assert bench.server.sender == "frontend/web"
    bench.server.users = {}
    client.send(b"after")
    while not bench.server.pending():
        select.select([bench.server.descriptor], [], [], PATIENCE_SECONDS)
        bench.server._poll()
    assert bench.take() == []
    bench.admitted.clear()
    bench.server.disconnect_keys({pair[0].decode()})
    assert len(bench.server._by_id) == 0


# Promise: ZMTP-2
def test_a_handshake_that_takes_too_long_is_ended(stack: ExitStack) -> None:
    bench = Bench(stack)
    slow = bench.dialer.dial()
    slow.sendall(zmtp.greeting()[:20])
    while not len(bench.server):
        bench.take()
    bench.clock.mono += HANDSHAKE_SECONDS - 0.1
    bench.server.sweep()
    assert len(bench.server) == 1
    bench.clock.mono += 0.2
    bench.server.sweep()
    assert len(bench.server) == 0
    assert zmtp.ends(slow)


def test_many_handshakes_at_once_end_the_oldest(stack: ExitStack) -> None:
    bench = Bench(stack)
    for _ in range(MAX_HANDSHAKES + 5):
        bench.dialer.dial()
        bench.take()
    while bench.server.refused < 5:
        bench.take()
    assert len(bench.server) == MAX_HANDSHAKES


def test_a_silent_connection_gets_a_ping_and_ends_without_an_answer(stack: ExitStack) -> None:
    bench = Bench(stack)
    alive, dead = open_connection(bench), open_connection(bench)
    bench.clock.mono += PING_SECONDS + 1
    bench.server.sweep()
    for made in (alive, dead):
        assert zmtp.read_frame(made) == (4, b"\x04PING\x00\x00")
    alive.sendall(zmtp.command(b"PONG"))
    while bench.server._by_id and min(one.heard_at for one in bench.server._by_id.values()) == max(
        one.heard_at for one in bench.server._by_id.values()
    ):
        bench.take()
    bench.clock.mono += PONG_SECONDS + 1
    bench.server.sweep()
    assert len(bench.server) == 1
    assert zmtp.ends(dead)


def open_connection(bench: Bench) -> socket.socket:
    made = bench.dialer.dial()
    made.sendall(zmtp.greeting() + zmtp.ready())
    count = len(bench.server._by_id)
    while len(bench.server._by_id) == count:
        bench.take()
    zmtp.read(made, 64)
    assert zmtp.read_frame(made)[0] == 4
    return made


def test_a_client_that_does_not_read_is_full_and_loses_nothing(stack: ExitStack) -> None:
    bench = Bench(stack)
    made = open_connection(bench)
    [number] = bench.server._by_id
    sent = 0
    while bench.server.send(number, [b"x" * 60_000]) == "sent":
        sent += 1
    assert bench.server._by_id[number].outgoing_bytes <= MAX_UNSENT_BYTES + 70_000
    for _ in range(sent):
        bench.take()
        assert zmtp.read_message(made) == [b"x" * 60_000]
    assert bench.server.send(number, [b"again"]) == "sent"


def test_what_was_sent_before_the_end_of_a_connection_is_delivered(stack: ExitStack) -> None:
    bench = Bench(stack)
    made = open_connection(bench)
    made.sendall(b"".join(zmtp.message([b"%d" % number]) for number in range(50)))
    made.close()
    found = bench.until(lambda found: len(found) == 50)
    assert [frames[1] for frames in found] == [b"%d" % number for number in range(50)]
    while len(bench.server):
        bench.take()
    assert bench.server.send(found[0][0], [b"late"]) == "gone"


def test_a_publisher_sends_to_subscribers_of_a_prefix_and_forgets_them(stack: ExitStack) -> None:
    bench = Bench(stack, socket_type=XPUB)
    publisher = ZmtpPublisher(bench.server, tells=True)
    subscriber = bench.dealer(kind=zmq.SUB)
    subscriber.set(zmq.SUBSCRIBE, b"ta")
    subscriber.set(zmq.SUBSCRIBE, b"task.x")
    changes: list[list[bytes]] = []
    while len(changes) < 2:
        changes += publisher.subscriptions(100)
    assert sorted(changes) == [[b"\x01ta"], [b"\x01task.x"]]
    for topic in (b"task.x", b"task.y", b"other"):
        publisher.publish([topic, b"body"])
    publisher.flush()
    assert [subscriber.recv_multipart() for _ in range(2)] == [[b"task.x", b"body"], [b"task.y", b"body"]]
    subscriber.close(0)
    changes = []
    while len(changes) < 2:
        changes += publisher.subscriptions(100)
    assert sorted(changes) == [[b"\x00ta"], [b"\x00task.x"]]
    assert not publisher._topics
    assert not publisher._lengths
