"""A listening TCP socket in an epoll, and the options of each accepted connection.

No socket blocks. Some descriptors are kept in reserve for files. While descriptors or memory are short, nothing is
accepted for a moment: otherwise the listening descriptor would be readable all the time.
"""

from __future__ import annotations

import errno
import logging
import resource
import select
import socket
from collections.abc import Iterator
from typing import Final

from scale0.kernel.log_context import about

log = logging.getLogger("scale0.transport")

BACKLOG: Final = 4_096
"""Connections that wait to be accepted: a whole fleet may reconnect at once."""
ACCEPTS: Final = 128
"""Connections accepted in one turn."""
RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that connections never use: the store, keys and logs need some, whatever clients do."""
PAUSE_SECONDS: Final = 1.0
"""How long nothing is accepted after descriptors or memory ran out."""
FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""TCP keepalive detects a host that lost power, in each protocol version."""


class TcpListener:
    """A listening socket in the server's epoll. While it is paused, connections wait in the kernel's backlog."""

    def __init__(self, host: str, port: int, epoll: select.epoll, hint: str) -> None:
        """`hint`: what a user may do if the port is in use."""
        self._socket = listen(host, port, hint)
        self._epoll = epoll
        self._registered = False
        self._paused_until = 0.0
        self.open(0.0)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def accept(self, mono: float) -> Iterator[tuple[socket.socket, str]]:
        """Accept up to ACCEPTS connections; yields each with its address, unless the client has closed it already. None
        of them blocks."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_DESCRIPTORS
        for _ in range(ACCEPTS):
            try:
                raw, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL:
                    self._rest(mono, error.strerror)
                    return
                continue  # the client disconnected before the accept
            if raw.fileno() >= most:
                raw.close()
                self._rest(mono, "the limit of open files is almost reached; raise it (ulimit -n, LimitNOFILE)")
                return
            raw.setblocking(False)
            if has_ended(raw):
                raw.close()
            else:
                yield raw, plain_address(address[0])

    def _rest(self, mono: float, reason: str | None) -> None:
        log.warning("no connection is accepted for %.0f s: %s", PAUSE_SECONDS, reason, extra=about())
        self._paused_until = mono + PAUSE_SECONDS
        self.pause()

    def open(self, mono: float) -> None:
        """Accept connections, unless descriptors or memory ran out a moment ago."""
        if not self._registered and mono >= self._paused_until:
            self._registered = True
            self._epoll.register(self._socket, select.EPOLLIN)

    def pause(self) -> None:
        """Leave connections in the backlog."""
        if self._registered:
            self._registered = False
            self._epoll.unregister(self._socket)

    def close(self) -> None:
        self._socket.close()


def listen(host: str, port: int, hint: str) -> socket.socket:
    try:
        if host == "*":
            host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            set_options(listener)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise OSError(error.errno or 0, f"{reason}. {hint}") from error
    return listener


def has_ended(raw: socket.socket) -> bool:
    """The client closed the connection and sent nothing: in a flood, most end while they wait to be accepted."""
    try:
        return not raw.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def set_options(listener: socket.socket) -> None:
    """On Linux, the connections that it accepts have its options: this saves five calls for each."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def plain_address(address: str) -> str:
    """The address as people write it: a dual-stack socket reports 10.0.0.1 as `::ffff:10.0.0.1`."""
    return address.removeprefix("::ffff:") if "." in address else address
