"""Listening for agents, and the options of each connection.

Lives here: sockets before TLS. Never here: who may come in. Invariant: no socket from here ever blocks.
"""

from __future__ import annotations

import socket
from typing import Final

from scale0.io.door import BACKLOG

KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""So that a machine that lost its power is noticed, by whichever version it spoke."""


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
