"""Reads the connections of clients that nobody waits for.

A `Client` has no thread of its own: it reads while a call waits. Between calls, one thread of the process answers the
broker's PING for all of them, reads what is pushed to them, and reconnects them. Invariant: it does not read a socket
that others read.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Final

from scale0.transport.edge.client_socket import ClientSocket

PERIOD_SECONDS: Final = 0.25
"""A broker disconnects a client that has accepted nothing for 0.5 s if much is waiting for it."""

_sockets: weakref.WeakSet[ClientSocket] = weakref.WeakSet()
_lock = threading.Lock()
_pid = 0
"""The process in which the thread runs; 0: it does not run. A fork has no threads."""


def read_when_idle(socket: ClientSocket) -> None:
    """Have it read until it is closed or forgotten."""
    global _pid  # noqa: PLW0603  # one thread per process is the point
    with _lock:
        _sockets.add(socket)
        if _pid != os.getpid():
            _pid = os.getpid()
            threading.Thread(target=_run, name="scale0-idle-sockets", daemon=True).start()


def _run() -> None:
    while _read_all():
        time.sleep(PERIOD_SECONDS)


def _read_all() -> bool:
    """False if there are none left: then the thread ends."""
    global _pid  # noqa: PLW0603
    with _lock:
        for socket in [each for each in _sockets if each.is_closed]:
            _sockets.discard(socket)
        sockets = list(_sockets)
        if not sockets:
            _pid = 0
            return False
    mono = time.monotonic()
    for socket in sockets:
        if socket.is_unread(mono - PERIOD_SECONDS / 2):
            socket.pump()
    return True
