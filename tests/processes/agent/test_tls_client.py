"""The TLS connection to Helen: established in time or given up, bytes in order, no callback after close."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.monitoring.agent.edge import tls_client as tls_client_module
from scale0.monitoring.agent.edge.tls_client import TlsClient, client_context
from tests.fakes.certificates import Authority
from tests.fakes.waiting import eventually

pytestmark = pytest.mark.processes


class Events:
    """What the client reports."""

    def __init__(self) -> None:
        self.opens = 0
        self.data = bytearray()
        self.reasons: list[str] = []

    def opened(self) -> None:
        self.opens += 1

    def received(self, data: bytes) -> None:
        self.data += data

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@contextlib.contextmanager
def tls_client(authority: Authority) -> Iterator[tuple[TlsClient, Events]]:
    """A client in the loop that runs, and what it reports."""
    loop, events = asyncio.get_running_loop(), Events()
    context = client_context(*map(str, (*authority.agent("web-1"), authority.ca)))
    client = TlsClient(lambda: context, events, ThreadPool(2, loop), loop)
    try:
        yield client, events
    finally:
        client.close()


def serve(listener: socket.socket, work: Callable[[socket.socket], None]) -> threading.Thread:
    def run() -> None:
        raw, _ = listener.accept()
        raw.settimeout(20)
        with raw:
            work(raw)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


async def test_megabytes_go_both_ways_in_order_though_nobody_reads_at_first(authority, listener):
    data = bytes(range(256)) * 65_536
    hurry = threading.Event()
    got = hashlib.sha256()

    def work(raw: socket.socket) -> None:
        with authority.helen_context().wrap_socket(raw, server_side=True) as tls:
            hurry.wait(10)
            left = len(data) + 3
            while left:
                piece = tls.recv(65_536)
                got.update(piece)
                left -= len(piece)
            tls.sendall(data)
            tls.recv(1)

    with tls_client(authority) as (client, events):
        thread = serve(listener, work)
        client.open("localhost", listener.getsockname()[1])
        await eventually(lambda: events.opens)
        for at in range(0, len(data), 10_000):
            client.send(data[at : at + 10_000])
        await eventually(lambda: 0 < client.pending_bytes < len(data))
        client.send(b"end")
        hurry.set()
        await eventually(lambda: len(events.data) == len(data))
        assert client.pending_bytes == 0
        assert events.data == data
        assert got.digest() == hashlib.sha256(data + b"end").digest()
        client.close()
        await asyncio.to_thread(thread.join, 5)
        assert events.reasons == []


async def test_a_handshake_that_does_not_end_is_given_up(authority, listener, monkeypatch):
    monkeypatch.setattr(tls_client_module, "OPEN_SECONDS", 0.2)

    with tls_client(authority) as (client, events):
        client.open("127.0.0.1", listener.getsockname()[1])
        await eventually(lambda: events.reasons)
        assert events.reasons == ["not connected within 0.2 s"]
        assert events.opens == 0


async def test_every_way_not_to_connect_is_reported_once_with_its_reason(authority, listener):
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()

    def disconnect(raw: socket.socket) -> None:
        raw.recv(10)

    def garbage(raw: socket.socket) -> None:
        raw.sendall(b"220 this is a mail server\r\n" * 10)
        raw.recv(10_000)

    with tls_client(authority) as (client, events):
        wanted = [("127.0.0.1", port, "refused"), ("no-such-host.invalid", 1, "cannot resolve")]
        for host, place, reason in wanted:
            client.open(host, place)
            await eventually(lambda: events.reasons)
            assert reason in events.reasons.pop()
        for work in (disconnect, garbage):
            thread = serve(listener, work)
            client.open("127.0.0.1", listener.getsockname()[1])
            await eventually(lambda: events.reasons)
            assert "handshake failed" in events.reasons.pop()
            await asyncio.to_thread(thread.join, 5)
        assert events.opens == 0
        assert events.reasons == []


# Promise: AGENT-15
async def test_a_helen_with_a_certificate_for_another_name_is_not_trusted(authority):
    def work(raw: socket.socket) -> None:
        with pytest.raises(OSError):
            authority.helen_context().wrap_socket(raw, server_side=True).recv(1)

    with socket.create_server(("127.0.0.2", 0)) as other, tls_client(authority) as (client, events):
        other.settimeout(10)
        thread = serve(other, work)
        client.open("127.0.0.2", other.getsockname()[1])
        await eventually(lambda: events.reasons)
        assert "Helen's certificate" in events.reasons[0]
        await asyncio.to_thread(thread.join, 5)


async def test_nothing_is_reported_of_a_connection_that_was_closed(authority, listener):
    with tls_client(authority) as (client, events):
        client.open("127.0.0.1", listener.getsockname()[1])
        client.close()
        client.open("no-such-host.invalid", 1)
        client.close()
        client.send(b"nobody hears it")
        client.open("127.0.0.1", listener.getsockname()[1])
        thread = serve(listener, lambda raw: raw.close())
        client.open("127.0.0.1", listener.getsockname()[1])
        await eventually(lambda: events.reasons)
        await asyncio.to_thread(thread.join, 5)
        assert events.opens == 0
        assert len(events.reasons) == 1


async def test_a_helen_that_asks_and_never_reads_is_left(authority, listener, monkeypatch):
    """What she asks for is answered, and answers that she does not take must not fill this machine's memory."""
    monkeypatch.setattr(tls_client_module, "MAX_PENDING_BYTES", 1_000_000)
    ended = threading.Event()

    def work(raw: socket.socket) -> None:
        with authority.helen_context().wrap_socket(raw, server_side=True):
            ended.wait(20)

    thread = serve(listener, work)
    with tls_client(authority) as (client, events):
        client.open("127.0.0.1", listener.getsockname()[1])
        await eventually(lambda: events.opens)
        while not events.reasons:
            client.send(b"x" * 100_000)
            assert client.pending_bytes <= 1_100_000
            await asyncio.sleep(0)
        assert "does not read" in events.reasons[0]
    ended.set()
    await asyncio.to_thread(thread.join, 5)
