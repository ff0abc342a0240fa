"""The ZeroMQ context that all client sockets of a process share, and the version of libzmq.

Invariants: one context per process, and a fork gets its own; the last messages leave before the process ends, and a
socket that was not closed does not delay the end.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Final

import zmq

ZMTP_HEARTBEAT_MS: Final = 60_000
"""Ends half-open connections. Rare, because libzmq searches the timers of all connections to cancel one: with 10,000 of
them, every 5 s cost more than half a core. Our own heartbeats detect failures sooner."""
ZMTP_TIMEOUT_MS: Final = 10_000
"""Short compared to the interval: it is found near the front of those timers."""

_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_pid = 0
_context_lock = threading.Lock()
_open_sockets = 0


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    global _context, _context_pid  # noqa: PLW0603  # one per process is the point
    with _context_lock:
        if _context is None or _context_pid != os.getpid():
            _context = zmq.Context()
            _context_pid = os.getpid()
        return _context


def count_sockets(more: int) -> None:
    """Count the open sockets: while there is one, the end of the process does not wait for the context."""
    global _open_sockets  # noqa: PLW0603
    with _context_lock:
        _open_sockets += more


@atexit.register
def send_remaining() -> None:
    """Let the last messages leave: libzmq sends from a thread of its own, which would end with the process.

    This takes at most the linger of the last sockets. A socket that was not closed would block it for ever, so then it
    is not done.
    """
    if _context is not None and _context_pid == os.getpid() and _open_sockets == 0:
        _context.term()


def libzmq_version() -> str:
    """The version of libzmq, such as 4.3.5, for modules that may not import zmq."""
    return zmq.zmq_version()
