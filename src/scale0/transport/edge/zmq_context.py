"""The ZeroMQ context that all links of a process share.

Lives here: the context, and its end; how soon a half-open connection is noticed. Never here: a socket. Invariants: one
context per process, and a fork gets its own; what was sent last leaves before the process ends, and a socket that
nobody closed holds up nothing.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Final

import zmq

ZMTP_HEARTBEAT_MS: Final = 60_000
"""So that half-open connections end. Rare, because libzmq looks through the timers of all connections to cancel one:
with 10,000 of them, every 5 s cost more than half a core. Our own heartbeats are the quick ones."""
ZMTP_TIMEOUT_MS: Final = 10_000
"""Short against the above: it is found near the front of those timers."""

_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_pid = 0
_context_lock = threading.Lock()
_open_sockets = 0


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """One context per process; a fork gets its own."""
    global _context, _context_pid  # noqa: PLW0603  # one per process is the point
    with _context_lock:
        if _context is None or _context_pid != os.getpid():
            _context = zmq.Context()
            _context_pid = os.getpid()
        return _context


def count_sockets(more: int) -> None:
    """Sockets of links that are open, so that the end of the process waits for none of them."""
    global _open_sockets  # noqa: PLW0603
    with _context_lock:
        _open_sockets += more


@atexit.register
def say_last_words() -> None:
    """Let what was sent last leave: libzmq sends from a thread of its own, and that would end with us.

    It takes as long as the linger of the last sockets at the most. A socket that nobody closed would make it wait for
    ever, so then it is not done.
    """
    if _context is not None and _context_pid == os.getpid() and _open_sockets == 0:
        _context.term()
