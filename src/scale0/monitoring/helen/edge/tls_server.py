"""Helen's door: thousands of TLS connections behind one descriptor.

Lives here: handshakes, whose turn it is, and what becomes of those who are slow, silent or gone. Never here: what is
said, or who listens (`listener`). It has the shape of `broker.edge.sockets.Door`: frames in are `opened`,
`data` and `gone`, frames out are bytes. Invariants: nothing here waits; a stranger costs little and not for long; every
connection that was told as opened is told as gone, once; those who are ready have their turn in the order in which they
were, whatever the others do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.monitoring.helen.edge.listener import TlsListener, prepare
from scale0.monitoring.helen.edge.tls import NamelessError, caller_of, reason_of
from scale0.monitoring.helen.edge.tls_connection import (
    CLOSED,
    GREETING,
    LEAVING,
    LINGERING,
    OPEN,
    READ_BYTES,
    TlsConnection,
)

log = logging.getLogger("scale0.helen")

AGENTS: Final = "agents"
"""The name of this door."""
HANDSHAKE_SECONDS: Final = 5.0
MAX_HANDSHAKES: Final = 1_000
"""Strangers at once; one who keeps us waiting makes room for the next."""
GRACE_SECONDS: Final = 0.5
"""A stranger who has been here for less is not sent away to make room."""
GREETINGS: Final = 8
"""Steps of handshakes in one turn: each costs a signature or two, and agents wait meanwhile."""
EVENTS: Final = 512
"""Connections that are looked at in one turn."""
LINGER_SECONDS: Final = 2.0
"""For the last words to arrive."""
STALL_SECONDS: Final = 30.0
"""How long somebody may take nothing of what waits for it."""
MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""Bytes that wait for one connection: a few of the longest blobs."""
MAX_ALL_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Bytes that wait for all of them; beyond it, the next who does not read is let go."""
TELL_SECONDS: Final = 10.0
"""Between two lines of the log about handshakes that failed."""
TROUBLE: Final = select.EPOLLERR | select.EPOLLHUP


class TlsServer:
    """The door that agents come to."""

    def __init__(
        self,
        context: ssl.SSLContext,
        host: str,
        port: int,
        max_connections: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_connections`: beyond so many, whoever comes is sent away unheard."""
        self.name = AGENTS
        self.context = context
        """For those who come from now on: it may be replaced by one with newer certificates."""
        self.failed = 0
        """Handshakes that came to nothing."""
        self._max_connections = max_connections
        self._clock = clock
        self._epoll = select.epoll()
        self._entrance = TlsListener(host, port, self._epoll)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._knocked = False
        self._next_id = 0
        self._by_descriptor: dict[int, TlsConnection] = {}
        self._by_id: dict[bytes, TlsConnection] = {}
        """Those that the machine knows."""
        self._strangers: dict[TlsConnection, None] = {}
        """In a handshake, the oldest first."""
        self._greetings: dict[TlsConnection, None] = {}
        """Of them, those who wait for us."""
        self._leaving: dict[TlsConnection, None] = {}
        """The machine has closed them; the first to begin is first."""
        self._slow: dict[TlsConnection, None] = {}
        """Something waits for these."""
        self._slow_bytes = 0
        self._ready: deque[tuple[TlsConnection, int]] = deque()
        self._news: deque[list[bytes]] = deque()
        self._told_at = 0.0
        self._told = 0
        self._last_failure = ""

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to do."""
        return self._epoll.fileno()

    @property
    def port(self) -> int:
        """Where it really listens."""
        return self._entrance.port

    @property
    def connections(self) -> int:
        """All that are there, strangers and those who leave included."""
        return len(self._by_descriptor)

    # What the runner asks for.

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """What came, routing id first; at most `most` messages, and a bounded amount of work."""
        if not self._ready:
            self._look()
        while self._news:
            yield self._news.popleft()
        yield from self._greet()
        if self._knocked:
            self._accept()
        ready = self._ready
        for _ in range(min(most, len(ready))):
            connection, mask = ready.popleft()
            message = self._serve(connection, mask)
            if message is not None:
                yield message

    def pending(self) -> bool:
        """True if there is something that no descriptor will tell of."""
        return bool(self._ready or self._news)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Send bytes, or let them wait, within limits."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return "gone"
        before = 0 if connection.waiting is None else len(connection.waiting)
        mask = connection.mask
        try:
            waiting = connection.write(frames[0] if len(frames) == 1 else b"".join(frames))
        except OSError as error:
            self._lose(connection, reason_of(error))
            return "gone"
        if waiting:
            self._wait_for(connection, before, waiting)
            if connection.state == CLOSED:
                return "gone"
            if connection.mask != mask:
                self._epoll.modify(connection.descriptor, connection.mask)
        return "sent"

    def close_peer(self, routing_id: bytes) -> None:
        """After what was sent; the machine hears no more of it."""
        connection = self._by_id.pop(routing_id, None)
        if connection is None:
            return
        connection.since = self._clock()
        self._leaving[connection] = None
        if connection.waiting is None:
            self._hang_up(connection)
        else:
            connection.state = LEAVING
            self._watch(connection, select.EPOLLOUT)

    def close(self) -> None:
        """Everybody at once; what was sent is on its way."""
        self._entrance.close()
        for connection in list(self._by_descriptor.values()):
            if connection.state == OPEN and connection.waiting is None:
                with contextlib.suppress(OSError):
                    connection.hang_up()
            connection.close()
        self._by_descriptor.clear()
        self._by_id.clear()
        self._epoll.close()
        os.close(self._wake)

    # What its owner asks for, a few times a second.

    def sweep(self) -> None:
        """End what has lasted too long."""
        mono = self._clock()
        for connection in overdue(self._strangers, mono - HANDSHAKE_SECONDS):
            self._fail(connection, "it did not finish its handshake")
        for connection in overdue(self._leaving, mono - LINGER_SECONDS):
            self._drop(connection)
        for connection in [one for one in self._slow if mono - one.moved > STALL_SECONDS]:
            self._lose(connection, "it does not read")
        self._entrance.open(mono)
        if self.failed > self._told and mono - self._told_at > TELL_SECONDS:
            log.warning(
                "%d handshakes failed; the last: %s", self.failed - self._told, self._last_failure, extra=about()
            )
            self._told, self._told_at = self.failed, mono

    # Whose turn it is.

    def _look(self) -> None:
        for descriptor, mask in self._epoll.poll(0, EVENTS):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                else:
                    self._knocked = True
            elif connection.state == GREETING:
                self._greetings[connection] = None
            else:
                self._ready.append((connection, mask))

    def _serve(self, connection: TlsConnection, mask: int) -> list[bytes] | None:
        """One that is ready: write, then read; what the machine should hear of it."""
        state = connection.state
        if state == LINGERING:
            self._discard(connection)
            return None
        if state == CLOSED:
            return None
        try:
            if mask & select.EPOLLOUT and not self._flush(connection):
                return None
            if connection.state != OPEN or not mask & ~select.EPOLLOUT:
                if mask & TROUBLE and connection.state == LEAVING:
                    self._drop(connection)
                return None
            data = connection.read()
        except OSError as error:
            return self._bid_farewell(connection, reason_of(error))
        if data is None:
            return None
        if not data:
            connection.return_goodbye()
            return self._bid_farewell(connection, "it closed the connection")
        return [connection.routing_id, b"data", data]

    def _flush(self, connection: TlsConnection) -> bool:
        """Send what waits; False if that was all there is to do with it."""
        mask = connection.mask
        left = connection.flush()
        if left:
            connection.moved = self._clock()
            self._slow_bytes -= left
        if connection.waiting is None:
            self._slow.pop(connection, None)
            if connection.state == LEAVING:
                self._hang_up(connection)
                return False
        if connection.mask != mask:
            self._epoll.modify(connection.descriptor, connection.mask)
        return True

    def _wait_for(self, connection: TlsConnection, before: int, waiting: int) -> None:
        """Its bytes wait: within limits, or it is let go."""
        if not before:
            connection.moved = self._clock()
            self._slow[connection] = None
        self._slow_bytes += waiting - before
        if waiting > MAX_WAITING_BYTES or self._slow_bytes > MAX_ALL_WAITING_BYTES:
            self._lose(connection, "it does not read")

    # Those who come.

    def _accept(self) -> None:
        mono = self._clock()
        self._knocked = False
        for raw, address in self._entrance.callers(mono):
            if len(self._by_descriptor) >= self._max_connections:
                raw.close()
                self._note(address, "too many connections")
                continue
            self._welcome(raw, address, mono)
            if len(self._strangers) > MAX_HANDSHAKES and not self._make_room(mono):
                self._entrance.shut()
                return

    def _welcome(self, raw: socket.socket, address: str, mono: float) -> None:
        try:
            prepare(raw)
            # An end without a goodbye is a loss, not an end.
            wrapped = self.context.wrap_socket(
                raw, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
        except (OSError, ValueError) as error:
            raw.close()
            self._note(address, reason_of(error))
            return
        self._next_id += 1
        connection = TlsConnection(wrapped, self._next_id.to_bytes(8, "big"), address, mono)
        self._by_descriptor[connection.descriptor] = connection
        self._strangers[connection] = None
        self._epoll.register(connection.descriptor, connection.mask)

    def _make_room(self, mono: float) -> bool:
        """Send away the stranger who has kept us waiting longest; False if all of them wait for us, or just came."""
        for connection in self._strangers:
            if mono - connection.since < GRACE_SECONDS:
                return False
            if connection not in self._greetings:
                self._fail(connection, "it kept us waiting while others stood in line")
                return True
        return False

    def _greet(self) -> Iterator[list[bytes]]:
        """A few steps of handshakes; those who are done are told as opened."""
        for _ in range(min(GREETINGS, len(self._greetings))):
            connection = next(iter(self._greetings))
            del self._greetings[connection]
            if connection.state != GREETING:
                continue
            mask = connection.mask
            try:
                if not connection.greet():
                    if connection.mask != mask:
                        self._epoll.modify(connection.descriptor, connection.mask)
                    continue
                caller = caller_of(connection.socket)  # type: ignore[arg-type]  # it is TLS: it was greeted
            except (OSError, NamelessError) as error:
                self._fail(connection, reason_of(error))
                continue
            if connection.mask != mask:
                self._epoll.modify(connection.descriptor, connection.mask)
            del self._strangers[connection]
            connection.state = OPEN
            self._by_id[connection.routing_id] = connection
            self._entrance.open(self._clock())  # there is room for one more stranger
            who = caller.name.encode(), caller.serial.encode(), connection.address.encode()
            yield [connection.routing_id, b"opened", *who, b"%d" % caller.issued]

    # Those who go.

    def _fail(self, connection: TlsConnection, reason: str) -> None:
        self._note(connection.address, reason)
        self._drop(connection)

    def _note(self, address: str, reason: str) -> None:
        self.failed += 1
        self._last_failure = f"{address}: {reason}"

    def _lose(self, connection: TlsConnection, reason: str) -> None:
        """It is gone while nobody reads it: the machine is told with the next turn."""
        farewell = self._bid_farewell(connection, reason)
        if farewell is not None:
            self._news.append(farewell)
            os.eventfd_write(self._wake, 1)

    def _bid_farewell(self, connection: TlsConnection, reason: str) -> list[bytes] | None:
        """Let it go; what the machine is to hear, if it knows it."""
        known = self._by_id.pop(connection.routing_id, None) is not None
        self._drop(connection)
        return [connection.routing_id, b"gone", reason.encode()] if known else None

    def _hang_up(self, connection: TlsConnection) -> None:
        self._watch(connection, select.EPOLLIN)
        connection.hang_up()

    def _discard(self, connection: TlsConnection) -> None:
        """It lingers: whatever it says is too late."""
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)

    def _drop(self, connection: TlsConnection) -> None:
        if connection.state == CLOSED:
            return
        if connection.waiting is not None:
            self._slow_bytes -= len(connection.waiting)
        for table in (self._strangers, self._greetings, self._leaving, self._slow):
            table.pop(connection, None)
        del self._by_descriptor[connection.descriptor]
        connection.close()

    def _watch(self, connection: TlsConnection, mask: int) -> None:
        if connection.mask != mask:
            connection.mask = mask
            self._epoll.modify(connection.descriptor, mask)


def overdue(table: dict[TlsConnection, None], before: float) -> list[TlsConnection]:
    """Those that came before then: the oldest are first, so the look is short."""
    found = []
    for connection in table:
        if connection.since > before:
            break
        found.append(connection)
    return found
