"""The connecting end of a ZMTP connection: a TCP socket of one client, without libzmq and without a thread of its own.

Invariants: no call blocks; names are resolved by a helper thread; nothing leaves before the server has completed the
handshake, so a message is either certainly unsent or may have arrived; whatever arrived before the end of the
connection is delivered before the end is reported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from scale0.kernel.limits import Limits
from scale0.transport.core.zmtp import (
    DEALER,
    Mechanism,
    MechanismError,
    PeerRefusedError,
    ZmtpError,
    ZmtpSession,
)

READ_BYTES: Final = 262_144
READ_TIMES: Final = 64
"""How often a socket is read before the messages are handled."""
READ_FACTOR: Final = 2
"""A frame up to this many times the limit of a message is accepted."""
PING_SECONDS: Final = 60.0
PONG_SECONDS: Final = 10.0
"""A connection that was silent for PING_SECONDS gets a PING, and counts as broken if nothing arrives for
PONG_SECONDS: our own heartbeats detect failures sooner, where there are any."""

ENDPOINT: Final = re.compile(r"tcp://(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^:\[\]/]+)):(?P<port>[0-9]{1,5})")

Cause = Literal["unreachable", "mechanism", "refused", "handshake", "broken"]
"""Why a connection ended: the server cannot be reached, uses another mechanism, refused our key, or ended the
handshake; or the connection broke after it."""

Address = tuple[socket.AddressFamily, Any]


class ConnectionEnd(NamedTuple):
    cause: Cause
    reason: str


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port; ValueError if the endpoint is no TCP address."""
    found = ENDPOINT.fullmatch(endpoint)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError("it is not of the form tcp://HOST:PORT")
    return found["v6"] or found["host"], int(found["port"])


def look_up(host: str, port: int, flags: int = 0) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]


class ZmtpClient:
    """One connection, from the first attempt to its end. Its owner calls `receive` when `descriptor` is ready or
    `deadline` has passed, and `flush` after it has sent."""

    def __init__(
        self,
        endpoint: str,
        mechanism: Mechanism,
        limits: Limits,
        mono: float,
        resolved: Callable[[], None],
        socket_type: bytes = DEALER,
    ) -> None:
        """`resolved` is called, on another thread, when a name was resolved and `receive` has something to do.
        ValueError if the endpoint is invalid."""
        host, port = split_endpoint(endpoint)
        parts = limits.max_parts + 1
        self._session = ZmtpSession(
            socket_type, mechanism, READ_FACTOR * limits.max_message_bytes, parts, as_server=False
        )
        self._resolved = resolved
        self._socket: socket.socket | None = None
        self._addresses: list[Address] = []
        self._error = ""
        """Why the last address could not be reached."""
        self._found: list[Address] | OSError | None = None
        """What the helper thread has found."""
        self._is_connected = False
        self._early: list[list[bytes]] = []
        """Messages that wait for the end of the handshake."""
        self._outgoing: list[bytes] = []
        self._unsent: bytes | memoryview = b""
        self._heard_at = mono
        self._pinged = False
        self.end: ConnectionEnd | None = None
        self.is_changed = True
        """`descriptor` or `wants_write` has changed; the owner resets it."""
        try:
            self._addresses = look_up(host, port, socket.AI_NUMERICHOST)
        except OSError:
            threading.Thread(target=self._look_up, args=(host, port), name="scale0-resolver", daemon=True).start()
        else:
            self._connect()

    @property
    def is_ready(self) -> bool:
        """True after the handshake: what was sent may have arrived."""
        return self._session.ready

    @property
    def descriptor(self) -> int:
        """-1 while there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return self._socket is not None and (not self._is_connected or bool(self._unsent))

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent) + sum(map(len, self._outgoing))

    def deadline(self) -> float | None:
        if not self._session.ready:
            return None  # the owner's deadline for the broker's first answer covers the handshake
        return self._heard_at + PING_SECONDS + (PONG_SECONDS if self._pinged else 0.0)

    def send(self, frames: Sequence[bytes]) -> None:
        """Buffer one message until `flush`, or until the handshake is complete."""
        if self._session.ready:
            self._outgoing += self._session.encode(frames)
        else:
            self._early.append([bytes(frame) for frame in frames])

    def flush(self) -> bool:
        """Send what was buffered, as far as the socket takes it. False if the connection is broken, and nothing that
        was buffered since the last call has left."""
        if self._socket is None or not self._is_connected:
            return self.end is None
        was_blocked, has_left = bool(self._unsent), False
        while self._unsent or self._outgoing:
            is_new = not self._unsent
            if is_new:
                self._unsent, self._outgoing = b"".join(self._outgoing), []
            try:
                count = self._socket.send(self._unsent)
            except BlockingIOError:
                break
            except OSError:
                self._outgoing, self._unsent = [], b""
                return has_left
            has_left = has_left or is_new
            self._unsent = memoryview(self._unsent)[count:] if count < len(self._unsent) else b""
        self.is_changed = self.is_changed or was_blocked != bool(self._unsent)
        return True

    def receive(self, mono: float, times: int = READ_TIMES, to_end: bool = False) -> list[list[bytes]]:
        """The messages that arrived; the socket is read so many times at most. Afterwards `end` tells whether the
        connection has ended; only with `to_end` also if the end came right behind the messages."""
        if self.end is not None or not self._advance():
            return []
        assert self._socket is not None
        messages: list[list[bytes]] = []
        for _ in range(times):
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                self._end(os.strerror(error.errno or 0))
                break
            if not data:
                self._end("the peer closed it")
                break
            self._heard_at, self._pinged = mono, False
            try:
                messages += self._take(data)
            except ZmtpError as error:
                self._fail(error)
                break
            if len(data) < READ_BYTES and not to_end:
                break
        if self.end is None:
            self._keep_alive(mono)
            self.flush()
        return messages

    def close(self, linger: float = 0.0) -> None:
        """Close; `linger`: how many seconds buffered messages may take to leave."""
        raw, self._socket = self._socket, None
        self.end = self.end or ConnectionEnd("broken", "it was closed")
        if raw is None:
            return
        with contextlib.suppress(OSError):
            if linger and self._is_connected:
                self._finish(raw, time.monotonic() + linger)
        raw.close()

    def _finish(self, raw: socket.socket, end: float) -> None:
        """Send the rest, and read what arrived: to close a socket with unread data resets the connection."""
        data = b"".join((self._unsent, *self._outgoing))
        if data:
            raw.settimeout(max(0.0, end - time.monotonic()))
            raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        raw.setblocking(False)
        for _ in range(READ_TIMES):
            if not raw.recv(READ_BYTES):
                break

    # Connecting.

    def _look_up(self, host: str, port: int) -> None:
        """On a thread of its own."""
        try:
            self._found = look_up(host, port)
        except OSError as error:
            self._found = error
        except UnicodeError as error:
            self._found = OSError(str(error))
        self._resolved()

    def _connect(self) -> None:
        """Begin with the next address; without one, the connection has ended."""
        self.is_changed = True
        while self._addresses:
            family, address = self._addresses.pop(0)
            raw = None
            try:
                raw = socket.socket(family, socket.SOCK_STREAM)
                raw.setblocking(False)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = raw.connect_ex(address)
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, os.strerror(code))
            except OSError as error:
                self._error = error.strerror or str(error)
                if raw is not None:
                    raw.close()
                continue
            self._socket = raw
            return
        self.end = ConnectionEnd("unreachable", self._error)

    def _advance(self) -> bool:
        """Continue to connect; True once data can arrive."""
        if self._is_connected:
            return True
        if self._socket is None:
            found, self._found = self._found, None
            if isinstance(found, OSError):
                self.end = ConnectionEnd("unreachable", found.strerror or str(found))
            elif found is not None:
                self._addresses = found
                self._connect()
            if self._socket is None:
                return False
        if not is_writable(self._socket):
            return False
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._error = os.strerror(code)
            self._socket.close()
            self._socket = None
            self._connect()
            return False
        self._is_connected = self.is_changed = True
        self._outgoing += self._session.outgoing
        self._session.outgoing = []
        self.flush()
        return True

    # Receiving.

    def _take(self, data: bytes) -> list[list[bytes]]:
        session = self._session
        was_ready = session.ready
        messages = session.receive(data)
        if session.outgoing:
            self._outgoing += session.outgoing
            session.outgoing = []
        if not was_ready and session.ready:
            early, self._early = self._early, []
            for frames in early:
                self._outgoing += session.encode(frames)
        return messages

    def _keep_alive(self, mono: float) -> None:
        due = self.deadline()
        if due is None or mono < due:
            return
        if self._pinged:
            self._end("the peer is silent")
        else:
            self._pinged = True
            self._outgoing.append(self._session.ping())

    def _end(self, reason: str) -> None:
        self.end = ConnectionEnd("broken" if self._session.ready else "handshake", reason)

    def _fail(self, error: ZmtpError) -> None:
        if isinstance(error, MechanismError):
            self.end = ConnectionEnd("mechanism", str(error))
        elif isinstance(error, PeerRefusedError):
            self.end = ConnectionEnd("refused", str(error))
        else:
            self._end(str(error))


def is_writable(raw: socket.socket) -> bool:
    """True once a connection is established or has failed."""
    poll = select.poll()
    poll.register(raw, select.POLLOUT)
    return bool(poll.poll(0))
