"""Connections that a broker makes to other brokers: behind one descriptor, and made again whenever they end.

Invariants: no call blocks; a message for a connection that is not ready is never sent later, because it would be
outdated; an endpoint is tried again until it is closed, however often it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from scale0.kernel import backoff
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.transport.core.zmtp import Mechanism
from scale0.transport.edge.zmtp_client import Cause, ZmtpClient

log = logging.getLogger("scale0.dialer")

FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 2.0
"""Between two attempts: a broker that returns must be found quickly."""
HANDSHAKE_SECONDS: Final = 5.0
"""A peer that does not complete its handshake in this time is disconnected."""
SWEEP_SECONDS: Final = 1.0
MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""A peer that is further behind counts as gone."""
MAX_EVENTS: Final = 16
"""Connections that are read before their messages are taken, in turn: each read yields at most 256 KiB."""
LINGER_SECONDS: Final = 0.2

MakeMechanism = Callable[[str], Mechanism | None]
"""By endpoint; None: no connection can be made now."""


class Dialed:
    """One endpoint: its connection, if there is one, and when the next attempt is due."""

    __slots__ = ("connection", "failures", "ready", "retry", "since", "watched")

    def __init__(self) -> None:
        self.connection: ZmtpClient | None = None
        self.watched = -1
        """The descriptor that is registered."""
        self.since = 0.0
        self.ready = False
        self.failures = 0
        self.retry: asyncio.TimerHandle | None = None


class DialedConnections:
    def __init__(self, socket_type: bytes, limits: Limits, mechanism: MakeMechanism) -> None:
        self._socket_type = socket_type
        self._limits = limits
        self._mechanism = mechanism
        self.on_ready: Callable[[str], None] = lambda _: None
        """Called after each handshake."""
        self.on_end: Callable[[str, Cause], None] = lambda *_: None
        """Called before a connection that ended is made again."""
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._epoll.register(self._wake_reader, select.EPOLLIN)
        self._due: deque[str] = deque()
        """Endpoints that are read at the next `drain`, though their descriptor may not be ready."""
        self._dialed: dict[str, Dialed] = {}
        self._by_descriptor: dict[int, str] = {}
        self._inbox: deque[tuple[str, list[bytes]]] = deque()
        self._unflushed: dict[str, None] = {}
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def __contains__(self, endpoint: str) -> bool:
        return endpoint in self._dialed

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._dialed))

    @property
    def descriptor(self) -> int:
        return self._epoll.fileno()

    def open(self, endpoint: str) -> None:
        """Connect, and reconnect until `close`."""
        if endpoint not in self._dialed:
            self._dialed[endpoint] = Dialed()
            self._connect(endpoint)

    def reopen(self, endpoint: str) -> None:
        """Connect anew, with another key."""
        self.close(endpoint)
        self.open(endpoint)

    def close(self, endpoint: str, linger: float = 0.0) -> None:
        dialed = self._dialed.pop(endpoint, None)
        if dialed is not None:
            if dialed.retry is not None:
                dialed.retry.cancel()
            self._drop(dialed, linger)

    def close_all(self) -> None:
        self._sweeping.cancel()
        for endpoint in self:
            self.close(endpoint, LINGER_SECONDS)
        self._epoll.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def drain(self, most: int) -> Iterator[tuple[str, list[bytes]]]:
        """Messages, each with its endpoint; at most `most`. The caller may stop at any time."""
        inbox = self._inbox
        for _ in range(most):
            if not inbox:
                self._poll()
            if not inbox:
                return
            yield inbox.popleft()

    def pending(self) -> bool:
        return bool(self._inbox)

    def send(self, endpoint: str, frames: list[bytes]) -> bool:
        """Buffer a message until `flush`; False if it cannot be sent now."""
        dialed = self._dialed.get(endpoint)
        connection = dialed.connection if dialed is not None else None
        if connection is None or not connection.is_ready or connection.unsent_bytes > MAX_UNSENT_BYTES:
            return False
        connection.send(frames)
        self._unflushed[endpoint] = None
        return True

    def flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for endpoint in unflushed:
            dialed = self._dialed.get(endpoint)
            if dialed is not None and dialed.connection is not None:
                # If it is broken, the next read finds out.
                dialed.connection.flush()
                self._watch(endpoint, dialed)

    def _connect(self, endpoint: str) -> None:
        dialed = self._dialed.get(endpoint)
        if dialed is None:
            return
        dialed.retry, dialed.ready, dialed.since = None, False, read_now().mono
        try:
            mechanism = self._mechanism(endpoint)
            if mechanism is not None:
                dialed.connection = ZmtpClient(
                    endpoint, mechanism, self._limits, dialed.since, lambda: self._wake(endpoint), self._socket_type
                )
        except ValueError as error:
            # Endpoints may come from other brokers: an invalid one must not fail the turn.
            log.warning("cannot connect to the broker at %s: %s", endpoint, error, extra=about(peer=endpoint))
        if dialed.connection is None:
            self._retry(endpoint, dialed)
        else:
            self._watch(endpoint, dialed)
            self._wake(endpoint)  # it may have failed already

    def _wake(self, endpoint: str) -> None:
        """Read this connection soon; also called by threads that resolve names."""
        self._due.append(endpoint)
        with contextlib.suppress(OSError):  # full, or closed meanwhile
            os.write(self._wake_writer, b"\0")

    def _watch(self, endpoint: str, dialed: Dialed) -> None:
        connection = dialed.connection
        if connection is None or not connection.is_changed:
            return
        connection.is_changed = False
        if dialed.watched != connection.descriptor:
            self._forget(dialed)
        if connection.descriptor < 0:
            return  # its name is being resolved
        if dialed.watched < 0:
            dialed.watched = connection.descriptor
            self._epoll.register(dialed.watched)
            self._by_descriptor[dialed.watched] = endpoint
        self._epoll.modify(dialed.watched, select.EPOLLIN | (select.EPOLLOUT if connection.wants_write else 0))

    def _forget(self, dialed: Dialed) -> None:
        if dialed.watched >= 0:
            del self._by_descriptor[dialed.watched]
            with contextlib.suppress(OSError):  # it was closed, which unregisters it
                self._epoll.unregister(dialed.watched)
            dialed.watched = -1

    def _poll(self) -> None:
        for descriptor, _ in self._epoll.poll(0, MAX_EVENTS):
            if descriptor == self._wake_reader:
                os.read(self._wake_reader, 4_096)
                while self._due:
                    self._read(self._due.popleft())
            elif (endpoint := self._by_descriptor.get(descriptor)) is not None:
                self._read(endpoint)

    def _read(self, endpoint: str) -> None:
        dialed = self._dialed.get(endpoint)
        if dialed is None or dialed.connection is None:
            return
        connection = dialed.connection
        for frames in connection.receive(read_now().mono, times=1):
            self._inbox.append((endpoint, frames))
        if connection.is_ready and not dialed.ready:
            dialed.ready, dialed.failures = True, 0
            self.on_ready(endpoint)
            connection.flush()
        if connection.end is not None:
            self._end(endpoint, dialed, connection.end.cause)
        else:
            self._watch(endpoint, dialed)

    def _end(self, endpoint: str, dialed: Dialed, cause: Cause) -> None:
        self._drop(dialed, 0.0)
        self.on_end(endpoint, cause)
        self._retry(endpoint, dialed)

    def _drop(self, dialed: Dialed, linger: float) -> None:
        self._forget(dialed)
        if dialed.connection is not None:
            dialed.connection.close(linger)
            dialed.connection = None

    def _retry(self, endpoint: str, dialed: Dialed) -> None:
        pause = backoff.pause(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, dialed.failures)
        dialed.failures += 1
        dialed.retry = self._loop.call_later(pause, self._connect, endpoint)

    def _sweep(self) -> None:
        """End handshakes that take too long, and check connections that are silent."""
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        mono = read_now().mono
        for endpoint, dialed in list(self._dialed.items()):
            connection = dialed.connection
            if connection is None:
                continue
            due = connection.deadline()
            if not connection.is_ready and mono - dialed.since > HANDSHAKE_SECONDS:
                self._end(endpoint, dialed, "handshake")
            elif due is not None and mono >= due:
                self._wake(endpoint)
