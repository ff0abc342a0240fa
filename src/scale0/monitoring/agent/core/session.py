"""An agent's end of its connection to a Helen, over every reconnect, without the socket.

Lives here: connecting with backoff, hello, heartbeats, answers to what Helen asks, and the window of reports. Never
here: the news themselves (`agent_news`), running a check, the spool (it offers, and is told what arrived), or TLS.
Invariants: nothing of version 2 is said before `accepted`; every token offered is told once, as delivered or
undelivered; an answer goes out on the connection on which it was asked for, or not at all; every attempt to connect
waits a random time, and every wait has a deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.effects import (
    AgentEffects,
    Delivered,
    HelenLost,
    Logged,
    Place,
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
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, MAX_INT, MAX_LINE_BYTES, VERSION_2, Word
from scale0.monitoring.protocol.parser import Heard, ParseFault, Parser
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding, write_result

if TYPE_CHECKING:
    import random

REPORT_WINDOW: Final = 1_000
"""Reports that are sent and not acknowledged."""
MAX_UNACKED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of these, over which no more are taken: they wait in a buffer if Helen does not read."""
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 45.0
"""Under the minute that clients may wait: a whole fleet is back within one, handshakes included."""
STEADY_SECONDS: Final = 30.0
"""A connection that was up for so long was a success. Shorter ones lengthen the backoff: of two machines with one
certificate each puts the other out."""
OPEN_SECONDS: Final = 15.0
"""How long a connection and its handshake may take."""
LOST_AFTER_HEARTBEATS: Final = 3
MAX_ANSWERED: Final = 1_024
"""Message ids that are remembered after their answer, so that one sent again is not run again."""
MAX_CHECK_NAME_BYTES: Final = MAX_LINE_BYTES - 64
"""A longer name fits into `check`, but not into the `result` that answers it."""
MAX_LOGGED_CHARS: Final = 200

DOWN: Final = "down"
OPENING: Final = "opening"
GREETED: Final = "greeted"
"""Hello was said: version 1 is spoken, and may be all that there is."""
ACCEPTED: Final = "accepted"
ENDED: Final = "ended"

_CONNECTED: Final = (GREETED, ACCEPTED)


class AgentSession:
    """An agent's connection: at most one at a time, to one of its places."""

    def __init__(self, places: Sequence[Place], software: str, chance: random.Random) -> None:
        if not places:
            raise ValueError("an agent needs a Helen")
        self._places = list(places)
        self._turn = 0
        self._away: Place | None = None
        """Where we were redirected to; None: a place of our own list is tried."""
        self._hello = encode(messages.Hello(VERSION_2, software))
        self._chance = chance
        self.state = DOWN
        self._failures = 0
        self._retry_at: float | None = None
        self._open_by = 0.0
        self._parser = Parser(to_helen=False)
        self._up_at = 0.0
        self._heard_at = 0.0
        self._said_at = 0.0
        self._heartbeat = 0.0
        self._pings = 0
        self._tickets = 0
        self._runs: dict[int, tuple[int, str]] = {}
        """By ticket: message id and name of the checks that Helen waits for on this connection."""
        self._open_ids: set[int] = set()
        self._answered: dict[int, None] = {}
        self._sequence = 0
        self._unacked: deque[tuple[int, Any, int]] = deque()
        """Sequence, token and bytes of each report that was sent on this connection, oldest first."""
        self._unacked_bytes = 0

    @property
    def place(self) -> Place:
        """Where it is, or tries to be."""
        return self._away or self._places[self._turn % len(self._places)]

    @property
    def room(self) -> int:
        """How many reports may be offered now; with every one it is less."""
        if self.state != ACCEPTED or self._unacked_bytes >= MAX_UNACKED_BYTES:
            return 0
        return REPORT_WINDOW - len(self._unacked)

    def start(self, now: Now, out: AgentEffects) -> None:
        """Connect, after a random time: a whole fleet may be started at once."""
        if self.state == DOWN and self._retry_at is None:
            self._retry_at = now.mono + self._wait()

    def end(self, now: Now, out: AgentEffects) -> None:
        """Leave, and do not come back."""
        if self.state == ENDED:
            return
        self._let_go(out)
        self.state = ENDED
        self._retry_at = None

    def opened(self, now: Now, out: AgentEffects) -> None:
        """TLS is up, and both certificates are good."""
        if self.state != OPENING:
            return
        self.state = GREETED
        self._up_at = self._heard_at = now.mono
        self._say_bytes(self._hello, now, out)

    def received(self, data: bytes, now: Now, out: AgentEffects) -> None:
        """Bytes from Helen."""
        if self.state not in _CONNECTED:
            return
        self._heard_at = now.mono
        for word in self._parser.feed(data):
            self._hear(word, now, out)
            if self.state not in _CONNECTED:
                return

    def lost(self, reason: str, now: Now, out: AgentEffects) -> None:
        """The connection is gone, or could not be made."""
        if self.state not in (DOWN, ENDED):
            steady = self.state in _CONNECTED and now.mono - self._up_at >= STEADY_SECONDS
            self._failures = 0 if steady else self._failures + 1
            self._leave(reason, now, out)

    def tick(self, now: Now, out: AgentEffects) -> None:
        """Time has passed."""
        if self.state == DOWN:
            if self._retry_at is not None and self._retry_at <= now.mono:
                self._retry_at = None
                self.state = OPENING
                self._open_by = now.mono + OPEN_SECONDS
                out.open = self.place
        elif self.state == OPENING:
            if self._open_by <= now.mono:
                self._give_up(f"no connection within {OPEN_SECONDS:g} seconds", now, out)
        elif self.state == ACCEPTED:
            self._beat(now, out)

    def deadline(self) -> float | None:
        """When `tick` has something to do, by the monotonic clock."""
        if self.state == DOWN:
            return self._retry_at
        if self.state == OPENING:
            return self._open_by
        if self.state == ACCEPTED:
            return min(self._said_at + self._heartbeat, self._heard_at + LOST_AFTER_HEARTBEATS * self._heartbeat)
        return None

    def finished(self, ticket: int, body: bytes, now: Now, out: AgentEffects) -> None:
        """The result of a check that Helen asked for. If its connection is gone, nobody waits for it any more."""
        run = self._runs.pop(ticket, None)
        if run is None:
            return
        message_id, name = run
        self._open_ids.discard(message_id)
        self._answered[message_id] = None
        if len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]
        if len(body) > MAX_BLOB_BYTES:
            body = write_result(CheckFinding(UNKNOWN, f"the result has {len(body)} bytes, more than {MAX_BLOB_BYTES}"))
        self._say(messages.Result(message_id, name, body), now, out)

    def offer(self, name: str, body: bytes, token: Any, now: Now, out: AgentEffects) -> None:
        """Send a report. Its token comes back in the news, as delivered or undelivered: at once, if it cannot be sent.

        Who looks at `room` before each one keeps to the bytes as well; these alone turn no report away. ValueError: it
        can never be sent (a name with a space, a body that is too long); the token is not taken.
        """
        if self._sequence >= MAX_INT and self.state == ACCEPTED:
            self._give_up("the numbers of this connection are used up", now, out)
        data = encode(messages.Report(min(self._sequence + 1, MAX_INT), name, body))
        if self.state != ACCEPTED or len(self._unacked) >= REPORT_WINDOW:
            out.news.append(Undelivered((token,)))
            return
        self._sequence += 1
        self._unacked.append((self._sequence, token, len(data)))
        self._unacked_bytes += len(data)
        self._say_bytes(data, now, out)

    def _hear(self, word: Heard, now: Now, out: AgentEffects) -> None:
        """One message of Helen's. Version 2 is not for before `accepted`; the two that may end a connection are."""
        match word:
            case ParseFault(reason):
                self._give_up(f"Helen is not understood: {reason}", now, out)
            case messages.Check():
                self._take_check(word, out)
            case messages.Reload():
                out.news.append(ReloadNow())
            case messages.Error(message):
                out.news.append(SessionRefused(message))
                self._give_up("Helen refused", now, out)
            case messages.Redirect(text):
                self._go_there(text, now, out)
            case messages.Accepted(seconds):
                self._heartbeat = float(max(seconds, 1))  # 0 would be a ping without end
                self.state = ACCEPTED
                out.news.append(SessionAccepted(seconds))
            case messages.UnknownMessage(line):
                out.news.append(Logged(f"a command that is not known: {line[:MAX_LOGGED_CHARS]!r}"))
            case _ if self.state != ACCEPTED:
                out.news.append(Logged(f"{type(word).__name__} before Accepted is ignored"))
            case messages.Ping(message_id):
                self._say(messages.Pong(message_id), now, out)
            case messages.Pong():
                pass
            case messages.Schedule(_, body):
                out.news.append(TakeSchedule(body))
            case messages.Ack(sequence):
                self._take_ack(sequence, now, out)
            case _:
                out.news.append(Logged(f"{type(word).__name__} is not done here, and ignored"))

    def _take_check(self, check: messages.Check, out: AgentEffects) -> None:
        """One run per message id, and one answer per run."""
        if check.message_id in self._open_ids or check.message_id in self._answered:
            out.news.append(Logged(f"check {check.message_id} came twice; it is run once"))
        elif len(check.name.encode()) > MAX_CHECK_NAME_BYTES:
            out.news.append(Logged(f"check {check.message_id} has a name that is too long to be answered"))
        else:
            self._tickets += 1
            self._runs[self._tickets] = (check.message_id, check.name)
            self._open_ids.add(check.message_id)
            out.news.append(RunCheck(self._tickets, check.name, check.args))

    def _take_ack(self, sequence: int, now: Now, out: AgentEffects) -> None:
        """All up to it are stored."""
        if sequence > self._sequence:
            self._give_up(f"an ack for report {sequence}, of {self._sequence} that were sent", now, out)
            return
        tokens = []
        while self._unacked and self._unacked[0][0] <= sequence:
            _, token, size = self._unacked.popleft()
            self._unacked_bytes -= size
            tokens.append(token)
        if tokens:
            out.news.append(Delivered(tuple(tokens)))

    def _go_there(self, text: str, now: Now, out: AgentEffects) -> None:
        """Follow a redirect, unless one brought us here: two Helens could send us to and fro."""
        place = read_place(text)
        if place is None:
            self._give_up(f"a redirect to {text[:MAX_LOGGED_CHARS]!r}, which is no host:port", now, out)
        elif self._away is not None:
            self._give_up("a second redirect, which is not followed", now, out)
        else:
            out.news.append(Redirected(place))
            self._let_go(out)
            self.state = DOWN
            self._away = place
            # There is room, and that is known: what went wrong before is no reason to wait for long.
            self._retry_at = now.mono + self._chance.random() * FIRST_BACKOFF_SECONDS

    def _beat(self, now: Now, out: AgentEffects) -> None:
        """Be heard, and notice when Helen is not."""
        # The same sums as in `deadline`: compared otherwise, rounding could make a deadline that never comes.
        if self._heard_at + LOST_AFTER_HEARTBEATS * self._heartbeat <= now.mono:
            if self._said_at + 2 * self._heartbeat > now.mono:
                self._give_up(f"Helen was silent for {now.mono - self._heard_at:.0f} seconds", now, out)
                return
            # We said nothing either, though we should have: it is we who slept. Helen gets her time anew.
            self._heard_at = now.mono
        if self._said_at + self._heartbeat <= now.mono:
            self._pings = self._pings % MAX_INT + 1
            self._say(messages.Ping(self._pings), now, out)

    def _say(self, word: Word, now: Now, out: AgentEffects) -> None:
        self._say_bytes(encode(word), now, out)

    def _say_bytes(self, data: bytes, now: Now, out: AgentEffects) -> None:
        self._said_at = now.mono
        out.sends.append(data)

    def _give_up(self, reason: str, now: Now, out: AgentEffects) -> None:
        """End a connection by our own judgement: that is never a success, however long it was up."""
        if now.mono - self._up_at >= STEADY_SECONDS and self.state in _CONNECTED:
            self._failures = 0
        self._failures += 1
        self._leave(reason, now, out)

    def _leave(self, reason: str, now: Now, out: AgentEffects) -> None:
        """Back off, and go on with the next place of the list."""
        self._let_go(out)
        self.state = DOWN
        self._turn += 1
        self._away = None
        self._retry_at = now.mono + self._wait()
        out.news.append(HelenLost(reason, self._retry_at))

    def _let_go(self, out: AgentEffects) -> None:
        """Forget all that belongs to this connection; what Helen has not acknowledged goes back to its owner."""
        if self.state in (OPENING, *_CONNECTED):
            out.close = True
        out.open = None
        out.sends.clear()
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
            out.news.append(Undelivered(tokens))

    def _wait(self) -> float:
        """Full jitter. The ceiling is doubled when every place of the list has had its turn.

        Within a round the next place is tried soon: who waits long before each of them comes back late to the one
        that is there.
        """
        rounds, tried = divmod(self._failures, len(self._places))
        ceiling = FIRST_BACKOFF_SECONDS * 2.0 ** (0 if tried else min(rounds, 16))
        return self._chance.random() * min(MAX_BACKOFF_SECONDS, ceiling)


def read_place(text: str) -> Place | None:
    """`host:port` or `[address]:port` in its parts; None: it is neither."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65_536:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    return (host, int(port)) if host and host.isprintable() and not set(host) & set(" []/@") else None
