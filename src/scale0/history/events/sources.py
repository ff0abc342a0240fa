"""Events of sources, the processes that have a journal: brokers, their peers, and Helens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from scale0.history.events.columns import Event


class BrokerStarted(Event, frozen=True):
    """A broker started; the first event of its boot, unless its clock went back."""

    kind: ClassVar[str] = "broker.started"
    identity: str
    version: str = ""
    """The version of the software."""
    boots: int = 0
    """How often its store was opened, this time included."""


class BrokerStopped(Event, frozen=True):
    """A broker stopped in order."""

    kind: ClassVar[str] = "broker.stopped"
    identity: str
    reason: str = ""


class BrokerStateChanged(Event, frozen=True):
    """joining, active, standby, draining or disabled."""

    kind: ClassVar[str] = "broker.state_changed"
    targets: ClassVar[Mapping[str, str]] = {"after": "state"}
    identity: str
    before: str
    after: str


class BrokerClockSuspect(Event, frozen=True):
    """More than half of the clients differ from the broker's clock, or some do and none has confirmed it yet."""

    kind: ClassVar[str] = "broker.clock_suspect"
    identity: str
    clients: int
    """The clients that sent a message within the interval."""
    skewed: int
    """How many of them differ by more than `max_clock_skew`."""
    skew_seconds: float
    """Their median difference."""


class SourceAlive(Event, frozen=True):
    """Once a minute: this source was running."""

    kind: ClassVar[str] = "source.alive"
    identity: str


class SourceClockStepped(Event, frozen=True):
    """The wall clock went back; the journal itself records this."""

    kind: ClassVar[str] = "source.clock_stepped"
    identity: str
    back_seconds: float
    """From the last recorded time to the clock's."""


class PeerJoined(Event, frozen=True):
    """Another broker sent HELLO."""

    kind: ClassVar[str] = "peer.joined"
    optional: ClassVar[tuple[str, ...]] = ("state",)
    identity: str
    group: str = ""
    state: str = ""


class PeerLost(Event, frozen=True):
    """Another broker sent nothing for the liveness time; `at` is when its last message arrived."""

    kind: ClassVar[str] = "peer.lost"
    identity: str
    last_received_wall: float
    group: str = ""
