"""Another broker, as far as it told.

Lives here: the record. Never here: who of them is alive, or what is said to it (`peers`). Invariant: a broker has one
record, however many connections lead to it.
"""

from __future__ import annotations

from typing import Final

from scale0.broker.cluster.peer_catalog import PeerCatalog
from scale0.broker.core.connections import Connection
from scale0.transport.core.sockets import ACTIVE, STANDBY

UNKNOWN: Final = "unknown"
LOST: Final = "lost"
"""What is shown of a peer that was never heard, and of one that is not heard any more."""


class Peer:
    """Another broker."""

    __slots__ = (
        *("asked", "back", "back_at", "calls", "config_hash", "config_version", "doubted", "endpoints", "forwarded"),
        *("group", "heard", "heard_wall", "identity", "keyed", "line", "listed", "load", "lost", "services", "state"),
        *("standby_for", "table", "tabled", "told", "vain"),
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
        self.line: Connection | None = None
        """What we dialed."""
        self.calls: Connection | None = None
        """What it dialed."""
        self.heard = 0.0
        self.heard_wall = 0.0
        self.lost = False
        self.back = False
        """It serves, and its clients were told so."""
        self.back_at = 0.0
        """When they were told: whoever was called to it before that was called to a life that is over."""
        self.doubted: float | None = None
        self.asked: float | None = None
        """When it was last asked for its configuration."""
        self.listed: float | None = None
        """When it was last written into the network document."""
        self.table = PeerCatalog()
        self.told = 0
        """The number of the last TABLE that it was sent."""
        self.tabled = False
        """It has our whole table: from now on it is told what changes."""
        self.keyed = False
        """It has all of our keys: from now on it is told what changes."""
        self.vain: set[str] = set()
        """Services for which a request came back from there, until it is heard again."""
        self.forwarded = 0
        """When it was last handed a request, as a stamp."""

    @property
    def link(self) -> Connection | None:
        """Where to say something unasked: the connection that was heard last."""
        line, calls = self.line, self.calls
        if calls is None or not calls.takes_pushes:
            return line
        return calls if line is None or calls.heard > line.heard else line

    @property
    def serves(self) -> bool:
        """True while it is heard, active, and there is a way to it: a socket knows of a death before silence does."""
        return not self.lost and self.state == ACTIVE and self.link is not None

    @property
    def takes_requests(self) -> bool:
        """True while its backends may be asked: a standby that gives way still has some."""
        return not self.lost and self.state in (ACTIVE, STANDBY)

    @property
    def shown(self) -> str:
        """Its state, or that it is lost."""
        return LOST if self.lost else self.state
