"""The ZMTP server on loopback: who is served when, and what one connection may use."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
import zmq.utils.z85 as z85

from scale0.kernel.limits import Limits
from scale0.transport.core.zmtp import EXCESS, ROUTER, XPUB, NullMechanism
from scale0.transport.core.zmtp_curve import CurveServer
from scale0.transport.edge.tcp_listener import KEEPALIVE
from scale0.transport.edge.zmtp_connection import ZmtpConnection
from scale0.transport.edge.zmtp_publisher import ZmtpPublisher
from scale0.transport.edge.zmtp_server import (
    DRAIN_SECONDS,
    GREETING_SECONDS,
    HANDSHAKE_SECONDS,
    MAX_COMMANDS,
    MAX_HANDSHAKES,
    MAX_UNSENT_BYTES,
    PING_SECONDS,
    PONG_SECONDS,
    READ_BYTES,
    ZmtpServer,
)
from tests.fakes import zmtp_bytes as zmtp
from tests.fakes.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.processes

Dealer = Any


class Clock:
    def __init__(self, step: float = 0.0) -> None:
        self.mono = 100.0
        self._step = step
        """What passes from one reading to the next."""

    def __call__(self) -> float:
        self.mono += self._step
        return self.mono


class Bench:
    """A server, its clients, and what arrived."""

    def __init__(self, stack: ExitStack, curve: bool = False, socket_type: bytes = ROUTER, **limits: Any) -> None:
        self.clock = Clock()
        self.admitted: set[bytes] = set()
        public, secret = zmq.curve_keypair()
        self._server_key = public

        def mechanism(kind: bytes) -> CurveServer:
            return CurveServer(
                [z85.decode(secret)], kind, lambda key, _: "" if key in self.admitted else "no", os.urandom
            )

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


# Promise: ZMTP-2
def test_a_client_that_knows_our_key_keeps_its_handshake_in_a_flood(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scale0.transport.edge.zmtp_server.MAX_HANDSHAKES", 3)
    bench = Bench(stack, curve=True)
    client = bench.dealer(bench.new_pair())
    client.send(b"honest")
    (oldest,) = acquainted(bench)
    for _ in range(10):
        bench.dialer.dial()
        select.select([bench.server.descriptor], [], [], PATIENCE_SECONDS)
        bench.server._accept()
    assert bench.server.refused == 10 + 1 - 3
    assert not oldest.is_closed
    assert [frames for _, *frames in bench.until(bool)] == [[b"honest"]]


def acquainted(bench: Bench) -> list[ZmtpConnection]:
    """The connections whose client has sent a valid HELLO; a turn reads no more of one than that."""
    while not (found := list(bench.server._handshakes._acquainted)):
        assert select.select([bench.server.descriptor], [], [], PATIENCE_SECONDS)[0]
        bench.take()
    return found


# Promise: ZMTP-2
def test_connections_that_ended_before_they_were_accepted_cost_no_handshake(stack: ExitStack) -> None:
    bench = Bench(stack)
    for _ in range(5):
        bench.dialer.dial().close()
    open_connection(bench)
    while not bench.server._by_id:
        bench.take()
    assert (bench.server._number, bench.server.refused) == (1, 0)


def test_a_client_that_waits_for_our_greeting_gets_it_after_a_second(stack: ExitStack) -> None:
    bench = Bench(stack)
    waits = bench.dialer.dial()
    while not len(bench.server):
        bench.take()
    bench.server.sweep()
    assert not select.select([waits], [], [], 0)[0]
    bench.clock.mono += GREETING_SECONDS
    bench.server.sweep()
    assert waits.recv(10) == zmtp.SIGNATURE


def test_accepted_connections_have_the_options_of_the_listener(stack: ExitStack) -> None:
    bench = Bench(stack)
    bench.dialer.dial()
    while not len(bench.server):
        bench.take()
    (accepted,) = bench.server._by_descriptor.values()
    assert accepted.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert accepted.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for option, value in KEEPALIVE:
        assert accepted.socket.getsockopt(socket.IPPROTO_TCP, option) == value
    assert not accepted.socket.getblocking()


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
    publisher = ZmtpPublisher(bench.server, tells=True, max_per_second=1_000)
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


# Promise: FAIR-10
def test_a_publisher_reads_a_flood_of_subscriptions_later_and_loses_none(stack: ExitStack) -> None:
    bench = Bench(stack, socket_type=XPUB)
    publisher = ZmtpPublisher(bench.server, tells=True, max_per_second=10)
    flood, other = bench.dealer(kind=zmq.SUB), bench.dealer(kind=zmq.SUB)
    for number in range(25):
        flood.set(zmq.SUBSCRIBE, b"flood.%d" % number)
    changes: list[list[bytes]] = []

    def read(count: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(changes) < count:
            assert time.monotonic() < deadline, changes
            changes.extend(publisher.subscriptions(100))

    read(10)
    for _ in range(100):
        changes.extend(publisher.subscriptions(100))
    assert len(changes) == 10
    assert publisher.pending() == pytest.approx(1.0)
    other.set(zmq.SUBSCRIBE, b"other")
    read(11)
    assert changes[-1] == [b"\x01other"], "others do not wait for it"
    bench.clock.mono += 1.0
    assert publisher.pending() == 0.0
    read(21)
    bench.clock.mono += 1.0
    publisher.sweep()
    read(26)
    assert publisher.pending() is None
    assert {change[1:] for [change] in changes} == {b"other", *(b"flood.%d" % number for number in range(25))}
    bench.clock.mono += 5.0
    publisher.sweep()
    assert not publisher._rates, "what is counted of a silent sender is forgotten"


# Promise: OWN-4
def test_a_publisher_decides_once_for_each_key_and_batch(stack: ExitStack) -> None:
    bench = Bench(stack, socket_type=XPUB)
    publisher = ZmtpPublisher(bench.server, tells=True, max_per_second=1_000)
    subscribers = [bench.dealer(kind=zmq.SUB) for _ in range(3)]
    for subscriber in subscribers:
        subscriber.set(zmq.SUBSCRIBE, b"")
    while len(publisher._topics) < 3:
        list(publisher.subscriptions(100))
    asked: list[str] = []

    def none(public_key: str) -> bool:
        asked.append(public_key)
        return False

    for number in range(100):
        publisher.publish([b"task.%d" % number, b"body"], none)
    assert asked == [""], "three connections without a key are one"
    publisher.flush()
    publisher.publish([b"last", b"body"], lambda key: not key)
    publisher.flush()
    assert [subscriber.recv_multipart() for subscriber in subscribers] == [[b"last", b"body"]] * 3


# Promise: FAIR-6
@pytest.mark.parametrize("curve", [False, True])
def test_a_held_sender_is_not_read_and_loses_nothing(stack: ExitStack, curve: bool) -> None:
    bench = Bench(stack, curve)
    pair = bench.new_pair() if curve else None
    flood, honest = bench.dealer(pair), bench.dealer(bench.new_pair() if curve else None)
    for number in range(5):
        flood.send(b"f%d" % number)
    found: list[list[bytes]] = []
    while not found:
        found += bench.take(1)
    sender = bench.server.hold(found[0][0])
    assert sender is not None
    honest.send(b"h")
    before = bench.until(bool)
    assert [message[1] for message in before] == [b"h"]
    bench.server.release(sender)
    found += bench.until(lambda more: len(more) == 4)
    assert [message[1] for message in found] == [b"f0", b"f1", b"f2", b"f3", b"f4"]
    assert bench.server.hold(b"nobody") is None


# Promise: ZMTP-2
@pytest.mark.timeout(60)
def test_a_connection_that_is_reset_while_it_has_unread_answers_ends_once(stack: ExitStack) -> None:
    """Its last event says that it can be read and written, and writing fails first."""
    bench = Bench(stack)
    made = open_connection(bench)
    [number] = bench.server._by_id
    while bench.server.send(number, [b"x" * 60_000]) == "sent":
        bench.server.flush()
    bench.take()
    ended: list[bytes] = []
    bench.server.closed = ended.append
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
    while len(bench.server):
        bench.take()
    assert bench.take() == []
    assert not bench.server.pending()
    assert ended == [number]


# Promise: ZMTP-5
def test_reading_that_yields_no_message_ends_with_the_turn(stack: ExitStack) -> None:
    bench = Bench(stack)
    flood, honest = open_connection(bench), open_connection(bench)
    flood.setblocking(False)
    parts, sent = zmtp.frame(b"x" * 4_000, 1) * 16, 0
    while select.select([], [flood], [], 0.1)[1]:
        sent += flood.send(parts)
    honest.sendall(zmtp.message([b"honest"]))
    bench.server.clock = Clock(step=DRAIN_SECONDS)
    found: list[list[bytes]] = []
    for _ in range(3):
        found += bench.take()
    assert [frames for _, *frames in found] == [[b"honest"]]
    [session] = [one.session for one in bench.server._by_id.values() if one.session._parts]
    assert session._parts * 4_000 <= 3 * READ_BYTES < sent, "a read for each turn"


# Promise: ZMTP-2
@pytest.mark.parametrize(
    "flood",
    [
        zmtp.command(b"PING", b"\0\0") * (MAX_COMMANDS + 1),
        zmtp.command(b"UNKNOWN") * (MAX_COMMANDS + 1),
        zmtp.frame(b"", 1) * (EXCESS * (Limits().max_parts + 1) + 1),
    ],
    ids=["PING", "unknown commands", "parts"],
)
def test_a_connection_that_sends_what_no_rate_counts_is_closed(stack: ExitStack, flood: bytes) -> None:
    bench = Bench(stack)
    made, honest = open_connection(bench), open_connection(bench)
    made.sendall(flood)
    honest.sendall(zmtp.message([b"honest"]))
    found = bench.until(lambda found: bench.server.refused == 1 and bool(found))
    assert [frames for _, *frames in found] == [[b"honest"]]
    assert zmtp.ends(made)


def test_commands_are_counted_by_the_second(stack: ExitStack) -> None:
    bench = Bench(stack)
    made = open_connection(bench)
    for _ in range(3):
        made.sendall(zmtp.command(b"PING", b"\0\0") * (MAX_COMMANDS - 1) + zmtp.message([b"on"]))
        assert bench.until(bool)[0][1:] == [b"on"]
        bench.server.sweep()
        for _ in range(MAX_COMMANDS - 1):
            assert zmtp.read_frame(made) == (4, b"\x04PONG")
