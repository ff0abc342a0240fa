"""`task_stats` and the work of nodes: equal to plain Python, whatever the hours and partitions.

Promise: PIPE-8
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.task_stats import HOUR, MINUTE, NODE_WORK, TaskStatsAggregation
from scale0.pipeline.marts.node_stats import NODE_STATS, NodeStats
from scale0.pipeline.marts.stat_days import TASK_DAY, TaskDays
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, to_time
from tests.pipeline import oracle_stats
from tests.pipeline.events import START_HOUR, event, frame, numbered
from tests.pipeline.stat_rows import collected, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HOURS = 26
"""More than a day."""


@pytest.fixture
def tidy(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.catalog.clearCache()


def random_events(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    events = []
    for _ in range(count):
        hour = chance.choice((0, 0, 0, 1, 23, 24, 25))
        second = hour * 3600 + chance.choice((0.0, 59.999999, 60.0, 3599.999999, chance.uniform(0, 600)))
        same_: dict[str, Any] = {"ref": "t", "service": chance.choice(("a", "b"))}
        times: dict[str, Any] = {
            "seconds": chance.choice((0.0, 0.5, chance.lognormvariate(0, 2))),
            "waited": chance.expovariate(1.0),
        }
        match chance.randrange(5):
            case 0:
                events.append(event(second, "task.submitted", identity="c", **same_))
            case 1:
                state = chance.choice(("failed", "lost", "timeout", "cancelled"))
                node = chance.choice(("n1", "n2"))
                events.append(
                    event(second, "task.attempt_ended", identity=node, attempt=1, state=state, **times, **same_)
                )
            case _:
                end: dict[str, Any] = chance.choice(
                    (
                        {"state": "finished", "identity": "n1", "attempt": 1},
                        {"state": "finished", "identity": "n2", "attempt": 2},
                        {"state": "failed", "identity": "n2", "attempt": 2, "code": 5},
                        {"state": "failed", "identity": "n2", "attempt": 2, "code": -32090},
                        {"state": "cancelled", "identity": None, "attempt": 0},
                        {"state": "cancelled", "identity": "n1", "attempt": 1},
                    )
                )
                events.append(event(second, "task.completed", **times, **end, **same_))
    return numbered(events)


def step(spark: SparkSession, events: list[dict[str, Any]], partitions: int = 1) -> dict[str, list[dict[str, Any]]]:
    family = TaskStatsAggregation()
    rows = frame(spark, events, family.columns).repartition(partitions)
    time_range = TimeRange(START_HOUR, START_HOUR + HOURS, (START_HOUR + HOURS) * HOUR_US)
    made = family.step(None, {"events": rows}, time_range, Parameters())
    found = {data_set.name: collected(made[data_set.name], data_set) for data_set in family.data_sets}
    days = TaskDays().compute({HOUR.name: made[HOUR.name]}, frozenset(), 0, Parameters())
    found[TASK_DAY.name] = collected(days[TASK_DAY.name], TASK_DAY)
    spark.catalog.clearCache()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_grain_is_what_plain_python_says(tidy: SparkSession):
    events = random_events(1, 3000)
    found = step(tidy, events, partitions=3)
    assert same(found[MINUTE.name], oracle_stats.task_stats(events, "minute"))
    assert same(found[HOUR.name], oracle_stats.task_stats(events, "hour"))
    assert same(found[TASK_DAY.name], oracle_stats.task_stats(events, "day"))
    assert same(found[NODE_WORK.name], oracle_stats.node_work(events))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_hours_are_the_hours_one_by_one(tidy: SparkSession):
    events = random_events(2, 400)
    whole = step(tidy, events)
    for name in (MINUTE.name, HOUR.name, NODE_WORK.name):
        assert whole[name]
    for hour in (0, 24):
        part = START_HOUR + hour
        mine = [row for row in events if to_time(part * HOUR_US) <= row["at"] < to_time((part + 1) * HOUR_US)]
        alone = step(tidy, mine)
        for name in (MINUTE.name, HOUR.name, NODE_WORK.name):
            assert alone[name] == [row for row in whole[name] if row["part"] == part]


def test_a_minute_with_submissions_only_has_no_percentiles(tidy: SparkSession):
    found = step(tidy, numbered([event(5.0, "task.submitted", ref="t", service="m", identity="c")]))
    row = found[MINUTE.name][0]
    assert (row["submitted"], row["finished"], row["wait_p50"], row["run_max"]) == (1, 0, None, None)
    assert found[HOUR.name][0]["wait_histogram"] == []


def test_an_unknown_state_counts_nowhere(tidy: SparkSession):
    odd = event(5.0, "task.completed", ref="t", service="m", identity="n", attempt=1, state="exploded", seconds=1.0)
    assert step(tidy, numbered([odd]))[MINUTE.name] == []


def test_a_day_wants_its_hours_and_an_hour_touches_its_day():
    day = START_HOUR // 24
    assert TaskDays().touched({HOUR.name: {START_HOUR, START_HOUR + 5}}, 0) == {day}
    assert TaskDays().wants({day}) == {HOUR.name: set(range(START_HOUR, START_HOUR + 24))}


def test_a_node_has_its_work_beside_its_slots(tidy: SparkSession):
    work = tidy.createDataFrame(
        [("n1", 3, 2_500_000, 1, START_HOUR), ("gone", 1, 1_000_000, 0, START_HOUR)],
        "node string, attempts bigint, busy_us bigint, lost bigint, part int",
    )
    slots = tidy.createDataFrame(
        [("n1", 4, START_HOUR), ("idle", 2, START_HOUR), ("frontend", 0, START_HOUR), ("n1", 8, START_HOUR + 1)],
        "node string, slots bigint, part int",
    )
    inputs = {NODE_WORK.name: work, "node_slots": slots}
    made = NodeStats().compute(inputs, frozenset(), 0, Parameters())
    rows = {(row["node"], row["part"]): row for row in collected(made[NODE_STATS.name], NODE_STATS)}
    assert set(rows) == {("n1", START_HOUR), ("n1", START_HOUR + 1), ("gone", START_HOUR), ("idle", START_HOUR)}
    busy = rows["n1", START_HOUR]
    assert (busy["attempts"], busy["busy_seconds"], busy["slots"], busy["lost"]) == (3, 2.5, 4, 1)
    assert (rows["idle", START_HOUR]["attempts"], rows["gone", START_HOUR]["slots"]) == (0, None)
    assert busy["hour"] == to_time(START_HOUR * HOUR_US)
