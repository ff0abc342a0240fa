"""The state that all parts of one broker share: identity, limits, timers and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from scale0.kernel.limits import Limits
from scale0.kernel.time_text import utc_text
from scale0.kernel.timers import Alarm, TimerWheel
from scale0.transport.core.sockets import ACTIVE, DRAINING, STANDBY

if TYPE_CHECKING:
    import random

    from scale0.broker.core.keys import Keys
    from scale0.config import BrokerConfig, ServicePolicy


class StoreOutage(msgspec.Struct, frozen=True):
    """The database does not answer."""

    since: float
    """When that was noticed, by the wall clock."""
    reason: str
    """For administrators: it may contain the address of the database."""


class BrokerState:
    def __init__(self, identity: str, config: BrokerConfig, boot: int, rng: random.Random, state: str) -> None:
        self.identity = identity
        self.config = config
        self.limits: Limits = config.limits()
        self.owner = identity
        """The owner of stored results: this broker, or the group whose brokers share its store."""
        self.boot = boot
        self.rng = rng
        self.state = state
        self.drain_requested = False
        """An administrator requested it."""
        self.standby = bool(config.standby_for)
        """Another broker is the active one of the pair, and no client is served here."""
        self.hands_back = False
        """The active broker is back: the clients that are still served here are moving to it."""
        self.draining = self.standby
        """No new work is accepted: an administrator drains the broker, or it is a standby."""
        self.full = False
        """The disk is almost full, or the database is unavailable: nothing that must be stored is accepted."""
        self.outage: StoreOutage | None = None
        """Set while the database is unavailable: nothing is read from it either."""
        self.clock_suspect = False
        """Clients disagree with this broker's wall clock, which no client confirms."""
        self.endpoints: dict[str, str] = {}
        """The addresses of this broker's sockets: frontend, backend, config_pub, task_pub."""
        self.interval = config.default_heartbeat_interval
        self.liveness = config.heartbeat_liveness
        """Both are taken from the network document, once there is one."""
        self.keys: Keys | None = None
        """None without CURVE: identities are not verified."""
        self.started = 0.0
        self.timers: TimerWheel[Alarm] = TimerWheel()
        self.counters: dict[str, int] = {}
        self.policies: dict[str, ServicePolicy] = {}

    @property
    def why_full(self) -> str:
        """Why nothing can be stored, and the next step; for clients."""
        if self.outage is None:
            return "nothing can be stored now: the disk of the broker is almost full; try again when it has space"
        since = utc_text(self.outage.since)
        return f"nothing can be stored now: the database is unavailable since {since}; try again when it answers"

    @property
    def group(self) -> str:
        return self.config.group

    @property
    def serving(self) -> bool:
        return self.state == ACTIVE

    def is_reserved(self, name: str) -> bool:
        """True for the name of an administrator: the audit log must not name anybody else by it."""
        return any(admin.auth_id == name for admin in self.config.admins)

    @property
    def redirects_to_active(self) -> bool:
        """True while clients belong to the active broker of the pair."""
        return self.standby or self.hands_back

    @property
    def duty(self) -> str:
        """The state without regard to draining."""
        return STANDBY if self.state == ACTIVE and self.redirects_to_active else self.state

    @property
    def shown(self) -> str:
        return DRAINING if self.state == ACTIVE and self.drain_requested else self.duty

    def drain(self, requested: bool) -> None:
        self.drain_requested = requested
        self.draining = requested or self.standby

    def stand(self, *, standby: bool, hands_back: bool = False) -> None:
        self.standby, self.hands_back = standby, hands_back
        self.draining = standby or self.drain_requested

    def count(self, what: str, times: int = 1) -> None:
        """Count something that does not need an event."""
        self.counters[what] = self.counters.get(what, 0) + times
