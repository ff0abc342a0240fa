"""One TLS connection of the door: a non-blocking socket, and the bytes that wait for it.

Lives here: reading, writing and leaving, each as far as it goes now. Never here: whose turn it is (`door`). Invariants:
nothing here waits; a connection at rest holds no buffer of ours; what was written leaves in its order.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Final

READ_BYTES: Final = 16_384
"""The most that one TLS record holds: so nothing is left inside OpenSSL, where epoll would not see it."""
WRITE_BYTES: Final = 65_536
"""Tried in one go."""
PAUSE_BYTES: Final = 65_536
"""While more than this waits for somebody, nothing more is read from it: who does not listen is not heard."""

GREETING: Final = 0
"""The handshake goes on."""
OPEN: Final = 1
LEAVING: Final = 2
"""What waits still leaves, then it lingers."""
LINGERING: Final = 3
"""All is said; the other end has a moment to read it."""
CLOSED: Final = 4

_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT
_BOTH: Final = select.EPOLLIN | select.EPOLLOUT


class TlsConnection:
    """One connection, from its first byte to its last."""

    __slots__ = ("address", "descriptor", "mask", "moved", "routing_id", "since", "socket", "state", "waiting")

    def __init__(self, wrapped: ssl.SSLSocket, routing_id: bytes, address: str, mono: float) -> None:
        self.socket: ssl.SSLSocket | socket.socket = wrapped
        self.descriptor = wrapped.fileno()
        self.routing_id = routing_id
        self.address = address
        self.since = mono
        """When it came; once it leaves, when it began to."""
        self.moved = mono
        """When what waits last got on."""
        self.state = GREETING
        self.mask = _READ
        self.waiting: bytearray | None = None

    def greet(self) -> bool:
        """One step of the handshake; True when it is done. Raises OSError when it never will be."""
        try:
            self.socket.do_handshake()  # type: ignore[union-attr]  # while greeting it is always TLS
        except ssl.SSLWantReadError:
            self.mask = _READ
            return False
        except ssl.SSLWantWriteError:
            self.mask = _WRITE
            return False
        self.mask = _READ
        return True

    def read(self) -> bytes | None:
        """What came; None: nothing yet; empty: the other end is done. Raises OSError when it is lost."""
        try:
            return self.socket.recv(READ_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return None

    def write(self, data: bytes) -> int:
        """Send it, or let it wait; how many bytes wait now. Raises OSError when the connection is lost."""
        if self.waiting is None:
            left = self._push(data)
            if left == len(data):
                return 0
            self.waiting = bytearray(memoryview(data)[left:])
        else:
            self.waiting += data
        self.mask = _WRITE if len(self.waiting) > PAUSE_BYTES else _BOTH
        return len(self.waiting)

    def flush(self) -> int:
        """Send of what waits as much as goes; how many bytes left."""
        waiting = self.waiting
        if waiting is None:
            return 0
        with memoryview(waiting) as view:
            left = self._push(view)
        if left == len(waiting):
            self.waiting = None
            self.mask = _READ
            return left
        del waiting[:left]
        self.mask = _WRITE if len(waiting) > PAUSE_BYTES or self.state == LEAVING else _BOTH
        return left

    def _push(self, data: bytes | memoryview) -> int:
        """How much of it left. A record that was begun must be tried again with the same bytes, and is: they wait."""
        total = len(data)
        sent = 0
        with memoryview(data) as view:
            while sent < total:
                try:
                    sent += self.socket.send(view[sent : sent + WRITE_BYTES])
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                    break
        return sent

    def return_goodbye(self) -> None:
        """The other end said that it goes: so do we."""
        with contextlib.suppress(OSError, ValueError):
            self.socket.unwrap()  # type: ignore[union-attr]  # it was read by TLS

    def hang_up(self) -> None:
        """Say that nothing more comes, and let go of TLS; what the other end still says is thrown away."""
        self.return_goodbye()
        self.state = LINGERING
        self.mask = _READ
        self.waiting = None
        self.socket = socket.socket(fileno=self.socket.detach())
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """At once."""
        self.state = CLOSED
        self.waiting = None
        self.socket.close()
