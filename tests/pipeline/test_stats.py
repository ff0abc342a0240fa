"""`task_stats`, `request_stats` and the work of nodes: equal to plain Python, whatever the hours and partitions.

Promise: PIPE-8
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations import request_stats
from scale0.pipeline.aggregations.task_stats import HOUR, MINUTE, NODE_WORK, TaskStatsAggregation
from scale0.pipeline.marts.node_stats import NODE_HOURS, NODE_STATS
from scale0.pipeline.marts.stat_days import REQUEST_DAY, REQUEST_DAYS, TASK_DAY, TASK_DAYS
from scale0.pipeline.schemas import DataSet
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, to_time
from tests.pipeline import oracle_stats
from tests.pipeline.events import START_HOUR, event, frame, numbered

HOURS = 26
"""More than a day."""
Row = dict[str, Any]


# Rows made comparable: times with their zone, histograms as lists, values of buckets about equal.


def collected(frame: DataFrame, data_set: DataSet) -> list[Row]:
    """The rows of a data set, in the order of their keys."""
    rows = frame.select(*data_set.schema.fieldNames(), "part").collect()
    return ordered({name: _plain(value) for name, value in row.asDict().items()} for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    if isinstance(value, list):
        return [tuple(each) for each in value]
    return value


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row.get(name)) for name in ("method", "service", "node", "start", "part")])


def same(found: list[Row], wanted: Iterable[Row]) -> bool:
    """Equal rows; doubles but for their last bits, because Spark's exp and C's are not the same."""
    expected = ordered(wanted)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == {
            name: pytest.approx(value, rel=1e-12) if isinstance(value, float) and "_max" not in name else value
            for name, value in theirs.items()
        }
    return True


# Random events.


def task_events(seed: int, count: int) -> list[dict[str, Any]]:
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


def request_events(seed: int, count: int) -> list[dict[str, Any]]:
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


class Stats(NamedTuple):
    """One table of statistics: how it is computed, and from what."""

    aggregation: Any
    days: Any
    data_sets: dict[str, DataSet]
    """By grain."""
    oracle: Callable[[list[Row], str], list[Row]]
    random_events: Callable[[int, int], list[Row]]


TASKS = Stats(
    TaskStatsAggregation(),
    TASK_DAYS,
    {"minute": MINUTE, "hour": HOUR, "day": TASK_DAY},
    oracle_stats.task_stats,
    task_events,
)
REQUESTS = Stats(
    request_stats.RequestStatsAggregation(),
    REQUEST_DAYS,
    {"minute": request_stats.MINUTE, "hour": request_stats.HOUR, "day": REQUEST_DAY},
    oracle_stats.request_stats,
    request_events,
)
BOTH = pytest.mark.parametrize("stats", [TASKS, REQUESTS], ids=["tasks", "requests"])


def step(spark: SparkSession, stats: Stats, events: list[Row], partitions: int = 1) -> dict[str, list[Row]]:
    rows = frame(spark, events, stats.aggregation.columns).repartition(partitions)
    time_range = TimeRange(START_HOUR, START_HOUR + HOURS, (START_HOUR + HOURS) * HOUR_US)
    made = stats.aggregation.step(None, {"events": rows}, time_range, Parameters())
    found = {data_set.name: collected(made[data_set.name], data_set) for data_set in stats.aggregation.data_sets}
    hour, day = stats.data_sets["hour"], stats.data_sets["day"]
    days = stats.days.compute({hour.name: made[hour.name]}, frozenset(), 0, Parameters())
    found[day.name] = collected(days[day.name], day)
    spark.catalog.clearCache()
    return found


@BOTH
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_grain_is_what_plain_python_says(tidy: SparkSession, stats: Stats):
    events = stats.random_events(1, 3000 if stats is TASKS else 800)
    found = step(tidy, stats, events, partitions=3)
    for grain, data_set in stats.data_sets.items():
        assert same(found[data_set.name], stats.oracle(events, grain))
    if stats is TASKS:
        assert same(found[NODE_WORK.name], oracle_stats.node_work(events))


@BOTH
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_hours_are_the_hours_one_by_one(tidy: SparkSession, stats: Stats):
    events = stats.random_events(2, 400 if stats is TASKS else 100)
    whole = step(tidy, stats, events)
    names = [data_set.name for data_set in stats.aggregation.data_sets]
    assert all(whole[name] for name in names)
    for hour in (0, 24) if stats is TASKS else (1,):
        part = START_HOUR + hour
        mine = [row for row in events if to_time(part * HOUR_US) <= row["at"] < to_time((part + 1) * HOUR_US)]
        alone = step(tidy, stats, mine)
        for name in names:
            assert alone[name]
            assert alone[name] == [row for row in whole[name] if row["part"] == part]


def test_a_minute_with_submissions_only_has_no_percentiles(tidy: SparkSession):
    found = step(tidy, TASKS, numbered([event(5.0, "task.submitted", ref="t", service="m", identity="c")]))
    row = found[MINUTE.name][0]
    assert (row["submitted"], row["finished"], row["wait_p50"], row["run_max"]) == (1, 0, None, None)
    assert found[HOUR.name][0]["wait_histogram"] == []


def test_an_unknown_state_counts_nowhere(tidy: SparkSession):
    odd = event(5.0, "task.completed", ref="t", service="m", identity="n", attempt=1, state="exploded", seconds=1.0)
    assert step(tidy, TASKS, numbered([odd]))[MINUTE.name] == []


def test_a_day_wants_its_hours_and_an_hour_touches_its_day():
    day = START_HOUR // 24
    assert TASK_DAYS.touched({HOUR.name: {START_HOUR, START_HOUR + 5}}, 0) == {day}
    assert TASK_DAYS.wants({day}) == {HOUR.name: set(range(START_HOUR, START_HOUR + 24))}


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
    made = NODE_HOURS.compute(inputs, frozenset(), 0, Parameters())
    rows = {(row["node"], row["part"]): row for row in collected(made[NODE_STATS.name], NODE_STATS)}
    assert set(rows) == {("n1", START_HOUR), ("n1", START_HOUR + 1), ("gone", START_HOUR), ("idle", START_HOUR)}
    busy = rows["n1", START_HOUR]
    assert (busy["attempts"], busy["busy_seconds"], busy["slots"], busy["lost"]) == (3, 2.5, 4, 1)
    assert (rows["idle", START_HOUR]["attempts"], rows["gone", START_HOUR]["slots"]) == (0, None)
    assert busy["hour"] == to_time(START_HOUR * HOUR_US)


def test_what_no_broker_counts_harms_nothing(tidy: SparkSession):
    events = [
        event(1.0, "request.summed", service="s", code=-5, seconds=float("nan"), bytes=2**63 - 1, data="{"),
        event(2.0, "request.summed", service="s", code=2, bytes=10, data={"failed": {"x": 1, "7": "many"}}),
        event(3.0, "request.failed", service="s"),
    ]
    row = step(tidy, REQUESTS, numbered(events))[request_stats.HOUR.name][0]
    assert (row["answered"], row["bytes"], row["max"], row["p50"], row["histogram"]) == (2, 10, None, None, [])
    assert row["failed"][0] >= 1
