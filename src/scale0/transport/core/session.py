"""A line: a client's end of one connection to a broker, without the socket.

Lives here: connecting with backoff, negotiation, heartbeats, judging the broker, and going to another one. Never here:
requests or work (see `frontend` and `backend`), or which broker is the next (see `book`). Invariants: every wait has a
deadline; every attempt to connect, the first after a loss included, waits a random time; a configuration never goes
back to an older one; 409 ends the line for good; nobody leaves a broker that answers before what is in hand is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.transport.core import messages
from scale0.transport.core.address_book import PLACE, SERVER_KEY, AddressBook, OwnPart
from scale0.transport.core.session_effects import Connected, ConnectionLost, SessionEffects, SessionEnded

if TYPE_CHECKING:
    import random

FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 3.0
"""How long a broker may take to answer CHECKCONFIG or READY, at least."""
WAITED_SECONDS: Final = 5.0
"""The longest delay of a frontend while somebody waits for an answer: a longer one could outlast the call."""
NEXT_SECONDS: Final = 0.2
"""How long the next address waits, at most, when nobody is at one: only a round of them all is a reason to wait."""
MAX_AFTER_SECONDS: Final = 600.0
"""How long a client that is served waits, at most, before it goes where it was told to go."""
MOVE_SECONDS: Final = 30.0
"""How long a client that was told to leave waits, at most, for its work to end; then it stays."""

KEYS_REFUSED: Final = "the broker there"
"""How a reason begins that is about keys."""

DOWN: Final = "down"
ASKING: Final = "asking"
"""Connected to a broker that is not ours, and waiting to hear whom to use."""
CHECKING: Final = "checking"
READYING: Final = "readying"
UP: Final = "up"
ENDED: Final = "ended"


class Session:
    """The life of a client's connection, over every reconnect."""

    def __init__(
        self,
        role: str,
        endpoints: Sequence[str],
        identity: str | None,
        chance: random.Random,
        services: Callable[[], list[str] | None],
        ready: Callable[[Now], messages.Ready] | None,
        is_idle: Callable[[], bool],
        stays: Callable[[Now], bool] = lambda _: False,
    ) -> None:
        """`is_idle`: nothing would be lost with the connection. `stays`: no other broker will do for now."""
        self._role = role
        self.book = AddressBook(role, endpoints, chance)
        self._chance = chance
        self._services = services
        self._ready = ready
        self._is_idle = is_idle
        self._stays = stays
        self.identity = identity
        self.state = DOWN
        self.config_version: int | None = None
        self.config_hash: str | None = None
        self.config: bytes = b""
        self.interval = 1.0
        self.liveness = 3
        self.heard = 0.0
        self.sent = 0.0
        self._beat = 0.0
        """When we last sent a HEARTBEAT: it alone is always answered, so our talking must not replace it for long."""
        self.refusal = ""
        """What the broker said last when it let us go."""
        self.ended: SessionEnded | None = None
        """Why it will not come back, if the broker said so."""
        self._failures = 0
        self._retry_at: float | None = None
        self._waited_at = math.inf
        """When to try again if somebody waits."""
        self._asked = 0.0
        self._was_sent = False
        """A broker sent us to where we are: it need not be asked again."""
        self._has_asked = False
        """On this connection, whom to use."""
        self._stay_at: float | None = None
        """When to negotiate, with the broker that we asked."""
        self._move: PendingMove | None = None
        self.leaving = False
        """We take nothing new, because we are about to move."""
        self._is_drained = False
        """The broker knows that: whatever it gave us before has come."""

    @property
    def endpoint(self) -> str:
        """Where it is, or tries to be."""
        return self.book.at

    @property
    def is_moving(self) -> bool:
        """True once a broker has sent us elsewhere, until we are there."""
        return self._move is not None

    @property
    def is_live(self) -> bool:
        """True while there is a connection to a broker that we use."""
        return self.state in (CHECKING, READYING, UP)

    def start(self, now: Now, out: SessionEffects) -> None:
        """Connect at once: a program that starts is no herd."""
        self._connect(now, out)

    def end(self, now: Now, out: SessionEffects) -> None:
        """Leave in order."""
        if self.state not in (DOWN, ENDED):
            # Also while the answer to CHECKCONFIG is on its way: the broker may know us before we know it.
            out.sends.append(("DISCONNECT", {}))
        self.state = ENDED
        self._retry_at = None

    def closed(self, reason: str, now: Now, out: SessionEffects) -> None:
        """The connection is gone, or never came to be."""
        if self.state in (DOWN, ENDED):
            return
        was_up = self.state == UP
        if reason.startswith(KEYS_REFUSED):
            self.refusal = reason
        self._drop(reason, out)
        self._was_sent = False
        ceiling = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures, 16))
        if (self.book.has_others and self._stays(now)) or self.book.fail():
            self._failures += 1
        elif not was_up:
            ceiling = NEXT_SECONDS
        part = self._chance.random()
        self._retry_at = now.mono + part * ceiling
        self._waited_at = now.mono + part * min(ceiling, WAITED_SECONDS)

    def _drop(self, reason: str, out: SessionEffects) -> None:
        self.state = DOWN
        self._move, self._stay_at, self.leaving, self._is_drained = None, None, False, False
        out.close = True
        out.news.append(ConnectionLost(reason))

    def negotiate(self, now: Now, out: SessionEffects) -> None:
        """CHECKCONFIG."""
        self._has_asked = self._has_asked and self.state != UP  # it may have forgotten whose we are
        self.state = CHECKING
        self._asked = now.mono
        said: dict[str, Any] = {"config_type": "json", "batch": True}
        if self.identity is not None:
            said["identity"] = self.identity
        services = self._services()
        if services is not None:
            said["services"] = services
        if self.config_version is not None:
            said["config_version"], said["config_hash"] = self.config_version, self.config_hash
        out.sends.append(("CHECKCONFIG", said))
        self.sent = now.mono

    def say_ready(self, now: Now, out: SessionEffects) -> None:
        """READY, at the end of the negotiation or when what is offered changes."""
        if self._ready is None:
            self._come_up(now, out)
            return
        if self.state == CHECKING:
            self.state = READYING
            self._asked = now.mono
        out.sends.append(("READY", self._ready(now)))
        self.sent = now.mono

    def receive(self, command: str, said: Any, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> bool:
        """One message from the broker; False if it is not about the line."""
        match command:
            case "HEARTBEAT":
                pass
            case "CONFIG":
                self._take_config(said, bodies, now, out)
            case "CONFIGACK":
                self.identity = said.identity
                self.book.told_owner(said.owner)
                if said.config_version >= (self.config_version or 0):
                    self.config_version, self.config_hash = said.config_version, said.config_hash or self.config_hash
                if self.state == CHECKING:
                    self.say_ready(now, out)
            case "READYOK":
                if 0 < said.heartbeat_interval < math.inf:
                    self.interval = said.heartbeat_interval
                self._is_drained = self.leaving
                if self.state == READYING:
                    self._come_up(now, out)
            case "FORCENEGOTIATE":
                if self.state != CHECKING:
                    self.negotiate(now, out)
            case "CHANGEBROKER":
                self._change_broker(said, now, out)
            case "DISCONNECTERROR":
                self._refused(said, now, out)
            case _:
                return False
        return True

    def tick(self, waiting: bool, now: Now, out: SessionEffects) -> None:
        """`waiting`: the owner expects something, so silence means something."""
        if self.state == DOWN:
            at = self._next_at(waiting)
            if at is not None and now.mono >= at:
                self._connect(now, out)
        elif self.state == ASKING and self._stay_at is not None:
            if now.mono >= self._stay_at:
                self._stay_at = None
                self.negotiate(now, out)
        elif self.state in (ASKING, CHECKING, READYING):
            if now.mono >= self._asked + self._patience():
                self.closed("the broker did not answer", now, out)
        elif self.state == UP:
            if self._move is not None and now.mono >= self._move.at:
                self._leave(self._move, now, out)
            if self.state == UP and (waiting or self._ready is not None):
                self._look(now, out)

    def _look(self, now: Now, out: SessionEffects) -> None:
        """Is the broker alive, and does it know that we are?"""
        if now.mono >= self.heard + self.interval * self.liveness:
            self.closed("the broker's heartbeats stopped", now, out)
        elif now.mono >= self._beat_at() and self._ready is not None:
            out.sends.append(("HEARTBEAT", {"time": now.wall, "config_version": self.config_version}))
            self.sent = self._beat = now.mono

    def deadline(self, waiting: bool) -> float | None:
        """When `tick` has something to do."""
        if self.state == DOWN:
            return self._next_at(waiting)
        if self.state in (ASKING, CHECKING, READYING):
            return self._asked + self._patience() if self._stay_at is None else self._stay_at
        if self.state != UP:
            return None
        times = []
        if self._move is not None:
            late = self.leaving and not self._may_go()
            times.append(self._move.at + MOVE_SECONDS if late else self._move.at)
        if waiting or self._ready is not None:
            times.append(self.heard + self.interval * self.liveness)
        if self._ready is not None:
            times.append(self._beat_at())
        return min(times, default=None)

    def _next_at(self, waiting: bool) -> float | None:
        """When to connect again: a frontend is quicker while somebody waits."""
        if self._retry_at is None or self._ready is not None or not waiting:
            return self._retry_at
        return min(self._retry_at, self._waited_at)

    def _beat_at(self) -> float:
        """An interval after we spoke last, or after we heard or asked for a sign of life last."""
        return min(self.sent, max(self.heard, self._beat)) + self.interval

    def _patience(self) -> float:
        return max(PATIENCE_SECONDS, self.interval * self.liveness)

    def _connect(self, now: Now, out: SessionEffects) -> None:
        self._retry_at, self._waited_at = None, math.inf
        self.heard = now.mono
        self._has_asked = False
        out.open = self.endpoint
        if self._is_astray() and not self._was_sent:
            self.state = ASKING
            self._asked = now.mono
            self._ask(now, out)
        else:
            self.negotiate(now, out)

    def _is_astray(self) -> bool:
        return self.book.home != "" and not self.book.is_home

    def _ask(self, now: Now, out: SessionEffects) -> None:
        """NEEDBROKER: whom to use, since ours does not answer."""
        self._has_asked = True
        said: dict[str, Any] = {"preferred_broker": self.book.home, "services": self._services() or []}
        if self.identity is not None:
            said["identity"] = self.identity
        out.sends.append(("NEEDBROKER", said))
        self.sent = now.mono

    def _come_up(self, now: Now, out: SessionEffects) -> None:
        self.state = UP
        self._failures = 0
        self.refusal = ""
        self._was_sent = False
        self.book.succeed()
        out.news.append(Connected(self.identity or ""))
        if self._is_astray() and not self._has_asked:
            # So that it knows whose we are, and calls when that one is back.
            self._ask(now, out)

    def _take_config(self, said: messages.Config, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> None:
        """Never older: a CONFIG that is not newer by (version, hash) is ignored."""
        self.identity = said.identity
        self.book.told_owner(said.owner)
        ours = (self.config_version or 0, self.config_hash or "")
        if (said.config_version, said.config_hash) > ours:
            self.config_version, self.config_hash = said.config_version, said.config_hash
            self.config = bodies[0] if bodies else b""
            self._read_config()
        if self.state == CHECKING:
            self.say_ready(now, out)

    def _read_config(self) -> None:
        try:
            document = msgspec.json.decode(self.config, type=OwnPart)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return
        if self._ready is None and 0 < document.heartbeat_interval < math.inf:
            self.interval = document.heartbeat_interval
        self.book.learn(document.group_config, document.preferred_broker)

    def _change_broker(self, said: messages.ChangeBroker, now: Now, out: SessionEffects) -> None:
        place = said.endpoints.get(self._role, "")
        self.book.told_key(place, said.endpoints.get(SERVER_KEY, ""))
        # Whoever is served may be asked to wait longer.
        most = MAX_AFTER_SECONDS if self.state == UP else MAX_BACKOFF_SECONDS
        after = said.after if 0 <= said.after <= most else most
        if place == self.book.at:
            if self.state == ASKING:
                self._stay_at = now.mono + after
            self._stay(now, out)
        elif self.state in (CHECKING, UP):
            self._move = PendingMove(place, said.broker, now.mono + after) if PLACE.fullmatch(place) else self._move
        elif self.book.go(place, said.broker):
            out.parts = self.state == READYING
            self._go(said.broker, now.mono + after, out)

    def _go(self, broker: str, at: float, out: SessionEffects) -> None:
        self._drop(f"told to use {broker}", out)
        self._was_sent = True
        self._failures = 0
        self._retry_at = at

    def _leave(self, move: PendingMove, now: Now, out: SessionEffects) -> None:
        """Take nothing new, let what is in hand end, and go; or stay, if that takes too long."""
        if self._may_go():
            self.book.go(move.place, move.broker)
            out.parts = True
            self._go(move.broker, now.mono, out)
        elif not self.leaving:
            self.leaving = True
            self._offer_again(now, out)
        elif now.mono >= move.at + MOVE_SECONDS:
            self._stay(now, out)

    def _stay(self, now: Now, out: SessionEffects) -> None:
        was_leaving, self.leaving = self.leaving, False
        self._move, self._is_drained = None, False
        if was_leaving:
            self._offer_again(now, out)

    def _may_go(self) -> bool:
        """Nothing is in hand, and nothing can be on its way to us."""
        return (self._is_drained or self._ready is None) and self._is_idle()

    def _offer_again(self, now: Now, out: SessionEffects) -> None:
        if self._ready is not None:
            self.say_ready(now, out)

    def _refused(self, said: messages.DisconnectError, now: Now, out: SessionEffects) -> None:
        self.refusal = f"{said.code} {said.message}"
        if said.code == codes.IN_USE:
            self.state = ENDED
            self.ended = SessionEnded(said.code, said.message)
            out.close = True
            out.news.append(self.ended)
        elif self.state == ASKING and said.code != codes.NOT_SERVING:
            # It knows nobody else: then it is our broker for now.
            self._drop(self.refusal, out)
            self._was_sent = True
            self._retry_at = now.mono + self._chance.random() * NEXT_SECONDS
        else:
            self.closed(self.refusal, now, out)


class PendingMove(NamedTuple):
    """Where to go, and when."""

    place: str
    broker: str
    at: float
