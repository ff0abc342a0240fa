"""The sizes of a synthetic network, from the number of events and days.

The parts add up to about the requested events. A small network has everything that a large one has, only less of it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US
from simulator.history import vocabulary
from simulator.history.truths import Counts

DEFAULT_START_US: Final = 1_767_571_200_000_000
"""2026-01-05, a Monday: never today, since equal arguments must generate equal histories."""

MAX_EVENTS: Final = 10_000_000_000
MAX_DAYS: Final = 3_660
DAY_MINUTES: Final = 1_440
LARGE_EVENTS: Final = 1_000_000
"""From here on there are three brokers."""
SLICE_EVENTS: Final = 1_200_000
"""Events generated at once: about 200 bytes of memory for each."""
SPARE_AGENTS: Final = 2
"""Agents without a truth."""
NODES_PER_BROKER: Final = 2
MIN_LARGE_AGENTS: Final = 20
FRONTEND_MINUTES: Final = 30
"""The mean length of a frontend's session."""
MIN_INTERVAL_SECONDS: Final = 60
MAX_INTERVAL_SECONDS: Final = 3_600
"""With longer intervals nothing could be found within a day."""

_TASKS: Final = 0.57
_CHECKS: Final = 0.25
_SUMMED: Final = 0.07
_SEEN: Final = 0.07
_FAILED: Final = 0.01
_SHARES: Final = _TASKS + _CHECKS + _SUMMED + _SEEN + _FAILED

EVENTS_PER_TASK: Final = 2.0235
"""Submitted, completed, and sometimes an ended attempt."""


class TooSmall(ValueError):
    pass


class Plan(NamedTuple):
    events: int
    days: int
    seed: int
    start_us: int
    counts: Counts
    brokers: int
    helens: int
    slice_us: int
    """A history is generated slice by slice to limit memory; a segment ends with its slice."""
    tasks: float
    """Expected total; likewise the following fields."""
    summed: float
    failed: float
    frontend_sessions: float
    nodes: int
    """Backends that run tasks and common requests, without those that offer a service of their own."""
    seen_minutes: int
    """Backends send fewer heartbeats in a small network: one summary per this many minutes."""
    agents: int
    checks: tuple[vocabulary.Check, ...]

    @property
    def end_us(self) -> int:
        return self.start_us + self.days * DAY_US

    @property
    def sources(self) -> tuple[str, ...]:
        """The brokers, then the Helens."""
        brokers = (f"broker-{n + 1}" for n in range(self.brokers))
        return (*brokers, *(f"helen-{n + 1}" for n in range(self.helens)))

    @property
    def frontends(self) -> int:
        """Identities; each has many sessions."""
        return min(1_000, max(6, round(self.frontend_sessions / 10)))


def make_plan(events: int, days: int, seed: int, start_us: int, counts: Counts) -> Plan:
    """TooSmall says how many events are enough."""
    _check_arguments(events, days, seed, start_us)
    if min(msgspec.structs.astuple(counts)) < 0:
        raise ValueError("the counts of truths must not be negative")
    brokers = 3 if events >= LARGE_EVENTS else 2
    helens = 2
    minutes = DAY_MINUTES * days
    alive = minutes * (brokers + helens)
    results = days * (counts.agents + SPARE_AGENTS) * vocabulary.SMALL_CHECKS * 86_400 / MAX_INTERVAL_SECONDS
    least = math.ceil((alive + results * _SHARES / _CHECKS) / 1_000) * 1_000
    if events < least:
        why = "every source records source.alive once a minute, and every check is answered once an hour"
        raise TooSmall(f"{days} {'day needs' if days == 1 else 'days need'} at least {least:,} events: {why}")
    rest = events - alive
    seen = rest * _SEEN / _SHARES
    own = counts.backend_outages + counts.quiet_services
    nodes = max(NODES_PER_BROKER * brokers, round(0.7 * seen / minutes) - own)
    agents, checks = _monitoring(rest * _CHECKS / _SHARES, days, counts)
    return Plan(
        events=events,
        days=days,
        seed=seed,
        start_us=start_us,
        counts=counts,
        brokers=brokers,
        helens=helens,
        slice_us=_slice_us(events / days),
        tasks=rest * _TASKS / _SHARES / EVENTS_PER_TASK,
        summed=rest * _SUMMED / _SHARES,
        failed=rest * _FAILED / _SHARES,
        frontend_sessions=max(4.0, 0.3 * seen / FRONTEND_MINUTES),
        nodes=nodes,
        seen_minutes=max(1, math.ceil((nodes + own) * minutes / (0.7 * seen) - 0.5)),
        agents=agents,
        checks=checks,
    )


def _check_arguments(events: int, days: int, seed: int, start_us: int) -> None:
    if not 1 <= events <= MAX_EVENTS:
        raise ValueError(f"the number of events must be 1 to {MAX_EVENTS:,}, not {events:,}")
    if not 1 <= days <= MAX_DAYS:
        raise ValueError(f"the number of days must be 1 to {MAX_DAYS:,}, not {days:,}")
    if seed < 0:
        raise ValueError("the seed must not be negative")
    if start_us < 0 or start_us % DAY_US:
        raise ValueError("the start must be a midnight in UTC after 1970")


def _slice_us(events_a_day: float) -> int:
    for hours in (DAY_HOURS, 12, 8, 6, 4, 3, 2):
        if events_a_day * hours / DAY_HOURS <= SLICE_EVENTS:
            return hours * HOUR_US
    return HOUR_US


def _monitoring(results: float, days: int, counts: Counts) -> tuple[int, tuple[vocabulary.Check, ...]]:
    """The number of agents, and their checks: few with one long interval if there are few results."""
    daily = sum(86_400 / check.interval_seconds for check in vocabulary.CHECKS)
    least = counts.agents + SPARE_AGENTS
    agents = round(results / (days * daily))
    if agents >= max(least, MIN_LARGE_AGENTS):
        return agents, vocabulary.CHECKS
    small = vocabulary.CHECKS[: vocabulary.SMALL_CHECKS]
    wanted = 86_400 * len(small) * days * least / results
    interval = max(MIN_INTERVAL_SECONDS, math.ceil(wanted / 60) * 60)
    agents = max(least, round(results * interval / (86_400 * len(small) * days)))
    return agents, tuple(check._replace(interval_seconds=interval) for check in small)
