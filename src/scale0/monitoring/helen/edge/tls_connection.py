"""One TLS connection of an agent: a non-blocking socket, OpenSSL between two buffers, and encrypted unsent bytes.

No method blocks or handles more than one read of the socket, whatever arrives: OpenSSL itself would read the socket for
as long as a client sends records without data. All connections share the two buffers, which are empty between calls. An
idle connection holds no buffer, and bytes leave in the order in which they were written.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Final

READ_BYTES: Final = 16_384
"""The maximum size of one read of the socket."""
MAX_SILENT_BYTES: Final = 32_768
"""Bytes without application data, in the handshake or later: a handshake and a TLS record need fewer."""
RECORD_BYTES: Final = 16_384
"""The maximum size of a TLS record, without its overhead."""
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


class TlsBuffers:
    """What OpenSSL reads from and writes to. Each call of a connection finds both empty, and leaves them empty."""

    __slots__ = ("incoming", "outgoing", "received")

    def __init__(self) -> None:
        self.received = memoryview(bytearray(READ_BYTES))
        """For one read of the socket."""
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()


class TlsConnection:
    __slots__ = (
        *("_buffers", "_early", "_silent_bytes", "address", "descriptor", "end", "mask", "progress_at", "routing_id"),
        *("since", "socket", "state", "tls", "unsent"),
    )

    def __init__(
        self,
        raw: socket.socket,
        context: ssl.SSLContext,
        buffers: TlsBuffers,
        routing_id: bytes,
        address: str,
        mono: float,
    ) -> None:
        self.socket = raw
        self.tls = context.wrap_bio(buffers.incoming, buffers.outgoing, server_side=True)
        self.descriptor = raw.fileno()
        self.routing_id = routing_id
        self.address = address
        self.since = mono
        """When it was accepted; after the machine closed it, when that was."""
        self.progress_at = mono
        """When unsent bytes last left."""
        self.state = HANDSHAKING
        self.mask = _READ
        self.unsent: bytearray | None = None
        self.end: OSError | None = None
        """Why there is nothing to read after what `read` returned; SSLZeroReturnError: the client closed."""
        self._buffers = buffers
        self._early = b""
        """Application data that arrived with the end of the handshake."""
        self._silent_bytes = 0
        """Bytes that arrived since the last application data."""

    def handshake(self) -> bool:
        """Continue the handshake; True when it is complete. Raises OSError if it failed."""
        if not self._feed():
            return False
        complete = True
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            complete = False
        except OSError:
            self._buffers.incoming.read()
            self._send_last()
            raise
        if complete:
            self._early = self._decrypt()
        answer = self._buffers.outgoing.read()
        if not complete and self._is_silent():
            raise OSError("the client sent too many bytes before the end of the handshake")
        if self._send(answer) < len(answer):
            raise OSError("the client does not read")
        return complete

    @property
    def has_more(self) -> bool:
        """True if `read` has something that epoll does not signal."""
        return bool(self._early) or self.end is not None

    def read(self) -> bytes | None:
        """Received bytes; None: nothing yet; empty: the client closed. Raises OSError if the connection is lost."""
        data, self._early = self._early, b""
        if not data and self.end is None and self._feed():
            data = self._decrypt()
            if self._buffers.outgoing.pending:
                self._answer(goes_on=bool(data) or not self._is_silent())
            if not data and self._is_silent():
                raise OSError(f"the client sent {self._silent_bytes} bytes without data")
        if data:
            return data
        if self.end is None:
            return None
        if isinstance(self.end, ssl.SSLZeroReturnError):
            return b""
        raise self.end

    def _feed(self) -> bool:
        """Read the socket once, for OpenSSL; False: nothing has arrived. Raises OSError if the connection is lost."""
        received = self._buffers.received
        try:
            size = self.socket.recv_into(received)
        except BlockingIOError:
            return False
        if not size:
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "the connection ended without close_notify")
        self._buffers.incoming.write(received[:size])
        self._silent_bytes += size
        return True

    def _decrypt(self) -> bytes:
        """The application data that has arrived, up to the end of the connection."""
        read, incoming, parts = self.tls.read, self._buffers.incoming, []
        try:
            while incoming.pending:  # OpenSSL keeps an incomplete record, and nothing else: each read returns a record
                data = read(RECORD_BYTES)
                if not data:
                    self.end = ssl.SSLZeroReturnError()
                    break
                parts.append(data)
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self.end = error
        if incoming.pending:
            incoming.read()
        if parts:
            self._silent_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _is_silent(self) -> bool:
        return self._silent_bytes > MAX_SILENT_BYTES

    def _answer(self, goes_on: bool) -> None:
        """Send what OpenSSL answers by itself: all of it if the connection goes on."""
        if goes_on and self.end is None:
            self._push(self._buffers.outgoing.read())
        else:
            self._send_last()

    def _send_last(self) -> None:
        """Send what OpenSSL answers by itself, an alert for example, if that is possible at once."""
        last = self._buffers.outgoing.read()
        if self.unsent is None:
            with contextlib.suppress(OSError):
                self._send(last)

    def write(self, data: bytes) -> int:
        """Send or buffer the bytes; returns how many are unsent. Raises OSError if the connection is lost."""
        return self._push(self._encrypt(data))

    def _encrypt(self, data: bytes) -> bytes:
        """TLS records with the data; a client may have asked for short ones, and a write is one record."""
        total, written, records = len(data), 0, []
        with memoryview(data) as view:
            while written < total:
                written += self.tls.write(view[written : written + RECORD_BYTES])
                records.append(self._buffers.outgoing.read())
        return records[0] if len(records) == 1 else b"".join(records)

    def _push(self, data: bytes) -> int:
        """Send or buffer encrypted bytes; returns how many are unsent."""
        if self.unsent is None:
            sent = self._send(data)
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
        sent = self._send(unsent)
        if sent == len(unsent):
            self.unsent = None
            self.mask = _READ
            return sent
        del unsent[:sent]
        self.mask = _WRITE if len(unsent) > PAUSE_BYTES or self.state == FLUSHING else _BOTH
        return sent

    def _send(self, data: bytes | bytearray) -> int:
        """How many bytes left."""
        sent = 0
        with contextlib.suppress(BlockingIOError), memoryview(data) as view:
            while sent < len(data):
                sent += self.socket.send(view[sent:])
        return sent

    def send_close_notify(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.tls.unwrap()
        self._send_last()

    def shut_down(self) -> None:
        """End TLS and the sending direction; what the client still sends is discarded."""
        self.send_close_notify()
        self.state = LINGERING
        self.mask = _READ
        self.unsent = None
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.state = CLOSED
        self.unsent = None
        self.socket.close()
