"""A connection to Helen: TLS on a non-blocking socket, read from the loop.

Lives here: names to addresses, connecting, the handshake, bytes in and out. Never here: what they say, or when to try
again (`monitoring.agent.core.session`). Invariants: one connection at a time; `lost` is told once for each `open`,
unless `close` was called first; nothing is told from within a call of ours; a connection that is not up in time is
given up.
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

from scale0.monitoring.agent.edge.thread_pool import ThreadPool

OPEN_SECONDS: Final = 10.0
"""From a name to the end of the handshake, all addresses of it together."""
READ_BYTES: Final = 65_536
"""Taken from a connection at once."""
MAX_READS: Final = 16
"""Reads of one turn: what comes without end must not keep checks from running."""
MAX_PENDING_BYTES: Final = 32 * 1024 * 1024
"""What may wait to be sent: all that a session has under way fits. A Helen that asks on and reads nothing is left."""
KEEPALIVE_IDLE_SECONDS: Final = 60
"""A Helen of version 1 never pings: the kernel asks whether she is there."""
KEEPALIVE_INTERVAL_SECONDS: Final = 15
KEEPALIVE_PROBES: Final = 4
USER_TIMEOUT_MS: Final = 60_000
"""After so long without the other side's confirmation of what we sent, the connection is gone."""

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


class TlsClientListener(Protocol):
    """Who is told what happens to a connection."""

    def opened(self) -> None: ...
    def received(self, data: bytes) -> None: ...
    def lost(self, reason: str) -> None: ...


def client_context(certificate: str, private_key: str, server_ca: str) -> ssl.SSLContext:
    """TLS 1.3 with our certificate, trusting nobody but who `server_ca` vouches for. OSError, ssl.SSLError."""
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
        """Asked for each connection anew: certificates are renewed."""
        self._listener = listener
        self._threads = threads
        self._loop = loop
        self._attempt = 0
        """Grows with each connection: what belongs to an earlier one is not listened to."""
        self._host = ""
        self._addresses: deque[tuple[Address, int]] = deque()
        self._raw: socket.socket | None = None
        self._tls: ssl.SSLSocket | None = None
        self._is_up = False
        self._writing = False
        self._out: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.pending_bytes = 0
        """Given to `send` and not sent yet."""

    def open(self, host: str, port: int) -> None:
        """Begin to connect; `opened` or `lost` is told later."""
        self.close()
        self._attempt += 1
        attempt = self._attempt
        self._host = host.strip("[]")
        self._timer = self._loop.call_later(OPEN_SECONDS, self._lose, f"not connected within {OPEN_SECONDS:g} s")
        numeric = numeric_address(self._host, port)
        if numeric is not None:
            self._loop.call_soon(self._found, attempt, [numeric], None)
        else:
            self._threads.do(lambda: look_up(self._host, port), lambda found, error: self._found(attempt, found, error))

    def send(self, data: bytes) -> None:
        """Send in order, as soon as there is room."""
        if self._tls is None or not self._is_up:
            return
        if self.pending_bytes > MAX_PENDING_BYTES:
            self._loop.call_soon(self._drown, self._attempt)
            return
        self._out.append(data)
        self.pending_bytes += len(data)
        if not self._writing:
            self._loop.call_soon(self._write, self._attempt)
            self._writing = True

    def close(self) -> None:
        """End the connection, or the attempt at one; nothing is told any more."""
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
            self._forget(raw.fileno())
            raw.close()
        if tls is not None:
            self._forget(tls.fileno())
            if was_up:
                say_goodbye(tls)
            tls.close()

    def _forget(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)

    def _lose(self, reason: str) -> None:
        self.close()
        self._listener.lost(reason)

    def _drown(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._lose(f"the other side does not read: {self.pending_bytes} bytes wait for it")

    def _found(self, attempt: int, found: list[tuple[Address, int]] | None, error: BaseException | None) -> None:
        if attempt != self._attempt:
            return
        if not found:
            self._lose(f"{self._host} cannot be found: {error or 'it has no address'}")
            return
        self._addresses.extend(found)
        self._try_next("")

    def _try_next(self, reason: str) -> None:
        """The next address of the name, or the end of the attempt."""
        while self._addresses:
            (family, place), port = self._addresses.popleft()
            try:
                raw = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError as error:
                reason = described(error)
                continue
            prepare(raw)
            status = raw.connect_ex(place)
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
            self._lose(f"TLS cannot be used: {described(error)}")
            return
        self._raw = None
        self._shake(attempt)

    def _shake(self, attempt: int) -> None:
        tls = self._tls
        if attempt != self._attempt or tls is None:
            return
        descriptor = tls.fileno()
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.remove_writer(descriptor)
            self._loop.add_reader(descriptor, self._shake, attempt)
            return
        except ssl.SSLWantWriteError:
            self._loop.remove_reader(descriptor)
            self._loop.add_writer(descriptor, self._shake, attempt)
            return
        except OSError as error:
            self._lose(f"the handshake failed: {described(error)}")
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget(descriptor)
        self._loop.add_reader(descriptor, self._read, attempt)
        self._is_up = True
        self._listener.opened()
        # What came together with the end of the handshake is in OpenSSL's hands already: no reader would tell of it.
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
        # There may be more, and perhaps none of it in the kernel.
        self._loop.call_soon(self._read, attempt)

    def _write(self, attempt: int) -> None:
        tls = self._tls
        if attempt != self._attempt or tls is None:
            return
        descriptor = tls.fileno()
        while self._out:
            data = self._out[0] if len(self._out) == 1 else self._joined()
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

    def _joined(self) -> bytes:
        """Small pieces as one, so that many reports share a record of TLS."""
        pieces, size = [], 0
        while self._out and size < READ_BYTES:
            piece = self._out.popleft()
            pieces.append(piece)
            size += len(piece)
        self._out.appendleft(b"".join(pieces))
        return self._out[0]


def numeric_address(host: str, port: int) -> tuple[Address, int] | None:
    """An address that needs no look-up."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return None
    return ((socket.AF_INET6 if version == 6 else socket.AF_INET, (host, port)), port)


def look_up(host: str, port: int) -> list[tuple[Address, int]]:
    """All addresses of a name; blocks. OSError if there are none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [((family, place), port) for family, _, _, _, place in found]  # type: ignore[misc]


def prepare(raw: socket.socket) -> None:
    """Small messages leave at once, and a dead other side is noticed."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def say_goodbye(tls: ssl.SSLSocket) -> None:
    """Tell the other side that we end on purpose; it does not matter if that cannot be said."""
    try:
        tls.unwrap()
    except (OSError, ValueError):
        pass


def described(error: Exception) -> str:
    """An error in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"Helen's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
