"""The TLS connection to Helen: established in time or given up, bytes in order, no callback after close."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.monitoring.agent.edge import tls_client as link_module
from scale0.monitoring.agent.edge.tls_client import TlsClient, client_context
from tests.fakes.waiting import eventually
from tests.processes.agent.credentials import Credentials

pytestmark = pytest.mark.processes


class Ear:
    """Whoever is told."""

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


def server_context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*credentials.helen)
    context.load_verify_locations(credentials.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def told(credentials: Credentials, story: Callable[[TlsClient, Ear], Coroutine[Any, Any, None]]) -> None:
    certificate, key = credentials.issue("web-1")

    async def run() -> None:
        loop, ear = asyncio.get_running_loop(), Ear()
        context = client_context(str(certificate), str(key), str(credentials.ca))
        link = TlsClient(lambda: context, ear, ThreadPool(2, loop), loop)
        try:
            await story(link, ear)
        finally:
            link.close()

    asyncio.run(run())


def serve(listener: socket.socket, work: Callable[[socket.socket], None]) -> threading.Thread:
    def run() -> None:
        raw, _ = listener.accept()
        raw.settimeout(20)
        with raw:
            work(raw)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_megabytes_go_both_ways_in_order_though_nobody_reads_at_first(credentials, listener):
    data = bytes(range(256)) * 65_536
    hurry = threading.Event()
    got = hashlib.sha256()

    def work(raw: socket.socket) -> None:
        with server_context(credentials).wrap_socket(raw, server_side=True) as tls:
            hurry.wait(10)
            left = len(data) + 3
            while left:
                piece = tls.recv(65_536)
                got.update(piece)
                left -= len(piece)
            tls.sendall(data)
            tls.recv(1)

    async def story(link: TlsClient, ear: Ear) -> None:
        thread = serve(listener, work)
        link.open("localhost", listener.getsockname()[1])
        await eventually(lambda: ear.opens)
        for at in range(0, len(data), 10_000):
            link.send(data[at : at + 10_000])
        await eventually(lambda: 0 < link.pending_bytes < len(data))
        link.send(b"end")
        hurry.set()
        await eventually(lambda: len(ear.data) == len(data))
        assert link.pending_bytes == 0
        assert ear.data == data
        assert got.digest() == hashlib.sha256(data + b"end").digest()
        link.close()
        await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
        assert ear.reasons == []

    told(credentials, story)


def test_a_handshake_that_does_not_end_is_given_up(credentials, listener, monkeypatch):
    monkeypatch.setattr(link_module, "OPEN_SECONDS", 0.2)

    async def story(link: TlsClient, ear: Ear) -> None:
        link.open("127.0.0.1", listener.getsockname()[1])
        await eventually(lambda: ear.reasons)
        assert ear.reasons == ["not connected within 0.2 s"]
        assert ear.opens == 0

    told(credentials, story)


def test_every_way_not_to_connect_is_told_once_with_its_reason(credentials, listener):
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()

    def hang_up(raw: socket.socket) -> None:
        raw.recv(10)

    def garbage(raw: socket.socket) -> None:
        raw.sendall(b"220 this is a mail server\r\n" * 10)
        raw.recv(10_000)

    async def story(link: TlsClient, ear: Ear) -> None:
        wanted = [("127.0.0.1", port, "refused"), ("no-such-host.invalid", 1, "cannot resolve")]
        for host, place, reason in wanted:
            link.open(host, place)
            await eventually(lambda: ear.reasons)
            assert reason in ear.reasons.pop()
        for work in (hang_up, garbage):
            thread = serve(listener, work)
            link.open("127.0.0.1", listener.getsockname()[1])
            await eventually(lambda: ear.reasons)
            assert "handshake failed" in ear.reasons.pop()
            await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
        assert ear.opens == 0
        assert ear.reasons == []

    told(credentials, story)


# Promise: AGENT-15
def test_a_helen_with_a_certificate_for_another_name_is_not_trusted(credentials, listener):
    def work(raw: socket.socket) -> None:
        with pytest.raises(OSError):
            server_context(credentials).wrap_socket(raw, server_side=True).recv(1)

    async def story(link: TlsClient, ear: Ear) -> None:
        thread = serve(listener, work)
        link.open("127.0.0.2", listener.getsockname()[1])
        await eventually(lambda: ear.reasons)
        assert "Helen's certificate" in ear.reasons[0]
        await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)

    with socket.create_server(("127.0.0.2", 0)) as other:
        listener.close()
        other.settimeout(10)
        listener = other
        told(credentials, story)


def test_nothing_is_told_of_a_connection_that_was_closed(credentials, listener):
    async def story(link: TlsClient, ear: Ear) -> None:
        link.open("127.0.0.1", listener.getsockname()[1])
        link.close()
        link.open("no-such-host.invalid", 1)
        link.close()
        link.send(b"nobody hears it")
        link.open("127.0.0.1", listener.getsockname()[1])
        thread = serve(listener, lambda raw: raw.close())
        link.open("127.0.0.1", listener.getsockname()[1])
        await eventually(lambda: ear.reasons)
        await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
        assert ear.opens == 0
        assert len(ear.reasons) == 1

    told(credentials, story)


def test_a_helen_that_asks_and_never_reads_is_left(credentials, listener, monkeypatch):
    """What she asks for is answered, and answers that she does not take must not fill this machine's memory."""
    monkeypatch.setattr(link_module, "MAX_PENDING_BYTES", 1_000_000)
    ended = threading.Event()

    def serve() -> None:
        raw, _ = listener.accept()
        with raw, server_context(credentials).wrap_socket(raw, server_side=True):
            ended.wait(20)

    thread = threading.Thread(target=serve)
    thread.start()

    async def story(link: TlsClient, ear: Ear) -> None:
        link.open("127.0.0.1", listener.getsockname()[1])
        await eventually(lambda: ear.opens)
        while not ear.reasons:
            link.send(b"x" * 100_000)
            assert link.pending_bytes <= 1_100_000
            await asyncio.sleep(0)
        assert "does not read" in ear.reasons[0]

    try:
        told(credentials, story)
    finally:
        ended.set()
        thread.join()
