"""Plants truths of agents and their checks.

An agent has at most one truth. An episode begins and ends with a result, so its times are exact. Helen is running when
an agent joins, leaves or is in a downtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from scale0.pipeline.time_ranges import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from simulator.history import truths, vocabulary
from simulator.history.script import Absence, Downtime, Episode, Filling, Schedule
from simulator.history.truths import Truth

if TYPE_CHECKING:
    from simulator.history.plan import Plan
    from simulator.history.script_builder import Calendar

CRITICAL: Final = "critical"
FLAPPING: Final = "flapping"
SILENT: Final = "silent"

MIN_CRITICAL_RESULTS: Final = 7
MIN_FLAPPING_RESULTS: Final = 24
MIN_SILENT_RESULTS: Final = 4
OUTAGE_RESULTS: Final = 4
DUPLICATES: Final = 5
"""Results of an agent that was cut off which two Helens record."""
FULL_DAYS: Final = (1.5, 4.0)
"""How many days after the end of the history a filling disk is full."""
FULL_FROM: Final = 0.45
"""How full it is at the start."""


class Monitoring(NamedTuple):
    schedule: Schedule
    episodes: tuple[Episode, ...]
    downtimes: tuple[Downtime, ...]
    absences: tuple[Absence, ...]
    fillings: tuple[Filling, ...]
    truths: list[Truth]


class _CheckPlanner:
    """Assigns each agent at most one truth."""

    def __init__(self, plan: Plan, calendar: Calendar, rng: np.random.Generator) -> None:
        self.plan, self.calendar, self.rng = plan, calendar, rng
        interval_us = np.array([check.interval_seconds * SECOND_US for check in plan.checks] * plan.agents, np.int64)
        phase_us = plan.start_us + SECOND_US * 30 + (rng.random(interval_us.size) * (interval_us - 60)).astype(np.int64)
        self.schedule = Schedule(len(plan.checks), phase_us, interval_us)
        self.free = [int(n) for n in rng.permutation(plan.agents)[: plan.counts.agents]]
        self.episodes: list[Episode] = []
        self.downtimes: list[Downtime] = []
        self.absences: list[Absence] = []
        self.fillings: list[Filling] = []
        self.truths: list[Truth] = []

    def helens(self, agent: int) -> tuple[str, ...]:
        """Names whose calendar must be free."""
        return (self.plan.sources[self.plan.brokers + agent % self.plan.helens],)

    def episode(self, kind: str, what: str, results: int, least_us: int) -> tuple[Episode, Truth]:
        """For the check `load` of the next agent: at least so many results, and so long.

        If Helen is absent meanwhile she records the results later, with the same `at`. Only downtimes need her.
        """
        agent = self.free.pop()
        pair = agent * self.schedule.checks + vocabulary.LOAD
        interval_us = int(self.schedule.interval_us[pair])
        results = max(results, -(-least_us // interval_us))
        results += int(self.rng.integers(0, 1 + results // 4))
        helens = self.helens(agent) if kind == truths.CRITICAL_IN_DOWNTIME else ()
        start_us = self.calendar.slot((results + 3) * interval_us, (agent_name(agent),), helens)
        first = self.schedule.number_after(pair, start_us) + 1
        episode = Episode(pair, first, first + results, what)
        from_us, to_us = (self.schedule.one_us(pair, number) for number in (first, first + results))
        subject = f"{agent_name(agent)}/{self.plan.checks[vocabulary.LOAD].name}"
        truth = Truth(kind, "check", subject, from_us, to_us, {"results": results})
        self.episodes.append(episode)
        self.truths.append(truth)
        return episode, truth

    def add(self, truth: Truth, **facts: Any) -> None:
        """Add facts to the last truth."""
        self.truths[-1] = Truth(
            truth.kind, truth.subject_kind, truth.subject, truth.from_us, truth.to_us, truth.facts | facts
        )


def agent_name(agent: int) -> str:
    return f"agent-{agent + 1:04d}"


def plant_checks(plan: Plan, calendar: Calendar, rng: np.random.Generator) -> Monitoring:
    planner = _CheckPlanner(plan, calendar, rng)
    counts = plan.counts
    for _ in range(counts.agents_cut_off):
        _absence(planner, truths.AGENT_CUT_OFF)
    for _ in range(counts.agent_outages):
        _absence(planner, truths.AGENT_OUTAGE)
    for n in range(counts.critical_checks + counts.criticals_in_downtime):
        _critical(planner, n < counts.criticals_in_downtime)
    for _ in range(counts.flapping_checks):
        planner.episode(truths.FLAPPING_CHECK, FLAPPING, MIN_FLAPPING_RESULTS, 3 * HOUR_US)
    for _ in range(counts.silent_checks):
        _silent(planner)
    for _ in range(counts.filling_disks):
        _filling(planner)
    return Monitoring(
        planner.schedule,
        tuple(planner.episodes),
        tuple(planner.downtimes),
        tuple(planner.absences),
        tuple(planner.fillings),
        planner.truths,
    )


def _critical(planner: _CheckPlanner, in_downtime: bool) -> None:
    kind = truths.CRITICAL_IN_DOWNTIME if in_downtime else truths.CRITICAL_CHECK
    episode, truth = planner.episode(kind, CRITICAL, MIN_CRITICAL_RESULTS, HOUR_US)
    check = planner.plan.checks[vocabulary.LOAD]
    hard_us = planner.schedule.one_us(episode.pair, episode.first + check.max_attempts - 1)
    planner.add(truth, hard_us=hard_us, max_attempts=check.max_attempts)
    if in_downtime:
        agent = episode.pair // planner.schedule.checks
        ref = f"downtime-{int(planner.rng.integers(2**32)):08x}"
        from_us, to_us = truth.from_us - 5 * MINUTE_US, truth.to_us + 5 * MINUTE_US
        planner.downtimes.append(Downtime(ref, agent, check.name, from_us, to_us))
        planner.add(planner.truths[-1], ref=ref, downtime_from_us=from_us, downtime_to_us=to_us)


def _silent(planner: _CheckPlanner) -> None:
    """The check is unobserved from the end of the last result's validity to the next result."""
    episode, truth = planner.episode(truths.SILENT_CHECK, SILENT, MIN_SILENT_RESULTS, 2 * HOUR_US)
    check = planner.plan.checks[vocabulary.LOAD]
    last_us = planner.schedule.one_us(episode.pair, episode.first - 1)
    vouched_us = last_us + (check.interval_seconds + check.timeout_seconds) * SECOND_US
    planner.add(truth, last_us=last_us, unobserved_from_us=vouched_us, unobserved_to_us=truth.to_us)


def _absence(planner: _CheckPlanner, kind: str) -> None:
    agent = planner.free.pop()
    is_cut_off = kind == truths.AGENT_CUT_OFF
    pairs = slice(agent * planner.schedule.checks, (agent + 1) * planner.schedule.checks)
    shortest_us = int(planner.schedule.interval_us[pairs].min())
    length_us = max(OUTAGE_RESULTS * shortest_us, (3 if is_cut_off else 1) * HOUR_US)
    length_us += int(planner.rng.integers(HOUR_US))
    helens = planner.plan.sources[planner.plan.brokers :] if is_cut_off else planner.helens(agent)
    # An agent that was cut off has another Helen afterwards: nothing else may happen to it later.
    start_us = planner.calendar.slot(length_us, (agent_name(agent),), helens)
    planner.absences.append(Absence(agent, start_us, start_us + length_us, is_cut_off))
    helen = planner.helens(agent)[0]
    facts: dict[str, Any] = {"helen": helen}
    if is_cut_off:
        facts["then"] = next(name for name in helens if name != helen)
        facts["recorded_twice"] = DUPLICATES
    planner.truths.append(Truth(kind, "agent", agent_name(agent), start_us, start_us + length_us, facts))


def _filling(planner: _CheckPlanner) -> None:
    plan = planner.plan
    agent = planner.free.pop()
    pair = agent * planner.schedule.checks + vocabulary.DISK
    metric = plan.checks[vocabulary.DISK].metrics[0]
    limit = float(metric.max or 0.0)
    full_us = plan.end_us + int(planner.rng.uniform(*FULL_DAYS) * DAY_US)
    per_us = limit * (1.0 - FULL_FROM) / (full_us - plan.start_us)
    planner.fillings.append(Filling(pair, limit * FULL_FROM, per_us))
    subject = f"{agent_name(agent)}/{plan.checks[vocabulary.DISK].name}"
    facts = {"metric": metric.name, "limit": limit, "per_day": per_us * DAY_US, "exhausted_us": full_us}
    planner.truths.append(Truth(truths.FILLING_DISK, "check", subject, plan.start_us, plan.end_us, facts))
