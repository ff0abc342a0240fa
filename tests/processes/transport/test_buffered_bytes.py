"""What the connections of a key may occupy in memory: all of them together, and all keys together."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import zmq

from scale0.kernel.limits import Limits
from scale0.transport.core.buffer_account import BufferAccount
from scale0.transport.core.zmtp import ROUTER, XPUB, NullMechanism
from scale0.transport.edge.zmtp_connection import ZmtpConnection
from scale0.transport.edge.zmtp_publisher import ZmtpPublisher
from scale0.transport.edge.zmtp_server import MAX_INBOX_BYTES, READ_BYTES, ZmtpServer
from tests.fakes import zmtp_bytes as zmtp
from tests.processes.transport.test_zmtp_server import Bench, open_connection

pytestmark = pytest.mark.processes

MIB = 1024 * 1024


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def one_key(bench: Bench) -> None:
    """From now on, connections without keys count as those of one key."""
    for connection in bench.server._by_id.values():
        connection.sender = connection.owner = "the-key"


def begin(bench: Bench, made: socket.socket, size: int, of: int) -> None:
    """Send the first `size` bytes of a frame of `of` bytes."""
    made.sendall(b"\x02" + of.to_bytes(8, "big"))
    for _ in range(size // READ_BYTES):
        made.sendall(bytes(READ_BYTES))
        bench.take()


def until(bench: Bench, done: Callable[[], bool]) -> None:
    while not done():
        bench.take()


# Promise: QUOTA-5
def test_incomplete_messages_are_bounded_for_a_key_over_all_its_connections(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(stack, max_buffered_bytes=16 * MIB, max_key_buffered_bytes=8 * MIB)
    made = [open_connection(bench) for _ in range(5)]
    one_key(bench)
    honest = open_connection(bench)
    for count, each in enumerate(made):
        begin(bench, each, 2 * MIB - READ_BYTES * count, of=4 * MIB)
    with caplog.at_level(logging.WARNING, "scale0.transport"):
        until(bench, lambda: bench.server.refused > 0)
    assert bench.server.refused == 1
    assert zmtp.ends(made[0]), "the largest of the key is closed"
    assert "max_key_buffered_bytes is 8388608" in caplog.text
    assert bench.server._account.of("the-key") <= 8 * MIB
    honest.sendall(zmtp.message([b"hello"]))
    bench.until(lambda found: [b"hello"] in [frames for _, *frames in found])


# Promise: QUOTA-5
def test_bytes_of_all_connections_are_bounded_and_the_largest_owner_pays(stack: ExitStack) -> None:
    bench = Bench(stack, max_buffered_bytes=4 * MIB, max_key_buffered_bytes=3 * MIB)
    small, large, last = (open_connection(bench) for _ in range(3))
    begin(bench, small, MIB, of=4 * MIB)
    begin(bench, large, 2 * MIB, of=4 * MIB)
    begin(bench, last, MIB + READ_BYTES, of=4 * MIB)
    until(bench, lambda: bench.server.refused > 0)
    assert zmtp.ends(large)
    assert len(bench.server) == 2


# Promise: QUOTA-5
def test_a_message_of_the_largest_size_arrives_and_is_no_longer_counted(stack: ExitStack) -> None:
    bench = Bench(stack)
    made = open_connection(bench)
    begin(bench, made, 16 * MIB - READ_BYTES, of=16 * MIB)
    made.sendall(bytes(READ_BYTES))
    found = bench.until(bool)
    assert len(found[0][1]) == 16 * MIB
    assert bench.server._account.bytes == 0


# Promise: QUOTA-5
def test_a_message_in_tiny_pieces_counts_what_the_pieces_need(stack: ExitStack) -> None:
    bench = Bench(stack, max_buffered_bytes=64 * 1024)
    made = open_connection(bench)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(b"\x02" + MIB.to_bytes(8, "big"))
    sent = 0
    while len(bench.server):
        try:
            made.sendall(b"x")
        except OSError:
            break
        sent += 1
        bench.take()
        assert sent < 5_000, "a piece of one byte needs far more than one byte"


# Promise: QUOTA-5
def test_bytes_that_nobody_reads_are_bounded_for_a_key(stack: ExitStack) -> None:
    bench = Bench(stack, max_buffered_bytes=4 * MIB)
    made = [open_connection(bench) for _ in range(12)]
    one_key(bench)
    for number in list(bench.server._by_id):
        while bench.server.send(number, [bytes(60_000)]) == "sent":
            pass
        bench.server.note_backlog(number, 300_000)
    assert 0 < bench.server.refused < 12
    assert bench.server._account.of("the-key") <= 2 * MIB
    assert len(made) == 12


# Promise: QUOTA-5
def test_a_slow_reader_within_the_limits_gets_everything(stack: ExitStack) -> None:
    bench = Bench(stack, max_buffered_bytes=4 * MIB)
    made = open_connection(bench)
    [number] = bench.server._by_id
    sent = 0
    while bench.server.send(number, [bytes(60_000)]) == "sent":
        sent += 1
    bench.server.note_backlog(number, MIB)
    for _ in range(sent):
        bench.take()
        assert zmtp.read_message(made) == [bytes(60_000)]
    bench.server.note_backlog(number, 0)
    assert bench.server._account.bytes == 0
    assert bench.server.refused == 0


# Promise: QUOTA-5
def test_small_messages_of_a_key_are_taken_before_more_of_its_connections_are_read(stack: ExitStack) -> None:
    bench = Bench(stack)
    made = [open_connection(bench) for _ in range(8)]
    one_key(bench)
    for each in made:
        each.sendall(b"\x00\x00" * 30_000)
    bench.server._poll()
    taken = sum(bench.server._take() is not None for _ in range(100))
    read = sum(bool(each.inbox) for each in bench.server._by_id.values())
    assert read == 1, f"each of them needs {MAX_INBOX_BYTES} bytes when it is read"
    found = bench.until(lambda found: len(found) >= 8 * 30_000 - taken)
    assert len(found) == 8 * 30_000 - taken
    assert taken == 100, "the connection that was read is served before others of its key"
    assert bench.server._account.bytes == 0


# Promise: QUOTA-5
def test_subscriptions_are_bounded_for_a_key_over_all_its_connections(stack: ExitStack) -> None:
    bench = Bench(stack, socket_type=XPUB, max_buffered_bytes=4 * MIB)
    publisher = ZmtpPublisher(bench.server, tells=True, max_per_second=100_000)
    made = [bench.dialer.dial() for _ in range(4)]
    for each in made:
        each.sendall(zmtp.greeting() + zmtp.ready(b"SUB"))
    while len(bench.server._by_id) < 4:
        list(publisher.subscriptions(1_000))
    one_key(bench)
    for number, each in enumerate(made):
        each.sendall(b"".join(zmtp.frame(b"\x01%d.%d" % (number, topic)) for topic in range(1_000)))
    while not bench.server.refused:
        list(publisher.subscriptions(100_000))
    assert bench.server._account.of("the-key") <= 2 * MIB
    assert sum(map(len, publisher._topics.values())) < 2 * MIB // 700
    assert len(publisher._topics) < 4


# Promise: QUOTA-5
def test_the_sockets_of_a_broker_share_one_account(stack: ExitStack) -> None:
    account = BufferAccount[ZmtpConnection](Limits(max_buffered_bytes=MIB, max_key_buffered_bytes=MIB))
    servers = [
        ZmtpServer(name, ROUTER, "127.0.0.1", 0, Limits(), NullMechanism, account=account)
        for name in ("frontend", "backend")
    ]
    dialers = [stack.enter_context(zmtp.Dialer(f"tcp://127.0.0.1:{server.port}")) for server in servers]
    made = [dialer.dial() for dialer in dialers]
    for server, each in zip(servers, made, strict=True):
        stack.callback(server.close)
        each.sendall(zmtp.greeting() + zmtp.ready())
        while not server._by_id:
            list(server.drain(10))
    for server in servers:
        for connection in server._by_id.values():
            connection.owner = "the-key"
    [[first], [second]] = (list(server._by_id) for server in servers)
    servers[0].note_backlog(first, 700_000)
    servers[1].note_backlog(second, 500_000)
    assert first not in servers[0], "the larger one is closed, although the other one grew"
    assert second in servers[1]
    assert account.bytes == 500_000


# Promise: QUOTA-5
def test_connections_of_a_key_with_curve_count_together(stack: ExitStack) -> None:
    bench = Bench(stack, curve=True)
    pair = bench.new_pair()
    clients = [bench.dealer(pair) for _ in range(2)] + [bench.dealer(bench.new_pair())]
    for client in clients:
        client.send(b"hello")
    bench.until(lambda found: len(found) == 3)
    owners = sorted(str(connection.owner) for connection in bench.server._by_id.values())
    assert owners.count(pair[0].decode()) == 2
    bench.server.programs = {pair[0].decode()}
    program = bench.dealer(pair, kind=zmq.DEALER)
    program.send(b"hello")
    bench.until(bool)
    *others, newest = bench.server._by_id.values()
    assert newest.owner not in [pair[0].decode(), *(one.owner for one in others)], (
        "local programs have one key, and nothing else in common"
    )
