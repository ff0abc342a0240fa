"""A small machine behind Helen's real TLS socket, under the real runner, in a thread: `Echo` sends back what it
receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.process import SWITCH_SECONDS
from scale0.kernel.edge.runner import Runner
from scale0.kernel.effects import Effects, Message
from scale0.monitoring.helen.core.socket_events import BytesReceived, ConnectionClosed, ConnectionOpened
from scale0.monitoring.helen.edge.process import sweep_often
from scale0.monitoring.helen.edge.tls import server_context
from scale0.monitoring.helen.edge.tls_server import TlsServer
from scale0.storage.interface import StoredJournal
from scale0.storage.memory.store import MemoryStore
from tests.fakes.certificates import Authority
from tests.fakes.waiting import PATIENCE_SECONDS


class Peer:
    """A connection, as the runner needs it."""

    socket = "agents"

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        return [[b"".join(message) for message in messages]]


class Echo:
    """Says back what it hears. `bye` ends the connection with a last word, `much N` is answered with N bytes."""

    def __init__(self) -> None:
        self.peers: dict[bytes, Peer] = {}
        self.opened: list[ConnectionOpened] = []
        self.gone: list[ConnectionClosed] = []
        self.lost: list[Any] = []
        self.received_bytes = 0

    def receive(self, socket_name: str, routing_id: bytes, frames: list[Any], now: Now, effects: Effects) -> None:
        match frames:
            case [ConnectionOpened() as opened]:
                self.peers[routing_id] = Peer(routing_id)
                self.opened.append(opened)
            case [ConnectionClosed() as closed]:
                del self.peers[routing_id]
                self.gone.append(closed)
            case [BytesReceived(data)]:
                self.received_bytes += len(data)
                self.hear(self.peers[routing_id], data, effects)
            case _:
                raise AssertionError(frames)

    def hear(self, peer: Peer, data: bytes, effects: Effects) -> None:
        if data.startswith(b"bye"):
            effects.send(peer, [b"error that will do\n"])
            effects.close(peer)
            del self.peers[peer.routing_id]
        elif data.startswith(b"later"):
            effects.promise(peer, [b"stored\n"])
            effects.close(peer)
            del self.peers[peer.routing_id]
        elif data.startswith(b"much "):
            effects.send(peer, [b"x" * int(data[5:])])
        else:
            effects.send(peer, [data])

    def tick(self, now: Now, effects: Effects) -> None: ...

    def deadline(self) -> float | None:
        return None

    def answer(self, ask: object, value: object, now: Now, effects: Effects) -> None: ...

    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None:
        self.lost.append(connection)

    def overflow(self, connection: Any, now: Now, effects: Effects) -> None: ...

    def settle(self, now: Now, effects: Effects) -> None: ...

    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None: ...


class EchoServer:
    """The door, and how to come to it."""

    def __init__(self, authority: Authority, machine: Echo, tls_server: TlsServer) -> None:
        self.authority = authority
        self.machine = machine
        self.socket = tls_server
        self.place = ("127.0.0.1", tls_server.port)
        self._agent = authority.agent("web-1")

    def context(self, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What an agent connects with."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        context.load_cert_chain(*(files or self._agent))
        return context

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        """An agent's socket, past its handshake."""
        raw = socket.create_connection(self.place, timeout=PATIENCE_SECONDS)
        try:
            return (context or self.context()).wrap_socket(raw, server_hostname="127.0.0.1")
        except BaseException:
            raw.close()
            raise

    def plain(self) -> socket.socket:
        """A socket without TLS."""
        return socket.create_connection(self.place, timeout=PATIENCE_SECONDS)

    def says_back(self, data: bytes = b"ping\n") -> float:
        """Come, say something, hear it again, go; how long that took."""
        began = time.monotonic()
        with self.connect() as agent:
            agent.sendall(data)
            assert read(agent, len(data)) == data
        return time.monotonic() - began


def read(agent: socket.socket, size: int) -> bytes:
    """So many bytes, or what came until the end."""
    parts = bytearray()
    while len(parts) < size:
        part = agent.recv(min(size - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)


@contextlib.contextmanager
def echo_server(folder: Path, max_connections: int = 10_000) -> Iterator[EchoServer]:
    """A door that serves, until the end of the block."""
    authority = Authority(folder)
    machine = Echo()
    tls_server = TlsServer(server_context(*authority.helen(), authority.ca), "127.0.0.1", 0, max_connections)
    up = threading.Event()
    stop: list[Callable[[], object]] = []
    faults: list[BaseException] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        store = MemoryStore()
        store.open()
        commits = Commits(store, loop, faults.append)
        journal = StoredJournal("h", 1, MemoryStore().open())

        async def answer(ask: Any) -> Any:
            raise AssertionError(ask)

        runner = Runner(machine, [tls_server], [], commits, journal.append, read_now, answer, 1 << 24)
        runner.start(Effects(), read_now())
        sweeping = loop.create_task(sweep_often(tls_server))
        up.set()
        await ended.wait()
        sweeping.cancel()
        runner.stop(Effects(), read_now())
        await commits.flush()
        commits.close()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            faults.append(error)
            up.set()

    # Two sides share this process: neither should wait long for the other to let it go on.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    thread = threading.Thread(target=run)
    thread.start()
    up.wait(PATIENCE_SECONDS)
    try:
        yield EchoServer(authority, machine, tls_server)
    finally:
        for end in stop:
            end()
        thread.join(PATIENCE_SECONDS)
        tls_server.close()
        sys.setswitchinterval(interval)
    assert not faults, faults
