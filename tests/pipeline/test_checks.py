"""Checks: one step, many steps and the oracle agree, whatever happened when.

Promise: PIPE-5
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.checks_steps import CARRY, STATES, TIMELINE, Steps, expected, random_events, us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = 6
SLABS = (STATES, CARRY, TIMELINE)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("formula", ["icinga", "nagios", "sensu"])
def test_one_step_over_many_hours_is_what_the_oracle_says(spark: SparkSession, formula: str):
    events, horizon_us = random_events(1, agents=30, hours=HOURS), us(HOURS * 3600 - 1234.5)
    got = Steps(spark, flapping=formula).step(events, 0, HOURS, horizon_us)
    want = expected(events, HOURS, horizon_us, formula)
    for name in SLABS:
        assert got[name] == want[name]


@pytest.mark.parametrize(("seed", "formula", "horizon"), [(2, "icinga", 5.5), (3, "nagios", 6.0), (4, "icinga", 7.0)])
def test_steps_from_cut_to_cut_are_one_step_and_the_oracle(
    spark: SparkSession, seed: int, formula: str, horizon: float
):
    events, horizon_us = random_events(seed, agents=25, hours=HOURS), us(horizon * 3600)
    dice = random.Random(seed)
    cuts = [0, *sorted(dice.sample(range(1, HOURS), 2)), HOURS]
    want = expected(events, HOURS, horizon_us, formula)
    stepped = Steps(spark, flapping=formula).steps(events, cuts, horizon_us)
    for name in SLABS:
        assert stepped[name] == want[name]


def test_hour_by_hour_is_the_oracle(spark: SparkSession):
    events, horizon_us = random_events(5, agents=25, hours=4), us(4 * 3600)
    stepped = Steps(spark).steps(events, range(5), horizon_us)
    want = expected(events, 4, horizon_us)
    for name in SLABS:
        assert stepped[name] == want[name]


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
