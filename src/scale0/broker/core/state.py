"""What all machines of one broker share: who it is, its limits, its timers and its chance.

Lives here: the record that the composition root fills once. Never here: behaviour of any one part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scale0.kernel.limits import Limits
from scale0.kernel.timers import Alarm, TimerWheel
from scale0.transport.core.sockets import ACTIVE, DRAINING, STANDBY

if TYPE_CHECKING:
    import random

    from scale0.broker.core.keys import Keys
    from scale0.config import BrokerConfig, ServicePolicy


class BrokerState:
    """One broker's shared state."""

    __slots__ = (
        "boot",
        "config",
        "counters",
        "draining",
        "endpoints",
        "full",
        "gives_way",
        "identity",
        "interval",
        "keys",
        "limits",
        "liveness",
        "owner",
        "policies",
        "rng",
        "standby",
        "started",
        "state",
        "timers",
        "told_to_drain",
    )

    def __init__(self, identity: str, config: BrokerConfig, boot: int, rng: random.Random, state: str) -> None:
        self.identity = identity
        self.config = config
        self.limits: Limits = config.limits()
        self.owner = identity
        """To whom a result may be told: this broker, or the group whose brokers share its store."""
        self.boot = boot
        self.rng = rng
        self.state = state
        self.told_to_drain = False
        """By an administrator."""
        self.standby = bool(config.standby_for)
        """Another broker is the active one of the pair, and nobody is served here."""
        self.gives_way = False
        """The active one is back: those who are served here still are on their way to it."""
        self.draining = self.standby
        """Nothing new is taken, for either reason."""
        self.full = False
        """The disk is almost full, or the database is away: nothing that must be stored is accepted."""
        self.endpoints: dict[str, str] = {}
        """Where clients reach this broker: frontend, backend, config_pub, task_pub."""
        self.interval = config.default_heartbeat_interval
        self.liveness = config.heartbeat_liveness
        """Both as the network document has them, once there is one."""
        self.keys: Keys | None = None
        """Who may be who, with CURVE; None: everybody is whom they say."""
        self.started = 0.0
        self.timers: TimerWheel[Alarm] = TimerWheel()
        self.counters: dict[str, int] = {}
        self.policies: dict[str, ServicePolicy] = {}
        """Per service, from the network document."""

    @property
    def group(self) -> str:
        """The broker's group; may be blank."""
        return self.config.group

    @property
    def serving(self) -> bool:
        """True unless it is joining or disabled."""
        return self.state == ACTIVE

    @property
    def passes_on(self) -> bool:
        """True while clients belong to the active broker of the pair."""
        return self.standby or self.gives_way

    @property
    def duty(self) -> str:
        """What it does for clients, draining aside."""
        return STANDBY if self.state == ACTIVE and self.passes_on else self.state

    @property
    def shown(self) -> str:
        """What others are told of its state."""
        return DRAINING if self.state == ACTIVE and self.told_to_drain else self.duty

    def drain(self, told: bool) -> None:
        """An administrator said so, or that it is over."""
        self.told_to_drain = told
        self.draining = told or self.standby

    def stand(self, *, standby: bool, gives_way: bool = False) -> None:
        """What is this broker of its pair?"""
        self.standby, self.gives_way = standby, gives_way
        self.draining = standby or self.told_to_drain

    def count(self, what: str) -> None:
        """Count something that is worth knowing but not worth an event."""
        self.counters[what] = self.counters.get(what, 0) + 1
