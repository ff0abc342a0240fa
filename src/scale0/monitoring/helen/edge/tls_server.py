"""Helen's TLS socket for agents: thousands of connections behind one epoll descriptor.

It has the shape of a runner's `MessageSocket`: it delivers events of `socket_events` and sends bytes. Nothing here
blocks. Each connection that was delivered as opened is delivered as closed once, unless the machine closed it. Ready
connections are served in the order in which they became ready.
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
from typing import Any, Final

from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.monitoring.helen.core.socket_events import AGENTS, BytesReceived, ConnectionClosed, ConnectionOpened
from scale0.monitoring.helen.edge.tls import NamelessError, peer_identity, reason_of
from scale0.monitoring.helen.edge.tls_connection import (
    CLOSED,
    FLUSHING,
    HANDSHAKING,
    LINGERING,
    OPEN,
    READ_BYTES,
    TlsBuffers,
    TlsConnection,
)
from scale0.transport.edge.tcp_listener import TcpListener

log = logging.getLogger("scale0.helen")

HANDSHAKE_SECONDS: Final = 5.0
MAX_HANDSHAKES: Final = 1_000
"""Handshakes at once; beyond it, the one that has been waiting longest for its client is dropped."""
GRACE_SECONDS: Final = 0.5
"""A younger handshake is not dropped to make room."""
HANDSHAKES_PER_TURN: Final = 8
"""Each costs a signature or two, and agents wait meanwhile."""
MAX_EPOLL_EVENTS: Final = 512
"""Connections served in one turn."""
LINGER_SECONDS: Final = 2.0
"""How long a closed connection stays, so that its last bytes arrive."""
STALL_SECONDS: Final = 30.0
"""How long a client may read nothing while bytes are unsent."""
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
"""Unsent bytes of one connection: a few of the longest blobs."""
MAX_TOTAL_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Unsent bytes of all connections; beyond it, the next client that does not read is disconnected."""
LOG_SECONDS: Final = 10.0
"""Between two log messages about failed handshakes."""
TROUBLE: Final = select.EPOLLERR | select.EPOLLHUP


class TlsServer:
    def __init__(
        self,
        context: ssl.SSLContext,
        host: str,
        port: int,
        max_connections: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Beyond `max_connections`, new clients are disconnected before the handshake."""
        self.name = AGENTS
        self.context = context
        """For new connections; it may be replaced by one with newer certificates."""
        self.failed = 0
        """Handshakes that failed."""
        self._max_connections = max_connections
        self._clock = clock
        self._epoll = select.epoll()
        hint = "Is another Helen running? Choose another port (helen_port)."
        self._listener = TcpListener(host, port, self._epoll, hint)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._accept_ready = False
        self._next_id = 0
        self._buffers = TlsBuffers()
        self._by_descriptor: dict[int, TlsConnection] = {}
        self._by_id: dict[bytes, TlsConnection] = {}
        """Connections that the machine knows."""
        self._handshaking: dict[TlsConnection, None] = {}
        """The oldest first."""
        self._ready_handshakes: dict[TlsConnection, None] = {}
        """Handshakes whose client has answered."""
        self._closing: dict[TlsConnection, None] = {}
        """Connections that the machine has closed, in that order."""
        self._blocked: dict[TlsConnection, None] = {}
        """Connections with unsent bytes."""
        self._unsent_bytes = 0
        self._ready: deque[tuple[TlsConnection, int]] = deque()
        self._closed_events: deque[list[Any]] = deque()
        self._logged_at = 0.0
        self._logged = 0
        self._last_failure = ""

    @property
    def descriptor(self) -> int:
        return self._epoll.fileno()

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def connections(self) -> int:
        """All connections, including those in a handshake and those being closed."""
        return len(self._by_descriptor)

    def drain(self, most: int) -> Iterator[list[Any]]:
        """Yield received events, routing id first: at most `most` reads, and a bounded number of handshakes."""
        if not self._ready:
            self._poll()
        while self._closed_events:
            yield self._closed_events.popleft()
        yield from self._continue_handshakes()
        if self._accept_ready:
            self._accept()
        ready = self._ready
        for _ in range(min(most, len(ready))):
            connection, mask = ready.popleft()
            message = self._serve(connection, mask)
            if message is not None:
                yield message

    def pending(self) -> bool:
        """True if there are events that the descriptor does not signal."""
        return bool(self._ready or self._closed_events)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Send or buffer bytes, within limits."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return "gone"
        before = 0 if connection.unsent is None else len(connection.unsent)
        mask = connection.mask
        try:
            unsent = connection.write(frames[0] if len(frames) == 1 else b"".join(frames))
        except OSError as error:
            self._disconnect_later(connection, reason_of(error))
            return "gone"
        if unsent:
            self._note_unsent(connection, before, unsent)
            if connection.state == CLOSED:
                return "gone"
            if connection.mask != mask:
                self._epoll.modify(connection.descriptor, connection.mask)
        return "sent"

    def close_peer(self, routing_id: bytes) -> None:
        """Close a connection after what was sent; the machine gets no more events of it."""
        connection = self._by_id.pop(routing_id, None)
        if connection is None:
            return
        connection.since = self._clock()
        self._closing[connection] = None
        if connection.unsent is None:
            self._shut_down(connection)
        else:
            connection.state = FLUSHING
            self._set_mask(connection, select.EPOLLOUT)

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._by_descriptor.values()):
            if connection.state == OPEN and connection.unsent is None:
                with contextlib.suppress(OSError):
                    connection.shut_down()
            connection.close()
        self._by_descriptor.clear()
        self._by_id.clear()
        self._epoll.close()
        os.close(self._wake)

    def sweep(self) -> None:
        """Close connections that took too long. The owner calls this a few times a second."""
        mono = self._clock()
        for connection in overdue(self._handshaking, mono - HANDSHAKE_SECONDS):
            self._fail(connection, "the handshake took too long")
        for connection in overdue(self._closing, mono - LINGER_SECONDS):
            self._drop(connection)
        for connection in [each for each in self._blocked if mono - each.progress_at > STALL_SECONDS]:
            self._disconnect_later(connection, "the client does not read")
        self._listener.open(mono)
        if self.failed > self._logged and mono - self._logged_at > LOG_SECONDS:
            log.warning(
                "%d TLS handshakes failed; the last one: %s",
                self.failed - self._logged,
                self._last_failure,
                extra=about(),
            )
            self._logged, self._logged_at = self.failed, mono

    def _poll(self) -> None:
        for descriptor, mask in self._epoll.poll(0, MAX_EPOLL_EVENTS):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                else:
                    self._accept_ready = True
            elif connection.state == HANDSHAKING:
                self._ready_handshakes[connection] = None
            else:
                self._ready.append((connection, mask))

    def _serve(self, connection: TlsConnection, mask: int) -> list[Any] | None:
        """Write to and read from a ready connection; returns the event for the machine."""
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
                if mask & TROUBLE and connection.state == FLUSHING:
                    self._drop(connection)
                return None
            data = self._read(connection)
        except OSError as error:
            return self._disconnect(connection, reason_of(error))
        if data is None:
            return None
        if not data:
            connection.send_close_notify()
            return self._disconnect(connection, "the client closed the connection", orderly=True)
        return [connection.routing_id, BytesReceived(data)]

    def _read(self, connection: TlsConnection) -> bytes | None:
        """Read a connection once; OpenSSL may answer by itself meanwhile, and those bytes may be unsent."""
        before = 0 if connection.unsent is None else len(connection.unsent)
        mask = connection.mask
        data = connection.read()
        unsent = 0 if connection.unsent is None else len(connection.unsent)
        if unsent > before:
            self._note_unsent(connection, before, unsent)
        if connection.state == CLOSED:
            return None
        if connection.mask != mask:
            self._epoll.modify(connection.descriptor, connection.mask)
        if connection.has_more:
            self._ready.append((connection, select.EPOLLIN))
        return data

    def _flush(self, connection: TlsConnection) -> bool:
        """Send unsent bytes; False if the connection needs no further work."""
        mask = connection.mask
        sent = connection.flush()
        if sent:
            connection.progress_at = self._clock()
            self._unsent_bytes -= sent
        if connection.unsent is None:
            self._blocked.pop(connection, None)
            if connection.state == FLUSHING:
                self._shut_down(connection)
                return False
        if connection.mask != mask:
            self._epoll.modify(connection.descriptor, connection.mask)
        return True

    def _note_unsent(self, connection: TlsConnection, before: int, unsent: int) -> None:
        """Disconnect the client if too many bytes are unsent."""
        if not before:
            connection.progress_at = self._clock()
            self._blocked[connection] = None
        self._unsent_bytes += unsent - before
        if unsent > MAX_UNSENT_BYTES or self._unsent_bytes > MAX_TOTAL_UNSENT_BYTES:
            self._disconnect_later(connection, "the client does not read")

    def _accept(self) -> None:
        mono = self._clock()
        self._accept_ready = False
        for raw, address in self._listener.accept(mono):
            if len(self._by_descriptor) >= self._max_connections:
                raw.close()
                self._note_failure(address, "too many connections")
                continue
            self._start_handshake(raw, address, mono)
            if len(self._handshaking) > MAX_HANDSHAKES and not self._make_room(mono):
                self._listener.pause()
                return

    def _start_handshake(self, raw: socket.socket, address: str, mono: float) -> None:
        self._next_id += 1
        routing_id = self._next_id.to_bytes(8, "big")
        try:
            connection = TlsConnection(raw, self.context, self._buffers, routing_id, address, mono)
        except (OSError, ValueError) as error:
            raw.close()
            self._note_failure(address, reason_of(error))
            return
        self._by_descriptor[connection.descriptor] = connection
        self._handshaking[connection] = None
        self._epoll.register(connection.descriptor, connection.mask)

    def _make_room(self, mono: float) -> bool:
        """Drop the handshake that has been waiting longest for its client; False if all have answered or are recent."""
        for connection in self._handshaking:
            if mono - connection.since < GRACE_SECONDS:
                return False
            if connection not in self._ready_handshakes:
                self._fail(connection, "the handshake was too slow while others were waiting")
                return True
        return False

    def _continue_handshakes(self) -> Iterator[list[Any]]:
        """Continue a few handshakes; yields the connections that are open now."""
        for _ in range(min(HANDSHAKES_PER_TURN, len(self._ready_handshakes))):
            connection = next(iter(self._ready_handshakes))
            del self._ready_handshakes[connection]
            if connection.state != HANDSHAKING:
                continue
            try:
                if not connection.handshake():
                    continue
                caller = peer_identity(connection.tls)
            except (OSError, NamelessError) as error:
                self._fail(connection, reason_of(error))
                continue
            del self._handshaking[connection]
            connection.state = OPEN
            self._by_id[connection.routing_id] = connection
            self._listener.open(self._clock())  # one more handshake may start
            opened = ConnectionOpened(caller.name, caller.serial, caller.issued, connection.address)
            if connection.has_more:
                self._ready.append((connection, select.EPOLLIN))
            yield [connection.routing_id, opened]

    def _fail(self, connection: TlsConnection, reason: str) -> None:
        self._note_failure(connection.address, reason)
        self._drop(connection)

    def _note_failure(self, address: str, reason: str) -> None:
        self.failed += 1
        self._last_failure = f"{address}: {reason}"

    def _disconnect_later(self, connection: TlsConnection, reason: str) -> None:
        """Disconnect outside of `drain`: the next turn delivers the event."""
        closed = self._disconnect(connection, reason)
        if closed is not None:
            self._closed_events.append(closed)
            os.eventfd_write(self._wake, 1)

    def _disconnect(self, connection: TlsConnection, reason: str, orderly: bool = False) -> list[Any] | None:
        """Close a connection; returns the event for the machine, if the machine knows the connection."""
        known = self._by_id.pop(connection.routing_id, None) is not None
        self._drop(connection)
        return [connection.routing_id, ConnectionClosed(reason, orderly)] if known else None

    def _shut_down(self, connection: TlsConnection) -> None:
        self._set_mask(connection, select.EPOLLIN)
        connection.shut_down()

    def _discard(self, connection: TlsConnection) -> None:
        """Read and discard what a lingering client still sends."""
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
        if connection.unsent is not None:
            self._unsent_bytes -= len(connection.unsent)
        for table in (self._handshaking, self._ready_handshakes, self._closing, self._blocked):
            table.pop(connection, None)
        del self._by_descriptor[connection.descriptor]
        connection.close()

    def _set_mask(self, connection: TlsConnection, mask: int) -> None:
        if connection.mask != mask:
            connection.mask = mask
            self._epoll.modify(connection.descriptor, mask)


def overdue(table: dict[TlsConnection, None], before: float) -> list[TlsConnection]:
    """The connections from before then; the oldest are first."""
    found = []
    for connection in table:
        if connection.since > before:
            break
        found.append(connection)
    return found
