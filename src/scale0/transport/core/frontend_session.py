"""A frontend's session: requests over a connection that may break.

Invariants: every call ends in exactly one `CallAnswered` or `CallFailed`, at the latest one grace period after its
timeout; a request without `retry` is never sent twice, where messages on a connection that was never established do not
count as sent. A sub-protocol may share the connection: frames that start with `{` or `[` belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.kernel.timers import LazyTimerWheel
from scale0.transport.core import codec
from scale0.transport.core.calls import (
    GRACE_SECONDS,
    CallAnswered,
    CallFailed,
    ManagementAnswered,
    PartialReply,
    PendingCall,
    PingReply,
    refusal_of,
)
from scale0.transport.core.command_table import client_codec
from scale0.transport.core.request_batches import separated
from scale0.transport.core.session import DOWN, ENDED, UP, Session, SessionEffects
from scale0.transport.core.sockets import FRONTEND

if TYPE_CHECKING:
    import random

MIN_TIMEOUT_SECONDS: Final = 0.001
"""The least remaining timeout of a request that is sent again."""
PING_ID: Final = "~"
BOUND_SECONDS: Final = 30.0
"""How long we wait for a lost broker that alone can answer, before we try another one."""
STALE_SECONDS: Final = 30.0
"""After this long without traffic the broker may have forgotten us: negotiate again before a request."""


class SubProtocol(Protocol):
    """Another protocol on a frontend's connection; each of its messages is one frame."""

    @property
    def waiting(self) -> bool:
        """True while it expects an answer, so silence means a failure."""
        ...

    @property
    def is_bound(self) -> bool:
        """True while it expects an answer that only the current broker can give."""
        ...

    def receive(self, frame: bytes, now: Now, effects: SessionEffects) -> None: ...

    def resume(self, broker: str, now: Now, effects: SessionEffects) -> None:
        """Use a new connection to this broker, or to a group that shares a store; empty if unknown."""
        ...

    def set_owner(self, owner: str, shared: bool) -> None:
        """Learn the owner of the current broker's tasks: the broker, or a group that shares a store (`shared`)."""
        ...

    def flush(self, now: Now, effects: SessionEffects) -> None:
        """Send what is to be sent; called only while there is a connection."""
        ...

    def unsent(self, frame: bytes) -> None: ...

    def never_connected(self) -> None: ...

    def tick(self, why: Callable[[], tuple[int, str]], now: Now, effects: SessionEffects) -> None:
        """Time out what is overdue; `why` gives the code and the message."""
        ...

    def deadline(self, live: bool) -> float | None:
        """When `tick` or, with a connection (`live`), `flush` has something to do."""
        ...

    def fail(self, code: int, message: str, effects: SessionEffects) -> None:
        """Fail everything that is outstanding."""
        ...


class FrontendSession:
    def __init__(
        self,
        endpoints: Sequence[str],
        identity: str | None,
        rng: random.Random,
        patience: float | None = None,
        limits: Limits | None = None,
        sub_protocol: SubProtocol | None = None,
    ) -> None:
        """With `patience`, calls fail once no broker was reachable for that long, whatever their timeout."""
        self._limits = limits or Limits()
        self._codec = client_codec(self._limits)
        self.connection = Session(
            FRONTEND, endpoints, identity, rng, lambda: None, None, is_idle=lambda: self.is_idle, stays=self._must_stay
        )
        self._calls: dict[str, PendingCall] = {}
        self._commands: dict[str, PendingCall] = {}
        self._sub_protocol = sub_protocol
        self._timers: LazyTimerWheel[PendingCall] = LazyTimerWheel()
        self._prefix = f"{rng.getrandbits(32):x}."
        self._next = 0
        self._last_ping_reply: PingReply | None = None
        self._connection_number = 0
        self._patience = patience
        self._down_since: float | None = None
        self._pinged = 0.0
        self._bound_since: float | None = None
        self._resumed = False
        """Messages may have left on the current, or the last, connection."""
        self._received_here = False
        """Something was received on that connection."""
        self._has_named_owner = False
        """The broker has answered a ping on that connection."""
        self._must_return = False
        """A command waits for a broker that the user named: once, the session moves back to it."""

    @property
    def waiting(self) -> bool:
        """True while an answer is expected."""
        return (
            bool(self._calls) or bool(self._commands) or (self._sub_protocol is not None and self._sub_protocol.waiting)
        )

    @property
    def request_batches(self) -> bool:
        """True if requests may leave as REQUESTS."""
        return self.connection.request_batches

    @property
    def is_idle(self) -> bool:
        """True while no answer is expected from the current broker."""
        calls = (call for table in (self._calls, self._commands) for call in table.values())
        return not any(call.sent for call in calls) and (self._sub_protocol is None or not self._sub_protocol.is_bound)

    @property
    def _is_live(self) -> bool:
        return self.connection.is_live

    @property
    def owner(self) -> str:
        """The owner of the current broker's tasks, as it says itself on this connection; empty if not known yet."""
        return self.connection.addresses.owner if self._is_live and self._has_named_owner else ""

    def _must_stay(self, now: Now) -> bool:
        """True while the sub-protocol expects an answer that only the current broker can give, up to BOUND_SECONDS."""
        sub_protocol = self._sub_protocol
        if sub_protocol is None or not self._received_here or not sub_protocol.is_bound:
            self._bound_since = None
            return False
        if self._bound_since is None:
            self._bound_since = now.mono
        return now.mono < self._bound_since + BOUND_SECONDS

    def start(self, now: Now, effects: SessionEffects) -> None:
        self.connection.start(now, effects)
        self._resume(now, effects)

    def end(self, now: Now, effects: SessionEffects) -> None:
        """Disconnect; outstanding calls fail."""
        self.connection.end(now, effects)
        self._fail_all(codes.NOT_SERVING, "the client was closed", now, effects)

    def request(
        self,
        service: str,
        bodies: Sequence[bytes],
        timeout: float,
        retry: bool,
        tag: Any,
        now: Now,
        effects: SessionEffects,
    ) -> None:
        """Send a request; the answer is a notification with this tag."""
        if self.connection.state == ENDED:
            effects.notifications.append(CallFailed(tag, *self._end_reason()))
            return
        refusal = refusal_of(service, bodies, self._limits)
        if refusal is not None:
            effects.notifications.append(CallFailed(tag, refusal.code, refusal.message))
            return
        self._next += 1
        call = PendingCall(f"{self._prefix}{self._next}", service, bodies, timeout, retry, tag)
        self._add(call, self._calls, now, effects)
        if self._is_live:
            self._send(call, now, effects)

    def run_sub_protocol(self, operation: Callable[[Now], None], now: Now, effects: SessionEffects) -> None:
        """Run an operation of the sub-protocol, and send its messages."""
        sub_protocol = self._sub_protocol
        if sub_protocol is None:
            raise AssertionError("this session has no sub-protocol")
        was_waiting = self.waiting
        operation(now)
        if self.connection.state == ENDED:
            sub_protocol.fail(*self._end_reason(), effects)
            return
        if not was_waiting:
            self._start_waiting(now, effects)
        if self._is_live:
            sub_protocol.flush(now, effects)

    def manage(
        self, options: dict[str, Any], body: bytes, timeout: float, tag: Any, now: Now, effects: SessionEffects
    ) -> None:
        """Send a management command, once: a broker that is not serving still answers it."""
        if self.connection.state == ENDED:
            effects.notifications.append(CallFailed(tag, *self._end_reason()))
            return
        self._next += 1
        call = PendingCall(f"{self._prefix}{self._next}", "", (body,) if body else (), timeout, False, tag)
        call.options = {**options, "id": call.id}
        self._add(call, self._commands, now, effects)
        if self._is_live and self.connection.addresses.was_given:
            self._send(call, now, effects)
        else:
            self._must_return = True
            self._return(now)

    def closed(self, reason: str, now: Now, effects: SessionEffects) -> None:
        self.connection.closed(reason, now, effects)

    def unsent(self, messages: Sequence[Any]) -> None:
        """These messages never left; they are sent on the next connection."""
        for message in messages:
            if isinstance(message, list):
                if self._sub_protocol is not None:
                    self._sub_protocol.unsent(message[0])
                continue
            command, options = message[0], message[1]
            if command in ("REQUEST", "MANAGEMENTREQ"):
                table = self._calls if command == "REQUEST" else self._commands
                call = table.get(options["id"])
                if call is not None:
                    call.sent = 0

    def never_connected(self) -> None:
        """The last connection was never established: nothing that was sent on it has left."""
        if not self._resumed:
            return
        for table in (self._commands, self._calls):
            for call in table.values():
                if call.sent == self._connection_number:
                    call.sent = 0
        if self._sub_protocol is not None:
            self._sub_protocol.never_connected()

    def receive(self, frames: list[bytes], now: Now, effects: SessionEffects) -> None:
        connection = self.connection
        connection.last_received = now.mono
        if not frames or connection.state in (DOWN, ENDED):
            self._receive_late(frames)
            return
        self._received_here = True
        was_live = self._is_live
        self._receive_frames(frames, now, effects)
        if not was_live and self._is_live:
            self._resume(now, effects)

    def _receive_late(self, frames: list[bytes]) -> None:
        """After the end of a connection: requests that the broker rejected unrun are sent on the next one."""
        for command, options, _ in self._codec.messages(frames) if frames[:1] == [codec.MAGIC] else ():
            if command == "ERROR" and options.unrun and (call := self._calls.get(options.id)) and not call.has_parts:
                call.sent = 0

    def _receive_frames(self, frames: list[bytes], now: Now, effects: SessionEffects) -> None:
        if frames[0] != codec.MAGIC:
            if self._sub_protocol is not None and len(frames) == 1 and frames[0][:1] in (b"{", b"["):
                self._sub_protocol.receive(frames[0], now, effects)
                self._sub_protocol.flush(now, effects)
            return
        for command, options, bodies in self._codec.messages(frames):
            if command == "REPLIES":
                self._receive_replies(separated(options, bodies), effects)
            else:
                self._handle(command, options, bodies, now, effects)

    def _receive_replies(self, replies: Sequence[tuple[str, bytes]], effects: SessionEffects) -> None:
        calls, notifications = self._calls, effects.notifications
        for id_, body in replies:
            call = calls.pop(id_, None)
            if call is not None:
                call.ended = True
                self._timers.remove(call)
                notifications.append(CallAnswered(call.tag, (body,)))

    def _handle(self, command: str, options: Any, bodies: Sequence[bytes], now: Now, effects: SessionEffects) -> None:
        if command == "REPLY":
            call = self._remove(self._calls, options.id)
            if call is not None:
                effects.notifications.append(CallAnswered(call.tag, bodies))
            elif options.id == PING_ID:
                self._receive_ping_reply(bodies, now, effects)
        elif command == "PARTIAL":
            call = self._calls.get(options.id)
            if call is not None:
                call.has_parts = True
                effects.notifications.append(PartialReply(call.tag, bodies))
        elif command == "ERROR":
            call = self._calls.get(options.id)
            if call is not None and options.unrun and not call.has_parts and self.connection.is_moving:
                call.sent = 0  # not accepted here; we are about to move to another broker
            elif call is not None:
                self._remove(self._calls, options.id)
                effects.notifications.append(CallFailed(call.tag, options.code, options.message))
        elif command == "MANAGEMENTREP":
            call = self._remove(self._commands, options.id)
            if call is not None:
                effects.notifications.append(
                    ManagementAnswered(call.tag, options.code, options.message, bodies[0] if bodies else b"")
                )
        elif command == "DISCONNECTERROR" and options.code == codes.NOT_SERVING and self._commands:
            # The broker serves nobody, but answers administrators: keep the connection until it has.
            self.connection.refusal = f"{options.code} {options.message}"
        else:
            self.connection.receive(command, options, bodies, now, effects)
            if self.connection.state == UP:
                self._bound_since = None
            elif self.connection.state == ENDED:
                self._fail_all(*self._end_reason(), now, effects)

    def tick(self, now: Now, effects: SessionEffects) -> None:
        """Time out calls, and check the connection."""
        for call in self._timers.expire(now.mono):
            table = self._calls if call.options is None else self._commands
            if table.pop(call.id, None) is not None:
                effects.notifications.append(CallFailed(call.tag, *self._timeout_reason()))
        if self._sub_protocol is not None:
            self._sub_protocol.tick(self._timeout_reason, now, effects)
            if self._is_live:
                self._sub_protocol.flush(now, effects)
        self._check_patience(now, effects)
        connection = self.connection
        if connection.state == UP and self._pinged <= connection.last_received:
            # Silence counts from the first expected answer: a caller may start calls, and wait for them much later.
            connection.last_received = max(connection.last_received, now.mono - connection.interval)
        was_live, was_moving = self._is_live, connection.is_moving
        connection.tick(self.waiting, now, effects)
        if effects.open is not None:
            self._resumed = self._received_here = False
        if not was_live and self._is_live:
            self._resume(now, effects)
        elif was_moving and self._is_live and not connection.is_moving:
            self._send_unsent(now, effects)  # the move was cancelled
        elif self.waiting and connection.state == UP and now.mono >= self._ping_at():
            self._ping(now, effects)

    def deadline(self) -> float | None:
        waiting = self.waiting
        times = [self._timers.deadline(), self.connection.deadline(waiting)]
        if self._sub_protocol is not None:
            times.append(self._sub_protocol.deadline(self._is_live))
        if waiting and self.connection.state == UP:
            times.append(self._ping_at())
        elif waiting and self._patience is not None and self._down_since is not None:
            times.append(self._down_since + self._patience)
        return min((when for when in times if when is not None), default=None)

    def _check_patience(self, now: Now, effects: SessionEffects) -> None:
        if self.connection.state == UP or not self.waiting:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = now.mono
        elif self._patience is not None and now.mono >= self._down_since + self._patience:
            self._fail_all(codes.UNREACHABLE, self._silence_reason(), now, effects)

    def _ping_at(self) -> float:
        return max(self.connection.last_received, self._pinged) + self.connection.interval

    def _start_waiting(self, now: Now, effects: SessionEffects) -> None:
        """Start measuring silence now: nothing was expected before."""
        connection = self.connection
        silent_seconds = now.mono - connection.last_received
        connection.last_received = now.mono
        self._pinged = now.mono
        if connection.state == UP and silent_seconds > STALE_SECONDS:
            connection.negotiate(now, effects)
        self._down_since = None if connection.state == UP else now.mono

    def _add(self, call: PendingCall, table: dict[str, PendingCall], now: Now, effects: SessionEffects) -> None:
        if not self.waiting:
            self._start_waiting(now, effects)
        call.deadline += now.mono
        self._timers.add(call, now.mono)
        table[call.id] = call

    def _send(self, call: PendingCall, now: Now, effects: SessionEffects) -> None:
        call.sent = self._connection_number
        if call.options is not None:
            effects.sends.append(("MANAGEMENTREQ", call.options, *call.bodies))
            return
        options: dict[str, Any] = {
            "service": call.service,
            "id": call.id,
            "timeout": max(call.deadline - GRACE_SECONDS - now.mono, MIN_TIMEOUT_SECONDS),
        }
        if call.retry:
            options["retry"] = True
        effects.sends.append(("REQUEST", options, *call.bodies))
        self.connection.last_sent = now.mono

    def _remove(self, table: dict[str, PendingCall], id_: Any) -> PendingCall | None:
        call = table.pop(id_, None)
        if call is not None:
            call.ended = True
            self._timers.remove(call)
        return call

    def _ping(self, now: Now, effects: SessionEffects) -> None:
        """Check that the broker is alive, and that it is the same one."""
        self._pinged = now.mono
        effects.sends.append(("REQUEST", {"service": "scale0.ping", "id": PING_ID}))

    def _receive_ping_reply(self, bodies: Sequence[bytes], now: Now, effects: SessionEffects) -> None:
        """Handle the answer to a ping; a broker with another boot id does not know our requests."""
        try:
            reply = msgspec.json.decode(bodies[0], type=PingReply) if bodies else PingReply()
        except (msgspec.DecodeError, RecursionError, ValueError):
            return
        known, self._last_ping_reply = self._last_ping_reply, reply
        addresses = self.connection.addresses
        addresses.set_name(reply.broker)
        addresses.set_owner(reply.owner)
        self._has_named_owner = True
        if self._sub_protocol is not None:
            self._sub_protocol.set_owner(addresses.owner, addresses.is_shared)
        if known is None or known == reply:
            return
        message = "the broker was restarted; the request may or may not have run"
        for table in (self._calls, self._commands):
            for call in list(table.values()):
                if 0 < call.sent < self._connection_number and (not call.retry or call.has_parts):
                    self._remove(table, call.id)
                    effects.notifications.append(CallFailed(call.tag, codes.BACKEND_DIED, message))

    def _send_unsent(self, now: Now, effects: SessionEffects) -> None:
        for call in self._calls.values():
            if not call.sent:
                self._send(call, now, effects)

    def _resume(self, now: Now, effects: SessionEffects) -> None:
        """Use a new connection: ping, send what was never sent, and send `retry` requests again."""
        self._connection_number += 1
        self._resumed = True
        self._has_named_owner = False
        self._ping(now, effects)
        # A management command is for the broker that the administrator named.
        self._return(now)
        for table in (self._commands, self._calls) if self.connection.addresses.was_given else (self._calls,):
            for call in table.values():
                if not call.sent or (call.retry and not call.has_parts):
                    self._send(call, now, effects)
        if self._sub_protocol is not None:
            addresses = self.connection.addresses
            self._sub_protocol.resume(addresses.owner or addresses.current, now, effects)

    def _return(self, now: Now) -> None:
        """Move back to the broker that the user named, if a command waits for it."""
        if self._must_return and self._is_live:
            self._must_return = False
            if not self.connection.addresses.was_given and any(not call.sent for call in self._commands.values()):
                self.connection.return_home(now)

    def _end_reason(self) -> tuple[int, str]:
        ended = self.connection.ended
        return (ended.code, ended.message) if ended is not None else (codes.NOT_SERVING, "the client was closed")

    def _timeout_reason(self) -> tuple[int, str]:
        return codes.NO_ANSWER if self.connection.state == UP else codes.UNREACHABLE, self._silence_reason()

    def _silence_reason(self) -> str:
        connection = self.connection
        if connection.state == UP:
            return "no answer in time"
        why = f" ({connection.refusal})" if connection.refusal else ""
        return f"{connection.endpoint} cannot be reached{why}"

    def _fail_all(self, code: int, message: str, now: Now, effects: SessionEffects) -> None:
        for table in (self._calls, self._commands):
            for call in list(table.values()):
                self._remove(table, call.id)
                effects.notifications.append(CallFailed(call.tag, code, message))
        if self._sub_protocol is not None:
            self._sub_protocol.fail(code, message, effects)
