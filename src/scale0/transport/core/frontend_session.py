"""A frontend's session: requests over a line that may break.

Lives here: what is outstanding, what is sent again after a reconnect, and when an answer is given up. Never here: the
socket, or how a caller waits. Invariant: every call ends in exactly one `CallAnswered` or `CallFailed`, at the latest
one grace after its timeout, whatever the broker does. A request that may not run twice is never sent twice; what was
written to a connection that never came to be was not sent. Another protocol may ride on the same line: what starts with
`{` or `[` is the rider's, and it is told of every connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

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
    why_not,
)
from scale0.transport.core.command_table import told_codec
from scale0.transport.core.session import DOWN, ENDED, UP, Session
from scale0.transport.core.session_effects import SessionEffects
from scale0.transport.core.sockets import FRONTEND
from scale0.transport.core.sub_protocol import SubProtocol

if TYPE_CHECKING:
    import random

MIN_TIMEOUT_SECONDS: Final = 0.001
"""What is left, at the least, when a request is sent again at its very end."""
PING_ID: Final = "~"
BOUND_SECONDS: Final = 30.0
"""How long a broker that is gone is waited for because of what only it knows, before another one is looked for."""
STALE_SECONDS: Final = 30.0
"""After this long in silence the broker may have forgotten us: negotiate again before asking."""


class FrontendSession:
    """A frontend, without the socket."""

    def __init__(
        self,
        endpoints: Sequence[str],
        identity: str | None,
        chance: random.Random,
        patience: float | None = None,
        limits: Limits | None = None,
        rider: SubProtocol | None = None,
    ) -> None:
        """With `patience`, calls fail once no broker could be reached for that long, whatever their timeout."""
        self._limits = limits or Limits()
        self._codec = told_codec(self._limits)
        self.line = Session(
            FRONTEND, endpoints, identity, chance, lambda: None, None, is_idle=lambda: self.is_idle, stays=self._stays
        )
        self._calls: dict[str, PendingCall] = {}
        self._commands: dict[str, PendingCall] = {}
        self._rider = rider
        self._timers: LazyTimerWheel[PendingCall] = LazyTimerWheel()
        self._prefix = f"{chance.getrandbits(32):x}."
        self._next = 0
        self._boot: PingReply | None = None
        self._connection = 0
        self._patience = patience
        self._down_since: float | None = None
        self._pinged = 0.0
        self._bound_since: float | None = None
        self._resumed = False
        """On the connection that is there, or was last, something may have left."""
        self._heard_here = False
        """On that connection somebody was there."""

    @property
    def waiting(self) -> bool:
        """True while somebody expects an answer."""
        return bool(self._calls) or bool(self._commands) or (self._rider is not None and self._rider.waiting)

    @property
    def is_idle(self) -> bool:
        """True while nobody expects anything that left for this broker."""
        calls = (call for table in (self._calls, self._commands) for call in table.values())
        return not any(call.sent for call in calls) and (self._rider is None or not self._rider.bound)

    @property
    def _live(self) -> bool:
        """True while there is a connection, taken in or not, to a broker that we use."""
        return self.line.is_live

    def _stays(self, now: Now) -> bool:
        """What another protocol asked this broker, no other can answer: it is waited for, but not for ever."""
        rider = self._rider
        if rider is None or not self._heard_here or not rider.bound:
            self._bound_since = None
            return False
        if self._bound_since is None:
            self._bound_since = now.mono
        return now.mono < self._bound_since + BOUND_SECONDS

    def start(self, now: Now, out: SessionEffects) -> None:
        """Connect."""
        self.line.start(now, out)
        self._resume(now, out)

    def end(self, now: Now, out: SessionEffects) -> None:
        """Leave in order; whatever is outstanding fails."""
        self.line.end(now, out)
        self._fail_all(codes.NOT_SERVING, "the client was closed", now, out)

    def request(
        self,
        service: str,
        bodies: Sequence[bytes],
        timeout: float,
        retry: bool,
        tag: Any,
        now: Now,
        out: SessionEffects,
    ) -> None:
        """Ask; the answer comes as news with this tag."""
        if self.line.state == ENDED:
            out.news.append(CallFailed(tag, *self._why_ended()))
            return
        refusal = why_not(service, bodies, self._limits)
        if refusal is not None:
            out.news.append(CallFailed(tag, refusal.code, refusal.message))
            return
        self._next += 1
        call = PendingCall(f"{self._prefix}{self._next:x}", service, bodies, timeout, retry, tag)
        self._open(call, self._calls, now, out)
        if self._live:
            self._send(call, now, out)

    def ride(self, do: Callable[[Now], None], now: Now, out: SessionEffects) -> None:
        """Let the rider's owner ask it for something, and send what comes of it."""
        rider = self._rider
        if rider is None:
            raise AssertionError("nobody rides on this line")
        was_waiting = self.waiting
        do(now)
        if self.line.state == ENDED:
            rider.fail(*self._why_ended(), out)
            return
        if not was_waiting:
            self._expect(now, out)
        if self._live:
            rider.flush(now, out)

    def manage(
        self, said: dict[str, Any], body: bytes, timeout: float, tag: Any, now: Now, out: SessionEffects
    ) -> None:
        """A management command; it is sent once, and at once: a broker that serves nobody still takes it."""
        if self.line.state == ENDED:
            out.news.append(CallFailed(tag, *self._why_ended()))
            return
        self._next += 1
        call = PendingCall(f"{self._prefix}{self._next:x}", "", (body,) if body else (), timeout, False, tag)
        call.said = {**said, "id": call.id}
        self._open(call, self._commands, now, out)
        if self._live and self.line.book.was_given:
            self._send(call, now, out)

    def closed(self, reason: str, now: Now, out: SessionEffects) -> None:
        """The socket says that the connection is gone."""
        self.line.closed(reason, now, out)

    def unsent(self, messages: Sequence[Any]) -> None:
        """These never left: the connection was gone. They go with the next one."""
        for message in messages:
            if isinstance(message, list):
                if self._rider is not None:
                    self._rider.unsent(message[0])
                continue
            command, said = message[0], message[1]
            if command in ("REQUEST", "MANAGEMENTREQ"):
                table = self._calls if command == "REQUEST" else self._commands
                call = table.get(said["id"])
                if call is not None:
                    call.sent = 0

    def never_connected(self) -> None:
        """The last connection never came to be: nothing that was sent on it has left."""
        if not self._resumed:
            return
        for table in (self._commands, self._calls):
            for call in table.values():
                if call.sent == self._connection:
                    call.sent = 0
        if self._rider is not None:
            self._rider.never_connected()

    def receive(self, frames: list[bytes], now: Now, out: SessionEffects) -> None:
        """One message from the broker."""
        line = self.line
        line.heard = now.mono
        if not frames or line.state in (DOWN, ENDED):
            self._hear_late(frames)
            return
        self._heard_here = True
        was_live = self._live
        self._take(frames, now, out)
        if not was_live and self._live:
            self._resume(now, out)

    def _hear_late(self, frames: list[bytes]) -> None:
        """A broker that does not serve refuses all of us, and then each call: those go with the next connection."""
        for command, said, _ in self._codec.messages(frames) if frames[:1] == [codec.MAGIC] else ():
            if command == "ERROR" and said.unrun and (call := self._calls.get(said.id)) and not call.spoke:
                call.sent = 0

    def _take(self, frames: list[bytes], now: Now, out: SessionEffects) -> None:
        if frames[0] != codec.MAGIC:
            if self._rider is not None and len(frames) == 1 and frames[0][:1] in (b"{", b"["):
                self._rider.receive(frames[0], now, out)
                self._rider.flush(now, out)
            return
        for command, said, bodies in self._codec.messages(frames):
            self._heed(command, said, bodies, now, out)

    def _heed(self, command: str, said: Any, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> None:
        if command == "REPLY":
            call = self._close(self._calls, said.id)
            if call is not None:
                out.news.append(CallAnswered(call.tag, bodies))
            elif said.id == PING_ID:
                self._met(bodies, now, out)
        elif command == "PARTIAL":
            call = self._calls.get(said.id)
            if call is not None:
                call.spoke = True
                out.news.append(PartialReply(call.tag, bodies))
        elif command == "ERROR":
            call = self._calls.get(said.id)
            if call is not None and said.unrun and not call.spoke and self.line.is_moving:
                call.sent = 0  # it was not taken; we are about to go where it is
            elif call is not None:
                self._close(self._calls, said.id)
                out.news.append(CallFailed(call.tag, said.code, said.message))
        elif command == "MANAGEMENTREP":
            call = self._close(self._commands, said.id)
            if call is not None:
                out.news.append(ManagementAnswered(call.tag, said.code, said.message, bodies[0] if bodies else b""))
        elif command == "DISCONNECTERROR" and said.code == codes.NOT_SERVING and self._commands:
            # It serves nobody, but answers its administrators: stay until it has.
            self.line.refusal = f"{said.code} {said.message}"
        else:
            self.line.receive(command, said, bodies, now, out)
            if self.line.state == UP:
                self._bound_since = None
            elif self.line.state == ENDED:
                self._fail_all(*self._why_ended(), now, out)

    def tick(self, now: Now, out: SessionEffects) -> None:
        """Give up what is over; look after the line."""
        for call in self._timers.expire(now.mono):
            table = self._calls if call.said is None else self._commands
            if table.pop(call.id, None) is not None:
                out.news.append(CallFailed(call.tag, *self._why_unanswered()))
        if self._rider is not None:
            self._rider.tick(self._why_unanswered, now, out)
            if self._live:
                self._rider.flush(now, out)
        self._lose_patience(now, out)
        line = self.line
        if line.state == UP and self._pinged <= line.heard:
            # Silence counts from the question: a caller may start calls, and look for the answers much later.
            line.heard = max(line.heard, now.mono - line.interval)
        was_live, was_moving = self._live, line.is_moving
        line.tick(self.waiting, now, out)
        if out.open is not None:
            self._resumed = self._heard_here = False
        if not was_live and self._live:
            self._resume(now, out)
        elif was_moving and self._live and not line.is_moving:
            self._send_held(now, out)  # we stay after all
        elif self.waiting and line.state == UP and now.mono >= self._probe_at():
            self._ping(now, out)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        waiting = self.waiting
        times = [self._timers.deadline(), self.line.deadline(waiting)]
        if self._rider is not None:
            times.append(self._rider.deadline(self._live))
        if waiting and self.line.state == UP:
            times.append(self._probe_at())
        elif waiting and self._patience is not None and self._down_since is not None:
            times.append(self._down_since + self._patience)
        return min((when for when in times if when is not None), default=None)

    def _lose_patience(self, now: Now, out: SessionEffects) -> None:
        if self.line.state == UP or not self.waiting:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = now.mono
        elif self._patience is not None and now.mono >= self._down_since + self._patience:
            self._fail_all(codes.UNREACHABLE, self._why_silent(), now, out)

    def _probe_at(self) -> float:
        return max(self.line.heard, self._pinged) + self.line.interval

    def _expect(self, now: Now, out: SessionEffects) -> None:
        """Silence counts from now: nothing was expected before."""
        line = self.line
        quiet = now.mono - line.heard
        line.heard = now.mono
        self._pinged = now.mono
        if line.state == UP and quiet > STALE_SECONDS:
            line.negotiate(now, out)
        self._down_since = None if line.state == UP else now.mono

    def _open(self, call: PendingCall, table: dict[str, PendingCall], now: Now, out: SessionEffects) -> None:
        if not self.waiting:
            self._expect(now, out)
        call.deadline += now.mono
        self._timers.add(call, now.mono)
        table[call.id] = call

    def _send(self, call: PendingCall, now: Now, out: SessionEffects) -> None:
        call.sent = self._connection
        if call.said is not None:
            out.sends.append(("MANAGEMENTREQ", call.said, *call.bodies))
            return
        said: dict[str, Any] = {
            "service": call.service,
            "id": call.id,
            "timeout": max(call.deadline - GRACE_SECONDS - now.mono, MIN_TIMEOUT_SECONDS),
        }
        if call.retry:
            said["retry"] = True
        out.sends.append(("REQUEST", said, *call.bodies))
        self.line.sent = now.mono

    def _close(self, table: dict[str, PendingCall], id_: Any) -> PendingCall | None:
        call = table.pop(id_, None)
        if call is not None:
            call.ended = True
            self._timers.remove(call)
        return call

    def _ping(self, now: Now, out: SessionEffects) -> None:
        """Is it alive, and is it the one that we asked?"""
        self._pinged = now.mono
        out.sends.append(("REQUEST", {"service": "scale0.ping", "id": PING_ID}))

    def _met(self, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> None:
        """The broker told who it is, and since when: another than before has never heard of our requests."""
        try:
            pong = msgspec.json.decode(bodies[0], type=PingReply) if bodies else PingReply()
        except (msgspec.DecodeError, RecursionError, ValueError):
            return
        known, self._boot = self._boot, pong
        book = self.line.book
        book.met(pong.broker)
        book.told_owner(pong.owner)
        if self._rider is not None:
            self._rider.meet(book.owner, book.is_shared)
        if known is None or known == pong:
            return
        message = "the broker died or was restarted: it may or may not have been done"
        for table in (self._calls, self._commands):
            for call in list(table.values()):
                if 0 < call.sent < self._connection and (not call.retry or call.spoke):
                    self._close(table, call.id)
                    out.news.append(CallFailed(call.tag, codes.BACKEND_DIED, message))

    def _send_held(self, now: Now, out: SessionEffects) -> None:
        for call in self._calls.values():
            if not call.sent:
                self._send(call, now, out)

    def _resume(self, now: Now, out: SessionEffects) -> None:
        """A new connection: ask who is there, send what never left, and again what may run twice."""
        self._connection += 1
        self._resumed = True
        self._ping(now, out)
        # What an administrator says is for the broker that they named.
        for table in (self._commands, self._calls) if self.line.book.was_given else (self._calls,):
            for call in table.values():
                if not call.sent or (call.retry and not call.spoke):
                    self._send(call, now, out)
        if self._rider is not None:
            book = self.line.book
            self._rider.resume(book.owner or book.at, now, out)

    def _why_ended(self) -> tuple[int, str]:
        ended = self.line.ended
        return (ended.code, ended.message) if ended is not None else (codes.NOT_SERVING, "the client was closed")

    def _why_unanswered(self) -> tuple[int, str]:
        return codes.NO_ANSWER if self.line.state == UP else codes.UNREACHABLE, self._why_silent()

    def _why_silent(self) -> str:
        line = self.line
        if line.state == UP:
            return "no answer in time"
        return f"{line.endpoint} cannot be reached{f' ({line.refusal})' if line.refusal else ''}"

    def _fail_all(self, code: int, message: str, now: Now, out: SessionEffects) -> None:
        for table in (self._calls, self._commands):
            for call in list(table.values()):
                self._close(table, call.id)
                out.news.append(CallFailed(call.tag, code, message))
        if self._rider is not None:
            self._rider.fail(code, message, out)
