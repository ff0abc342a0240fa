"""A server of ZMTP connections behind one epoll descriptor: a broker's ROUTER and PUB sockets.

It has the shape of a runner's `MessageSocket`. libzmq's own ROUTER lets a peer choose its routing id, and aborts the
process if the id is one that it generates later; here a connection is known by a number that it cannot choose
(decision 0042). Invariants: no call blocks; messages are taken from the keys in turn, and from the connections of a
key in turn; what a connection received and nobody took is bounded, and so is what it was sent and did not read; a
number is never used again.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final

import zmq.utils.z85

from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.transport.core.zmtp import COMMAND, Mechanism, ZmtpError, ZmtpSession, frame
from scale0.transport.core.zmtp_curve import REFUSED, CurveServer, KeyRefusedError
from scale0.transport.edge.tcp_listener import TcpListener, prepare

log = logging.getLogger("scale0.transport")

READ_BYTES: Final = 65_536
"""Read from a connection at once; it is not read again before these messages are taken."""
MAX_UNSENT_BYTES: Final = 262_144
"""Unsent bytes of one connection; beyond that the broker counts bytes itself."""
READ_FACTOR: Final = 2
"""A frame up to this many times the limit of a message is read, so that the broker can answer 413."""
HANDSHAKE_SECONDS: Final = 5.0
MAX_HANDSHAKES: Final = 1_000
"""Handshakes at once; beyond it, the oldest one is dropped."""
PING_SECONDS: Final = 60.0
PONG_SECONDS: Final = 10.0
"""A connection that was silent for PING_SECONDS gets a PING, and is closed if nothing arrives for PONG_SECONDS."""
MAX_EPOLL_EVENTS: Final = 512
LOG_SECONDS: Final = 10.0
"""The shortest time between two log messages about refused connections."""
ALL_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
"""Edge-triggered: a connection is read until nothing is left, so that its events need never be changed."""

Cut = Callable[[str, list[bytes]], Sequence[list[bytes]]]
"""Divides a long message (routing id first), so that other senders have their turn between the parts."""
MakeMechanism = Callable[[bytes], Mechanism]
"""By the type of our socket."""


class ZmtpConnection:
    __slots__ = (
        *(
            "address",
            "descriptor",
            "ending",
            "heard_at",
            "inbox",
            "is_gone",
            "is_queued",
            "key",
            "outgoing",
            "outgoing_bytes",
        ),
        *("pinged", "readable", "routing_id", "session", "since", "socket", "unsent"),
    )

    def __init__(self, raw: socket.socket, routing_id: bytes, address: str, session: ZmtpSession, mono: float) -> None:
        self.socket = raw
        self.descriptor = raw.fileno()
        self.routing_id = routing_id
        self.address = address
        self.session = session
        self.since = self.heard_at = mono
        self.pinged = False
        self.key = ""
        """The public key (Z85); blank without keys."""
        self.inbox: deque[list[bytes]] = deque()
        self.readable = False
        """There may be more to read."""
        self.is_gone = False
        """Closed, with messages that nobody took yet."""
        self.ending = False
        """The peer has closed its end: the last read is an empty one."""
        self.is_queued = False
        """In the queue of its key."""
        self.outgoing: list[bytes] = []
        self.outgoing_bytes = 0
        self.unsent: bytes | memoryview = b""


class ZmtpServer:
    def __init__(
        self,
        name: str,
        socket_type: bytes,
        host: str,
        port: int,
        limits: Limits,
        make_mechanism: MakeMechanism,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.cut: Cut | None = None
        self.users: Mapping[str, str] | None = None
        """By public key: the users whose messages are accepted; None: no keys are used."""
        self.sender = ""
        """The user of the message that was taken last; blank without keys."""
        self.closed: Callable[[bytes], None] = lambda _: None
        """Called with the number of each connection that ended after its handshake, when its messages are taken."""
        self.refused = 0
        """Connections that were refused, or broke the protocol."""
        self._socket_type = socket_type
        self._limits = limits
        self._make_mechanism = make_mechanism
        self._clock = clock
        self._epoll = select.epoll()
        self._listener = TcpListener(host, port, self._epoll, "Is another broker running? Choose another port.")
        self._number = 0
        self._by_descriptor: dict[int, ZmtpConnection] = {}
        self._by_id: dict[bytes, ZmtpConnection] = {}
        """Connections whose handshake is complete."""
        self._of_key: dict[str, int] = {}
        """How many of them each key has."""
        self._handshaking: dict[ZmtpConnection, None] = {}
        """The oldest first."""
        self._queues: dict[str, deque[ZmtpConnection]] = {}
        """By key: connections with messages, or with something to read."""
        self._turns: deque[str] = deque()
        """The keys of `_queues`, in turn."""
        self._unflushed: list[ZmtpConnection] = []
        self._logged_at = -LOG_SECONDS
        self._not_logged = 0

    @property
    def descriptor(self) -> int:
        return self._epoll.fileno()

    @property
    def port(self) -> int:
        return self._listener.port

    def __len__(self) -> int:
        return len(self._by_descriptor)

    def __contains__(self, routing_id: bytes) -> bool:
        return routing_id in self._by_id

    # Reading.

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Messages, routing id first; at most `most`. The caller may stop at any time."""
        self._poll()
        turns = self._turns
        taken = 0
        while turns and taken < most:
            message = self._take()
            if message is not None:
                taken += 1
                yield message

    def pending(self) -> bool:
        return bool(self._turns)

    def _take(self) -> list[bytes] | None:
        """The next message of the key whose turn it is."""
        key = self._turns.popleft()
        queue = self._queues[key]
        connection = queue.popleft()
        if queue:
            self._turns.append(key)
        else:
            del self._queues[key]
        if not connection.inbox and connection.readable:
            self._read(connection)
        message = connection.inbox.popleft() if connection.inbox else None
        if self.users is not None and message is not None:
            sender = self.users.get(connection.key)
            if sender is None:
                # Its key was removed after the handshake.
                connection.inbox.clear()
                message = None
            else:
                self.sender = sender
        connection.is_queued = False
        if connection.inbox or connection.readable:
            self._enqueue(connection)
        elif connection.is_gone:
            self.closed(connection.routing_id)
        return message

    def _enqueue(self, connection: ZmtpConnection) -> None:
        if connection.is_queued:
            return
        connection.is_queued = True
        queue = self._queues.get(connection.key)
        if queue is None:
            self._queues[connection.key] = deque((connection,))
            self._turns.append(connection.key)
        else:
            queue.append(connection)

    def _poll(self) -> None:
        for descriptor, mask in self._epoll.poll(0, MAX_EPOLL_EVENTS):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                self._accept()
                continue
            if mask & select.EPOLLOUT and connection.unsent:
                self._flush(connection)
            if mask & ~select.EPOLLOUT:
                connection.readable = True
                connection.ending = connection.ending or bool(mask & ~(select.EPOLLIN | select.EPOLLOUT))
                self._enqueue(connection)

    def _read(self, connection: ZmtpConnection) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            connection.readable = False
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.readable = connection.ending or len(data) == READ_BYTES
        connection.heard_at, connection.pinged = self._clock(), False
        session = connection.session
        was_ready = session.ready
        try:
            messages = session.receive(data)
        except ZmtpError as error:
            self._refuse(connection, error)
            return
        if not was_ready and session.ready and not self._open(connection):
            return
        if session.outgoing:
            self._buffer(connection, session.outgoing)
            session.outgoing = []
            self._flush(connection)
        for frames in messages:
            frames.insert(0, connection.routing_id)
            if self.cut is None:
                connection.inbox.append(frames)
            else:
                connection.inbox.extend(self.cut(self.name, frames))

    def _open(self, connection: ZmtpConnection) -> bool:
        """The handshake is complete; False if its key has too many connections."""
        mechanism = connection.session.mechanism
        if isinstance(mechanism, CurveServer):
            key = zmq.utils.z85.encode(mechanism.public_key).decode()
            count = self._of_key.get(key, 0)
            if count >= self._limits.max_key_connections:
                self._fail(connection, f"its key has {count} connections (max_key_connections); public key {key}")
                return False
            self._of_key[key] = count + 1
            connection.key = key
        del self._handshaking[connection]
        self._by_id[connection.routing_id] = connection
        self._listener.open(self._clock())
        return True

    # Writing.

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Buffer one message until `flush`, or report why it cannot be sent."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return "gone"
        if connection.outgoing_bytes > MAX_UNSENT_BYTES:
            self._flush(connection)
            if connection.outgoing_bytes > MAX_UNSENT_BYTES:
                return "full"
        self._buffer(connection, connection.session.encode(frames))
        return "sent"

    def flush(self) -> None:
        """Send what was buffered in this turn."""
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            self._flush(connection)

    def _buffer(self, connection: ZmtpConnection, pieces: list[bytes]) -> None:
        if not connection.outgoing:
            self._unflushed.append(connection)
        connection.outgoing += pieces
        connection.outgoing_bytes += sum(map(len, pieces))

    def _flush(self, connection: ZmtpConnection) -> None:
        while connection.unsent or connection.outgoing:
            if not connection.unsent:
                connection.unsent, connection.outgoing = b"".join(connection.outgoing), []
            try:
                sent = connection.socket.send(connection.unsent)
            except BlockingIOError:
                return
            except OSError:
                self._drop(connection)
                return
            connection.outgoing_bytes -= sent
            connection.unsent = memoryview(connection.unsent)[sent:] if sent < len(connection.unsent) else b""

    # Opening and closing.

    def _accept(self) -> None:
        mono = self._clock()
        for raw, address in self._listener.accept(mono):
            if len(self._by_descriptor) >= self._limits.max_clients:
                raw.close()
                self._note_refused(address, "too many connections")
                continue
            prepare(raw)
            self._number += 1
            session = ZmtpSession(
                self._socket_type,
                self._make_mechanism(self._socket_type),
                *(READ_FACTOR * self._limits.max_message_bytes, self._limits.max_parts + 1),
            )
            connection = ZmtpConnection(raw, self._number.to_bytes(8, "big"), address, session, mono)
            self._by_descriptor[connection.descriptor] = connection
            self._handshaking[connection] = None
            self._epoll.register(connection.descriptor, ALL_EVENTS)
            self._buffer(connection, session.outgoing)
            session.outgoing = []
            self._flush(connection)
            if len(self._handshaking) > MAX_HANDSHAKES:
                self._fail(next(iter(self._handshaking)), "the handshake was too slow while others were waiting")

    def sweep(self) -> None:
        """Close connections whose handshake takes too long, or that are silent. The owner calls this every second."""
        mono = self._clock()
        self._listener.open(mono)
        for connection in list(self._handshaking):
            if mono - connection.since < HANDSHAKE_SECONDS:
                break
            self._fail(connection, "the handshake took too long")
        for connection in list(self._by_id.values()):
            silent = mono - connection.heard_at
            if silent > PING_SECONDS + PONG_SECONDS and connection.pinged:
                self._drop(connection)
            elif silent > PING_SECONDS and not connection.pinged and connection.session.minor:
                connection.pinged = True
                self._buffer(connection, [connection.session.ping()])
                self._flush(connection)

    def disconnect(self, routing_id: bytes) -> None:
        """Close a connection after what was sent; what it sent and nobody took is discarded."""
        connection = self._by_id.get(routing_id)
        if connection is not None:
            self._flush(connection)
            connection.inbox.clear()
            self._drop(connection)

    def disconnect_keys(self, public_keys: Container[str]) -> None:
        for connection in list(self._by_id.values()):
            if connection.key in public_keys:
                self.disconnect(connection.routing_id)

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._by_descriptor.values()):
            self._flush(connection)
            self._drop(connection)
        self._epoll.close()

    def _refuse(self, connection: ZmtpConnection, error: ZmtpError) -> None:
        reason, mechanism = str(error), connection.session.mechanism
        if isinstance(error, KeyRefusedError) and isinstance(mechanism, CurveServer):
            reason += f"; public key {zmq.utils.z85.encode(mechanism.public_key).decode()}"
            self._buffer(connection, [frame(COMMAND, REFUSED)])
            self._flush(connection)
        self._fail(connection, reason)

    def _fail(self, connection: ZmtpConnection, reason: str) -> None:
        self._note_refused(connection.address, reason)
        connection.inbox.clear()
        self._drop(connection)

    def _note_refused(self, address: str, reason: str) -> None:
        self.refused += 1
        self._not_logged += 1
        mono = self._clock()
        if mono - self._logged_at >= LOG_SECONDS:
            log.warning(
                "refused %d connections on the %s socket; the last one, from %s: %s",
                *(self._not_logged, self.name, address, reason),
                extra=about(socket=self.name),
            )
            self._logged_at, self._not_logged = mono, 0

    def _drop(self, connection: ZmtpConnection) -> None:
        """Close the socket. Messages that arrived before are still delivered."""
        if self._by_descriptor.pop(connection.descriptor, None) is None:
            return
        self._handshaking.pop(connection, None)
        connection.readable = False
        connection.outgoing, connection.outgoing_bytes, connection.unsent = [], 0, b""
        connection.socket.close()
        if self._by_id.pop(connection.routing_id, None) is not None:
            if connection.key:
                self._of_key[connection.key] -= 1
                if not self._of_key[connection.key]:
                    del self._of_key[connection.key]
            if connection.inbox:
                connection.is_gone = True
            else:
                self.closed(connection.routing_id)
