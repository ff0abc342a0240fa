"""Events of those who record: brokers, their peers, and any source of a journal.

Lives here: the classes. Never here: when one is recorded. Invariant: `row` uses the columns as the schema means them.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from scale0.history.events.columns import EventRow


class BrokerStarted(msgspec.Struct, frozen=True):
    """A broker serves; the first event of its boot, unless its clock went back."""

    kind: ClassVar[str] = "broker.started"
    identity: str
    version: str = ""
    """Of the software."""
    boots: int = 0
    """How often its store was opened, this time included."""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"version": self.version, "boots": self.boots})


class BrokerStopped(msgspec.Struct, frozen=True):
    """A broker stops in order."""

    kind: ClassVar[str] = "broker.stopped"
    identity: str
    reason: str = ""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"reason": self.reason})


class BrokerStateChanged(msgspec.Struct, frozen=True):
    """joining, active, standby, draining, disabled: what a broker does for its clients."""

    kind: ClassVar[str] = "broker.state_changed"
    identity: str
    before: str
    after: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, state=self.after, data={"before": self.before})


class BrokerClockSuspect(msgspec.Struct, frozen=True):
    """More than half of the clients seem to have a wrong clock: so it is the broker's."""

    kind: ClassVar[str] = "broker.clock_suspect"
    identity: str
    clients: int
    """Heard within the interval."""
    skewed: int
    """Of these, how many differ by more than `max_clock_skew`."""
    skew_seconds: float
    """Their median difference."""

    def row(self) -> EventRow:
        data = {"clients": self.clients, "skewed": self.skewed, "skew_seconds": self.skew_seconds}
        return EventRow(kind=self.kind, identity=self.identity, data=data)


class SourceAlive(msgspec.Struct, frozen=True):
    """Once a minute: the proof that this source was watching."""

    kind: ClassVar[str] = "source.alive"
    identity: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity)


class SourceClockStepped(msgspec.Struct, frozen=True):
    """The wall clock went back; the journal itself enters this."""

    kind: ClassVar[str] = "source.clock_stepped"
    identity: str
    back_seconds: float
    """From the last recorded time to the clock's."""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"back_seconds": self.back_seconds})


class PeerJoined(msgspec.Struct, frozen=True):
    """Another broker said HELLO."""

    kind: ClassVar[str] = "peer.joined"
    identity: str
    group: str = ""
    state: str = ""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, state=self.state or None, data={"group": self.group})


class PeerLost(msgspec.Struct, frozen=True):
    """Another broker was not heard for the liveness time; it happened when it was last heard."""

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
