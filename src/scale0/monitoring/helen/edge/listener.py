"""Listening for agents, and the options of each connection.

Lives here: sockets before TLS, and `TlsListener`. Never here: who may come in. Invariants: no socket from here ever
blocks; after descriptors or memory ran out, nobody is accepted for a moment: the descriptor would be readable all the
time.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections.abc import Iterator
from typing import Final

from scale0.broker.edge.sockets import BACKLOG
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.helen")

ACCEPTS: Final = 32
"""Connections accepted in one turn."""
PAUSE_SECONDS: Final = 1.0
"""After descriptors or memory ran out, nobody is accepted for so long."""
FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""So that a machine that lost its power is noticed, by whichever version it spoke."""


class TlsListener:
    """A listening socket that the door's epoll watches, but for a while in which nobody is accepted."""

    def __init__(self, host: str, port: int, epoll: select.epoll) -> None:
        self._listener = listen(host, port)
        self._epoll = epoll
        self._open = False
        self._paused_until = 0.0
        self.open(0.0)

    @property
    def port(self) -> int:
        """Where it really listens."""
        return int(self._listener.getsockname()[1])

    def callers(self, mono: float) -> Iterator[tuple[socket.socket, str]]:
        """A few of those who have come, with their addresses."""
        for _ in range(ACCEPTS):
            try:
                raw, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL:
                    log.warning("nobody is accepted for a moment: %s", error.strerror, extra=about())
                    self._paused_until = mono + PAUSE_SECONDS
                    self.shut()
                    return
                continue  # it was gone before we looked
            yield raw, plain(address[0])

    def open(self, mono: float) -> None:
        """Look who comes, unless there was no room for anybody just now."""
        if not self._open and mono >= self._paused_until:
            self._open = True
            self._epoll.register(self._listener, select.EPOLLIN)

    def shut(self) -> None:
        """Let them wait."""
        if self._open:
            self._open = False
            self._epoll.unregister(self._listener)

    def close(self) -> None:
        """Nobody comes any more."""
        self._listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says what to do."""
    try:
        if host == "*":
            host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(place)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        words = f"cannot listen on {host}:{port}: {error.strerror or error}. Is another Helen running?"
        raise OSError(error.errno or 0, f"{words} Choose another port.") from error
    return listener


def prepare(raw: socket.socket) -> None:
    """A connection that was accepted: small words leave at once, and a dead machine is noticed."""
    raw.setblocking(False)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        raw.setsockopt(socket.IPPROTO_TCP, option, value)


def plain(address: str) -> str:
    """A caller's address as people write it: one socket for both families calls 10.0.0.1 `::ffff:10.0.0.1`."""
    return address.removeprefix("::ffff:") if "." in address else address
