"""The record of another broker. A broker has one record, however many connections lead to it."""

from __future__ import annotations

from typing import Final

from scale0.broker.cluster.peer_catalog import PeerCatalog
from scale0.broker.core.connections import Connection
from scale0.transport.core.sockets import ACTIVE, STANDBY

UNKNOWN: Final = "unknown"
LOST: Final = "lost"
"""The displayed state of a peer that was never heard from, or is lost."""


class Peer:
    __slots__ = (
        "accepted",
        "asked",
        "back",
        "back_at",
        "config_hash",
        "config_version",
        "dialed",
        "doubted",
        "endpoints",
        "forwarded",
        "group",
        "identity",
        "keyed",
        "last_received",
        "last_received_wall",
        "listed",
        "load",
        "lost",
        "services",
        "standby_for",
        "state",
        "table",
        "table_seq",
        "tabled",
        "vain",
    )

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.group = ""
        self.state = UNKNOWN
        self.standby_for = ""
        self.services: tuple[str, ...] | str = "all"
        self.endpoints: dict[str, str] = {}
        self.config_version = 0
        self.config_hash = ""
        self.load = 0.0
        self.dialed: Connection | None = None
        """The connection that we dialed."""
        self.accepted: Connection | None = None
        """The connection that it dialed."""
        self.last_received = 0.0
        self.last_received_wall = 0.0
        self.lost = False
        self.back = False
        """It serves, and its clients were notified."""
        self.back_at = 0.0
        """When they were notified: an earlier call home refers to the peer's previous run."""
        self.doubted: float | None = None
        self.asked: float | None = None
        self.listed: float | None = None
        """When it was last registered in the network document."""
        self.table = PeerCatalog()
        self.table_seq = 0
        """The number of the last TABLE sent to it."""
        self.tabled = False
        """It has our whole table, and gets changes only."""
        self.keyed = False
        """It has all our keys, and gets changes only."""
        self.vain: set[str] = set()
        """Services for which it returned a request, until its next message."""
        self.forwarded = 0

    @property
    def link(self) -> Connection | None:
        """The connection for unsolicited messages: the one that was active last."""
        dialed, accepted = self.dialed, self.accepted
        if accepted is None or not accepted.takes_pushes:
            return dialed
        return accepted if dialed is None or accepted.last_received > dialed.last_received else dialed

    @property
    def serves(self) -> bool:
        """True while it is alive, active and connected: the socket reports a death earlier than silence does."""
        return not self.lost and self.state == ACTIVE and self.link is not None

    @property
    def takes_requests(self) -> bool:
        """True while it accepts requests: a standby that gives way still does."""
        return not self.lost and self.state in (ACTIVE, STANDBY)

    @property
    def shown(self) -> str:
        return LOST if self.lost else self.state
