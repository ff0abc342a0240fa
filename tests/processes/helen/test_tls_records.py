"""Helen's TLS socket and hostile TLS records: how much one turn handles, and what belongs to which connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from scale0.monitoring.helen.core.socket_events import BytesReceived, ConnectionClosed
from scale0.monitoring.helen.edge.tls_connection import MAX_SILENT_BYTES, READ_BYTES
from tests.fakes.key_updates import RecordWriter, take_over
from tests.fakes.waiting import until
from tests.processes.helen.test_tls_server_timeouts import SteppedServer

pytestmark = pytest.mark.processes

KEY_UPDATE_BYTES = 27


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SteppedServer]:
    with contextlib.ExitStack() as stack:
        yield SteppedServer(tmp_path, stack)


def hostile(server: SteppedServer, log: Path) -> tuple[socket.socket, RecordWriter]:
    """An open connection whose client writes its own records."""
    raw, writer = take_over(server.agent(log))
    server.stack.callback(raw.close)
    return raw, writer


def received(server: SteppedServer, routing_id: bytes) -> bytes:
    events = [event for found, event in server.received if found == routing_id]
    return b"".join(event.data for event in events if isinstance(event, BytesReceived))


# Promise: AGENT-14
def test_one_turn_handles_a_bounded_number_of_key_updates(server: SteppedServer, tmp_path: Path) -> None:
    raw, writer = hostile(server, tmp_path / "log")
    [routing_id] = server.opened()
    raw.sendall(writer.key_updates(READ_BYTES // KEY_UPDATE_BYTES + 100) + writer.data(b"1"))
    assert server.turn() == []  # OpenSSL alone would read on until the data
    until(lambda: server.turn() == [[routing_id, BytesReceived(b"1")]])


# Promise: AGENT-14, AGENT-2
def test_a_client_that_sends_only_key_updates_is_disconnected(server: SteppedServer, tmp_path: Path) -> None:
    raw, writer = hostile(server, tmp_path / "log")
    [routing_id] = server.opened()
    raw.sendall(writer.key_updates(MAX_SILENT_BYTES // KEY_UPDATE_BYTES + 1))
    until(server.turn)
    gone, closed = server.received[-1]
    assert gone == routing_id
    assert isinstance(closed, ConnectionClosed)
    assert "without data" in closed.reason
    assert server.socket.connections == 0


# Promise: AGENT-14
def test_a_few_key_updates_between_data_are_allowed(server: SteppedServer, tmp_path: Path) -> None:
    raw, writer = hostile(server, tmp_path / "log")
    [routing_id] = server.opened()
    for number in range(20):
        raw.sendall(writer.key_updates(MAX_SILENT_BYTES // KEY_UPDATE_BYTES // 4) + writer.data(b"%d " % number))
    expected = b"".join(b"%d " % number for number in range(20))
    until(lambda: server.turn() is not None and received(server, routing_id) == expected)


# Promise: AGENT-14
def test_a_handshake_of_many_bytes_is_ended(server: SteppedServer) -> None:
    stranger = server.plain()
    part = b"\x16\x03\x01\x10\x00" + b"\x01\x01\xff\x00" + bytes(4_092)
    with contextlib.suppress(ConnectionError):
        stranger.sendall(part + (b"\x16\x03\x01\x10\x00" + bytes(4_096)) * 10)
    until(lambda: server.turn() == [] and server.socket.failed == 1)
    assert server.socket.connections == 0
    assert "before the end of the handshake" in server.socket._last_failure


# Promise: AGENT-14
def test_records_in_pieces_do_not_mix_with_those_of_others(server: SteppedServer, tmp_path: Path) -> None:
    clients = [hostile(server, tmp_path / f"log-{number}") for number in range(3)]
    records = [writer.data(b"%d" % number * 3_000) for number, (_, writer) in enumerate(clients)]
    for start in range(0, len(records[0]), 500):
        for (raw, _), record in zip(clients, records, strict=True):
            raw.sendall(record[start : start + 500])
        server.turn()
    wanted = [b"%d" % number * 3_000 for number in range(3)]
    until(lambda: server.turn() is not None and [received(server, each) for each in server.opened()] == wanted)


# Promise: AGENT-2
@pytest.mark.parametrize("end", ["close_notify", "garbage"])
def test_data_before_the_end_is_delivered_first(server: SteppedServer, tmp_path: Path, end: str) -> None:
    raw, writer = hostile(server, tmp_path / "log")
    [routing_id] = server.opened()
    data = b"".join(writer.data(b"%d" % number) for number in range(5))
    raw.sendall(data + (writer.close_notify() if end == "close_notify" else b"this is not a TLS record"))
    until(lambda: server.turn() is not None and isinstance(server.received[-1][1], ConnectionClosed))
    assert received(server, routing_id) == b"01234"
    closed = server.received[-1][1]
    assert isinstance(closed, ConnectionClosed)
    assert closed.orderly is (end == "close_notify")


def test_data_that_arrives_with_the_end_of_the_handshake_is_delivered(server: SteppedServer) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=server.authority.ca)
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    raw = server.plain()
    raw.setblocking(False)

    def handshaken() -> bool:
        server.turn()
        with contextlib.suppress(BlockingIOError):
            incoming.write(raw.recv(65_536))
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            return False
        return True

    until(handshaken)
    client.write(b"hello ")
    client.write(b"2 trial")
    raw.sendall(outgoing.read())
    until(lambda: server.turn() is not None and len(server.received) > 1)
    [routing_id] = server.opened()
    assert received(server, routing_id) == b"hello 2 trial"
    assert server.socket.send(routing_id, [b"yes"]) == "sent"
    raw.settimeout(10)
    incoming.write(raw.recv(65_536))
    assert client.read(3) == b"yes"
