"""The connection under a client session, for threads.

Invariants: session and connection are used only under the lock, and notifications are delivered under it, so in order,
even if a later step failed; waiting happens outside the lock, so a send never waits for a receive; messages that could
not be sent are returned to the session.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.effects import Message
from scale0.kernel.limits import Limits
from scale0.transport.core.codec import encode, encode_all
from scale0.transport.core.session import KEYS_MISMATCH, SessionEffects
from scale0.transport.core.zmtp import Mechanism
from scale0.transport.edge.client_keys import ClientKeys, unencrypted
from scale0.transport.edge.zmtp_client import ConnectionEnd, ZmtpClient

CONNECTION_BROKE: Final = "the connection broke"
MAX_WAIT_SECONDS: Final = 3_600.0
"""The longest wait without a look at the session: `poll` counts milliseconds in 31 bits."""
CLOSE_LINGER_SECONDS: Final = 0.2
"""How long an orderly close waits for the last messages to leave."""
UNREAD_SECONDS: Final = 0.001
"""After this long without a read, a sender reads first: a message on a connection that has ended would be lost."""


def reason_of(end: ConnectionEnd, has_keys: bool) -> str:
    """Why a connection ended, for a person."""
    match end.cause:
        case "unreachable":
            return f"no connection: {end.reason}"
        case "broken":
            return f"{CONNECTION_BROKE}: {end.reason}"
        case "refused":
            why = "the broker does not know this key, or not for this socket; see `scale0 keys list` on its machine"
        case "mechanism" if has_keys:
            why = "a key is configured for this address, but the server is unencrypted or is not a Scale0 broker"
        case "mechanism":
            why = "the broker requires a key; join with a token from `scale0 token`"
        case _ if has_keys:
            why = "the broker has another key than the expected one"
        case _:
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
        self._deliver = deliver
        self._limits = Limits()
        self._lock = threading.Lock()
        self._connection: ZmtpClient | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._poll: select.poll | None = None
        self._closed = False
        self._read_at = -math.inf
        """When the connection was last read."""
        self._waiting_until = -math.inf
        """The deadline of the waiting thread; -inf if none waits."""
        self.generation = 0
        """Incremented whenever `interest` changes: descriptor numbers are reused."""

    def act(self, action: Callable[[Now, SessionEffects], None]) -> None:
        """Run an action on the session, and perform its effects."""
        effects = SessionEffects()
        with self._lock:
            if self._closed:
                raise SocketClosedError("this client is closed")
            now = read_now()
            if now.mono - self._read_at > UNREAD_SECONDS:
                self._receive(now, effects, to_end=True)
            try:
                action(now, effects)
            finally:
                self._finish(effects)
            if self._waiting_until > 0.0:
                due = self._next_deadline()
                if due is not None and due < self._waiting_until:
                    # A thread waits for a later deadline than the one that was just created.
                    self.wake()

    def pump(self) -> None:
        """Read what arrived, and run what is due."""
        effects = SessionEffects()
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
            due = self._next_deadline()
            poll = self._poll or self._register()
            self._waiting_until = math.inf if due is None else due
        rest = MAX_WAIT_SECONDS if due is None else min(max(0.0, due - read_now().mono), MAX_WAIT_SECONDS)
        if timeout is not None and timeout < rest:
            rest = timeout
        ready = poll.poll(rest * 1_000 + 0.5)
        self._waiting_until = -math.inf
        for descriptor, _ in ready:
            if descriptor == self._wake_reader:
                self.clear_wake()

    def wake(self) -> None:
        """Wake the waiting thread."""
        if not self._closed:
            with contextlib.suppress(OSError):  # full: it will wake up anyway
                os.write(self._wake_writer, b"\0")

    @property
    def is_closed(self) -> bool:
        return self._closed

    def is_unread(self, since: float) -> bool:
        """True if no thread waits for a message, and none has read since this monotonic time."""
        return self._waiting_until < 0.0 and self._read_at < since

    def clear_wake(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._wake_reader, 4_096)

    @property
    def wake_descriptor(self) -> int:
        """Readable after `wake`."""
        return self._wake_reader

    @property
    def interest(self) -> tuple[int, bool]:
        """What an event loop must watch: a descriptor, -1 without one, and whether to wait until it can be written."""
        connection = self._connection
        return (-1, False) if connection is None else (connection.descriptor, connection.wants_write)

    def deadline(self) -> float | None:
        with self._lock:
            return self._next_deadline()

    def close(self, action: Callable[[Now, SessionEffects], None]) -> None:
        """Run a last action, and close the connection."""
        effects = SessionEffects()
        with self._lock:
            if self._closed:
                return
            try:
                action(read_now(), effects)
                effects.close = False
                self._perform(effects)
            finally:
                self.wake()
                self._closed = True
                self._end_connection(CLOSE_LINGER_SECONDS)
                if effects.notifications:
                    self._deliver(effects.notifications)

    def __del__(self) -> None:
        for name in ("_wake_reader", "_wake_writer"):
            with contextlib.suppress(OSError, AttributeError):
                os.close(getattr(self, name))

    def _next_deadline(self) -> float | None:
        due = self._session.deadline()
        if self._connection is not None and (own := self._connection.deadline()) is not None:
            return own if due is None else min(due, own)
        return due

    def _finish(self, effects: SessionEffects) -> None:
        """Perform the effects, and deliver the notifications even if that fails."""
        try:
            self._perform(effects)
        finally:
            if effects.notifications:
                self._deliver(effects.notifications)

    def _receive(self, now: Now, effects: SessionEffects, to_end: bool = False) -> None:
        self._read(now, effects, to_end)
        due = self._session.deadline()
        if due is not None and due <= now.mono:
            self._session.tick(now, effects)

    def _read(self, now: Now, effects: SessionEffects, to_end: bool = False) -> None:
        """Handle what arrived, and then the end of the connection: a message before it may give the reason."""
        self._read_at = now.mono
        connection = self._connection
        if connection is None:
            return
        for frames in connection.receive(now.mono, to_end=to_end):
            self._session.receive(frames, now, effects)
        if connection.end is not None:
            self._session.closed(reason_of(connection.end, self._keys is not None), now, effects)
        elif connection.is_changed:
            self._change()

    def _perform(self, effects: SessionEffects) -> None:
        """Close, open and send, until nothing is left to do."""
        while effects.close or effects.open or effects.sends:
            if effects.close:
                effects.close = False
                if self._connection is None or not self._connection.is_ready:
                    self._session.never_connected()
                if effects.open is None:
                    self._session.unsent(effects.sends)
                    effects.sends.clear()
                self._end_connection(self._send_disconnect() if effects.send_disconnect else 0.0)
                effects.send_disconnect = False
            if effects.open is not None:
                endpoint, effects.open = effects.open, None
                self._open(endpoint, effects)
            sends, effects.sends = effects.sends, []
            if sends:
                self._send(sends, effects)

    def _send_disconnect(self) -> float:
        """Send DISCONNECT if connected; return for how many seconds the connection may linger for it."""
        if self._connection is not None and self._connection.is_ready:
            self._connection.send(encode(("DISCONNECT", {})))
            return CLOSE_LINGER_SECONDS
        return 0.0

    def _send(self, messages: list[Message], effects: SessionEffects) -> None:
        connection = self._connection
        if connection is None:
            self._session.unsent(messages)
            return
        rest = messages
        if messages[0][0] == "CHECKCONFIG":
            # CHECKCONFIG goes alone: only messages after it may be a BATCH.
            connection.send(encode(messages[0]))
            rest = messages[1:]
        for frames, _ in encode_all(rest, self._limits, self._session.request_batches):
            connection.send(frames)
        if not connection.flush():
            self._session.unsent(messages)
            now = read_now()
            self._read(now, effects)
            self._session.closed(CONNECTION_BROKE, now, effects)
        elif connection.is_changed:
            self._change()

    def _open(self, endpoint: str, effects: SessionEffects) -> None:
        self._end_connection(0.0)
        now = read_now()
        try:
            self._connection = ZmtpClient(endpoint, self._mechanism(endpoint), self._limits, now.mono, self.wake)
        except ValueError as error:
            # The address came from a broker: an invalid one must cost no more than another try.
            self._session.never_connected()
            self._session.unsent(effects.sends)
            effects.sends.clear()
            self._session.closed(f"cannot connect to {endpoint}: {error}", now, effects)
            return
        self._change()

    def _mechanism(self, endpoint: str) -> Mechanism:
        return unencrypted(endpoint) if self._keys is None else self._keys.mechanism(endpoint)

    def _end_connection(self, linger: float) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(linger)
            self._change()

    def _change(self) -> None:
        """The descriptor, or what to wait for, has changed: a waiting thread registers again."""
        if self._connection is not None:
            self._connection.is_changed = False
        self._poll = None
        self.generation += 1
        if self._waiting_until > 0.0:
            self.wake()

    def _register(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        descriptor, wants_write = self.interest
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if wants_write else 0))
        self._poll = poll
        return poll
