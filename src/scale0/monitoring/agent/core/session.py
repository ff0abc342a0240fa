"""An agent's side of its session with Helen, across reconnects, without the socket.

The session connects with backoff, sends hello and heartbeats, answers Helen's requests, and keeps a window of
unacknowledged reports. Invariants: it sends no version 2 message before `accepted`; it reports every offered token
once, as delivered or undelivered; it sends an answer only on the connection of its request; every attempt to connect
waits a random time, and every wait has a deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.backoff import pause
from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.effects import (
    Address,
    AgentEffects,
    Delivered,
    HelenLost,
    Logged,
    Redirected,
    ReloadNow,
    RunCheck,
    SessionAccepted,
    SessionRefused,
    TakeSchedule,
    Undelivered,
)
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.encoder import encode
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, MAX_INT, MAX_LINE_BYTES, VERSION_2, AgentMessage
from scale0.monitoring.protocol.parser import ParsedItem, ParseFault, Parser
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding, write_result

if TYPE_CHECKING:
    import random

REPORT_WINDOW: Final = 1_000
"""Reports that are sent and not acknowledged."""
MAX_UNACKED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of unacknowledged reports; above it the session accepts no more, because they fill the send buffer."""
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 45.0
"""Under the minute that clients may wait: a whole fleet is back within one, handshakes included."""
STEADY_SECONDS: Final = 30.0
"""A connection that was up for this long resets the backoff. Shorter ones increase it: two machines with the same
certificate disconnect each other."""
OPEN_SECONDS: Final = 15.0
"""The deadline for a connection and its handshake, and the first one for an answer to hello."""
MAX_ANSWER_SECONDS: Final = 3_600.0
"""The longest deadline for an answer to hello. A Helen of version 1 may send nothing for hours; one of version 2
whose machine is gone never answers. The deadline doubles with every connection on which nothing was received."""
LOST_AFTER_HEARTBEATS: Final = 3
MAX_ANSWERED: Final = 1_024
"""Answered message ids to remember, so that a repeated request is not run again."""
MAX_CHECK_NAME_BYTES: Final = MAX_LINE_BYTES - 64
"""A longer name fits into `check`, but not into the `result` that answers it."""
MAX_LOGGED_CHARS: Final = 200

DOWN: Final = "down"
OPENING: Final = "opening"
GREETED: Final = "greeted"
"""Hello was sent: the session uses version 1 until Helen accepts version 2."""
ACCEPTED: Final = "accepted"
ENDED: Final = "ended"

_CONNECTED: Final = (GREETED, ACCEPTED)


class AgentSession:
    """At most one connection at a time, to one of the configured addresses."""

    def __init__(self, addresses: Sequence[Address], software: str, rng: random.Random) -> None:
        if not addresses:
            raise ValueError("an agent needs the address of at least one Helen")
        self._addresses = list(addresses)
        self._next = 0
        self._redirect: Address | None = None
        """The target of a redirect; None: the session uses an address of its own list."""
        self._hello = encode(messages.Hello(VERSION_2, software))
        self._rng = rng
        self.state = DOWN
        self._failures = 0
        self._retry_at: float | None = None
        self._open_by = 0.0
        self._answer_by: float | None = None
        """When the session gives up a connection on which it received nothing; None: it received something."""
        self._unanswered = 0
        """Connections in a row on which nothing was received."""
        self._parser = Parser(to_helen=False)
        self._up_at = 0.0
        self._received_at = 0.0
        self._sent_at = 0.0
        self._heartbeat = 0.0
        self._pings = 0
        self._last_run_id = 0
        self._runs: dict[int, tuple[int, str]] = {}
        """By run id: message id and name of the checks that Helen waits for on this connection."""
        self._open_ids: set[int] = set()
        self._answered: dict[int, None] = {}
        self._sequence = 0
        self._unacked: deque[tuple[int, Any, int]] = deque()
        """Sequence number, token and size of each report sent on this connection, oldest first."""
        self._unacked_bytes = 0

    @property
    def address(self) -> Address:
        """The address that it is connected to, or tries next."""
        return self._redirect or self._addresses[self._next % len(self._addresses)]

    @property
    def room(self) -> int:
        if self.state != ACCEPTED or self._unacked_bytes >= MAX_UNACKED_BYTES:
            return 0
        return REPORT_WINDOW - len(self._unacked)

    def start(self, now: Now, effects: AgentEffects) -> None:
        """Connect after a random time: a whole fleet may start at the same moment."""
        if self.state == DOWN and self._retry_at is None:
            self._retry_at = now.mono + self._backoff_seconds()

    def end(self, now: Now, effects: AgentEffects) -> None:
        if self.state == ENDED:
            return
        self._disconnect(effects)
        self.state = ENDED
        self._retry_at = None

    def opened(self, now: Now, effects: AgentEffects) -> None:
        """The TLS handshake succeeded, and both certificates are valid."""
        if self.state != OPENING:
            return
        self.state = GREETED
        self._up_at = self._received_at = now.mono
        self._answer_by = now.mono + pause(OPEN_SECONDS, MAX_ANSWER_SECONDS, self._unanswered)
        self._send_bytes(self._hello, now, effects)

    def received(self, data: bytes, now: Now, effects: AgentEffects) -> None:
        if self.state not in _CONNECTED:
            return
        self._received_at = now.mono
        self._answer_by = None
        self._unanswered = 0
        for message in self._parser.feed(data):
            self._handle(message, now, effects)
            if self.state not in _CONNECTED:
                return

    def lost(self, reason: str, now: Now, effects: AgentEffects) -> None:
        if self.state not in (DOWN, ENDED):
            steady = self.state in _CONNECTED and now.mono - self._up_at >= STEADY_SECONDS
            self._failures = 0 if steady else self._failures + 1
            self._back_off(reason, now, effects)

    def tick(self, now: Now, effects: AgentEffects) -> None:
        if self.state == DOWN:
            if self._retry_at is not None and self._retry_at <= now.mono:
                self._retry_at = None
                self.state = OPENING
                self._open_by = now.mono + OPEN_SECONDS
                effects.open = self.address
        elif self.state == OPENING:
            if self._open_by <= now.mono:
                self._abort(f"no connection within {OPEN_SECONDS:g} seconds", now, effects)
        elif self.state == GREETED:
            if self._answer_by is not None and self._answer_by <= now.mono:
                self._unanswered += 1
                self._abort(f"no answer to hello within {now.mono - self._up_at:.0f} seconds", now, effects)
        elif self.state == ACCEPTED:
            self._check_heartbeat(now, effects)

    def deadline(self) -> float | None:
        """When `tick` must be called, on the monotonic clock."""
        if self.state == DOWN:
            return self._retry_at
        if self.state == OPENING:
            return self._open_by
        if self.state == GREETED:
            return self._answer_by
        if self.state == ACCEPTED:
            return min(self._sent_at + self._heartbeat, self._received_at + LOST_AFTER_HEARTBEATS * self._heartbeat)
        return None

    def finished(self, run_id: int, body: bytes, now: Now, effects: AgentEffects) -> None:
        """Answer a check that Helen requested. If its connection was lost, the result is dropped."""
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        message_id, name = run
        self._open_ids.discard(message_id)
        self._answered[message_id] = None
        if len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]
        if len(body) > MAX_BLOB_BYTES:
            body = write_result(CheckFinding(UNKNOWN, f"the result has {len(body)} bytes, more than {MAX_BLOB_BYTES}"))
        self._send(messages.Result(message_id, name, body), now, effects)

    def offer(self, name: str, body: bytes, token: Any, now: Now, effects: AgentEffects) -> None:
        """Send a report. The updates return its token as delivered or undelivered, at once if it cannot be sent.

        A caller that checks `room` before each report also respects the limit in bytes, which rejects no report by
        itself. ValueError: the report can never be sent (a name with a space, a body that is too long); its token is
        not returned.
        """
        if self._sequence >= MAX_INT and self.state == ACCEPTED:
            self._abort("the sequence numbers of this connection are exhausted", now, effects)
        data = encode(messages.Report(min(self._sequence + 1, MAX_INT), name, body))
        if self.state != ACCEPTED or len(self._unacked) >= REPORT_WINDOW:
            effects.updates.append(Undelivered((token,)))
            return
        self._sequence += 1
        self._unacked.append((self._sequence, token, len(data)))
        self._unacked_bytes += len(data)
        self._send_bytes(data, now, effects)

    def _handle(self, message: ParsedItem, now: Now, effects: AgentEffects) -> None:
        """Before `accepted` only the messages of version 1, and the two that may end a connection, are valid."""
        match message:
            case ParseFault(reason):
                self._abort(f"protocol error in Helen's data: {reason}", now, effects)
            case messages.Check():
                self._start_check(message, effects)
            case messages.Reload():
                effects.updates.append(ReloadNow())
            case messages.Error(text):
                effects.updates.append(SessionRefused(text))
                self._abort("Helen refused the session", now, effects)
            case messages.Redirect(text):
                self._follow_redirect(text, now, effects)
            case messages.Accepted(seconds):
                self._heartbeat = float(max(seconds, 1))  # 0 would send pings in an endless loop
                self.state = ACCEPTED
                effects.updates.append(SessionAccepted(seconds))
            case messages.UnknownMessage(line):
                effects.updates.append(Logged(f"unknown command ignored: {line[:MAX_LOGGED_CHARS]!r}"))
            case _ if self.state != ACCEPTED:
                effects.updates.append(Logged(f"{type(message).__name__} before Accepted ignored"))
            case messages.Ping(message_id):
                self._send(messages.Pong(message_id), now, effects)
            case messages.Pong():
                pass
            case messages.Schedule(_, body):
                effects.updates.append(TakeSchedule(body))
            case messages.Ack(sequence):
                self._acknowledge(sequence, now, effects)
            case _:
                effects.updates.append(Logged(f"{type(message).__name__} is not for agents; ignored"))

    def _start_check(self, check: messages.Check, effects: AgentEffects) -> None:
        """Each message id is run once, and each run is answered once."""
        if check.message_id in self._open_ids or check.message_id in self._answered:
            effects.updates.append(Logged(f"check {check.message_id} was requested twice; it runs once"))
        elif len(check.name.encode()) > MAX_CHECK_NAME_BYTES:
            effects.updates.append(Logged(f"check {check.message_id} ignored: its name is too long for an answer"))
        else:
            self._last_run_id += 1
            self._runs[self._last_run_id] = (check.message_id, check.name)
            self._open_ids.add(check.message_id)
            effects.updates.append(RunCheck(self._last_run_id, check.name, check.args))

    def _acknowledge(self, sequence: int, now: Now, effects: AgentEffects) -> None:
        if sequence > self._sequence:
            self._abort(f"Helen acknowledged report {sequence}, but only {self._sequence} were sent", now, effects)
            return
        tokens = []
        while self._unacked and self._unacked[0][0] <= sequence:
            _, token, size = self._unacked.popleft()
            self._unacked_bytes -= size
            tokens.append(token)
        if tokens:
            effects.updates.append(Delivered(tuple(tokens)))

    def _follow_redirect(self, text: str, now: Now, effects: AgentEffects) -> None:
        """Follow a redirect, unless this connection is the result of one: two Helens could redirect in a loop."""
        address = parse_address(text)
        if address is None:
            self._abort(f"redirect to {text[:MAX_LOGGED_CHARS]!r}, which is not host:port", now, effects)
        elif self._redirect is not None:
            self._abort("second redirect in a row, not followed", now, effects)
        else:
            effects.updates.append(Redirected(address))
            self._disconnect(effects)
            self.state = DOWN
            self._redirect = address
            # The target is known to have room: earlier failures are no reason for a long wait.
            self._retry_at = now.mono + self._rng.random() * FIRST_BACKOFF_SECONDS

    def _check_heartbeat(self, now: Now, effects: AgentEffects) -> None:
        """Send a ping when one is due, and detect that Helen is silent."""
        # The same sums as in `deadline`: with another expression, rounding could make a deadline that never passes.
        if self._received_at + LOST_AFTER_HEARTBEATS * self._heartbeat <= now.mono:
            if self._sent_at + 2 * self._heartbeat > now.mono:
                self._abort(f"Helen was silent for {now.mono - self._received_at:.0f} seconds", now, effects)
                return
            # This agent sent nothing either, though it should have: it was suspended. Restart Helen's deadline.
            self._received_at = now.mono
        if self._sent_at + self._heartbeat <= now.mono:
            self._pings = self._pings % MAX_INT + 1
            self._send(messages.Ping(self._pings), now, effects)

    def _send(self, message: AgentMessage, now: Now, effects: AgentEffects) -> None:
        self._send_bytes(encode(message), now, effects)

    def _send_bytes(self, data: bytes, now: Now, effects: AgentEffects) -> None:
        self._sent_at = now.mono
        effects.sends.append(data)

    def _abort(self, reason: str, now: Now, effects: AgentEffects) -> None:
        """End a connection because of an error: it counts as a failure, however long it was up."""
        if now.mono - self._up_at >= STEADY_SECONDS and self.state in _CONNECTED:
            self._failures = 0
        self._failures += 1
        self._back_off(reason, now, effects)

    def _back_off(self, reason: str, now: Now, effects: AgentEffects) -> None:
        """Back off, and continue with the next address of the list."""
        self._disconnect(effects)
        self.state = DOWN
        self._next += 1
        self._redirect = None
        self._retry_at = now.mono + self._backoff_seconds()
        effects.updates.append(HelenLost(reason, self._retry_at))

    def _disconnect(self, effects: AgentEffects) -> None:
        """Drop all state of this connection; reports without an acknowledgement go back to their owner."""
        if self.state in (OPENING, *_CONNECTED):
            effects.close = True
        effects.open = None
        effects.sends.clear()
        self._parser = Parser(to_helen=False)
        self._runs.clear()
        self._open_ids.clear()
        self._answered.clear()
        self._pings = 0
        self._sequence = 0
        tokens = tuple(token for _, token, _ in self._unacked)
        self._unacked.clear()
        self._unacked_bytes = 0
        if tokens:
            effects.updates.append(Undelivered(tokens))

    def _backoff_seconds(self) -> float:
        """Full jitter. The ceiling doubles after every address of the list was tried.

        Within a round the next address is tried soon: a long wait before each of them would delay the return to the
        one that works.
        """
        rounds, tried = divmod(self._failures, len(self._addresses))
        ceiling = pause(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, 0 if tried else rounds)
        return self._rng.random() * ceiling


def parse_address(text: str) -> Address | None:
    """Split `host:port` or `[address]:port`; None: it is neither."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65_536:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    return (host, int(port)) if host and host.isprintable() and not set(host) & set(" []/@") else None
