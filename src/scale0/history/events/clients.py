"""Events of clients: sessions and heartbeats.

Every event that begins or ends a session has role, services and slots, so that one row shows the change of capacity.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from scale0.history.events.columns import EventRow, clip_int


def _offer(role: str, services: tuple[str, ...], slots: int) -> dict[str, Any]:
    return {"role": role, "services": services, "slots": slots}


class ClientJoined(msgspec.Struct, frozen=True):
    """A client was accepted: a session begins."""

    kind: ClassVar[str] = "client.joined"
    identity: str
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data=_offer(self.role, self.services, self.slots))


class ClientChanged(msgspec.Struct, frozen=True):
    """A client changed its offer; its session continues."""

    kind: ClassVar[str] = "client.changed"
    identity: str
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data=_offer(self.role, self.services, self.slots))


class ClientLeft(msgspec.Struct, frozen=True):
    """A client disconnected in order."""

    kind: ClassVar[str] = "client.left"
    identity: str
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data=_offer(self.role, self.services, self.slots))


class ClientLost(msgspec.Struct, frozen=True):
    """A client sent nothing for the liveness time; `at` is when its last message arrived."""

    kind: ClassVar[str] = "client.lost"
    identity: str
    last_heard_wall: float
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0

    def row(self) -> EventRow:
        data = _offer(self.role, self.services, self.slots)
        return EventRow(kind=self.kind, at=self.last_heard_wall, identity=self.identity, data=data)


class ClientReplaced(msgspec.Struct, frozen=True):
    """The same identity registered from another connection: the old session ends."""

    kind: ClassVar[str] = "client.replaced"
    identity: str
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data=_offer(self.role, self.services, self.slots))


class ClientSeen(msgspec.Struct, frozen=True):
    """The heartbeats of a client in the last minute."""

    kind: ClassVar[str] = "client.seen"
    identity: str
    heartbeats: int
    longest_gap_seconds: float

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            identity=self.identity,
            code=clip_int(self.heartbeats),
            seconds=self.longest_gap_seconds,
        )


class ClientRefused(msgspec.Struct, frozen=True):
    """A client was banned because of invalid input."""

    kind: ClassVar[str] = "client.refused"
    identity: str
    code: int
    data: dict[str, Any] = {}
    """The error, in plain values; never the input itself."""

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, code=clip_int(self.code), data=self.data)


EVENTS: Final = (
    ClientJoined,
    ClientChanged,
    ClientLeft,
    ClientLost,
    ClientReplaced,
    ClientSeen,
    ClientRefused,
)
