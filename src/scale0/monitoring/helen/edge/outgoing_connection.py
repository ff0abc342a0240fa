"""Outgoing connections that can be ended from another thread.

Lives here: `OutgoingConnection`, and `dial`, which opens one. Never here: what is said on it. Invariant: from the
moment a line is dialled, `end` makes every wait on it return soon, whatever the other side does.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

CONNECT_SECONDS: Final = 10.0
"""For a connection to come about, at the most: nothing but time ends that wait."""


class OutgoingConnection:
    """What a thread talks by: a socket, once there is one, or its own look at `is_ended`."""

    __slots__ = ("_ended", "_socket")

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ended = False

    def hold(self, found: socket.socket) -> None:
        """This is the socket."""
        self._socket = found
        if self._ended:
            self.end()

    def is_ended(self) -> bool:
        """True if nobody waits for what comes of it."""
        return self._ended

    def end(self) -> None:
        """Whoever reads from it reads no more."""
        self._ended = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Of the plain socket: that of TLS would let go of what the other thread is using.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def dial(host: str, port: int, tls: bool, timeout: float, line: OutgoingConnection) -> socket.socket:
    """Connect, by TLS if that is wanted; OSError says why not."""
    raw = socket.create_connection((host, port), timeout=min(timeout, CONNECT_SECONDS))
    line.hold(raw)
    raw.settimeout(timeout)
    return secured(raw, host, line) if tls else raw


def secured(raw: socket.socket, host: str, line: OutgoingConnection) -> ssl.SSLSocket:
    """The same connection, by TLS: its certificate must be for this host."""
    try:
        wrapped = ssl.create_default_context().wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        raw.close()
        raise
    line.hold(wrapped)
    try:
        wrapped.do_handshake()
    except BaseException:
        wrapped.close()
        raise
    return wrapped
