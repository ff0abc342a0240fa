"""metric_trends by hour and day, beats and series: against plain Python, whatever the order of the rows."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.heartbeats import BEATS, HeartbeatAggregation
from scale0.pipeline.aggregations.metrics import CODE_OFFSET, HOURS, MAX_VALUE, MetricAggregation, code_of, value_of
from scale0.pipeline.marts.metric_days import METRIC_DAYS
from scale0.pipeline.marts.series import SERIES, SERIES_HOURS
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, day_of
from tests.pipeline.events import START_HOUR, START_US, event, frame, numbered

DAY_US = 24 * HOUR_US
END = TimeRange(START_HOUR, START_HOUR + 48, START_US + 2 * DAY_US)


def metric(name: str, value: float | None, unit: str | None = None, **limits: float) -> tuple[Any, ...]:
    return (name, value, unit, *(limits.get(limit) for limit in ("warn", "crit", "min", "max")))


def answered(second: float, metrics: list[tuple[Any, ...]] | None, **columns: Any) -> dict[str, Any]:
    defaults = {"source": "helen-1", "identity": "a1", "service": "disk", "ref": f"spool:{second}:{random.random()}"}
    return event(second, "check.answered", metrics=metrics, **{**defaults, **columns})


def hours(spark: SparkSession, events: list[dict[str, Any]]) -> DataFrame:
    aggregation = MetricAggregation()
    out = aggregation.step(None, {"events": frame(spark, events, aggregation.columns)}, END, Parameters())[HOURS.name]
    assert out.columns == [*HOURS.schema.fieldNames(), "part"]
    return out


def collected(rows: DataFrame) -> dict[tuple[str, str, str, int], dict[str, Any]]:
    out = {
        (row["agent"], row["check"], row["metric"], row["part"]): row.asDict(recursive=True) for row in rows.collect()
    }
    assert len(out) == rows.count()
    return out


def only(rows: DataFrame) -> dict[str, Any]:
    (row,) = rows.collect()
    out: dict[str, Any] = row.asDict(recursive=True)
    return out


def p95(values: list[float]) -> float:
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def planted(seed: int = 7) -> list[dict[str, Any]]:
    """Two days of two agents: numbers of both signs and all magnitudes, and some that are none."""
    rng = random.Random(seed)
    out = []
    for second in range(0, 172_800, 700):
        for agent in ("a1", "a2"):
            value = rng.choice((0.0, -0.0, rng.gauss(0, 1), rng.lognormvariate(20, 5), -rng.lognormvariate(-20, 5)))
            broken = rng.choice((math.nan, math.inf, -math.inf, 2 * MAX_VALUE, None))
            metrics = [metric("used", value, "B", max=1e12), metric("bad", broken), metric("share", rng.random())]
            out.append(answered(second + rng.random() * 600, metrics, identity=agent, ref=f"spool:{second}"))
    return out


@pytest.mark.slow
def test_hours_and_days_equal_those_of_plain_python(spark: SparkSession) -> None:
    events = planted()
    oracle: dict[tuple[str, str, str, int], list[tuple[Any, float]]] = {}
    for row in numbered(events):
        hour = int(row["at"].timestamp() * 1e6) // HOUR_US
        for name, value, *_ in row["metrics"]:
            if name != "bad":
                oracle.setdefault((row["identity"], "disk", name, hour), []).append((row["at"], value))
    got = hours(spark, events).persist()
    check(collected(got), oracle, HOUR_US, "hour")
    by_day: dict[tuple[str, str, str, int], list[tuple[Any, float]]] = {}
    for (agent, name, which, hour), values in oracle.items():
        by_day.setdefault((agent, name, which, day_of(hour)), []).extend(values)
    days = METRIC_DAYS
    parts = days.touched({HOURS.name: {hour for *_, hour in oracle}}, END.horizon_us)
    assert parts == {day for *_, day in by_day}
    assert days.wants(parts)[HOURS.name] == set(range(START_HOUR, START_HOUR + 48))
    out = days.compute({HOURS.name: got}, parts, END.horizon_us, Parameters())
    check(collected(out["metric_trends.day"]), by_day, DAY_US, "day")
    got.unpersist()


def check(
    got: dict[tuple[str, str, str, int], dict[str, Any]],
    oracle: dict[tuple[str, str, str, int], list[tuple[Any, float]]],
    part_us: int,
    grain: str,
) -> None:
    assert got.keys() == oracle.keys()
    for key, pairs in oracle.items():
        row, values = got[key], [value for _, value in pairs]
        assert (row["count"], row["min"], row["max"]) == (len(values), min(values), max(values))
        assert row["avg"] == pytest.approx(math.fsum(values) / len(values), rel=1e-12, abs=1e-300)
        assert row["p95"] == pytest.approx(p95(values), rel=0.01)
        assert row["last"] == max(pairs)[1]
        assert row["grain"] == grain
        assert row["start"].timestamp() * 1e6 == key[3] * part_us
        assert row["unit"] == ("B" if key[2] == "used" else None)


@pytest.mark.slow
def test_no_row_depends_on_the_order_or_the_partitions(spark: SparkSession) -> None:
    events = numbered(planted(seed=11))
    plain = collected(hours(spark, events))
    random.Random(3).shuffle(events)
    aggregation = MetricAggregation()
    parts = frame(spark, events, aggregation.columns).repartition(5, "seq")
    shuffled = collected(aggregation.step(None, {"events": parts}, END, Parameters())[HOURS.name])
    assert shuffled == plain  # to the last bit
    days = METRIC_DAYS.compute({HOURS.name: hours(spark, events).repartition(3)}, set(), 0, Parameters())
    again = METRIC_DAYS.compute({HOURS.name: hours(spark, events)}, set(), 0, Parameters())
    assert collected(days["metric_trends.day"]) == collected(again["metric_trends.day"])


def test_a_result_that_two_helens_recorded_counts_once(spark: SparkSession) -> None:
    twice = [
        answered(10 + number, [metric("used", value)], ref=f"spool:{number}", source=source)
        for number, value in enumerate((1.0, 5.0, 2.0))
        for source in ("helen-1", "helen-2")
    ]
    other = [answered(20, [metric("used", 5.0)], ref=None), answered(21, [metric("used", 5.0)], ref=None)]
    row = only(hours(spark, [*twice, *other]))
    assert (row["count"], row["sum"], row["min"], row["max"]) == (5, 18.0, 1.0, 5.0)
    assert sum(bucket["count"] for bucket in row["histogram"]) == 5


def test_the_last_one_is_the_newest_and_ties_go_by_source_boot_and_seq(spark: SparkSession) -> None:
    limits = {"warn": 80.0, "crit": 90.0, "max": 100.0}
    events = [
        answered(30, [metric("used", 9.0, "%", **limits)], source="helen-2", seq=1),
        answered(30, [metric("used", 7.0, "B", crit=1.0)], source="helen-1", seq=5),
        answered(30, [metric("used", 8.0, "B", crit=2.0)], source="helen-1", seq=6),
        answered(29, [metric("used", 6.0, "B", crit=3.0)], source="helen-3", seq=9),
    ]
    row = only(hours(spark, events))
    assert (row["last"], row["unit"]) == (9.0, "%")
    assert (row["limit_warn"], row["limit_crit"], row["limit_max"]) == (80.0, 90.0, 100.0)


def test_an_event_on_the_hour_belongs_to_the_hour_that_begins(spark: SparkSession) -> None:
    events = [answered(3600, [metric("used", 2.0)]), answered(3599.999999, [metric("used", 1.0)])]
    got = collected(hours(spark, events))
    assert {key[3] - START_HOUR: row["last"] for key, row in got.items()} == {0: 1.0, 1: 2.0}


def test_what_names_nobody_or_measures_nothing_makes_no_row(spark: SparkSession) -> None:
    events = [
        answered(1, None),
        answered(2, []),
        answered(3, [metric("used", None)]),
        answered(4, [metric(None, 1.0)]),  # type: ignore[arg-type]
        answered(5, [metric("used", 1.0)], identity=None),
        answered(6, [metric("used", 1.0)], service=None),
        event(7, "check.other", identity="a", service="c", metrics=[metric("used", 1.0)]),
    ]
    assert hours(spark, events).collect() == []


def test_codes_rise_with_values_and_stand_for_them_within_one_percent(spark: SparkSession) -> None:
    magnitudes = [10.0**power * digit for power in range(-320, 309, 7) for digit in (1.0, 1.02, 3.3)]
    values = sorted({0.0, 5e-324, 1.7e308, *magnitudes, *(-magnitude for magnitude in magnitudes)})
    rows = spark.createDataFrame([(value,) for value in values], "value double").select(
        "value", code_of(f.col("value")).alias("code"), value_of(code_of(f.col("value"))).alias("back")
    )
    got = sorted(tuple(row) for row in rows.collect())
    codes = [code for _, code, _ in got]
    assert codes == sorted(codes)
    assert all(0 < abs(code) < 2 * CODE_OFFSET for value, code, _ in got if value)
    for value, code, back in got:
        if value == 0.0:
            assert (code, back) == (0, 0.0)
        elif 1e-300 < abs(value) < 1e300:
            assert back == pytest.approx(value, rel=0.01)


def test_beats_hold_the_longest_gap_and_all_heartbeats_of_an_hour(spark: SparkSession) -> None:
    events = [
        event(60, "client.seen", identity="c1", code=60, seconds=1.1),
        event(120, "client.seen", identity="c1", code=58, seconds=2.5, source="broker-2"),
        event(3600, "client.seen", identity="c1", code=3, seconds=1.0),
        event(60, "client.seen", identity="c2", code=None, seconds=math.nan),
        event(60, "client.joined", identity="c3", code=1, seconds=9.0),
    ]
    aggregation = HeartbeatAggregation()
    out = aggregation.step(None, {"events": frame(spark, events, aggregation.columns)}, END, Parameters())[BEATS.name]
    assert out.columns == [*BEATS.schema.fieldNames(), "part"]
    assert sorted(map(tuple, out.collect())) == [
        ("c1", 1.0, 3, START_HOUR + 1),
        ("c1", 2.5, 118, START_HOUR),
        ("c2", None, 0, START_HOUR),
    ]


def test_series_name_every_hourly_number_and_leave_out_what_is_none(spark: SparkSession) -> None:
    inputs = {
        "task_stats.hour": spark.createDataFrame(
            [("resize", 10, 2, None, 5)], "method string, submitted bigint, failed bigint, run_p99 double, part int"
        ),
        "request_stats.hour": spark.createDataFrame(
            [("thumbs", 7, {500: 2, 504: 1}, 0.25, 5), ("idle", 1, None, 0.5, 5)],
            "service string, answered bigint, failed map<int,bigint>, p99 double, part int",
        ),
        "beats": spark.createDataFrame(
            [("c1", 1.5, 60, 5), ("c2", None, 0, 5)], "identity string, gap_seconds double, heartbeats bigint, part int"
        ),
        "metric_trends.hour": hours(spark, [answered(10, [metric("used", 4.0)])]),
    }
    series = SERIES_HOURS
    out = series.compute(inputs, {5}, 0, Parameters())[SERIES.name]
    assert out.columns == [*SERIES.schema.fieldNames(), "part"]
    assert sorted(map(tuple, out.collect())) == sorted(
        [
            ("method", "resize", "task.rate", 10.0, 5),
            ("method", "resize", "task.failures", 2.0, 5),
            ("service", "thumbs", "request.rate", 7.0, 5),
            ("service", "thumbs", "request.p99", 0.25, 5),
            ("service", "thumbs", "request.failures", 3.0, 5),
            ("service", "idle", "request.rate", 1.0, 5),
            ("service", "idle", "request.p99", 0.5, 5),
            ("service", "idle", "request.failures", 0.0, 5),
            ("client", "c1", "heartbeat.gap", 1.5, 5),
            ("check", "a1/disk", "used", 4.0, START_HOUR),
        ]
    )
    assert series.touched({"beats": {3}, "metric_trends.hour": {4}}, 0) == {3, 4}
    assert series.wants({3}) == {name: {3} for name in series.inputs}
