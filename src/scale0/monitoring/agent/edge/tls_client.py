"""A TLS connection to Helen on a non-blocking socket, in the agent's event loop.

It resolves names, connects, does the handshake, and moves bytes. Invariants: one connection at a time; `lost` is
called once for each `open`, unless `close` was called first; no callback happens inside a call of ours; a connection
that is not established in time is given up.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from scale0.kernel.edge.thread_pool import ThreadPool

OPEN_SECONDS: Final = 10.0
"""From the name lookup to the end of the handshake, for all addresses of a name."""
READ_BYTES: Final = 65_536
MAX_READS: Final = 16
"""Reads in one callback: endless data must not keep checks from running."""
MAX_PENDING_BYTES: Final = 32 * 1024 * 1024
"""Of the send buffer: more than a session can have in flight. A Helen that does not read is disconnected."""
KEEPALIVE_IDLE_SECONDS: Final = 60
"""A Helen of version 1 never pings, so TCP keepalive detects that she is gone."""
KEEPALIVE_INTERVAL_SECONDS: Final = 15
KEEPALIVE_PROBES: Final = 4
USER_TIMEOUT_MS: Final = 60_000
"""A connection is lost if sent data is not acknowledged (TCP) for this long."""

SocketAddress = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


class TlsClientListener(Protocol):
    def opened(self) -> None: ...
    def received(self, data: bytes) -> None: ...
    def lost(self, reason: str) -> None: ...


def client_context(certificate: str, private_key: str, server_ca: str) -> ssl.SSLContext:
    """TLS 1.3 with our certificate; only certificates signed by `server_ca` are trusted. OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cafile=server_ca)
    context.load_cert_chain(certificate, private_key)
    return context


class TlsClient:
    """At most one connection at a time."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        listener: TlsClientListener,
        threads: ThreadPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._context = context
        """Called for each connection: certificates are renewed."""
        self._listener = listener
        self._threads = threads
        self._loop = loop
        self._attempt = 0
        """Incremented for each connection, to ignore callbacks of earlier ones."""
        self._host = ""
        self._addresses: deque[tuple[SocketAddress, int]] = deque()
        self._raw: socket.socket | None = None
        self._tls: ssl.SSLSocket | None = None
        self._is_up = False
        self._writing = False
        self._out: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.pending_bytes = 0
        """Passed to `send` and not sent yet."""

    def open(self, host: str, port: int) -> None:
        """Start to connect; `opened` or `lost` is called later."""
        self.close()
        self._attempt += 1
        attempt = self._attempt
        self._host = host.strip("[]")
        self._timer = self._loop.call_later(OPEN_SECONDS, self._lose, f"not connected within {OPEN_SECONDS:g} s")
        numeric = numeric_address(self._host, port)
        if numeric is not None:
            self._loop.call_soon(self._resolved, attempt, [numeric], None)
        else:
            self._threads.do(
                lambda: resolve(self._host, port), lambda found, error: self._resolved(attempt, found, error)
            )

    def send(self, data: bytes) -> None:
        """Send in order, as soon as the socket accepts it."""
        if self._tls is None or not self._is_up:
            return
        if self.pending_bytes > MAX_PENDING_BYTES:
            self._loop.call_soon(self._drop_overflowing, self._attempt)
            return
        self._out.append(data)
        self.pending_bytes += len(data)
        if not self._writing:
            self._loop.call_soon(self._write, self._attempt)
            self._writing = True

    def close(self) -> None:
        """End the connection, or the attempt; no callback follows."""
        self._attempt += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        raw, tls = self._raw, self._tls
        self._raw = self._tls = None
        was_up, self._is_up = self._is_up, False
        self._writing = False
        self._out.clear()
        self.pending_bytes = 0
        self._addresses.clear()
        if raw is not None:
            self._remove_callbacks(raw.fileno())
            raw.close()
        if tls is not None:
            self._remove_callbacks(tls.fileno())
            if was_up:
                send_close_notify(tls)
            tls.close()

    def _remove_callbacks(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)

    def _lose(self, reason: str) -> None:
        self.close()
        self._listener.lost(reason)

    def _drop_overflowing(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._lose(f"the other side does not read: {self.pending_bytes} bytes are waiting to be sent")

    def _resolved(
        self, attempt: int, found: list[tuple[SocketAddress, int]] | None, error: BaseException | None
    ) -> None:
        if attempt != self._attempt:
            return
        if not found:
            self._lose(f"cannot resolve {self._host}: {error or 'it has no address'}")
            return
        self._addresses.extend(found)
        self._try_next("")

    def _try_next(self, reason: str) -> None:
        while self._addresses:
            (family, address), port = self._addresses.popleft()
            try:
                raw = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError as error:
                reason = described(error)
                continue
            prepare(raw)
            status = raw.connect_ex(address)
            if status in (0, errno.EINPROGRESS):
                self._raw = raw
                self._loop.add_writer(raw.fileno(), self._connected, self._attempt)
                return
            raw.close()
            reason = f"port {port}: {os.strerror(status)}"
        self._lose(reason)

    def _connected(self, attempt: int) -> None:
        raw = self._raw
        if attempt != self._attempt or raw is None:
            return
        self._loop.remove_writer(raw.fileno())
        status = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status:
            self._raw = None
            raw.close()
            self._try_next(os.strerror(status))
            return
        try:
            self._tls = self._context().wrap_socket(
                raw, do_handshake_on_connect=False, server_hostname=self._host, suppress_ragged_eofs=False
            )
        except (OSError, ValueError) as error:
            self._lose(f"TLS setup failed: {described(error)}")
            return
        self._raw = None
        self._handshake(attempt)

    def _handshake(self, attempt: int) -> None:
        tls = self._tls
        if attempt != self._attempt or tls is None:
            return
        descriptor = tls.fileno()
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.remove_writer(descriptor)
            self._loop.add_reader(descriptor, self._handshake, attempt)
            return
        except ssl.SSLWantWriteError:
            self._loop.remove_reader(descriptor)
            self._loop.add_writer(descriptor, self._handshake, attempt)
            return
        except OSError as error:
            self._lose(f"TLS handshake failed: {described(error)}")
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._remove_callbacks(descriptor)
        self._loop.add_reader(descriptor, self._read, attempt)
        self._is_up = True
        self._listener.opened()
        # Data that arrived with the end of the handshake is in OpenSSL's buffer already: no reader would report it.
        self._read(attempt)

    def _read(self, attempt: int) -> None:
        for _ in range(MAX_READS):
            tls = self._tls
            if attempt != self._attempt or tls is None:
                return
            try:
                data = tls.recv(READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            except OSError as error:
                self._lose(described(error))
                return
            if not data:
                self._lose("the other side closed the connection")
                return
            self._listener.received(data)
        # There may be more, and OpenSSL may have it already.
        self._loop.call_soon(self._read, attempt)

    def _write(self, attempt: int) -> None:
        tls = self._tls
        if attempt != self._attempt or tls is None:
            return
        descriptor = tls.fileno()
        while self._out:
            data = self._out[0] if len(self._out) == 1 else self._join_output()
            try:
                sent = tls.send(data)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._loop.add_writer(descriptor, self._write, attempt)
                return
            except OSError as error:
                self._lose(described(error))
                return
            self.pending_bytes -= sent
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = data[sent:]
        self._loop.remove_writer(descriptor)
        self._writing = False

    def _join_output(self) -> bytes:
        """Join small pieces, so that many reports share a TLS record."""
        pieces, size = [], 0
        while self._out and size < READ_BYTES:
            piece = self._out.popleft()
            pieces.append(piece)
            size += len(piece)
        self._out.appendleft(b"".join(pieces))
        return self._out[0]


def numeric_address(host: str, port: int) -> tuple[SocketAddress, int] | None:
    """The address, if it needs no lookup."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return None
    return ((socket.AF_INET6 if version == 6 else socket.AF_INET, (host, port)), port)


def resolve(host: str, port: int) -> list[tuple[SocketAddress, int]]:
    """All addresses of a name; blocks. OSError if there are none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [((family, address), port) for family, _, _, _, address in found]  # type: ignore[misc]


def prepare(raw: socket.socket) -> None:
    """Send small messages at once, and detect a dead peer."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def send_close_notify(tls: ssl.SSLSocket) -> None:
    """Tell the other side that the connection ends on purpose, if possible."""
    try:
        tls.unwrap()
    except (OSError, ValueError):
        pass


def described(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"Helen's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
