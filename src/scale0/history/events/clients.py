"""Events of clients: sessions and heartbeats.

Every event that begins or ends a session has role, services and slots, so that one row shows the change of capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from scale0.history.events.columns import Event


class ClientSession(Event, frozen=True):
    """A session begins, changes or ends."""

    identity: str
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0


class ClientJoined(ClientSession, frozen=True):
    """A client was accepted: a session begins."""

    kind: ClassVar[str] = "client.joined"


class ClientChanged(ClientSession, frozen=True):
    """A client changed its offer; its session continues."""

    kind: ClassVar[str] = "client.changed"


class ClientLeft(ClientSession, frozen=True):
    """A client disconnected in order."""

    kind: ClassVar[str] = "client.left"


class ClientReplaced(ClientSession, frozen=True):
    """The same identity registered from another connection: the old session ends."""

    kind: ClassVar[str] = "client.replaced"


class ClientLost(Event, frozen=True):
    """A client sent nothing for the liveness time; `at` is when its last message arrived."""

    kind: ClassVar[str] = "client.lost"
    identity: str
    last_received_wall: float
    role: str
    services: tuple[str, ...] = ()
    slots: int = 0


class ClientSeen(Event, frozen=True):
    """The heartbeats of a client in the last minute."""

    kind: ClassVar[str] = "client.seen"
    targets: ClassVar[Mapping[str, str]] = {"heartbeats": "code", "longest_gap_seconds": "seconds"}
    identity: str
    heartbeats: int
    longest_gap_seconds: float


class ClientRefused(Event, frozen=True):
    """A client was banned because of invalid input."""

    kind: ClassVar[str] = "client.refused"
    identity: str
    code: int
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """The error, in plain values; never the input itself."""
