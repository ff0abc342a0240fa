"""Events of sources, the processes that have a journal: brokers, their peers, and Helens."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from scale0.history.events.columns import EventRow


class BrokerStarted(msgspec.Struct, frozen=True):
    """A broker started; the first event of its boot, unless its clock went back."""

    kind: ClassVar[str] = "broker.started"
    identity: str
    version: str = ""
    """The version of the software."""
    boots: int = 0
    """How often its store was opened, this time included."""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"version": self.version, "boots": self.boots})


class BrokerStopped(msgspec.Struct, frozen=True):
    """A broker stopped in order."""

    kind: ClassVar[str] = "broker.stopped"
    identity: str
    reason: str = ""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"reason": self.reason})


class BrokerStateChanged(msgspec.Struct, frozen=True):
    """joining, active, standby, draining or disabled."""

    kind: ClassVar[str] = "broker.state_changed"
    identity: str
    before: str
    after: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, state=self.after, data={"before": self.before})


class BrokerClockSuspect(msgspec.Struct, frozen=True):
    """More than half of the clients seem to have a wrong clock, so the broker's clock is probably wrong."""

    kind: ClassVar[str] = "broker.clock_suspect"
    identity: str
    clients: int
    """The clients that sent a message within the interval."""
    skewed: int
    """How many of them differ by more than `max_clock_skew`."""
    skew_seconds: float
    """Their median difference."""

    def row(self) -> EventRow:
        data = {"clients": self.clients, "skewed": self.skewed, "skew_seconds": self.skew_seconds}
        return EventRow(kind=self.kind, identity=self.identity, data=data)


class SourceAlive(msgspec.Struct, frozen=True):
    """Once a minute: this source was running."""

    kind: ClassVar[str] = "source.alive"
    identity: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity)


class SourceClockStepped(msgspec.Struct, frozen=True):
    """The wall clock went back; the journal itself records this."""

    kind: ClassVar[str] = "source.clock_stepped"
    identity: str
    back_seconds: float
    """From the last recorded time to the clock's."""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"back_seconds": self.back_seconds})


class PeerJoined(msgspec.Struct, frozen=True):
    """Another broker sent HELLO."""

    kind: ClassVar[str] = "peer.joined"
    identity: str
    group: str = ""
    state: str = ""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, state=self.state or None, data={"group": self.group})


class PeerLost(msgspec.Struct, frozen=True):
    """Another broker sent nothing for the liveness time; `at` is when its last message arrived."""

    kind: ClassVar[str] = "peer.lost"
    identity: str
    last_heard_wall: float
    group: str = ""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, at=self.last_heard_wall, identity=self.identity, data={"group": self.group})


EVENTS: Final = (
    BrokerStarted,
    BrokerStopped,
    BrokerStateChanged,
    BrokerClockSuspect,
    SourceAlive,
    SourceClockStepped,
    PeerJoined,
    PeerLost,
)
