"""A link: a client's socket under its session, for threads.

Lives here: the DEALER socket, its monitor, and the rule who may touch them. Never here: what is said. Invariants:
session and socket are touched only under the lock; waiting happens outside it, so that a send never waits for a
receive; whoever touched the socket also takes in what came, because libzmq may signal only once.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import zmq
import zmq.utils.monitor

from scale0.base.limits import Limits
from scale0.base.now import Now
from scale0.base.step import Message
from scale0.broker.line import LineStep
from scale0.broker.wire import encode, encode_batch
from scale0.io.clock import read_now
from scale0.io.door import ZMTP_HEARTBEAT_MS, ZMTP_TIMEOUT_MS
from scale0.io.frames import readable, receive_frames, send_frames

BREAKS: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
"""Monitor events that end a connection: we connect again ourselves, with our own backoff."""
MAX_WAIT_SECONDS: Final = 3_600.0

_context: zmq.Context[zmq.Socket[bytes]] | None = None
_context_pid = 0
_context_lock = threading.Lock()


def shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """One context per process; a fork gets its own."""
    global _context, _context_pid  # noqa: PLW0603  # one per process is the point
    with _context_lock:
        if _context is None or _context_pid != os.getpid():
            _context = zmq.Context()
            _context_pid = os.getpid()
        return _context


class Session(Protocol):
    """The pure end that a link serves."""

    def receive(self, frames: list[bytes], now: Now, out: LineStep) -> None: ...
    def closed(self, reason: str, now: Now, out: LineStep) -> None: ...
    def tick(self, now: Now, out: LineStep) -> None: ...
    def deadline(self) -> float | None: ...


class Link:
    """One session and its socket."""

    def __init__(self, session: Session, deliver: Callable[[list[Any]], None]) -> None:
        self._session = session
        self._deliver = deliver
        self._limits = Limits()
        self._lock = threading.Lock()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll: select.poll | None = None
        self._closed = False
        self._monitor_descriptor = -1
        self._monitor_spoke = False
        """The monitor may have something to say; asking it each time would double the cost of a call."""
        self.generation = 0
        """Grows with every new socket: descriptors may be used again under the same number."""

    def act(self, do: Callable[[Now, LineStep], None]) -> None:
        """Let the session do something, and do what it says."""
        out = LineStep()
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            do(read_now(), out)
            self._perform(out)
        if out.news:
            self._deliver(out.news)

    def pump(self, monitor: bool = False) -> None:
        """Take in what came, and do what its time has come for; `monitor`: also ask whether the connection broke."""
        out = LineStep()
        if monitor:
            self._monitor_spoke = True
        with self._lock:
            if not self._closed:
                self._take_in(read_now(), out)
                self._perform(out)
        if out.news:
            self._deliver(out.news)

    def wait(self, timeout: float | None = None) -> None:
        """Until something may have come, a deadline is over, `wake` is called, or `timeout` has passed."""
        with self._lock:
            if self._closed:
                return
            due = self._session.deadline()
            poll = self._poll or self._register()
        rest = MAX_WAIT_SECONDS if due is None else max(0.0, due - read_now().mono)
        if timeout is not None:
            rest = min(rest, timeout)
        for descriptor, _ in poll.poll(rest * 1_000 + 0.5):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif descriptor == self._monitor_descriptor:
                self._monitor_spoke = True

    def wake(self) -> None:
        """Let the thread that waits look again."""
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def descriptors(self) -> tuple[int, ...]:
        """What an event loop should watch; they change with every connection."""
        found = (self._socket, self._monitor)
        return tuple(int(s.get(zmq.FD)) for s in found if s is not None)

    def deadline(self) -> float | None:
        """When `pump` has something to do."""
        with self._lock:
            return self._session.deadline()

    def close(self, do: Callable[[Now, LineStep], None]) -> None:
        """A last word, and the socket is closed."""
        out = LineStep()
        with self._lock:
            if self._closed:
                return
            do(read_now(), out)
            out.close = False
            self._perform(out)
            self._closed = True
            self._drop_socket(linger=200)
            os.eventfd_write(self._wake, 1)
        self._deliver(out.news)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._wake)

    def _take_in(self, now: Now, out: LineStep) -> None:
        socket = self._socket
        if socket is not None:
            try:
                while True:
                    self._session.receive(receive_frames(socket), now, out)
            except zmq.Again:
                pass
        if self._monitor_spoke:
            self._monitor_spoke = False
            self._heed_monitor(now, out)
        due = self._session.deadline()
        if due is not None and due <= now.mono:
            self._session.tick(now, out)

    def _heed_monitor(self, now: Now, out: LineStep) -> None:
        broken = False
        while self._monitor is not None:
            try:
                event = zmq.utils.monitor.recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                break
            broken = broken or bool(event["event"] & BREAKS)
        if broken:
            self._session.closed("the connection broke", now, out)

    def _perform(self, out: LineStep) -> None:
        """Close, open, send; and take in what came meanwhile, until nothing more is to be done."""
        while out.close or out.open or out.sends:
            if out.close:
                out.close = False
                if out.open is None:
                    out.sends.clear()
                self._drop_socket(linger=0)
            if out.open is not None:
                self._open_socket(out.open)
                out.open = None
            sends, out.sends = out.sends, []
            self._send(sends)
            if self._socket is not None and readable(self._socket):
                self._take_in(read_now(), out)

    def _send(self, messages: list[Message]) -> None:
        socket = self._socket
        if socket is None:
            return
        if messages and messages[0][0] == "CHECKCONFIG":
            # It goes alone: only what comes after it may be a BATCH.
            send_frames(socket, encode(messages.pop(0)))
        if messages:
            for frames in encode_batch(messages, self._limits.max_batch_messages, self._limits.max_message_bytes):
                send_frames(socket, frames)

    def _open_socket(self, endpoint: str) -> None:
        self._drop_socket(linger=0)
        socket = shared_context().socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.RECONNECT_IVL, -1)
        socket.set(zmq.MAXMSGSIZE, 2 * self._limits.max_message_bytes)
        socket.set(zmq.HEARTBEAT_IVL, ZMTP_HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, ZMTP_TIMEOUT_MS)
        socket.set(zmq.IPV6, 1)
        self._monitor = socket.get_monitor_socket(BREAKS)
        self._monitor_descriptor = int(self._monitor.get(zmq.FD))
        self._monitor_spoke = True
        socket.connect(endpoint)
        self._socket = socket
        self._poll = None
        self.generation += 1
        os.eventfd_write(self._wake, 1)

    def _drop_socket(self, linger: int) -> None:
        if self._socket is None:
            return
        self._socket.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket.close(linger=linger)
        self._socket = self._monitor = None
        self._poll = None
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def _register(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for descriptor in self.descriptors():
            poll.register(descriptor, select.POLLIN)
        self._poll = poll
        return poll
