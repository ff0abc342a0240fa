"""Helen's TLS socket with a clock that tests move: deadlines, pauses and order, turn by turn."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0.monitoring.helen.core.socket_events import ConnectionClosed, ConnectionOpened
from scale0.monitoring.helen.edge import tls_server as rules
from scale0.monitoring.helen.edge.tls import server_context
from scale0.monitoring.helen.edge.tls_server import TlsServer
from scale0.transport.edge.tcp_listener import PAUSE_SECONDS
from tests.fakes.certificates import Authority
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes


class SteppedServer:
    """A door that nobody turns but the test."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.authority = Authority(folder)
        self.now = 100.0
        self.stack = stack
        context = server_context(*self.authority.helen(), self.authority.ca)
        self.socket = TlsServer(context, "127.0.0.1", 0, 10_000, lambda: self.now)
        stack.callback(self.socket.close)
        self.received: list[list[bytes]] = []

    def plain(self) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.socket.port), timeout=10))

    def turn(self) -> list[list[bytes]]:
        """One turn; what the machine would have heard in it."""
        came = list(self.socket.drain(1_000))
        self.received += came
        return came

    def agent(self, key_log: Path | None = None) -> ssl.SSLSocket:
        """Somebody who has come in."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        if key_log is not None:
            context.keylog_filename = str(key_log)
        wrapped = context.wrap_socket(self.plain(), server_hostname="localhost", do_handshake_on_connect=False)
        self.stack.callback(wrapped.close)
        wrapped.setblocking(False)
        known = len(self.opened())

        def steps() -> bool:
            with contextlib.suppress(ssl.SSLWantReadError):
                wrapped.do_handshake()
            self.turn()
            return len(self.opened()) > known

        until(steps)
        return wrapped

    def opened(self) -> list[bytes]:
        return [message[0] for message in self.received if isinstance(message[1], ConnectionOpened)]

    def fill(self, routing_id: bytes) -> int:
        """Send until something has to wait here, however much the system's own buffers take; how much that was."""
        for number in range(1, 1_000):
            assert self.socket.send(routing_id, [b"x" * 100_000]) == "sent"
            if self.socket._blocked:
                return number * 100_000
        raise AssertionError("nothing ever waits")

    def turns_until(self, size: int) -> None:
        """Turn until so many connections are there."""

        def look() -> bool:
            self.turn()
            return self.socket.connections == size

        until(look)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SteppedServer]:
    with contextlib.ExitStack() as stack:
        yield SteppedServer(tmp_path, stack)


# Promise: AGENT-14
def test_handshake_has_five_seconds(server: SteppedServer) -> None:
    server.plain()
    server.turns_until(1)
    server.now += rules.HANDSHAKE_SECONDS - 0.1
    server.socket.sweep()
    assert server.socket.connections == 1
    server.now += 0.2
    server.socket.sweep()
    assert (server.socket.connections, server.socket.failed) == (0, 1)
    assert server.received == []


def test_a_client_that_reads_nothing_for_long_is_reported_as_gone(server: SteppedServer) -> None:
    server.agent()
    [routing_id] = server.opened()
    while server.socket.send(routing_id, [b"x" * 100_000]) == "sent" and not server.socket._blocked:
        pass
    server.now += rules.STALL_SECONDS - 0.1
    server.socket.sweep()
    assert server.turn() == []
    server.now += 0.2
    server.socket.sweep()
    assert server.turn() == [[routing_id, ConnectionClosed("the client does not read")]]
    assert server.socket.send(routing_id, [b"more"]) == "gone"
    assert server.socket._unsent_bytes == 0


def test_a_client_that_reads_a_little_stays(server: SteppedServer) -> None:
    agent = server.agent()
    [routing_id] = server.opened()
    sent = server.fill(routing_id)
    taken = 0
    while server.socket._blocked:
        server.now += rules.STALL_SECONDS - 1
        with contextlib.suppress(ssl.SSLWantReadError):
            # The other end hears of room only when there is a good deal of it.
            for _ in range(50):
                taken += len(agent.recv(1 << 20))
        assert server.turn() == []
        server.socket.sweep()
    assert server.socket.send(routing_id, [b"more"]) == "sent"
    while taken < sent + 4:
        with contextlib.suppress(ssl.SSLWantReadError):
            taken += len(agent.recv(1 << 20))
    assert server.socket._unsent_bytes == 0


# Promise: AGENT-14
def test_all_that_waits_is_bounded_for_all_together(server: SteppedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        server.agent()
    one, two, three = server.opened()
    for routing_id in (one, two, three):
        assert server.socket.send(routing_id, [b"a"]) == "sent"
    server.fill(one)
    monkeypatch.setattr(rules, "MAX_TOTAL_UNSENT_BYTES", server.socket._unsent_bytes + 100)
    assert any(server.socket.send(two, [b"x" * 100_000]) == "gone" for _ in range(1_000))
    assert server.socket.send(three, [b"b"]) == "sent"


def test_lingering_ends_by_itself(server: SteppedServer) -> None:
    server.agent()
    [routing_id] = server.opened()
    server.socket.close_peer(routing_id)
    server.turn()
    assert server.socket.connections == 1
    server.now += rules.LINGER_SECONDS + 0.1
    server.socket.sweep()
    assert server.socket.connections == 0
    assert server.turn() == []
    server.socket.close_peer(routing_id)


class Refusing:
    """A listener whose process has run out of descriptors."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)

    def accept(self) -> None:
        self.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_without_descriptors_nobody_is_accepted_for_a_moment(server: SteppedServer) -> None:
    listener = server.socket._listener._socket
    refusing = Refusing(listener)
    server.socket._listener._socket = refusing  # type: ignore[assignment]
    server.plain()

    def tried() -> int:
        server.turn()
        return refusing.tries

    until(tried)
    for _ in range(10):
        server.turn()
    assert refusing.tries == 1
    server.socket._listener._socket = listener
    server.socket.sweep()
    server.turn()
    assert server.socket.connections == 0
    server.now += PAUSE_SECONDS
    server.socket.sweep()
    server.turns_until(1)


def test_strangers_who_keep_us_waiting_make_room(server: SteppedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_HANDSHAKES", 10)
    for _ in range(10):
        server.plain()
    server.turns_until(10)
    late = [server.plain() for _ in range(3)]
    server.turns_until(11)  # nobody waits long enough to be sent away: one more is let in, and then nobody
    for _ in range(10):
        server.turn()
    assert (server.socket.connections, server.socket.failed) == (11, 0)
    server.now += rules.GRACE_SECONDS
    server.socket.sweep()
    until(lambda: server.turn() == [] and server.socket.failed == 2)
    for _ in range(10):
        server.turn()
    assert (server.socket.connections, server.socket.failed, len(late)) == (11, 2, 3)


# Promise: AGENT-14
def test_each_has_its_turn_whatever_is_left_over(server: SteppedServer) -> None:
    agents = [server.agent() for _ in range(5)]
    for agent in agents:
        agent.send(b"1")
    order: list[bytes] = []

    def look() -> bool:
        # A turn that ends after its first message, as one does that took too long.
        for message in server.socket.drain(1_000):
            order.append(message[0])
            agents[server.opened().index(message[0])].send(b"1")
            break
        return len(order) == 50

    until(look)
    # The first rounds may miss somebody whose bytes are still on their way.
    assert {order[-20:].count(one) for one in server.opened()} == {4}
