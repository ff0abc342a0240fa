"""One TLS connection of an agent: a non-blocking socket and its unsent bytes.

No method blocks. An idle connection holds no buffer, and bytes leave in the order in which they were written.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Final

READ_BYTES: Final = 16_384
"""The maximum size of a TLS record: after a read nothing is left inside OpenSSL, where epoll would not see it."""
WRITE_BYTES: Final = 65_536
"""The maximum size of one send."""
PAUSE_BYTES: Final = 65_536
"""While more bytes than this are unsent, the connection is not read: a client that does not read must wait."""

HANDSHAKING: Final = 0
OPEN: Final = 1
FLUSHING: Final = 2
"""Closed by the machine; unsent bytes still leave."""
LINGERING: Final = 3
"""Everything is sent; the client has a moment to read it."""
CLOSED: Final = 4

_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT
_BOTH: Final = select.EPOLLIN | select.EPOLLOUT


class TlsConnection:
    __slots__ = ("address", "descriptor", "mask", "progress_at", "routing_id", "since", "socket", "state", "unsent")

    def __init__(self, wrapped: ssl.SSLSocket, routing_id: bytes, address: str, mono: float) -> None:
        self.socket: ssl.SSLSocket | socket.socket = wrapped
        self.descriptor = wrapped.fileno()
        self.routing_id = routing_id
        self.address = address
        self.since = mono
        """When it was accepted; after the machine closed it, when that was."""
        self.progress_at = mono
        """When unsent bytes last left."""
        self.state = HANDSHAKING
        self.mask = _READ
        self.unsent: bytearray | None = None

    def handshake(self) -> bool:
        """Continue the handshake; True when it is complete. Raises OSError if it failed."""
        try:
            self.socket.do_handshake()  # type: ignore[union-attr]  # during the handshake it is always TLS
        except ssl.SSLWantReadError:
            self.mask = _READ
            return False
        except ssl.SSLWantWriteError:
            self.mask = _WRITE
            return False
        self.mask = _READ
        return True

    def read(self) -> bytes | None:
        """Received bytes; None: nothing yet; empty: the client closed. Raises OSError if the connection is lost."""
        try:
            return self.socket.recv(READ_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return None

    def write(self, data: bytes) -> int:
        """Send or buffer the bytes; returns how many are unsent. Raises OSError if the connection is lost."""
        if self.unsent is None:
            sent = self._push(data)
            if sent == len(data):
                return 0
            self.unsent = bytearray(memoryview(data)[sent:])
        else:
            self.unsent += data
        self.mask = _WRITE if len(self.unsent) > PAUSE_BYTES else _BOTH
        return len(self.unsent)

    def flush(self) -> int:
        unsent = self.unsent
        if unsent is None:
            return 0
        with memoryview(unsent) as view:
            sent = self._push(view)
        if sent == len(unsent):
            self.unsent = None
            self.mask = _READ
            return sent
        del unsent[:sent]
        self.mask = _WRITE if len(unsent) > PAUSE_BYTES or self.state == FLUSHING else _BOTH
        return sent

    def _push(self, data: bytes | memoryview) -> int:
        """How many bytes left. OpenSSL must get a record that it began again with the same bytes: they stay unsent."""
        total = len(data)
        sent = 0
        with memoryview(data) as view:
            while sent < total:
                try:
                    sent += self.socket.send(view[sent : sent + WRITE_BYTES])
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                    break
        return sent

    def send_close_notify(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.socket.unwrap()  # type: ignore[union-attr]  # before the shutdown it is always TLS

    def shut_down(self) -> None:
        """End TLS and the sending direction; what the client still sends is discarded."""
        self.send_close_notify()
        self.state = LINGERING
        self.mask = _READ
        self.unsent = None
        self.socket = socket.socket(fileno=self.socket.detach())
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.state = CLOSED
        self.unsent = None
        self.socket.close()
