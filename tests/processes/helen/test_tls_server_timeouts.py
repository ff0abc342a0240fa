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
from scale0.monitoring.helen.edge.listener import PAUSE_SECONDS
from scale0.monitoring.helen.edge.tls import server_context
from scale0.monitoring.helen.edge.tls_server import TlsServer
from tests.fakes.waiting import until
from tests.processes.helen.certificates import Certificates

pytestmark = pytest.mark.processes


class Bench:
    """A door that nobody turns but the test."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.certificates = Certificates(folder)
        self.now = 100.0
        self.stack = stack
        context = server_context(*self.certificates.helen, self.certificates.ca)
        self.door = TlsServer(context, "127.0.0.1", 0, 10_000, lambda: self.now)
        stack.callback(self.door.close)
        self.heard: list[list[bytes]] = []

    def plain(self) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.door.port), timeout=10))

    def turn(self) -> list[list[bytes]]:
        """One turn; what the machine would have heard in it."""
        came = list(self.door.drain(1_000))
        self.heard += came
        return came

    def agent(self) -> ssl.SSLSocket:
        """Somebody who has come in."""
        context = ssl.create_default_context(cafile=self.certificates.ca)
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
        return [message[0] for message in self.heard if isinstance(message[1], ConnectionOpened)]

    def fill(self, routing_id: bytes) -> int:
        """Send until something has to wait here, however much the system's own buffers take; how much that was."""
        for number in range(1, 1_000):
            assert self.door.send(routing_id, [b"x" * 100_000]) == "sent"
            if self.door._blocked:
                return number * 100_000
        raise AssertionError("nothing ever waits")

    def turns_until(self, size: int) -> None:
        """Turn until so many connections are there."""

        def look() -> bool:
            self.turn()
            return self.door.connections == size

        until(look)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(tmp_path, stack)


# Promise: AGENT-14
def test_handshake_has_five_seconds(bench: Bench) -> None:
    bench.plain()
    bench.turns_until(1)
    bench.now += rules.HANDSHAKE_SECONDS - 0.1
    bench.door.sweep()
    assert bench.door.connections == 1
    bench.now += 0.2
    bench.door.sweep()
    assert (bench.door.connections, bench.door.failed) == (0, 1)
    assert bench.heard == []


def test_who_takes_nothing_for_long_is_told_as_gone(bench: Bench) -> None:
    bench.agent()
    [routing_id] = bench.opened()
    while bench.door.send(routing_id, [b"x" * 100_000]) == "sent" and not bench.door._blocked:
        pass
    bench.now += rules.STALL_SECONDS - 0.1
    bench.door.sweep()
    assert bench.turn() == []
    bench.now += 0.2
    bench.door.sweep()
    assert bench.turn() == [[routing_id, ConnectionClosed("the client does not read")]]
    assert bench.door.send(routing_id, [b"more"]) == "gone"
    assert bench.door._unsent_bytes == 0


def test_who_reads_a_little_stays(bench: Bench) -> None:
    agent = bench.agent()
    [routing_id] = bench.opened()
    sent = bench.fill(routing_id)
    taken = 0
    while bench.door._blocked:
        bench.now += rules.STALL_SECONDS - 1
        with contextlib.suppress(ssl.SSLWantReadError):
            # The other end hears of room only when there is a good deal of it.
            for _ in range(50):
                taken += len(agent.recv(1 << 20))
        assert bench.turn() == []
        bench.door.sweep()
    assert bench.door.send(routing_id, [b"more"]) == "sent"
    while taken < sent + 4:
        with contextlib.suppress(ssl.SSLWantReadError):
            taken += len(agent.recv(1 << 20))
    assert bench.door._unsent_bytes == 0


# Promise: AGENT-14
def test_all_that_waits_is_bounded_for_all_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        bench.agent()
    one, two, three = bench.opened()
    for routing_id in (one, two, three):
        assert bench.door.send(routing_id, [b"a"]) == "sent"
    bench.fill(one)
    monkeypatch.setattr(rules, "MAX_TOTAL_UNSENT_BYTES", bench.door._unsent_bytes + 100)
    assert any(bench.door.send(two, [b"x" * 100_000]) == "gone" for _ in range(1_000))
    assert bench.door.send(three, [b"b"]) == "sent"


def test_lingering_ends_by_itself(bench: Bench) -> None:
    bench.agent()
    [routing_id] = bench.opened()
    bench.door.close_peer(routing_id)
    bench.turn()
    assert bench.door.connections == 1
    bench.now += rules.LINGER_SECONDS + 0.1
    bench.door.sweep()
    assert bench.door.connections == 0
    assert bench.turn() == []
    bench.door.close_peer(routing_id)


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


def test_without_descriptors_nobody_is_accepted_for_a_moment(bench: Bench) -> None:
    listener = bench.door._listener._socket
    refusing = Refusing(listener)
    bench.door._listener._socket = refusing  # type: ignore[assignment]
    bench.plain()

    def tried() -> int:
        bench.turn()
        return refusing.tries

    until(tried)
    for _ in range(10):
        bench.turn()
    assert refusing.tries == 1
    bench.door._listener._socket = listener
    bench.door.sweep()
    bench.turn()
    assert bench.door.connections == 0
    bench.now += PAUSE_SECONDS
    bench.door.sweep()
    bench.turns_until(1)


def test_strangers_who_keep_us_waiting_make_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_HANDSHAKES", 10)
    for _ in range(10):
        bench.plain()
    bench.turns_until(10)
    late = [bench.plain() for _ in range(3)]
    bench.turns_until(11)  # nobody waits long enough to be sent away: one more is let in, and then nobody
    for _ in range(10):
        bench.turn()
    assert (bench.door.connections, bench.door.failed) == (11, 0)
    bench.now += rules.GRACE_SECONDS
    bench.door.sweep()
    until(lambda: bench.turn() == [] and bench.door.failed == 2)
    for _ in range(10):
        bench.turn()
    assert (bench.door.connections, bench.door.failed, len(late)) == (11, 2, 3)


# Promise: AGENT-14
def test_each_has_its_turn_whatever_is_left_over(bench: Bench) -> None:
    agents = [bench.agent() for _ in range(5)]
    for agent in agents:
        agent.send(b"1")
    order: list[bytes] = []

    def look() -> bool:
        # A turn that ends after its first message, as one does that took too long.
        for message in bench.door.drain(1_000):
            order.append(message[0])
            agents[bench.opened().index(message[0])].send(b"1")
            break
        return len(order) == 50

    until(look)
    # The first rounds may miss somebody whose bytes are still on their way.
    assert {order[-20:].count(one) for one in bench.opened()} == {4}
