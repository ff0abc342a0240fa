"""Generates `check.answered` events.

Results of a disconnected agent arrive later, once each, with their old `at`. A problem that was not planted is never
the second in a row, so it is never hard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from scale0.history.events.checks import CheckAnswered
from scale0.pipeline.time_ranges import SECOND_US
from simulator.history import randomness, vocabulary
from simulator.history.rows import SPOOL_REF, Array, Lexicon, Rows, join, make, take
from simulator.history.script_checks import CRITICAL, DUPLICATES, FLAPPING, SILENT
from simulator.history.single_events import second_join_us

if TYPE_CHECKING:
    from simulator.history.script import Script, SourceUptimes

NOISE_EVERY: Final = 4
"""Only each fourth result may be a random problem."""
NOISE_SHARE: Final = 0.012
NOISE_STATES: Final = (1, 1, 1, 1, 1, 1, 1, 1, 2, 3)
"""Mostly warnings, sometimes critical or unknown."""
LATENCY_US: Final = (1_000, 50_000)
LATE_US: Final = (2 * SECOND_US, 20 * SECOND_US)
"""After Helen is back, agents send what she missed."""
OVER: Final = 1.1
"""The factor by which a metric exceeds its limit in a problem."""
_CRITICAL: Final = vocabulary.STATES.index(vocabulary.CRITICAL)
_WARNING: Final = vocabulary.STATES.index(vocabulary.WARNING)
_OK: Final = vocabulary.STATES.index(vocabulary.OK)


class _Results(NamedTuple):
    pair: Array
    number: Array
    """Of its check, from 0."""
    at: Array


class CheckMaker:
    """Generates results, slice by slice."""

    def __init__(self, script: Script, uptimes: SourceUptimes, lexicon: Lexicon) -> None:
        plan = script.plan
        self._script, self._uptimes, self._lexicon = script, uptimes, lexicon
        rng = randomness.rng_for(plan.seed, randomness.CHECKS)
        self._agents = lexicon.numbers([script.agent_name(n) for n in range(plan.agents)])
        self._helens = np.array([script.helen_of(n) for n in range(plan.agents)], np.int8)
        spools = rng.integers(0, 2**63, plan.agents).tolist()
        self._spools = lexicon.numbers([f"{spool:016x}:" for spool in spools])
        self._spooled = np.zeros(plan.agents, np.int64)
        self._cut: dict[int, int] = {}
        """By agent: the number of the first result that could not be delivered."""
        self._services = lexicon.numbers([check.name for check in plan.checks])
        self._states = lexicon.numbers(list(vocabulary.STATES))
        self._data = np.array(
            [[lexicon.number(_data(check, state)) for state in vocabulary.STATES] for check in plan.checks], np.int32
        )
        self._run = np.array([check.run_seconds for check in plan.checks])
        self._levels = rng.uniform(0.8, 1.2, script.schedule.phase_us.size)
        self._is_planted = np.zeros(script.schedule.phase_us.size, bool)
        self._is_planted[[each.pair for each in script.episodes]] = True
        self._metrics = [_limits(plan.checks, 0), _limits(plan.checks, 1)]

    def make(self, slice_number: int, from_us: int, to_us: int) -> Rows:
        """All results that are due in the slice; some are recorded later."""
        rng = randomness.rng_for(self._script.plan.seed, randomness.CHECKS, slice_number + 1)
        results = self._answered(self._due(from_us, to_us))
        agent = results.pair // self._script.schedule.checks
        check = results.pair % self._script.schedule.checks
        state = self._judged(results, rng)
        source, time = self._received(agent, results.at, rng)
        value, second = (self._measured(n, results, check, state, rng) for n in range(2))
        rows = make(
            time,
            at=results.at,
            source=source,
            kind=self._lexicon.number("check.answered"),
            identity=self._agents[agent],
            service=self._services[check],
            ref_form=SPOOL_REF,
            ref_head=self._spools[agent],
            ref_number=self._spool(agent),
            state=self._states[state],
            seconds=np.round(self._run[check] * np.exp(0.3 * rng.standard_normal(state.size)), 6),
            data=self._data[check, state],
            metrics=check,
            value=value,
            second_value=second,
        )
        return join([rows, *self._twice(rows, agent)])

    def _due(self, from_us: int, to_us: int) -> _Results:
        """In order of agent and time."""
        schedule = self._script.schedule
        first = np.maximum(0, -((schedule.phase_us - from_us) // schedule.interval_us))
        end = np.maximum(first, -((schedule.phase_us - to_us) // schedule.interval_us))
        counts = end - first
        pair = np.repeat(np.arange(counts.size), counts)
        number = np.arange(pair.size) - np.repeat(np.cumsum(counts) - counts, counts) + first[pair]
        at = schedule.at_us(pair, number)
        order = np.lexsort((at, pair // schedule.checks))
        return _Results(pair[order], number[order], at[order])

    def _answered(self, results: _Results) -> _Results:
        """Without the results that agents did not produce."""
        made = np.ones(results.pair.size, bool)
        for each in self._script.episodes:
            if each.what == SILENT:
                made[_within(results, each.pair, each.first, each.end)] = False
        for absence in self._script.absences:
            if not absence.is_cut_off:
                is_its = results.pair // self._script.schedule.checks == absence.agent
                made[is_its & (results.at >= absence.from_us) & (results.at < absence.to_us)] = False
        return _Results(*(column[made] for column in results))

    def _judged(self, results: _Results, rng: np.random.Generator) -> Array:
        size = results.pair.size
        may = (results.number % NOISE_EVERY == NOISE_EVERY - 1) & ~self._is_planted[results.pair]
        problems = np.array(NOISE_STATES)[rng.integers(0, len(NOISE_STATES), size)]
        state = np.where(may & (rng.random(size) < NOISE_SHARE * NOISE_EVERY), problems, _OK)
        for each in self._script.episodes:
            which = _within(results, each.pair, each.first, each.end)
            if each.what == CRITICAL:
                state[which] = _CRITICAL
            elif each.what == FLAPPING:
                state[which] = np.where((results.number[which] - each.first) % 2 == 0, _CRITICAL, _OK)
        return state

    def _received(self, agent: Array, at: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """The recording Helen, and the time."""
        source = self._helens[agent].copy()
        time = at + rng.integers(*LATENCY_US, at.size)
        for absence in self._script.absences:
            if absence.is_cut_off:
                back_us = second_join_us(absence.to_us)
                moved = np.flatnonzero((agent == absence.agent) & (at >= absence.from_us))
                source[moved] = self._script.other_helen(absence.agent)
                late = moved[at[moved] < back_us]
                time[late] = back_us + SECOND_US + np.arange(late.size) * 100
        return source, self._uptimes.delayed(source, time, rng.integers(*LATE_US, at.size))

    def _twice(self, rows: Rows, agent: Array) -> list[Rows]:
        """The first results of an agent that was cut off are recorded twice: the connection broke again before the
        acknowledgement.
        """
        found = []
        for absence in self._script.absences:
            if absence.is_cut_off:
                late = np.flatnonzero((agent == absence.agent) & (rows.at >= absence.from_us))
                late = late[rows.ref_number[late] < self._first_late(absence.agent, rows, late) + DUPLICATES]
                late = late[rows.at[late] < absence.to_us]
                again = take(rows, late)
                time = absence.to_us + SECOND_US // 2 + np.arange(late.size) * 100
                helen = np.full(late.size, self._script.helen_of(absence.agent), np.int8)
                found.append(again._replace(time=time, source=helen))
        return found

    def _first_late(self, agent: int, rows: Rows, late: Array) -> int:
        """The spool number of the first undelivered result; it may be in the previous slice."""
        known = self._cut.get(agent)
        if known is None and late.size:
            known = self._cut[agent] = int(rows.ref_number[late].min())
        return known or 0

    def _spool(self, agent: Array) -> Array:
        """The next spool numbers of each agent, in order: the results are ordered by agent."""
        counts = np.bincount(agent, minlength=self._spooled.size)
        rank = np.arange(agent.size) - (np.cumsum(counts) - counts)[agent]
        number: Array = self._spooled[agent] + rank + 1
        self._spooled += counts
        return number

    def _measured(self, n: int, results: _Results, check: Array, state: Array, rng: np.random.Generator) -> Array:
        """The values of a check's first or second metric; NaN if it has none."""
        usual, noise, rhythm, warn, crit = self._metrics[n][:, check]
        day = np.cos((results.at % 86_400_000_000) * (2.0 * np.pi / 86_400_000_000) - 3.7)
        value = usual * self._levels[results.pair] + rhythm * day + noise * rng.standard_normal(check.size)
        value = np.where(np.isnan(usual), np.nan, np.maximum(value, 0.0))
        if n == 0:
            for each in self._script.fillings:
                which = np.flatnonzero(results.pair == each.pair)
                grown = each.per_us * (results.at[which] - self._script.plan.start_us)
                value[which] = each.at_start + grown + noise[which] * rng.standard_normal(which.size)
        value = np.where((state == _WARNING) & ~np.isnan(warn), np.maximum(value, warn * OVER), value)
        value = np.where((state == _CRITICAL) & ~np.isnan(crit), np.maximum(value, crit * OVER), value)
        return np.round(value, 6)


def _within(results: _Results, pair: int, first: int, end: int) -> Array:
    found: Array = np.flatnonzero((results.pair == pair) & (results.number >= first) & (results.number < end))
    return found


def _limits(checks: tuple[vocabulary.Check, ...], n: int) -> Array:
    """usual, noise, rhythm, warn and crit of each check's metric."""

    def of(check: vocabulary.Check) -> list[float]:
        if n >= len(check.metrics):
            return [np.nan, 0.0, 0.0, np.nan, np.nan]
        metric = check.metrics[n]
        warn, crit = (np.nan if limit is None else limit for limit in (metric.warn, metric.crit))
        return [metric.usual, metric.noise, metric.rhythm, warn, crit]

    return np.array([of(check) for check in checks]).T


def _data(check: vocabulary.Check, state: str) -> str:
    """The data column of a scheduled result."""
    message = f"{check.name} is {state}"
    answered = CheckAnswered(
        *("", "", "", 0.0, state, None, (), message, True),
        float(check.interval_seconds),
        float(check.timeout_seconds),
        check.max_attempts,
    )
    text: str = answered.cells()[-1]
    return text
