"""Plants truths of sources: kills, restarts, lost segments, restored disks, clock steps. No two of them overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.pipeline.time_ranges import MINUTE_US, SECOND_US
from simulator.history import truths
from simulator.history.script import Boot, ClockStep
from simulator.history.truths import Truth

if TYPE_CHECKING:
    import numpy as np

    from simulator.history.plan import Plan
    from simulator.history.script_builder import Calendar

SOURCES: Final = "sources"
"""The calendar key of all sources together."""
MAX_REWOUND_EVENTS: Final = 200
REWOUND_MINUTES: Final = 10
"""How far a restored disk is behind, at most: soon afterwards the seqs exceed all previous ones."""


class _Break(NamedTuple):
    """A source does not record within [from_us, to_us)."""

    from_us: int
    to_us: int
    is_stopped: bool = False
    lost_us: int = 0
    """How long before it the lost segment began."""
    back: int = 0


class Sources(NamedTuple):
    boots: tuple[tuple[Boot, ...], ...]
    steps: tuple[ClockStep, ...]
    truths: list[Truth]


def plant_sources(plan: Plan, calendar: Calendar, rng: np.random.Generator) -> Sources:
    """Every break of every source; each kind begins with another broker."""
    counts = plan.counts
    found: list[Truth] = []
    breaks: dict[int, list[_Break]] = {n: [] for n in range(len(plan.sources))}

    def plant(kind: str, source: int, down_us: tuple[int, int], lost_us: int = 0, **more: Any) -> None:
        name = plan.sources[source]
        length_us = int(rng.integers(*down_us))
        start_us = calendar.slot(lost_us + length_us + MINUTE_US, (SOURCES, name)) + lost_us
        breaks[source].append(_Break(start_us, start_us + length_us, lost_us=lost_us, **more))
        role = "helen" if kind == truths.HELEN_RESTARTED else "broker"
        found.append(Truth(kind, role, name, start_us, start_us + length_us))

    for n in range(counts.broker_kills):
        plant(truths.BROKER_KILLED, n % plan.brokers, (3 * MINUTE_US, 9 * MINUTE_US))
    for n in range(counts.lost_segments):
        lost_us = int(rng.integers(10 * MINUTE_US, 20 * MINUTE_US))
        plant(truths.LOST_SEGMENT, (n + 1) % plan.brokers, (2 * MINUTE_US, 5 * MINUTE_US), lost_us)
    for n in range(counts.rewinds):
        plant(truths.REWIND, (n + 2) % plan.brokers, (2 * MINUTE_US, 5 * MINUTE_US), back=_rewound(plan))
    for n in range(counts.broker_restarts):
        plant(truths.BROKER_RESTARTED, (n + 1) % plan.brokers, (20 * SECOND_US, 60 * SECOND_US), is_stopped=True)
    for n in range(counts.helen_restarts):
        helen = plan.brokers + n % plan.helens
        plant(truths.HELEN_RESTARTED, helen, (MINUTE_US, 4 * MINUTE_US), is_stopped=True)
    steps = _clock_steps(plan, calendar, rng, found)
    boots = tuple(_boots(plan, source, breaks[source], rng) for source in breaks)
    return Sources(boots, steps, found)


def _clock_steps(plan: Plan, calendar: Calendar, rng: np.random.Generator, found: list[Truth]) -> tuple[ClockStep, ...]:
    """A clock is set back, and corrected before the source would count as silent."""
    steps = []
    for n in range(plan.counts.clock_steps):
        source = n % plan.brokers
        length_us = int(rng.integers(80 * SECOND_US, 120 * SECOND_US))
        start_us = calendar.slot(length_us, (SOURCES, plan.sources[source]))
        steps.append(ClockStep(source, start_us, start_us + length_us))
        back = {"back_seconds": back_seconds(steps[-1])}
        found.append(Truth(truths.CLOCK_STEPPED, "broker", plan.sources[source], start_us, start_us + length_us, back))
    return tuple(steps)


def _rewound(plan: Plan) -> int:
    usual = plan.events * REWOUND_MINUTES // (len(plan.sources) * plan.days * 24 * 60)
    return max(1, min(MAX_REWOUND_EVENTS, usual))


def back_seconds(step: ClockStep) -> float:
    """How far the clock was set back: it would have caught up only after the correction."""
    return 2 * (step.to_us - step.from_us) / SECOND_US


def _boots(plan: Plan, source: int, breaks: list[_Break], rng: np.random.Generator) -> tuple[Boot, ...]:
    boots: list[Boot] = []
    start_us = plan.start_us + int(rng.integers(SECOND_US // 10, 2 * SECOND_US))
    back = 0
    for each in sorted(breaks):
        lost_from_us = each.from_us - each.lost_us if each.lost_us else 0
        boots.append(Boot(start_us, each.from_us, each.is_stopped, lost_from_us, back))
        start_us, back = each.to_us, each.back
    boots.append(Boot(start_us, plan.end_us, back=back))
    return tuple(boots)
