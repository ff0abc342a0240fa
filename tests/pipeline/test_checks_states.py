"""States of checks: Helen's online ones and the tables' are the same, for any results and every formula.

Promise: PIPE-6
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scale0.config.monitoring import Flapping
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.flapping import HISTORY, rule_of
from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.checks_results import percent, rule_from, starts_or_stops
from tests.pipeline.checks_steps import CARRY, STATES, Rows, Steps, result, us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scale0.monitoring.helen.core.flapping import FlapRule

STEADY = st.tuples(st.sampled_from(["ok", "warning", "critical", "unknown"]), st.integers(1, 4), st.integers(1, 4))
"""A state, the attempts that are wanted, and how many such results follow each other."""
HISTORIES = st.lists(st.lists(STEADY, min_size=1, max_size=25), min_size=20, max_size=30)
SECONDS = 30.0
FORMULAS = (("icinga", 30.0, 25.0), ("nagios", 22.5, 10.0), ("sensu", 35.0, 20.0))


def online(results: list[tuple[str, int]], agent: str, rule: FlapRule) -> tuple[Rows, CheckState]:
    """What Helen says: the rows of `check_states`, and where the check stands."""
    state, out = CheckState(), []
    for number, (found, attempts) in enumerate(results):
        previous = state.state
        if state.advance(found, attempts, rule):
            share = rule.percent(state.history, state.known)
            known = (state.state, state.hard, state.attempt, previous, state.flapping, share)
            out.append((agent, us(number * SECONDS), *known))
    return out, state


@pytest.mark.slow
@pytest.mark.parametrize(("formula", "start", "end"), FORMULAS)
@settings(max_examples=2, phases=[Phase.generate])  # a step takes seconds: shrinking would take hours
@given(histories=HISTORIES)
def test_the_states_are_those_that_helen_told(
    spark: SparkSession, formula: str, start: float, end: float, histories: list[list[tuple[str, int, int]]]
):
    rule = rule_of(Flapping(formula=formula, start=start, end=end))  # type: ignore[arg-type]
    assert rule is not None
    events, rows, stands = [], [], {}
    for number, history in enumerate(histories):
        agent = f"a{number:02}"
        results = [(state, attempts) for state, attempts, times in history for _ in range(times)]
        said, stands[agent] = online(results, agent, rule)
        rows += said
        for place, (state, attempts) in enumerate(results):
            events.append(result(place * SECONDS, state, agent=agent, data={"max_attempts": attempts}))
    steps = Steps(spark, flapping=formula, flapping_start=start, flapping_end=end)
    made = steps.step(events, 0, 1, us(3600))
    told = sorted((*row[:1], *row[3:7], row[7] or "", *row[8:-1]) for row in made[STATES])
    assert told == sorted(rows)
    for agent, _, _, _, _, _, state, changes, known, attempt, problem, flapping, _, _ in made[CARRY]:
        want = stands[agent]
        assert (state, changes, known, attempt) == (want.state, want.history, want.known, want.attempt)
        assert (problem, flapping) == (want.problem, want.flapping)


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["icinga", "nagios", "sensu"])
def test_any_history_weighs_what_it_weighs_online(spark: SparkSession, formula: str):
    rule = rule_from(Parameters(flapping=formula))  # type: ignore[arg-type]
    some = [*range(64), HISTORY, HISTORY >> 1, *((n * 2_654_435_761) & HISTORY for n in range(3_000))]
    frame = spark.createDataFrame([(history, known) for history in some for known in (20, 21)], "h bigint, k int")
    made = frame.select(
        "h", "k", percent(frame.h, frame.k, rule).alias("p"), starts_or_stops(frame.h, frame.k, rule).alias("m")
    ).collect()
    for history, known, share, mark in made:
        assert share == rule.percent(history, known)
        for was in (False, True):
            assert (was if mark is None else mark) == rule.flaps(history, known, was)


@pytest.mark.slow
def test_the_published_example_is_39_percent(spark: SparkSession):
    """Changes at .84 .86 .88 .90 .98 1.06 1.12 1.18, by 21 results."""
    changes = {84, 86, 88, 90, 98, 106, 112, 118}
    states, state = ["ok"], "ok"
    for weight in range(80, 120, 2):
        if weight in changes:
            state = "critical" if state == "ok" else "ok"
        states.append(state)
    made = Steps(spark).step([result(n * SECONDS, state) for n, state in enumerate(states)], 0, 1, us(3600))
    last = max(made[STATES], key=lambda row: row[3])
    assert last[8:10] == (True, 39.1)
