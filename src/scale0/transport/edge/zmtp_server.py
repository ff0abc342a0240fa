"""A server of ZMTP connections behind one epoll descriptor: a broker's ROUTER and PUB sockets.

It has the shape of a runner's `MessageSocket`. libzmq's own ROUTER lets a peer choose its routing id, and aborts the
process if the id is one that it generates later; here a connection is known by a number that it cannot choose
(decision 0042). Invariants: no call blocks; messages are taken from the keys in turn, and from the connections of a
key in turn; what a key received and nobody took is bounded, and so is what it was sent and did not read, over all of
its connections and in total (decision 0058); a number is never used again.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final

from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.transport.core import z85
from scale0.transport.core.buffer_account import CHUNK_BYTES, BufferAccount
from scale0.transport.core.handshakes import Handshakes
from scale0.transport.core.zmtp import COMMAND, Mechanism, ZmtpError, ZmtpSession, frame
from scale0.transport.core.zmtp_curve import REFUSED, CurveServer, KeyRefusedError
from scale0.transport.edge.tcp_listener import TcpListener
from scale0.transport.edge.zmtp_connection import Sender, ZmtpConnection

log = logging.getLogger("scale0.transport")

READ_BYTES: Final = 65_536
"""Read from a connection at once; it is not read again before these messages are taken."""
MAX_UNSENT_BYTES: Final = 262_144
"""Unsent bytes of one connection; beyond that the broker counts bytes itself."""
MAX_INBOX_BYTES: Final = 4_194_304
"""Messages of one sender that were read and not taken yet: above it, those are taken before more is read."""
MESSAGE_BYTES: Final = 160
"""What such a message needs beside its bytes."""
FREE_BYTES: Final = 8_192
"""What a connection may occupy without an entry in the account: an entry for each small message costs time."""
READ_FACTOR: Final = 2
"""A frame up to this many times the limit of a message is read, so that the broker can answer 413."""
HANDSHAKE_SECONDS: Final = 5.0
GREETING_SECONDS: Final = 1.0
"""A client that sends nothing for so long gets our greeting first: most of a flood of connections cost no greeting."""
MAX_HANDSHAKES: Final = 1_000
"""Handshakes at once. Beyond it, one ends: of a client that has not shown that it knows our key, if there is one."""
PING_SECONDS: Final = 60.0
PONG_SECONDS: Final = 10.0
"""A connection that was silent for PING_SECONDS gets a PING, and is closed if nothing arrives for PONG_SECONDS."""
DRAIN_SECONDS: Final = 0.0005
"""How long connections are read that yield no message: large or unfinished ones, and commands of ZMTP."""
ACCEPT_SECONDS: Final = 0.0005
"""How long connections are accepted in one turn: a flood of them takes no more from those that are ready."""
HANDSHAKE_SHARE: Final = 1 / 3
"""The time for handshakes while ready connections always have messages, relative to the time for these."""
MAX_SHARE_SECONDS: Final = 0.005
"""The most of it at once. It is used from DRAIN_SECONDS on: a step of a handshake takes some 0.2 ms."""
MAX_COMMANDS: Final = 1_000
"""Commands of ZMTP, such as PING, that a connection may send in a second: no rate counts them."""
MAX_EPOLL_EVENTS: Final = 512
LOG_SECONDS: Final = 10.0
"""The shortest time between two log messages about refused connections."""
ALL_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
"""Edge-triggered: a connection is read until nothing is left, so that its events need never be changed."""

Cut = Callable[[str, list[bytes]], Sequence[list[bytes]]]
"""Divides a long message (routing id first), so that other senders have their turn between the parts."""
MakeMechanism = Callable[[bytes], Mechanism]
"""By the type of our socket."""


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
        account: BufferAccount[ZmtpConnection] | None = None,
    ) -> None:
        """`account`: shared with other servers whose clients may have the same keys."""
        self.name = name
        self.cut: Cut | None = None
        self.users: Mapping[str, str] | None = None
        """By public key: the users whose messages are accepted; None: no keys are used."""
        self.programs: Container[str] = ()
        """Public keys that many programs on this machine share: each connection has its own turn."""
        self.sender = ""
        """The user of the message that was taken last; blank without keys."""
        self.closed: Callable[[bytes], None] = lambda _: None
        """Called with the number of each connection that ended after its handshake, when its messages are taken."""
        self.refused = 0
        """Connections that were refused, or broke the protocol."""
        self._socket_type = socket_type
        self._limits = limits
        self._make_mechanism = make_mechanism
        self.clock = clock
        self._epoll = select.epoll()
        self._listener = TcpListener(host, port, self._epoll, "Is another broker running? Choose another port.")
        self._number = 0
        self._by_descriptor: dict[int, ZmtpConnection] = {}
        self._by_id: dict[bytes, ZmtpConnection] = {}
        """Connections whose handshake is complete."""
        self._of_key: dict[str, int] = {}
        """How many of them each key has."""
        self._handshakes = Handshakes[ZmtpConnection]()
        self._unread: dict[ZmtpConnection, None] = {}
        """Those of them with something to read, in the order in which they are read: after connections that are ready,
        because each step costs as much as many messages, and anybody can cause it."""
        self._stepped_at = clock()
        """When the last step of a handshake ended."""
        self._queues: dict[Sender, deque[ZmtpConnection]] = {}
        """By sender: connections with messages, or with something to read."""
        self._turns: deque[Sender] = deque()
        """The senders of `_queues`, in turn, without those that are parked."""
        self._held: set[Sender] = set()
        """Senders that are not read until they are released."""
        self._parked: set[Sender] = set()
        """Those of them whose turn has come."""
        self._inboxes: dict[Sender, int] = {}
        """By sender: bytes that were read, and not taken."""
        self._full: set[Sender] = set()
        """Senders that have MAX_INBOX_BYTES of them: they are taken first, and no connection is read."""
        self._account = account or BufferAccount[ZmtpConnection](limits)
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

    def key_of(self, routing_id: bytes) -> str:
        """The public key (Z85) of a connection; blank without keys."""
        return self._by_id[routing_id].key

    def sender_of(self, routing_id: bytes) -> Sender | None:
        """With whom a connection shares its turns; None: it is gone."""
        connection = self._by_id.get(routing_id)
        return None if connection is None else connection.sender

    # Reading.

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Messages, routing id first; at most `most`, and no more once reading takes long. The caller may stop at any
        time; `pending` tells whether there may be more."""
        self._poll()
        turns, unread = self._turns, self._unread
        start = self.clock()
        if turns and unread:
            self._share(start)
        taken = 0
        end = start + DRAIN_SECONDS
        while taken < most:
            if turns:
                message = self._take()
                if message is not None:
                    taken += 1
                    yield message
                    continue
            elif unread:
                self._step()
            else:
                break
            if self.clock() > end:
                break

    def pending(self) -> bool:
        return bool(self._turns or self._unread)

    def _share(self, start: float) -> None:
        """Ready connections have messages, perhaps all the time: handshakes get their share of it."""
        budget = min(MAX_SHARE_SECONDS, HANDSHAKE_SHARE * (start - self._stepped_at))
        if budget < DRAIN_SECONDS:
            return
        while self._unread and self._stepped_at < start + budget:
            self._step()

    def _step(self) -> None:
        """One read of the handshake that waits longest."""
        connection = next(iter(self._unread))
        del self._unread[connection]
        connection.is_queued = False
        self._read(connection)
        if connection.inbox or connection.readable:
            self._enqueue(connection)
        self._stepped_at = self.clock()

    def _take(self) -> list[bytes] | None:
        """The next message of the sender whose turn it is; None if it has none, or is held."""
        sender_key = self._turns.popleft()
        if sender_key in self._held:
            self._parked.add(sender_key)
            return None
        queue = self._queues[sender_key]
        connection = queue.popleft()
        if queue:
            self._turns.append(sender_key)
        else:
            del self._queues[sender_key]
        inbox = connection.inbox
        if not inbox and connection.readable and sender_key not in self._full:
            self._read(connection)
        message = inbox.popleft() if inbox else None
        if self.users is not None and message is not None:
            sender = self.users.get(connection.key)
            if sender is None:
                # Its key was removed after the handshake.
                inbox.clear()
                message = None
            else:
                self.sender = sender
        if not inbox and connection.inbox_bytes:
            self._set_inbox(connection, 0)
        connection.is_queued = False
        if inbox or connection.readable:
            self._enqueue(connection)
        elif connection.is_gone:
            self.closed(connection.routing_id)
        return message

    def _enqueue(self, connection: ZmtpConnection) -> None:
        if connection.is_queued:
            return
        connection.is_queued = True
        if not connection.is_ready:
            self._unread[connection] = None
            return
        queue = self._queues.get(connection.sender)
        if queue is None:
            self._queues[connection.sender] = deque((connection,))
            self._turns.append(connection.sender)
        elif connection.inbox and connection.sender in self._full:
            queue.appendleft(connection)
        else:
            queue.append(connection)

    def hold(self, routing_id: bytes) -> Sender | None:
        """Take no more messages of this connection, nor of others with its key, until `release`. None: it is gone."""
        connection = self._by_id.get(routing_id)
        if connection is None:
            return None
        self._held.add(connection.sender)
        return connection.sender

    def release(self, sender: Sender) -> None:
        self._held.discard(sender)
        if sender in self._parked:
            self._parked.discard(sender)
            self._turns.append(sender)

    def _poll(self) -> None:
        for descriptor, mask in self._epoll.poll(0, MAX_EPOLL_EVENTS):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                self._accept()
                continue
            if mask & select.EPOLLOUT and connection.unsent:
                self._flush(connection)
            if mask & ~select.EPOLLOUT and not connection.is_closed:
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
        connection.heard_at, connection.pinged = self.clock(), False
        session = connection.session
        was_ready, before = session.ready, session.unfinished if connection.charged else 0
        try:
            messages = session.receive(data)
        except ZmtpError as error:
            self._refuse(connection, error)
            return
        if not was_ready and not self._advance(connection):
            return
        if session.commands > MAX_COMMANDS:
            self._fail(connection, f"it sent more than {MAX_COMMANDS} commands of ZMTP in a second")
            return
        if session.outgoing:
            self._send_outgoing(connection)
        for frames in messages:
            frames.insert(0, connection.routing_id)
            if self.cut is None:
                connection.inbox.append(frames)
            else:
                connection.inbox.extend(self.cut(self.name, frames))
        count = len(connection.inbox)
        if count > 1 and (size := len(data) + before + MESSAGE_BYTES * count) > FREE_BYTES:
            self._set_inbox(connection, size)
        elif connection.charged or session.unfinished > FREE_BYTES:
            self._charge(connection)

    # Memory.

    def note_backlog(self, routing_id: bytes, size: int) -> None:
        """So many bytes wait elsewhere for this connection, or are its subscriptions: they count as its own."""
        connection = self._by_id.get(routing_id)
        if connection is not None:
            connection.kept = size
            self._charge(connection)

    def _set_inbox(self, connection: ZmtpConnection, size: int) -> None:
        left = self._inboxes.get(connection.sender, 0) + size - connection.inbox_bytes
        connection.inbox_bytes = size
        if left:
            self._inboxes[connection.sender] = left
        else:
            self._inboxes.pop(connection.sender, None)
        if left > MAX_INBOX_BYTES:
            self._full.add(connection.sender)
        else:
            self._full.discard(connection.sender)
        self._charge(connection)

    def _charge(self, connection: ZmtpConnection) -> None:
        """Enter the memory of a connection into the account; if a limit is exceeded, close the largest connection."""
        size = (
            connection.session.unfinished
            + connection.inbox_bytes
            + connection.outgoing_bytes
            + CHUNK_BYTES * len(connection.outgoing)
            + connection.kept
        )
        if size <= FREE_BYTES:
            size = 0
        before, connection.charged = connection.charged, size
        if size == before:
            return
        account, owner = self._account, connection.owner
        account.change(owner, connection, size)
        while size > before and (excess := account.excess(owner)) is not None:
            largest, reason = excess
            largest.server._fail(largest, reason)

    def _advance(self, connection: ZmtpConnection) -> bool:
        """The handshake continues; False if it was refused."""
        session = connection.session
        if session.ready:
            return self._open(connection)
        if isinstance(session.mechanism, CurveServer) and session.mechanism.server_key:
            self._handshakes.acquaint(connection)
        return True

    def _open(self, connection: ZmtpConnection) -> bool:
        """The handshake is complete; False if its key has too many connections."""
        mechanism = connection.session.mechanism
        if isinstance(mechanism, CurveServer):
            key = z85.encode(mechanism.public_key)
            count = self._of_key.get(key, 0)
            if count >= self._limits.max_key_connections:
                self._fail(connection, f"its key has {count} connections (max_key_connections); public key {key}")
                return False
            self._of_key[key] = count + 1
            connection.key = key
            if key not in self.programs:
                connection.sender = connection.owner = key
            connection.server_key = mechanism.server_key
        self._handshakes.remove(connection)
        connection.is_ready = True
        self._by_id[connection.routing_id] = connection
        self._listener.open(self.clock())
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
        if not connection.outgoing:
            self._unflushed.append(connection)
        self._buffer(connection, connection.session.encode(frames))
        return "sent"

    def flush(self) -> None:
        """Send what was buffered in this turn."""
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            self._flush(connection)

    def _buffer(self, connection: ZmtpConnection, pieces: list[bytes]) -> None:
        connection.outgoing += pieces
        connection.outgoing_bytes += sum(map(len, pieces))

    def _send_outgoing(self, connection: ZmtpConnection) -> None:
        """Send what the protocol itself has to say."""
        session = connection.session
        if session.outgoing:
            if connection.outgoing_bytes <= MAX_UNSENT_BYTES:  # a peer that does not read gets no PONG
                self._buffer(connection, session.outgoing)
                self._flush(connection)
            session.outgoing = []

    def _flush(self, connection: ZmtpConnection) -> None:
        while connection.unsent or connection.outgoing:
            if not connection.unsent:
                connection.unsent, connection.outgoing = b"".join(connection.outgoing), []
            try:
                sent = connection.socket.send(connection.unsent)
            except BlockingIOError:
                self._charge(connection)
                return
            except OSError:
                self._drop(connection)
                return
            connection.outgoing_bytes -= sent
            connection.unsent = memoryview(connection.unsent)[sent:] if sent < len(connection.unsent) else b""
        if connection.charged:
            self._charge(connection)

    # Opening and closing.

    def _accept(self) -> None:
        mono = self.clock()
        for raw, address in self._listener.accept(mono):
            if len(self._by_descriptor) >= self._limits.max_clients:
                raw.close()
                self._note_refused(address, "too many connections")
                continue
            self._number += 1
            session = ZmtpSession(
                self._socket_type,
                self._make_mechanism(self._socket_type),
                *(READ_FACTOR * self._limits.max_message_bytes, self._limits.max_parts + 1),
            )
            connection = ZmtpConnection(self, raw, self._number.to_bytes(8, "big"), address, session, mono)
            self._by_descriptor[connection.descriptor] = connection
            self._handshakes.add(connection, address)
            self._epoll.register(connection.descriptor, ALL_EVENTS)
            if len(self._handshakes) > MAX_HANDSHAKES:
                slow = self._handshakes.excess() or connection
                self._fail(slow, "the handshake was too slow while others were waiting")
            if self.clock() - mono > ACCEPT_SECONDS:
                return

    def sweep(self) -> None:
        """Close connections whose handshake takes too long, or that are silent. The owner calls this every second."""
        mono = self.clock()
        self._listener.open(mono)
        for connection in list(self._handshakes):
            if mono - connection.since >= HANDSHAKE_SECONDS:
                self._fail(connection, "the handshake took too long")
            elif mono - connection.since >= GREETING_SECONDS:
                self._send_outgoing(connection)
        for connection in list(self._by_id.values()):
            connection.session.commands = 0
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

    def drop_peer(self, routing_id: bytes) -> None:
        """Close a connection at once, without what waits for it."""
        connection = self._by_id.get(routing_id)
        if connection is not None:
            connection.inbox.clear()
            self._drop(connection)

    def disconnect_keys(self, public_keys: Container[str]) -> None:
        for connection in list(self._by_id.values()):
            if connection.key in public_keys:
                self.disconnect(connection.routing_id)

    def users_of(self, server_key: bytes) -> dict[str, int]:
        """How many connections each user has that were made for this key of ours."""
        users, counts = self.users or {}, dict[str, int]()
        for connection in self._by_id.values():
            user = users.get(connection.key)
            if user is not None and connection.server_key == server_key:
                counts[user] = counts.get(user, 0) + 1
        return counts

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._by_descriptor.values()):
            self._flush(connection)
            self._drop(connection)
        self._epoll.close()

    def _refuse(self, connection: ZmtpConnection, error: ZmtpError) -> None:
        self._send_outgoing(connection)
        reason, mechanism = str(error), connection.session.mechanism
        if isinstance(error, KeyRefusedError) and isinstance(mechanism, CurveServer):
            reason += f"; public key {z85.encode(mechanism.public_key)}"
            self._buffer(connection, [frame(COMMAND, REFUSED)])
            self._flush(connection)
        self._fail(connection, reason)

    def _fail(self, connection: ZmtpConnection, reason: str) -> None:
        self._note_refused(connection.address, reason)
        connection.inbox.clear()
        if connection.inbox_bytes:
            self._set_inbox(connection, 0)
        self._drop(connection)

    def _note_refused(self, address: str, reason: str) -> None:
        self.refused += 1
        self._not_logged += 1
        mono = self.clock()
        if mono - self._logged_at >= LOG_SECONDS:
            log.warning(
                "refused %d connections on the %s socket; the last one, from %s: %s",
                *(self._not_logged, self.name, address, reason),
                extra=about(socket=self.name),
            )
            self._logged_at, self._not_logged = mono, 0

    def _drop(self, connection: ZmtpConnection) -> None:
        """Close the socket. Messages that arrived before are still delivered."""
        if self._by_descriptor.get(connection.descriptor) is not connection:
            return
        del self._by_descriptor[connection.descriptor]
        self._handshakes.remove(connection)
        self._unread.pop(connection, None)
        connection.is_closed, connection.readable = True, False
        connection.outgoing, connection.outgoing_bytes, connection.unsent = [], 0, b""
        connection.kept = 0
        connection.session.clear()
        if connection.charged:
            self._charge(connection)
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
