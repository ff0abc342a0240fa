"""Reads the connections of clients that nobody waits for.

A `Client` has no thread of its own: it reads while a call waits. Between calls, one thread of the process answers the
broker's PING for all of them, reads what is pushed to them, and reconnects them. Invariant: it does not read a socket
that others read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Final

from scale0.kernel.log_context import about
from scale0.transport.edge.client_socket import ClientSocket

log = logging.getLogger("scale0.client")

PERIOD_SECONDS: Final = 0.25
"""A broker disconnects a client that has accepted nothing for 0.5 s if much is waiting for it."""


class IdleSockets:
    """The sockets of one process, and the thread that reads them while there are any."""

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[ClientSocket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_running = False

    @property
    def is_running(self) -> bool:
        return self._is_running

    def add(self, socket: ClientSocket) -> None:
        with self._lock:
            self._sockets.add(socket)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="scale0-idle-sockets", daemon=True).start()

    def _run(self) -> None:
        while self._read_all():
            time.sleep(PERIOD_SECONDS)

    def _read_all(self) -> bool:
        """False if there are none left: then the thread ends."""
        with self._lock:
            sockets = [socket for socket in self._sockets if not socket.is_closed]
            self._sockets = weakref.WeakSet(sockets)
            self._is_running = bool(sockets)
        before = time.monotonic() - PERIOD_SECONDS / 2
        for socket in sockets:
            if socket.is_unread(before):
                try:
                    socket.pump()
                except Exception:
                    log.exception("internal error while reading. Please report this traceback.", extra=about())
        return bool(sockets)


_of_this_process = IdleSockets()


def read_when_idle(socket: ClientSocket) -> None:
    """Have it read until it is closed or forgotten."""
    _of_this_process.add(socket)


def _begin_process() -> None:
    """A fork has no threads, and the sockets are its parent's."""
    global _of_this_process  # noqa: PLW0603  # one thread per process is the point
    _of_this_process = IdleSockets()


os.register_at_fork(after_in_child=_begin_process)
