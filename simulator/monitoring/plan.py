"""What a seed means for agents: how many Helens and agents there are, what they check, and what goes wrong.

Lives here: dice thrown once, before anything happens. Never here: anything that happens. Invariant: a plan depends on
its seed and on nothing else, and no throw here changes a throw of a network's plan.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from simulator.plan import CALM_EVERY, HEALTHY_SECONDS, MIN_MINUTES

STORM_EVERY: Final = 5
"""Every so many seeds one has a large fleet, and nothing but a Helen who comes and goes."""

HELEN_FAULTS: Final = (
    *("helen_killed", "helen_loses_power", "helen_killed_before_commit", "helen_killed_after_commit"),
    *("helen_away", "helen_stopped", "helen_asleep", "helen_clock", "disk_slow", "everybody_killed"),
)
AGENT_FAULTS: Final = (
    *("route_slow", "route_clogged", "connection_lost", "connection_half_open"),
    *("agent_killed", "agent_loses_power", "agent_restarts_often", "agent_reloaded", "agent_asleep"),
    *("agent_clock", "certificate_cloned", "certificate_revoked", "labels_changed", "checks_changed"),
    *("silenced", "downtime", "queue_away", "asked_often"),
)
FAULTS: Final = (*HELEN_FAULTS, *AGENT_FAULTS)
"""The names of all faults; `agent_faults.py` says what each does."""
STORM_FAULTS: Final = ("helen_killed", "helen_away", "helen_loses_power")


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One check of the configuration, as it is at first."""

    name: str
    interval: float
    max_attempts: int
    formula: str
    suppress_flapping: bool
    limits: tuple[float, float] | None
    """Above which its metric is warning and critical; None: the agent's own word counts."""
    depends_on: tuple[str, ...]
    heals: bool
    """A task tries to heal it, and it is checked again."""
    label: str
    """Only agents whose `tier` this matches run it; blank: all."""


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One seed's dice."""

    seed: int
    seconds: float
    calm: bool
    storm: bool
    faults: tuple[str, ...]
    fault_every: float
    """Seconds from one fault to the next, on average."""
    helens: int
    max_agents: tuple[int, ...]
    """Of each Helen."""
    heartbeat: int
    agents: int
    old_agents: int
    """Those that speak version 1."""
    checks: tuple[CheckPlan, ...]
    spool_records: int
    """What an agent's spool holds before the oldest go."""
    offers: tuple[int, float]
    """Reports that an agent sends at once, and how many seconds its line then needs."""
    ask_every: float
    """Seconds from one `helen.check` to the next."""

    @property
    def heal_at(self) -> float:
        """When the last fault is over."""
        return self.seconds - HEALTHY_SECONDS


def make_agent_plan(seed: int, minutes: float, only: Sequence[str] = ()) -> AgentPlan:
    """The plan of a seed; with `only`, these faults instead of its own."""
    dice = random.Random(f"scale0 agents plan {seed}")
    calm = seed % CALM_EVERY == 0 and not only
    storm = seed % STORM_EVERY == 3 and not only
    chosen = tuple(name for name in FAULTS if dice.random() < 0.4) or ("helen_killed",)
    helens = dice.choice((1, 1, 2))
    agents = dice.randint(24, 40) if storm else dice.randint(3, 7)
    crowded = helens > 1 and dice.random() < 0.4
    return AgentPlan(
        seed=seed,
        seconds=max(minutes, MIN_MINUTES) * 60.0,
        calm=calm,
        storm=storm,
        faults=() if calm else tuple(only) or (STORM_FAULTS if storm else chosen),
        fault_every=90.0 if storm else dice.choice((5.0, 10.0, 20.0)),
        helens=helens,
        max_agents=tuple(agents // 2 + 1 if crowded and not number else 20_000 for number in range(helens)),
        heartbeat=dice.choice((2, 5, 10)),
        agents=agents,
        old_agents=dice.choice((0, 1, 2)),
        checks=make_checks(dice, 2 if storm else dice.randint(2, 4), (10.0, 15.0) if storm else (2.0, 4.0, 8.0)),
        spool_records=dice.choice((20, 10_000, 10_000)),
        offers=dice.choice(((100, 0.0), (100, 0.0), (4, 0.2))),
        ask_every=dice.choice((1.0, 3.0)),
    )


def make_checks(dice: random.Random, count: int, intervals: Sequence[float]) -> tuple[CheckPlan, ...]:
    """The checks of a seed; the first one depends on nothing, and every agent runs it."""
    return tuple(
        CheckPlan(
            name=f"c{number}",
            interval=dice.choice(intervals),
            max_attempts=dice.randint(1, 4),
            formula=dice.choice(("icinga", "nagios", "sensu", "off")),
            suppress_flapping=dice.random() < 0.5,
            limits=dice.choice((None, (60.0, 80.0))),
            depends_on=dice.choice(((), ("c0",), ("agent-0/c0",))) if number else (),
            heals=dice.random() < 0.3,
            label=dice.choice(("", "", "w*")) if number else "",
        )
        for number in range(count)
    )
