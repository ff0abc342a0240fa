"""A client's connection to a broker over every reconnect, without the socket: connecting with backoff, negotiation,
heartbeats, and moving to another broker.

Invariants: every wait has a deadline; every reconnect waits a random time; a configuration is never replaced by an
older one; 409 ends the session for good; a client does not leave a broker that answers while work is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from scale0.kernel import backoff, codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Message
from scale0.kernel.limits import MAX_HEARTBEAT_INTERVAL
from scale0.transport.core import messages
from scale0.transport.core.address_book import ENDPOINT, SERVER_KEY, AddressBook, SessionConfig

if TYPE_CHECKING:
    import random

FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0
RECHECK_SECONDS: Final = 0.15
"""Silence beyond the limit is checked again after this time: messages of a suspended process may not be read yet."""
MIN_ANSWER_SECONDS: Final = 3.0
"""The least time that a broker has to answer CHECKCONFIG or READY."""
MAX_URGENT_BACKOFF_SECONDS: Final = 5.0
"""The maximum reconnect delay of a frontend while a caller waits, and of a backend with work in flight: a longer one
could outlast the call, or the time for which a restarted broker keeps leases."""
MAX_NEXT_SECONDS: Final = 0.2
"""The maximum delay before the next address is tried; the backoff applies to a whole round of addresses."""
MAX_AFTER_SECONDS: Final = 600.0
"""The maximum time that a connected client waits before it follows CHANGEBROKER."""
MOVE_SECONDS: Final = 30.0
"""How long a client that was redirected waits for its work in flight; then it stays."""

KEYS_MISMATCH: Final = "encryption mismatch"
"""The prefix of a reason that concerns encryption keys."""

DOWN: Final = "down"
ASKING: Final = "asking"
"""Connected to a broker that is not the home broker; NEEDBROKER is unanswered."""
CHECKING: Final = "checking"
READYING: Final = "readying"
UP: Final = "up"
ENDED: Final = "ended"


class SessionEffects:
    """What a session wants done, in this order: close, open, send; and notifications for its owner."""

    __slots__ = ("close", "notifications", "open", "send_disconnect", "sends")

    def __init__(self) -> None:
        self.close = False
        self.send_disconnect = False
        """Send DISCONNECT on the connection that closes."""
        self.open: str | None = None
        self.sends: list[Message] = []
        self.notifications: list[Any] = []


class ConnectionLost(msgspec.Struct, frozen=True):
    """Notification: the connection is lost."""

    reason: str


class Connected(msgspec.Struct, frozen=True):
    """Notification: the broker has accepted us."""

    identity: str


class SessionEnded(msgspec.Struct, frozen=True):
    """Notification: the session has ended for good."""

    code: int
    message: str


class Session:
    def __init__(
        self,
        role: str,
        endpoints: Sequence[str],
        identity: str | None,
        rng: random.Random,
        services: Callable[[], list[str] | None],
        ready: Callable[[Now], Message] | None,
        is_idle: Callable[[], bool],
        stays: Callable[[Now], bool] = lambda _: False,
    ) -> None:
        """`ready` makes READY. `is_idle`: nothing is in flight. `stays`: no other broker can help for now."""
        self._role = role
        self.addresses = AddressBook(role, endpoints, rng)
        self._rng = rng
        self._services = services
        self._ready = ready
        self._is_idle = is_idle
        self._stays = stays
        self.identity = identity
        self.state = DOWN
        self.config_version: int | None = None
        self.config_hash: str | None = None
        self.config: bytes = b""
        self.request_batches = False
        """The broker of this connection accepts REQUESTS and REPLIES."""
        self.long_holds = False
        """It reads `holds` from the body of READY."""
        self.interval = 1.0
        self.liveness = 3
        self.last_received = 0.0
        self._suspected_at = -math.inf
        """When silence beyond the limit was first found."""
        self.last_sent = 0.0
        self._last_heartbeat = 0.0
        """When we last sent a HEARTBEAT: only that is always answered, so other messages do not replace it for long."""
        self.refusal = ""
        """The last error for which the broker disconnected us."""
        self.ended: SessionEnded | None = None
        """Set when the broker ended the session for good."""
        self._failures = 0
        self._retry_at: float | None = None
        self._urgent_retry_at = math.inf
        """When to reconnect while a caller waits."""
        self._asked_at = 0.0
        self._was_redirected = False
        """A broker redirected us here: NEEDBROKER is not sent again."""
        self._need_broker_sent = False
        """NEEDBROKER was sent on this connection."""
        self._negotiate_at: float | None = None
        """When to negotiate with the broker that answered NEEDBROKER."""
        self._move: PendingMove | None = None
        self.is_draining = False
        """Work is drained before a move: nothing new is accepted."""
        self._is_drained = False
        """The broker has confirmed that: no more work is on its way."""

    @property
    def endpoint(self) -> str:
        """The current endpoint, connected or not."""
        return self.addresses.current

    @property
    def is_moving(self) -> bool:
        """True after CHANGEBROKER, until the move is done or cancelled."""
        return self._move is not None

    @property
    def is_live(self) -> bool:
        """True while there is a connection to a broker that we use."""
        return self.state in (CHECKING, READYING, UP)

    def start(self, now: Now, effects: SessionEffects) -> None:
        """Connect at once: a start needs no backoff."""
        self._connect(now, effects)

    def end(self, now: Now, effects: SessionEffects) -> None:
        """Disconnect in order."""
        if self.state not in (DOWN, ENDED):
            # Also while CHECKCONFIG is unanswered: the broker may have registered us already.
            effects.sends.append(("DISCONNECT", {}))
        self.state = ENDED
        self._retry_at = None

    def closed(self, reason: str, now: Now, effects: SessionEffects) -> None:
        """The connection is lost, or was never established."""
        if self.state in (DOWN, ENDED):
            return
        was_up = self.state == UP
        if reason.startswith(KEYS_MISMATCH):
            reason = self.refusal = f"{reason}{self.addresses.key_hint}"
        self._drop(reason, effects)
        self._was_redirected = False
        ceiling = backoff.pause(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._failures)
        if (self.addresses.has_others and self._stays(now)) or self.addresses.next_endpoint():
            self._failures += 1
        elif not was_up:
            ceiling = MAX_NEXT_SECONDS
        fraction = self._rng.random()
        self._retry_at = now.mono + fraction * ceiling
        self._urgent_retry_at = now.mono + fraction * min(ceiling, MAX_URGENT_BACKOFF_SECONDS)

    def return_home(self, now: Now) -> None:
        """Move to the first address that the user gave, as after CHANGEBROKER."""
        self._move = PendingMove(self.addresses.first_given, self.addresses.home, now.mono)

    def _drop(self, reason: str, effects: SessionEffects) -> None:
        self.state = DOWN
        self._move, self._negotiate_at, self.is_draining, self._is_drained = None, None, False, False
        effects.close = True
        effects.notifications.append(ConnectionLost(reason))

    def negotiate(self, now: Now, effects: SessionEffects) -> None:
        # The broker may have forgotten which broker is our home.
        self._need_broker_sent = self._need_broker_sent and self.state != UP
        self.state = CHECKING
        self._asked_at = now.mono
        options: dict[str, Any] = {"config_type": "json", "batch": True, "request_batches": True}
        if self.identity is not None:
            options["identity"] = self.identity
        services = self._services()
        if services is not None:
            options["services"] = services
        if self.config_version is not None:
            options["config_version"], options["config_hash"] = self.config_version, self.config_hash
        effects.sends.append(("CHECKCONFIG", options))
        self.last_sent = now.mono

    def send_ready(self, now: Now, effects: SessionEffects) -> None:
        """Send READY, at the end of the negotiation or when the offer changes."""
        if self._ready is None:
            self._enter_up(now, effects)
            return
        if self.state == CHECKING:
            self.state = READYING
            self._asked_at = now.mono
        effects.sends.append(self._ready(now))
        self.last_sent = now.mono

    def receive(self, command: str, options: Any, bodies: Sequence[bytes], now: Now, effects: SessionEffects) -> bool:
        """Handle one message; False if it does not concern the session."""
        match command:
            case "HEARTBEAT":
                self.addresses.announce_server_key(options.server_key)
            case "CONFIG":
                self._receive_config(options, bodies, now, effects)
            case "CONFIGACK":
                self.identity = options.identity
                self.request_batches, self.long_holds = options.request_batches, options.long_holds
                self.addresses.set_owner(options.owner)
                self.addresses.announce_server_key(options.server_key)
                if options.config_version >= (self.config_version or 0):
                    self.config_version = options.config_version
                    self.config_hash = options.config_hash or self.config_hash
                if self.state == CHECKING:
                    self.send_ready(now, effects)
            case "READYOK":
                if options.heartbeat_interval > 0:
                    self.interval = min(options.heartbeat_interval, MAX_HEARTBEAT_INTERVAL)
                self._is_drained = self.is_draining
                if self.state == READYING:
                    self._enter_up(now, effects)
            case "FORCENEGOTIATE":
                if self.state != CHECKING:
                    self.negotiate(now, effects)
            case "CHANGEBROKER":
                self._change_broker(options, now, effects)
            case "DISCONNECTERROR":
                self._receive_error(options, now, effects)
            case _:
                return False
        return True

    def tick(self, waiting: bool, now: Now, effects: SessionEffects) -> None:
        """`waiting`: the owner expects something, so silence means a failure."""
        if self.state == DOWN:
            at = self._connect_at(waiting)
            if at is not None and now.mono >= at:
                self._connect(now, effects)
        elif self.state == ASKING and self._negotiate_at is not None:
            if now.mono >= self._negotiate_at:
                self._negotiate_at = None
                self.negotiate(now, effects)
        elif self.state in (ASKING, CHECKING, READYING):
            if now.mono >= self._asked_at + self._answer_seconds():
                self.closed("the broker did not answer", now, effects)
        elif self.state == UP:
            if self._move is not None and now.mono >= self._move.at:
                self._drain_and_move(self._move, now, effects)
            if self.state == UP and (waiting or self._ready is not None):
                self._check_liveness(now, effects)

    def _check_liveness(self, now: Now, effects: SessionEffects) -> None:
        if now.mono >= self._silent_at():
            since = self._suspected_at
            if since < self._silent_at() or now.mono > since + 2 * RECHECK_SECONDS:
                self._suspected_at = now.mono
            elif now.mono >= since + RECHECK_SECONDS:
                self.closed("the broker's heartbeats stopped", now, effects)
                return
        if now.mono >= self._heartbeat_at() and self._ready is not None:
            effects.sends.append(("HEARTBEAT", {"time": now.wall, "config_version": self.config_version}))
            self.last_sent = self._last_heartbeat = now.mono

    def _silent_at(self) -> float:
        return self.last_received + self.interval * self.liveness

    def deadline(self, waiting: bool) -> float | None:
        if self.state == DOWN:
            return self._connect_at(waiting)
        if self.state in (ASKING, CHECKING, READYING):
            return self._asked_at + self._answer_seconds() if self._negotiate_at is None else self._negotiate_at
        if self.state != UP:
            return None
        times = []
        if self._move is not None:
            late = self.is_draining and not self._can_move()
            times.append(self._move.at + MOVE_SECONDS if late else self._move.at)
        if waiting or self._ready is not None:
            silent_at = self._silent_at()
            times.append(silent_at if self._suspected_at < silent_at else self._suspected_at + RECHECK_SECONDS)
        if self._ready is not None:
            times.append(self._heartbeat_at())
        return min(times, default=None)

    def _connect_at(self, waiting: bool) -> float | None:
        # A backend waits if it has work in flight: the broker expects it back before the leases end.
        is_urgent = waiting if self._ready is None else not self._is_idle()
        if self._retry_at is None or not is_urgent:
            return self._retry_at
        return min(self._retry_at, self._urgent_retry_at)

    def _heartbeat_at(self) -> float:
        """One interval after our last message, or after the last received message or our last heartbeat."""
        return min(self.last_sent, max(self.last_received, self._last_heartbeat)) + self.interval

    def _answer_seconds(self) -> float:
        return max(MIN_ANSWER_SECONDS, self.interval * self.liveness)

    def _connect(self, now: Now, effects: SessionEffects) -> None:
        self._retry_at, self._urgent_retry_at = None, math.inf
        self.last_received = now.mono
        self._need_broker_sent = False
        effects.open = self.endpoint
        self.request_batches = self.long_holds = False
        if self._is_away_from_home() and not self._was_redirected:
            self.state = ASKING
            self._asked_at = now.mono
            self._send_need_broker(now, effects)
        else:
            self.negotiate(now, effects)

    def _is_away_from_home(self) -> bool:
        return self.addresses.home != "" and not self.addresses.is_home

    def _send_need_broker(self, now: Now, effects: SessionEffects) -> None:
        self._need_broker_sent = True
        options: dict[str, Any] = {"preferred_broker": self.addresses.home, "services": self._services() or []}
        if self.identity is not None:
            options["identity"] = self.identity
        effects.sends.append(("NEEDBROKER", options))
        self.last_sent = now.mono

    def _enter_up(self, now: Now, effects: SessionEffects) -> None:
        self.state = UP
        self._failures = 0
        self.refusal = ""
        self._was_redirected = False
        self.addresses.mark_connected()
        effects.notifications.append(Connected(self.identity or ""))
        if self._is_away_from_home() and not self._need_broker_sent:
            # The broker then knows our home, and redirects us once that is back.
            self._send_need_broker(now, effects)

    def _receive_config(
        self, options: messages.Config, bodies: Sequence[bytes], now: Now, effects: SessionEffects
    ) -> None:
        """Store a configuration that is newer by (version, hash); ignore any other."""
        self.identity = options.identity
        self.request_batches, self.long_holds = options.request_batches, options.long_holds
        self.addresses.set_owner(options.owner)
        self.addresses.announce_server_key(options.server_key)
        ours = (self.config_version or 0, self.config_hash or "")
        if (options.config_version, options.config_hash) > ours:
            self.config_version, self.config_hash = options.config_version, options.config_hash
            self.config = bodies[0] if bodies else b""
            self._read_config()
        if self.state == CHECKING:
            self.send_ready(now, effects)

    def _read_config(self) -> None:
        try:
            document = msgspec.json.decode(self.config, type=SessionConfig)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return
        if self._ready is None and document.heartbeat_interval > 0:
            self.interval = min(document.heartbeat_interval, MAX_HEARTBEAT_INTERVAL)
        self.addresses.update(document.group_config, document.preferred_broker)

    def _change_broker(self, options: messages.ChangeBroker, now: Now, effects: SessionEffects) -> None:
        endpoint = options.endpoints.get(self._role, "")
        self.addresses.set_server_key(endpoint, options.endpoints.get(SERVER_KEY, ""))
        # A client that is served may be asked to wait longer.
        most = MAX_AFTER_SECONDS if self.state == UP else MAX_BACKOFF_SECONDS
        after = options.after if 0 <= options.after <= most else most
        if endpoint == self.addresses.current:
            if self.state == ASKING:
                self._negotiate_at = now.mono + after
            self._stay(now, effects)
        elif self.state in (CHECKING, UP):
            self._move = (
                PendingMove(endpoint, options.broker, now.mono + after) if ENDPOINT.fullmatch(endpoint) else self._move
            )
        elif self.addresses.redirect(endpoint, options.broker):
            effects.send_disconnect = self.state == READYING
            self._redirect(options.broker, now.mono + after, effects)

    def _redirect(self, broker: str, at: float, effects: SessionEffects) -> None:
        self._drop(f"redirected to {broker}", effects)
        self._was_redirected = True
        self._failures = 0
        self._retry_at = at

    def _drain_and_move(self, move: PendingMove, now: Now, effects: SessionEffects) -> None:
        """Drain and move, or stay if draining takes too long."""
        if self._can_move():
            self.addresses.redirect(move.endpoint, move.broker)
            effects.send_disconnect = True
            self._redirect(move.broker, now.mono, effects)
        elif not self.is_draining:
            self.is_draining = True
            self._send_ready_again(now, effects)
        elif now.mono >= move.at + MOVE_SECONDS:
            self._stay(now, effects)

    def _stay(self, now: Now, effects: SessionEffects) -> None:
        was_draining, self.is_draining = self.is_draining, False
        self._move, self._is_drained = None, False
        if was_draining:
            self._send_ready_again(now, effects)

    def _can_move(self) -> bool:
        """True if nothing is in flight, or on its way to us."""
        return (self._is_drained or self._ready is None) and self._is_idle()

    def _send_ready_again(self, now: Now, effects: SessionEffects) -> None:
        if self._ready is not None:
            self.send_ready(now, effects)

    def _receive_error(self, options: messages.DisconnectError, now: Now, effects: SessionEffects) -> None:
        self.refusal = f"{options.code} {options.message}"
        if options.code == codes.IN_USE:
            self.state = ENDED
            self.ended = SessionEnded(options.code, options.message)
            effects.close = True
            effects.notifications.append(self.ended)
        elif self.state == ASKING and options.code != codes.NOT_SERVING:
            # The broker knows no other: use it for now.
            self._drop(self.refusal, effects)
            self._was_redirected = True
            self._retry_at = now.mono + self._rng.random() * MAX_NEXT_SECONDS
        else:
            self.closed(self.refusal, now, effects)


class PendingMove(NamedTuple):
    """A move to another broker, and its time."""

    endpoint: str
    broker: str
    at: float
