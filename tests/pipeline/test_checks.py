"""Checks: one step, many steps, the oracle and Helen's online states agree, whatever happened when.

Promise: PIPE-5, PIPE-6
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from scale0.config.monitoring import Flapping
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.flapping import HISTORY, FlapRule, rule_of
from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.checks_results import percent, rule_from, starts_or_stops
from tests.pipeline.checks_steps import CARRY, STATES, TIMELINE, Rows, Steps, expected, random_events, result, us

DATA_SETS = (STATES, CARRY, TIMELINE)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("seed", "agents", "hours", "horizon", "cuts", "formula"),
    [
        *((1, 30, 6, 6 - 1234.5 / 3600, [0, 6], formula) for formula in ("icinga", "nagios", "sensu")),
        (2, 25, 6, 5.5, [0, 1, 5, 6], "icinga"),
        (3, 25, 6, 6.0, [0, 2, 5, 6], "nagios"),
        (4, 25, 6, 7.0, [0, 2, 3, 6], "icinga"),
        (5, 25, 4, 4.0, range(5), "icinga"),
    ],
)
def test_one_step_and_steps_from_cut_to_cut_are_what_the_oracle_says(
    spark: SparkSession, seed: int, agents: int, hours: int, horizon: float, cuts: Sequence[int], formula: str
):
    events, horizon_us = random_events(seed, agents=agents, hours=hours), us(horizon * 3600)
    made = Steps(spark, flapping=formula).steps(events, cuts, horizon_us)
    want = expected(events, hours, horizon_us, formula)
    for name in DATA_SETS:
        assert made[name] == want[name]


def test_a_step_of_some_agents_gives_their_rows_of_the_whole(spark: SparkSession):
    events, horizon_us = random_events(6, agents=12, hours=4), us(4 * 3600)
    some = {"a1", "a4", "a5", "a11"}
    steps = Steps(spark)
    steps.step(events, 0, 2, horizon_us)
    state = steps.state or []
    steps.state = [row for row in state if row[0] in some]
    few = steps.step([one for one in events if one["identity"] in some], 2, 4, horizon_us)
    steps.state = state
    whole = steps.step(events, 2, 4, horizon_us)
    for name, agent in ((STATES, 0), (CARRY, 0), (TIMELINE, -2)):
        assert few[name] == [row for row in whole[name] if row[agent] in some]
        assert few[name]


def test_the_order_and_the_partitions_of_the_events_change_nothing(spark: SparkSession):
    events, horizon_us = random_events(7, agents=10, hours=2), us(2 * 3600)
    whole = Steps(spark).step(events, 0, 2, horizon_us)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        again = Steps(spark).step(sorted(events, key=lambda one: hash(one["seq"] * 7919)), 0, 2, horizon_us)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "1")
    assert again == whole


def test_pieces_of_an_hour_cover_it_once_up_to_the_horizon(spark: SparkSession):
    events, horizon_us = random_events(8, agents=15, hours=3), us(3 * 3600 - 100)
    hour_us = 3_600_000_000
    hours: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in Steps(spark).step(events, 0, 3, horizon_us)[TIMELINE]:
        hours.setdefault((row[1], row[-1]), []).append((row[2], row[3]))
    for (_, hour), pieces in hours.items():
        ends = [hour * hour_us, *(end for _, end in sorted(pieces))]
        assert [begin for begin, _ in sorted(pieces)] == ends[:-1]
        assert ends[-1] == min((hour + 1) * hour_us, horizon_us)


# Helen's online states and those of the tables are the same, for any results and every formula.


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
def test_the_states_are_those_of_helen(
    spark: SparkSession, formula: str, start: float, end: float, histories: list[list[tuple[str, int, int]]]
):
    rule = rule_of(Flapping(formula=formula, start=start, end=end))  # type: ignore[arg-type]
    assert rule is not None
    events, rows, stands = [], [], {}
    for number, history in enumerate(histories):
        agent = f"a{number:02}"
        results = [(state, attempts) for state, attempts, times in history for _ in range(times)]
        changes_online, stands[agent] = online(results, agent, rule)
        rows += changes_online
        for place, (state, attempts) in enumerate(results):
            events.append(result(place * SECONDS, state, agent=agent, data={"max_attempts": attempts}))
    steps = Steps(spark, flapping=formula, flapping_start=start, flapping_end=end)
    made = steps.step(events, 0, 1, us(3600))
    shown = sorted((*row[:1], *row[3:7], row[7] or "", *row[8:-1]) for row in made[STATES])
    assert shown == sorted(rows)
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
