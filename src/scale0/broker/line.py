"""A line: a client's end of one connection to a broker, without the socket.

Lives here: connecting with backoff, negotiation, heartbeats, and judging the broker. Never here: requests or work (see
`frontend` and `backend`). Invariants: every wait has a deadline; every attempt to connect, the first after a loss
included, waits a random time; a configuration never goes back to an older one; 409 ends the line for good.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.base import codes
from scale0.base.now import Now
from scale0.base.step import Message
from scale0.broker import options

if TYPE_CHECKING:
    import random

FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 3.0
"""How long a broker may take to answer CHECKCONFIG or READY, at least."""
MAX_ENDPOINTS: Final = 64
"""Brokers that a client remembers; those that it was told of last are kept."""
PLACE: Final = re.compile(r"tcp://[^\s/:]+:[0-9]{1,5}|tcp://\[[0-9A-Fa-f:.%]+\]:[0-9]{1,5}", re.ASCII)
"""What a broker may call an endpoint: anything else would only break when it is used."""

DOWN: Final = "down"
CHECKING: Final = "checking"
READYING: Final = "readying"
UP: Final = "up"
ENDED: Final = "ended"


class LineStep:
    """What a session wants done, in this order: close, open, send; and what it tells its owner."""

    __slots__ = ("close", "news", "open", "sends")

    def __init__(self) -> None:
        self.close = False
        self.open: str | None = None
        self.sends: list[Message] = []
        self.news: list[Any] = []


class Lost(msgspec.Struct, frozen=True):
    """News: the connection is gone; why."""

    reason: str


class Up(msgspec.Struct, frozen=True):
    """News: the broker has taken us in."""

    identity: str


class Ended(msgspec.Struct, frozen=True):
    """News: the line will not come back by itself."""

    code: int
    message: str


class Line:
    """The life of a client's connection, over every reconnect."""

    def __init__(
        self,
        role: str,
        endpoints: Sequence[str],
        identity: str | None,
        chance: random.Random,
        services: Callable[[], list[str] | None],
        ready: Callable[[Now], options.Ready] | None,
    ) -> None:
        self._role = role
        self._endpoints = list(endpoints)
        self._turn = 0
        self._chance = chance
        self._services = services
        self._ready = ready
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
        self.ended: Ended | None = None
        """Why it will not come back, if the broker said so."""
        self._failures = 0
        self._retry_at: float | None = None
        self._asked = 0.0

    @property
    def endpoint(self) -> str:
        """Where it is, or tries to be."""
        return self._endpoints[self._turn % len(self._endpoints)]

    def start(self, now: Now, out: LineStep) -> None:
        """Connect at once: a program that starts is no herd."""
        self._connect(now, out)

    def end(self, now: Now, out: LineStep) -> None:
        """Leave in order."""
        if self.state not in (DOWN, ENDED):
            # Also while the answer to CHECKCONFIG is on its way: the broker may know us before we know it.
            out.sends.append(("DISCONNECT", {}))
        self.state = ENDED
        self._retry_at = None

    def closed(self, reason: str, now: Now, out: LineStep) -> None:
        """The connection is gone, or never came to be."""
        if self.state in (DOWN, ENDED):
            return
        self.state = DOWN
        self._turn += 1
        ceiling = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at = now.mono + self._chance.random() * ceiling
        out.close = True
        out.news.append(Lost(reason))

    def negotiate(self, now: Now, out: LineStep) -> None:
        """CHECKCONFIG."""
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

    def say_ready(self, now: Now, out: LineStep) -> None:
        """READY, at the end of the negotiation or when what is offered changes."""
        if self._ready is None:
            self._come_up(now, out)
            return
        if self.state == CHECKING:
            self.state = READYING
            self._asked = now.mono
        out.sends.append(("READY", self._ready(now)))
        self.sent = now.mono

    def receive(self, command: str, said: Any, bodies: Sequence[bytes], now: Now, out: LineStep) -> bool:
        """One message from the broker; False if it is not about the line."""
        match command:
            case "HEARTBEAT":
                pass
            case "CONFIG":
                self._take_config(said, bodies, now, out)
            case "CONFIGACK":
                self.identity = said.identity
                if said.config_version >= (self.config_version or 0):
                    self.config_version, self.config_hash = said.config_version, said.config_hash or self.config_hash
                if self.state == CHECKING:
                    self.say_ready(now, out)
            case "READYOK":
                if 0 < said.heartbeat_interval < math.inf:
                    self.interval = said.heartbeat_interval
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

    def tick(self, waiting: bool, now: Now, out: LineStep) -> None:
        """`waiting`: the owner expects something, so silence means something."""
        if self.state == DOWN:
            if self._retry_at is not None and now.mono >= self._retry_at:
                self._connect(now, out)
        elif self.state in (CHECKING, READYING):
            if now.mono >= self._asked + self._patience():
                self.closed("the broker did not answer", now, out)
        elif self.state == UP and (waiting or self._ready is not None):
            if now.mono >= self.heard + self.interval * self.liveness:
                self.closed("the broker's heartbeats stopped", now, out)
            elif now.mono >= self._beat_at() and self._ready is not None:
                out.sends.append(("HEARTBEAT", {"time": now.wall, "config_version": self.config_version}))
                self.sent = self._beat = now.mono

    def deadline(self, waiting: bool) -> float | None:
        """When `tick` has something to do."""
        if self.state == DOWN:
            return self._retry_at
        if self.state in (CHECKING, READYING):
            return self._asked + self._patience()
        if self.state != UP or not (waiting or self._ready is not None):
            return None
        dead = self.heard + self.interval * self.liveness
        return min(dead, self._beat_at()) if self._ready is not None else dead

    def _beat_at(self) -> float:
        """An interval after we spoke last, or after we heard or asked for a sign of life last."""
        return min(self.sent, max(self.heard, self._beat)) + self.interval

    def _patience(self) -> float:
        return max(PATIENCE_SECONDS, self.interval * self.liveness)

    def _connect(self, now: Now, out: LineStep) -> None:
        self._retry_at = None
        self.heard = now.mono
        out.open = self.endpoint
        self.negotiate(now, out)

    def _come_up(self, now: Now, out: LineStep) -> None:
        self.state = UP
        self._failures = 0
        self.refusal = ""
        out.news.append(Up(self.identity or ""))

    def _take_config(self, said: options.Config, bodies: Sequence[bytes], now: Now, out: LineStep) -> None:
        """Never older: a CONFIG that is not newer by (version, hash) is ignored."""
        self.identity = said.identity
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

    def _change_broker(self, said: options.ChangeBroker, now: Now, out: LineStep) -> None:
        place = said.endpoints.get(self._role)
        if place is None or PLACE.fullmatch(place) is None:
            return
        if place in self._endpoints:
            self._endpoints.remove(place)
        self._endpoints.insert(0, place)
        del self._endpoints[MAX_ENDPOINTS:]
        if self.state not in (DOWN, ENDED):
            self.state = DOWN
            self._failures = 0
            out.close = True
            out.news.append(Lost(f"told to use {said.broker}"))
        if self.state == DOWN:
            self._turn = 0
            after = said.after if 0 <= said.after <= MAX_BACKOFF_SECONDS else MAX_BACKOFF_SECONDS
            self._retry_at = now.mono + after

    def _refused(self, said: options.DisconnectError, now: Now, out: LineStep) -> None:
        self.refusal = f"{said.code} {said.message}"
        if said.code == codes.IN_USE:
            self.state = ENDED
            self.ended = Ended(said.code, said.message)
            out.close = True
            out.news.append(self.ended)
        else:
            self.closed(self.refusal, now, out)


class OwnPart(msgspec.Struct, frozen=True):
    """What a line itself needs of its configuration."""

    heartbeat_interval: float = 1.0
