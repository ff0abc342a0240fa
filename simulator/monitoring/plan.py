"""The plan of a seed: the number of Helens and agents, their checks, and the faults.

A plan depends on its seed only, and its random numbers are independent of those of a broker network's plan.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from simulator.plan import CALM_EVERY, HEALTHY_SECONDS, MIN_MINUTES

STORM_EVERY: Final = 5
"""Each n-th seed has many agents, and a Helen that restarts as the only fault."""

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
FIRST_FAULTS: Final = (*HELEN_FAULTS, *AGENT_FAULTS)
LATER_FAULTS: Final = ("queue_mute", "helens_separated", "queue_moves")
"""Chosen with random numbers of their own, so that the plans of known seeds change in nothing else."""
FAULTS: Final = (*FIRST_FAULTS, *LATER_FAULTS)
"""The names of all faults; see `faults`."""
STORM_FAULTS: Final = ("helen_killed", "helen_away", "helen_loses_power")


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A check of the configuration, as it is at first."""

    name: str
    interval: float
    max_attempts: int
    formula: str
    suppress_flapping: bool
    limits: tuple[float, float] | None
    """The thresholds of its metric for warning and critical; None: the agent's state counts."""
    depends_on: tuple[str, ...]
    heals: bool
    """A task tries to repair it, and it is checked again."""
    label: str
    """Only agents with this `tier` label run it; empty: all."""


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float
    calm: bool
    storm: bool
    faults: tuple[str, ...]
    fault_every: float
    """Mean seconds between two faults."""
    helens: int
    max_agents: tuple[int, ...]
    """For each Helen."""
    heartbeat: int
    agents: int
    old_agents: int
    """Agents that speak version 1."""
    checks: tuple[CheckPlan, ...]
    spool_records: int
    """The capacity of an agent's spool."""
    offers: tuple[int, float]
    """Reports that an agent sends at once, and the pause after them in seconds."""
    ask_every: float
    """Seconds between two `helen.check` requests."""

    @property
    def heal_at(self) -> float:
        """When the last fault is over."""
        return self.seconds - HEALTHY_SECONDS


def make_agent_plan(seed: int, minutes: float, only: Sequence[str] = ()) -> AgentPlan:
    """The plan of a seed; with `only`, these faults in place of its own."""
    rng = random.Random(f"scale0 agents plan {seed}")
    calm = seed % CALM_EVERY == 0 and not only
    storm = seed % STORM_EVERY == 3 and not only
    later = random.Random(f"scale0 agents later faults {seed}")
    chosen = tuple(name for name in FIRST_FAULTS if rng.random() < 0.4) or ("helen_killed",)
    chosen += tuple(name for name in LATER_FAULTS if later.random() < 0.4)
    helens = rng.choice((1, 1, 2))
    agents = rng.randint(24, 40) if storm else rng.randint(3, 7)
    crowded = helens > 1 and rng.random() < 0.4
    return AgentPlan(
        seed=seed,
        seconds=max(minutes, MIN_MINUTES) * 60.0,
        calm=calm,
        storm=storm,
        faults=() if calm else tuple(only) or (STORM_FAULTS if storm else chosen),
        fault_every=90.0 if storm else rng.choice((5.0, 10.0, 20.0)),
        helens=helens,
        max_agents=tuple(agents // 2 + 1 if crowded and not number else 20_000 for number in range(helens)),
        heartbeat=rng.choice((2, 5, 10)),
        agents=agents,
        old_agents=rng.choice((0, 1, 2)),
        checks=make_checks(rng, 2 if storm else rng.randint(2, 4), (10.0, 15.0) if storm else (2.0, 4.0, 8.0)),
        spool_records=rng.choice((20, 10_000, 10_000)),
        offers=rng.choice(((100, 0.0), (100, 0.0), (4, 0.2))),
        ask_every=rng.choice((1.0, 3.0)),
    )


def make_checks(rng: random.Random, count: int, intervals: Sequence[float]) -> tuple[CheckPlan, ...]:
    """The checks of a seed; the first one has no dependency, and every agent runs it."""
    return tuple(
        CheckPlan(
            name=f"c{number}",
            interval=rng.choice(intervals),
            max_attempts=rng.randint(1, 4),
            formula=rng.choice(("icinga", "nagios", "sensu", "off")),
            suppress_flapping=rng.random() < 0.5,
            limits=rng.choice((None, (60.0, 80.0))),
            depends_on=rng.choice(((), ("c0",), ("agent-0/c0",))) if number else (),
            heals=rng.random() < 0.3,
            label=rng.choice(("", "", "w*")) if number else "",
        )
        for number in range(count)
    )
