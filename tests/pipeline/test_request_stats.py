"""`request_stats`: equal to plain Python at every grain, whatever the partitions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.request_stats import HOUR, MINUTE, RequestStatsAggregation
from scale0.pipeline.marts.stat_days import REQUEST_DAY, RequestDays
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, to_time
from tests.pipeline import oracle_stats
from tests.pipeline.events import START_HOUR, event, frame, numbered
from tests.pipeline.stat_rows import collected, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def tidy(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.catalog.clearCache()


def random_events(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    events = []
    for _ in range(count):
        second = chance.choice((0, 1, 23, 24)) * 3600 + chance.choice((0.0, 59.999999, chance.uniform(0, 300)))
        service = chance.choice(("a", "b", ""))
        if chance.random() < 0.3:
            code = chance.choice((404, 500, 504))
            events.append(event(second, "request.failed", service=service, code=code, seconds=chance.random()))
            continue
        buckets = sorted(chance.sample(range(-300, 50), chance.randint(0, 12)))
        histogram = [(bucket, chance.randint(1, 50)) for bucket in buckets]
        many = {"failed": {"504": chance.randint(1, 9), "429": 2}} if chance.random() < 0.2 else None
        events.append(
            event(
                second,
                "request.summed",
                service=service,
                identity=chance.choice(("b1", "b2")),
                code=sum(count for _, count in histogram),
                seconds=chance.random(),
                bytes=chance.randint(0, 10**9),
                histogram=histogram,
                data=many,
            )
        )
    return numbered(events)


def step(spark: SparkSession, events: list[dict[str, Any]], partitions: int = 1) -> dict[str, list[dict[str, Any]]]:
    family = RequestStatsAggregation()
    rows = frame(spark, events, family.columns).repartition(partitions)
    time_range = TimeRange(START_HOUR, START_HOUR + 26, (START_HOUR + 26) * HOUR_US)
    made = family.step(None, {"events": rows}, time_range, Parameters())
    found = {data_set.name: collected(made[data_set.name], data_set) for data_set in family.data_sets}
    days = RequestDays().compute({HOUR.name: made[HOUR.name]}, frozenset(), 0, Parameters())
    found[REQUEST_DAY.name] = collected(days[REQUEST_DAY.name], REQUEST_DAY)
    spark.catalog.clearCache()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_grain_is_what_plain_python_says(tidy: SparkSession):
    events = random_events(1, 800)
    found = step(tidy, events, partitions=3)
    assert same(found[MINUTE.name], oracle_stats.request_stats(events, "minute"))
    assert same(found[HOUR.name], oracle_stats.request_stats(events, "hour"))
    assert same(found[REQUEST_DAY.name], oracle_stats.request_stats(events, "day"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_hours_are_the_hours_one_by_one(tidy: SparkSession):
    events = random_events(2, 100)
    whole = step(tidy, events)
    part = START_HOUR + 1
    mine = [row for row in events if to_time(part * HOUR_US) <= row["at"] < to_time((part + 1) * HOUR_US)]
    alone = step(tidy, mine)
    for name in (MINUTE.name, HOUR.name):
        assert alone[name]
        assert alone[name] == [row for row in whole[name] if row["part"] == part]


def test_what_no_broker_counts_harms_nothing(tidy: SparkSession):
    events = [
        event(1.0, "request.summed", service="s", code=-5, seconds=float("nan"), bytes=2**63 - 1, data="{"),
        event(2.0, "request.summed", service="s", code=2, bytes=10, data={"failed": {"x": 1, "7": "many"}}),
        event(3.0, "request.failed", service="s"),
    ]
    row = step(tidy, numbered(events))[HOUR.name][0]
    assert (row["answered"], row["bytes"], row["max"], row["p50"], row["histogram"]) == (2, 10, None, None, [])
    assert row["failed"][0] >= 1
