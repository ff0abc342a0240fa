"""A link: a client's socket under its session, for threads.

Lives here: the DEALER socket, its monitor, and the rule who may touch them. Never here: what is said. Invariants:
session and socket are touched only under the lock, and news are delivered under it, so that they come in order, even
if what came after them failed;
waiting happens outside it, so that a send never waits for a receive; whoever touched the socket also takes in what
came, because libzmq may signal only once; what could not be sent goes back to the session.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.effects import Message
from scale0.kernel.limits import Limits
from scale0.transport.core.codec import BATCH, batch_length, encode, encode_batch
from scale0.transport.core.session import KEYS_REFUSED
from scale0.transport.core.session_effects import SessionEffects
from scale0.transport.edge.frames import drain, readable, receive_event, send_frames
from scale0.transport.edge.zmq_context import ZMTP_HEARTBEAT_MS, ZMTP_TIMEOUT_MS, count_sockets, shared_context

if TYPE_CHECKING:
    from scale0.transport.edge.client_keys import ClientKeys

BREAKS: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
"""Monitor events that end a connection: we connect again ourselves, with our own backoff."""
UNSHAKEN: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Monitor events of a handshake that failed, for lack of the right keys."""
BROKE: Final = "the connection broke"
DRAIN_MESSAGES: Final = 1_000_000
"""More than any broker has for one client: what came is always taken in whole, because libzmq may signal only once."""
MAX_WAIT_SECONDS: Final = 3_600.0
GOODBYE_MS: Final = 200
"""How long a socket that closes in order waits for its last words to leave."""
IDLE_SECONDS: Final = 0.01
"""After this long without a look, whoever sends looks first."""
PLAIN_IPV4: Final = re.compile(r"tcp://[0-9.]+:[0-9]+")


def why_unshaken(event: int, has_keys: bool) -> str:
    """What a failed handshake means, in words."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return f"{KEYS_REFUSED} does not know this key, or not for this socket: see `scale0 keys list` there"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        wants = "wants no keys, or is no broker" if has_keys else "wants a key: join with a token of `scale0 token`"
        return f"{KEYS_REFUSED} {wants}"
    if has_keys:
        return f"{KEYS_REFUSED} has another key than the one that was expected"
    return (
        f"{KEYS_REFUSED} broke off before it began: it wants a key (join with a token of `scale0 token`), or just ended"
    )


class SocketSession(Protocol):
    """The pure end that a link serves."""

    def receive(self, frames: list[bytes], now: Now, out: SessionEffects) -> None: ...
    def closed(self, reason: str, now: Now, out: SessionEffects) -> None: ...
    def unsent(self, messages: Sequence[Any]) -> None: ...
    def never_connected(self) -> None: ...
    def tick(self, now: Now, out: SessionEffects) -> None: ...
    def deadline(self) -> float | None: ...


class SocketClosedError(RuntimeError):
    """It was closed before."""


def runs(messages: Sequence[Message]) -> Iterator[tuple[Message, ...] | list[bytes]]:
    """Messages in their order: those that may be packed together as a tuple, ready frames one by one as they are."""
    first = 0
    for place, message in enumerate(messages):
        if isinstance(message, list):
            if first < place:
                yield tuple(messages[first:place])
            yield message
            first = place + 1
    if first < len(messages):
        yield tuple(messages[first:])


class ClientSocket:
    """One session and its socket."""

    def __init__(
        self, session: SocketSession, deliver: Callable[[list[Any]], None], keys: ClientKeys | None = None
    ) -> None:
        """`keys`: with what it connects; without, in the clear."""
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
        self._monitor_spoke = False
        """The monitor may have something to say; asking it each time would double the cost of a call."""
        self._looked = -math.inf
        """When somebody last looked whether the connection is alive."""
        self._until = -math.inf
        """When the thread that waits will look by itself; none waits: never too late."""
        self.generation = 0
        """Grows with every socket that comes or goes: descriptors may be used again under the same number."""

    def act(self, do: Callable[[Now, SessionEffects], None]) -> None:
        """Let the session do something, and do what it says."""
        out = SessionEffects()
        with self._lock:
            if self._closed:
                raise SocketClosedError("this client is closed")
            now = read_now()
            if now.mono - self._looked > IDLE_SECONDS:
                # Nobody has looked for a while: the connection may be gone, and what is sent on it lost.
                self._monitor_spoke = True
                self._take_in(now, out)
            try:
                do(now, out)
            finally:
                self._heed(out)
            if self._until > 0.0:
                due = self._session.deadline()
                if due is not None and due < self._until:
                    # Somebody waits, but for something later than what has just been begun.
                    self.wake()

    def pump(self, monitor: bool = False) -> None:
        """Take in what came, and do what its time has come for; `monitor`: also ask whether the connection broke."""
        out = SessionEffects()
        if monitor:
            self._monitor_spoke = True
        with self._lock:
            if not self._closed:
                try:
                    self._take_in(read_now(), out)
                finally:
                    self._heed(out)

    def wait(self, timeout: float | None = None) -> None:
        """Until something may have come, a deadline is over, `wake` is called, or `timeout` has passed."""
        with self._lock:
            if self._closed:
                return
            due = self._session.deadline()
            poll = self._poll or self._register()
            self._until = math.inf if due is None else due
        rest = MAX_WAIT_SECONDS if due is None else max(0.0, due - read_now().mono)
        if timeout is not None:
            rest = min(rest, timeout)
        ready = poll.poll(rest * 1_000 + 0.5)
        self._until = -math.inf
        self._looked = read_now().mono
        for descriptor, _ in ready:
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

    def close(self, do: Callable[[Now, SessionEffects], None]) -> None:
        """A last word, and the socket is closed."""
        out = SessionEffects()
        with self._lock:
            if self._closed:
                return
            try:
                do(read_now(), out)
                out.close = False
                self._perform(out)
            finally:
                self._closed = True
                self._drop_socket(linger=GOODBYE_MS)
                os.eventfd_write(self._wake, 1)
                if out.news:
                    self._deliver(out.news)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._wake)

    def _heed(self, out: SessionEffects) -> None:
        """Do what the session says, and tell its news, which nobody would tell again."""
        try:
            self._perform(out)
        finally:
            if out.news:
                self._deliver(out.news)

    def _take_in(self, now: Now, out: SessionEffects) -> None:
        self._looked = now.mono
        self._drain(now, out)
        if self._monitor_spoke:
            self._monitor_spoke = False
            self._heed_monitor(now, out)
        due = self._session.deadline()
        if due is not None and due <= now.mono:
            self._session.tick(now, out)

    def _drain(self, now: Now, out: SessionEffects) -> None:
        if self._socket is not None:
            for frames in drain(self._socket, DRAIN_MESSAGES):
                self._session.receive(frames, now, out)

    def _heed_monitor(self, now: Now, out: SessionEffects) -> None:
        if self._ask_monitor():
            # What came before the end may say why: a 409 that is missed would have us come back and take over.
            self._drain(now, out)
            self._session.closed(self._refusal or BROKE, now, out)

    def _ask_monitor(self) -> bool:
        """True if the connection broke, or cannot come to be."""
        broken = False
        while self._monitor is not None:
            try:
                event = receive_event(self._monitor)
            except zmq.Again:
                break
            if event & UNSHAKEN:
                # Nothing that was written has left: it waited for the handshake.
                self._refusal = why_unshaken(event, self._keys is not None)
                self._connected = False
            broken = broken or bool(event & BREAKS)
            self._connected = self._connected or event == zmq.EVENT_CONNECTED
        return broken

    def _perform(self, out: SessionEffects) -> None:
        """Close, open, send; and take in what came meanwhile, until nothing more is to be done."""
        while out.close or out.open or out.sends:
            if out.close:
                out.close = False
                self._ask_monitor()
                if not self._connected:
                    self._session.never_connected()
                if out.open is None:
                    self._session.unsent(out.sends)
                    out.sends.clear()
                self._drop_socket(linger=self._say_goodbye() if out.parts else 0)
                out.parts = False
            if out.open is not None:
                place, out.open = out.open, None
                self._try_open(place, out)
            sends, out.sends = out.sends, []
            self._send(sends, out)
            if self._socket is not None and readable(self._socket):
                self._take_in(read_now(), out)

    def _say_goodbye(self) -> int:
        """DISCONNECT, if there is anybody; how long the socket shall wait for it to leave, in milliseconds."""
        if self._socket is not None and self._connected:
            with contextlib.suppress(zmq.Again):
                send_frames(self._socket, encode(("DISCONNECT", {})))
                return GOODBYE_MS
        return 0

    def _send(self, messages: list[Message], out: SessionEffects) -> None:
        socket = self._socket
        if socket is None:
            self._session.unsent(messages)
            return
        left = 0
        try:
            if messages and messages[0][0] == "CHECKCONFIG":
                # It goes alone: only what comes after it may be a BATCH.
                send_frames(socket, encode(messages[0]))
                left = 1
            for run in runs(messages[left:] if left else messages):
                if isinstance(run, list):
                    send_frames(socket, run)
                    left += 1
                    continue
                limits = self._limits
                for frames in encode_batch(run, limits.max_batch_messages, limits.max_message_bytes):
                    send_frames(socket, frames)
                    left += batch_length(frames[3]) if frames[1] == BATCH else 1
        except zmq.Again:
            # The connection broke and nobody has noticed yet: libzmq does not connect again, we do.
            self._session.unsent(messages[left:])
            now = read_now()
            self._drain(now, out)
            self._session.closed(self._refusal or BROKE, now, out)

    def _try_open(self, endpoint: str, out: SessionEffects) -> None:
        try:
            self._open_socket(endpoint)
        except zmq.ZMQError as error:
            # Others told us of this address: that it is none must cost us no more than another try.
            self._session.never_connected()
            self._session.unsent(out.sends)
            out.sends.clear()
            self._drop_socket(linger=0)
            self._session.closed(f"cannot connect to {endpoint}: {error}", read_now(), out)

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
        if self._keys is not None:
            self._keys.suit(socket, endpoint)
        if not PLAIN_IPV4.fullmatch(endpoint):
            # Only where it may be needed: with it libzmq forgets to end the pipe of a connection that broke, and takes
            # messages for it that nobody will ever get.
            socket.set(zmq.IPV6, 1)
        count_sockets(+1)
        self._monitor = socket.get_monitor_socket(BREAKS | UNSHAKEN | zmq.EVENT_CONNECTED)
        self._monitor_descriptor = int(self._monitor.get(zmq.FD))
        self._monitor_spoke = True
        self._connected, self._refusal = False, ""
        self._socket = socket
        socket.connect(endpoint)
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
