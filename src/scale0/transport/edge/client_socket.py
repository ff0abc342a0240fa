"""The DEALER socket under a client session, for threads.

Invariants: session and socket are used only under the lock, and notifications are delivered under it, so in order, even
if a later step failed; waiting happens outside the lock, so a send never waits for a receive; after each use of the
socket everything that arrived is read, because libzmq may signal only once; messages that could not be sent are
returned to the session.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.effects import Message
from scale0.kernel.limits import Limits
from scale0.transport.core.codec import encode, encode_all
from scale0.transport.core.session import KEYS_MISMATCH, SessionEffects
from scale0.transport.edge.frames import drain, readable, receive_event, send_frames
from scale0.transport.edge.zmq_context import ZMTP_HEARTBEAT_MS, ZMTP_TIMEOUT_MS, count_sockets, shared_context

if TYPE_CHECKING:
    from scale0.transport.edge.client_keys import ClientKeys

BREAK_EVENTS: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
"""Monitor events that end a connection; we reconnect ourselves, with our own backoff."""
HANDSHAKE_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Monitor events of a failed handshake: the keys do not match."""
CONNECTION_BROKE: Final = "the connection broke"
DRAIN_MESSAGES: Final = 1_000_000
"""More than any broker sends to one client: everything is always read, because libzmq may signal only once."""
MAX_WAIT_SECONDS: Final = 3_600.0
"""The longest wait without a look at the session: `poll` counts milliseconds in 31 bits."""
CLOSE_LINGER_MS: Final = 200
"""How long an orderly close waits for the last messages to leave."""
IDLE_SECONDS: Final = 0.01
"""After this long without a poll of the socket, a sender polls first."""
PLAIN_IPV4: Final = re.compile(r"tcp://[0-9.]+:[0-9]+")


def handshake_reason(event: int, has_keys: bool) -> str:
    """The meaning of a failed handshake."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        why = "the broker does not know this key, or not for this socket; see `scale0 keys list` on its machine"
    elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and has_keys:
        why = "a key is configured for this address, but the server is unencrypted or is not a Scale0 broker"
    elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        why = "the broker requires a key; join with a token from `scale0 token`"
    elif has_keys:
        why = "the broker has another key than the expected one"
    else:
        why = "the broker requires a key (join with a token from `scale0 token`), or has just stopped"
    return f"{KEYS_MISMATCH}: {why}"


class SocketSession(Protocol):
    @property
    def request_batches(self) -> bool: ...
    def receive(self, frames: list[bytes], now: Now, effects: SessionEffects) -> None: ...
    def closed(self, reason: str, now: Now, effects: SessionEffects) -> None: ...
    def unsent(self, messages: Sequence[Any]) -> None: ...
    def never_connected(self) -> None: ...
    def tick(self, now: Now, effects: SessionEffects) -> None: ...
    def deadline(self) -> float | None: ...


class SocketClosedError(RuntimeError): ...


class ClientSocket:
    def __init__(
        self, session: SocketSession, deliver: Callable[[list[Any]], None], keys: ClientKeys | None = None
    ) -> None:
        """Without `keys` it connects unencrypted."""
        self._session = session
        self._keys = keys
        self._refusal = ""
        """Why the last handshake failed, if it did."""
        self._deliver = deliver
        self._limits = Limits()
        self._lock = threading.Lock()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll: select.poll | None = None
        self._closed = False
        self._connected = False
        self._monitor_descriptor = -1
        self._monitor_pending = False
        """The monitor may have an event; asking it each time would double the cost of a call."""
        self._checked_at = -math.inf
        """When the connection was last checked."""
        self._waiting_until = -math.inf
        """The deadline of the waiting thread; -inf if none waits."""
        self.generation = 0
        """Incremented with every socket that opens or closes: descriptor numbers are reused."""

    def act(self, action: Callable[[Now, SessionEffects], None]) -> None:
        """Run an action on the session, and perform its effects."""
        effects = SessionEffects()
        with self._lock:
            if self._closed:
                raise SocketClosedError("this client is closed")
            now = read_now()
            if now.mono - self._checked_at > IDLE_SECONDS:
                # Not checked for a while: the connection may be lost, and messages on it with it.
                self._monitor_pending = True
                self._receive(now, effects)
            try:
                action(now, effects)
            finally:
                self._finish(effects)
            if self._waiting_until > 0.0:
                due = self._session.deadline()
                if due is not None and due < self._waiting_until:
                    # A thread waits for a later deadline than the one that was just created.
                    self.wake()

    def pump(self, monitor: bool = False) -> None:
        """Read what arrived, and run what is due; `monitor`: also check whether the connection broke."""
        effects = SessionEffects()
        if monitor:
            self._monitor_pending = True
        with self._lock:
            if not self._closed:
                try:
                    self._receive(read_now(), effects)
                finally:
                    self._finish(effects)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a message, a deadline, `wake`, or `timeout`."""
        with self._lock:
            if self._closed:
                return
            due = self._session.deadline()
            poll = self._poll or self._register()
            self._waiting_until = math.inf if due is None else due
        rest = MAX_WAIT_SECONDS if due is None else min(max(0.0, due - read_now().mono), MAX_WAIT_SECONDS)
        if timeout is not None and timeout < rest:
            rest = timeout
        ready = poll.poll(rest * 1_000 + 0.5)
        self._waiting_until = -math.inf
        self._checked_at = read_now().mono
        for descriptor, _ in ready:
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif descriptor == self._monitor_descriptor:
                self._monitor_pending = True

    def wake(self) -> None:
        """Wake the waiting thread."""
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def descriptors(self) -> tuple[int, ...]:
        """What an event loop must watch; they change with every connection."""
        found = (self._socket, self._monitor)
        return tuple(int(s.get(zmq.FD)) for s in found if s is not None)

    def deadline(self) -> float | None:
        with self._lock:
            return self._session.deadline()

    def close(self, action: Callable[[Now, SessionEffects], None]) -> None:
        """Run a last action, and close the socket."""
        effects = SessionEffects()
        with self._lock:
            if self._closed:
                return
            try:
                action(read_now(), effects)
                effects.close = False
                self._perform(effects)
            finally:
                self._closed = True
                self._close_socket(linger=CLOSE_LINGER_MS)
                os.eventfd_write(self._wake, 1)
                if effects.notifications:
                    self._deliver(effects.notifications)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._wake)

    def _finish(self, effects: SessionEffects) -> None:
        """Perform the effects, and deliver the notifications even if that fails."""
        try:
            self._perform(effects)
        finally:
            if effects.notifications:
                self._deliver(effects.notifications)

    def _receive(self, now: Now, effects: SessionEffects) -> None:
        self._checked_at = now.mono
        self._drain(now, effects)
        if self._monitor_pending:
            self._monitor_pending = False
            self._check_monitor(now, effects)
        due = self._session.deadline()
        if due is not None and due <= now.mono:
            self._session.tick(now, effects)

    def _drain(self, now: Now, effects: SessionEffects) -> None:
        if self._socket is not None:
            for frames in drain(self._socket, DRAIN_MESSAGES):
                self._session.receive(frames, now, effects)

    def _check_monitor(self, now: Now, effects: SessionEffects) -> None:
        if self._read_monitor():
            # A message that arrived before the end may give the reason: a client that missed a 409 would reconnect.
            self._drain(now, effects)
            self._session.closed(self._refusal or CONNECTION_BROKE, now, effects)

    def _read_monitor(self) -> bool:
        """True if the connection broke, or was never established."""
        broken = False
        while self._monitor is not None:
            try:
                event = receive_event(self._monitor)
            except zmq.Again:
                break
            if event & HANDSHAKE_EVENTS:
                # Nothing that was written has left: it waited for the handshake.
                self._refusal = handshake_reason(event, self._keys is not None)
                self._connected = False
            broken = broken or bool(event & BREAK_EVENTS)
            self._connected = self._connected or event == zmq.EVENT_CONNECTED
        return broken

    def _perform(self, effects: SessionEffects) -> None:
        """Close, open, send, and read what arrived meanwhile, until nothing is left to do."""
        while effects.close or effects.open or effects.sends:
            if effects.close:
                effects.close = False
                self._read_monitor()
                if not self._connected:
                    self._session.never_connected()
                if effects.open is None:
                    self._session.unsent(effects.sends)
                    effects.sends.clear()
                self._close_socket(linger=self._send_disconnect() if effects.send_disconnect else 0)
                effects.send_disconnect = False
            if effects.open is not None:
                endpoint, effects.open = effects.open, None
                self._try_open(endpoint, effects)
            sends, effects.sends = effects.sends, []
            self._send(sends, effects)
            if self._socket is not None and readable(self._socket):
                self._receive(read_now(), effects)

    def _send_disconnect(self) -> int:
        """Send DISCONNECT if connected; return how long the socket may linger for it, in milliseconds."""
        if self._socket is not None and self._connected:
            with contextlib.suppress(zmq.Again):
                send_frames(self._socket, encode(("DISCONNECT", {})))
                return CLOSE_LINGER_MS
        return 0

    def _send(self, messages: list[Message], effects: SessionEffects) -> None:
        socket = self._socket
        if socket is None:
            self._session.unsent(messages)
            return
        sent = 0
        try:
            if messages and messages[0][0] == "CHECKCONFIG":
                # CHECKCONFIG goes alone: only messages after it may be a BATCH.
                send_frames(socket, encode(messages[0]))
                sent = 1
            rest = messages[sent:] if sent else messages
            for frames, count in encode_all(rest, self._limits, self._session.request_batches):
                send_frames(socket, frames)
                sent += count
        except zmq.Again:
            # The connection broke unnoticed: libzmq does not reconnect, we do.
            self._session.unsent(messages[sent:])
            now = read_now()
            self._drain(now, effects)
            self._session.closed(self._refusal or CONNECTION_BROKE, now, effects)

    def _try_open(self, endpoint: str, effects: SessionEffects) -> None:
        try:
            self._open_socket(endpoint)
        except zmq.ZMQError as error:
            # The address came from a broker: an invalid one must cost no more than another try.
            self._session.never_connected()
            self._session.unsent(effects.sends)
            effects.sends.clear()
            self._close_socket(linger=0)
            self._session.closed(f"cannot connect to {endpoint}: {error}", read_now(), effects)

    def _open_socket(self, endpoint: str) -> None:
        self._close_socket(linger=0)
        socket = shared_context().socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.RECONNECT_IVL, -1)
        socket.set(zmq.MAXMSGSIZE, 2 * self._limits.max_message_bytes)
        socket.set(zmq.HEARTBEAT_IVL, ZMTP_HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, ZMTP_TIMEOUT_MS)
        if self._keys is not None:
            self._keys.apply(socket, endpoint)
        if not PLAIN_IPV4.fullmatch(endpoint):
            # Only where it may be needed: with IPV6, libzmq forgets to end the pipe of a broken connection, and accepts
            # messages that are never sent.
            socket.set(zmq.IPV6, 1)
        count_sockets(+1)
        self._monitor = socket.get_monitor_socket(BREAK_EVENTS | HANDSHAKE_EVENTS | zmq.EVENT_CONNECTED)
        self._monitor_descriptor = int(self._monitor.get(zmq.FD))
        self._monitor_pending = True
        self._connected, self._refusal = False, ""
        self._socket = socket
        socket.connect(endpoint)
        self._poll = None
        self.generation += 1
        os.eventfd_write(self._wake, 1)

    def _close_socket(self, linger: int) -> None:
        if self._socket is None:
            return
        self._socket.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket.close(linger=linger)
        count_sockets(-1)
        self._socket = self._monitor = None
        self._poll = None
        self.generation += 1
        if not self._closed:
            os.eventfd_write(self._wake, 1)

    def _register(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for descriptor in self.descriptors():
            poll.register(descriptor, select.POLLIN)
        self._poll = poll
        return poll
