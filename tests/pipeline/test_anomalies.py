"""anomalies: against plain Python, from all of history or from the hours asked for, and what must not show."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterable, Set
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.marts.anomalies import ANOMALIES, Anomalies
from scale0.pipeline.marts.series import SERIES
from scale0.pipeline.time_ranges import HOUR_US
from tests.pipeline.events import START_HOUR, with_part

Key = tuple[str, str, str]
History = dict[Key, dict[int, float]]

FIRST = START_HOUR - START_HOUR % 24 + 5  # not on a day's start


def floor(key: Key, median: float) -> float:
    kind, _, metric = key
    if kind == "check":
        return max(0.02 * abs(median), 1e-9)
    if metric in ("task.rate", "task.failures", "request.rate", "request.failures"):
        return 1.0 + math.sqrt(abs(median))
    return max(0.05 * abs(median), 0.1 if metric == "heartbeat.gap" else 0.001)


def oracle(history: History, hours: Iterable[int], end: int) -> dict[tuple[Key, int], tuple[float, ...]]:
    """Word by word from the contract."""
    out: dict[tuple[Key, int], tuple[float, ...]] = {}
    for key, values in history.items():
        for hour in hours:
            if hour >= end or hour not in values:
                continue
            week = [values[hour - 168 * k] for k in range(1, 9) if hour - 168 * k in values]
            day = [values[before] for before in range(hour - 24, hour) if before in values]
            sample = week if len(week) >= 3 else day if len(day) >= 12 else []
            if not sample:
                continue
            median = statistics.median(sample)
            deviation = max(1.4826 * statistics.median(abs(v - median) for v in sample), floor(key, median))
            if len(day) >= 12:
                steps = statistics.median(abs(b - a) for a, b in itertools.pairwise(day))
                deviation = max(deviation, 1.4826 / math.sqrt(2) * steps * math.sqrt(1 + math.pi / 2 / len(sample)))
            score = abs(values[hour] - median) / deviation
            if score > 3.5:
                out[key, hour] = (values[hour], median, deviation, score, float(sample is week))
    return out


def computed(
    spark: SparkSession, history: History, parts: Set[int], end: int, score: float = 3.5
) -> dict[tuple[Key, int], tuple[float, ...]]:
    """Given no more than what it wants."""
    table = Anomalies()
    wanted = table.wants(parts)[SERIES.name]
    rows = [(*key, value, hour) for key, values in history.items() for hour, value in values.items() if hour in wanted]
    frame = spark.createDataFrame(rows, with_part(SERIES.schema))
    parameters = Parameters(anomaly_score=score)
    out = table.compute({SERIES.name: frame}, parts, end * HOUR_US + HOUR_US // 2, parameters)[ANOMALIES.name]
    assert out.columns == [*ANOMALIES.schema.fieldNames(), "part"]
    got: dict[tuple[Key, int], tuple[float, ...]] = {}
    for row in out.collect():
        assert row["hour"].timestamp() * 1e6 == row["part"] * HOUR_US
        key = ((row["subject_kind"], row["subject"], row["metric"]), row["part"])
        assert key not in got
        weekly = {"week": 1.0, "day": 0.0}[row["basis"]]
        got[key] = (row["value"], row["expected"], row["deviation"], row["score"], weekly)
    return got


def same(got: dict[Any, tuple[float, ...]], expected: dict[Any, tuple[float, ...]]) -> None:
    assert got.keys() == expected.keys()
    for key, numbers in expected.items():
        assert got[key] == pytest.approx(numbers, rel=1e-12)


def planted(weeks: int, seed: int) -> History:
    """Series of every sort, with spikes, with missing hours, and one that is nearly always absent."""
    rng = random.Random(seed)
    out: History = {}
    for key, usual, missing in (
        (("method", "resize", "task.rate"), 400.0, 0.0),
        (("method", "resize", "task.failures"), 0.0, 0.0),
        (("service", "thumbs", "request.p99"), 0.2, 0.1),
        (("client", "c1", "heartbeat.gap"), 1.1, 0.0),
        (("check", "a1/disk", "used"), -50.0, 0.3),
        (("check", "a1/disk", "task.rate"), 0.0, 0.9),
    ):
        values = out.setdefault(key, {})
        for hour in range(FIRST, FIRST + weeks * 168):
            spike = rng.choice((3.0, 0.0)) if rng.random() < 0.02 else 1.0
            cycle = 1.0 + 0.3 * math.sin(hour % 24 / 24 * math.tau)
            if rng.random() >= missing:
                values[hour] = usual * cycle * spike * rng.gauss(1.0, 0.03) + (spike > 1.0) * 5.0
    return out


@pytest.mark.slow
def test_anomalies_equal_those_of_plain_python_over_all_of_history(spark: SparkSession) -> None:
    history = planted(weeks=10, seed=5)
    end = FIRST + 10 * 168 - 3
    parts = set(range(FIRST, FIRST + 10 * 168))
    expected = oracle(history, parts, end)
    assert {numbers[4] for numbers in expected.values()} == {0.0, 1.0}  # by week, and by day
    assert {key for key, _ in expected} >= set(list(history)[:5])
    same(computed(spark, history, parts, end), expected)


def test_single_hours_from_what_they_want_equal_those_of_the_whole(spark: SparkSession) -> None:
    history = planted(weeks=9, seed=6)
    end = FIRST + 9 * 168
    flags = sorted({hour for _, hour in oracle(history, range(FIRST, end), end)})
    parts = {flags[3], flags[-1], flags[-1] - 1}
    assert len(Anomalies().wants(parts)[SERIES.name]) < 110
    same(computed(spark, history, parts, end), oracle(history, parts, end))


def test_only_complete_hours_are_judged(spark: SparkSession) -> None:
    key = ("service", "s", "request.rate")
    history = {key: {**dict.fromkeys(range(FIRST, FIRST + 24), 100.0), FIRST + 24: 1000.0}}
    assert computed(spark, history, {FIRST + 24}, FIRST + 24) == {}
    assert computed(spark, history, {FIRST + 24}, FIRST + 25).keys() == {(key, FIRST + 24)}
    assert computed(spark, history, {FIRST + 24}, FIRST + 25, score=1e6) == {}


@pytest.mark.slow
def test_three_weeks_are_a_history_and_two_are_not_and_a_day_needs_twelve_hours(spark: SparkSession) -> None:
    hour = FIRST + 9 * 168

    def flagged(hours: Iterable[int]) -> dict[Any, tuple[float, ...]]:
        key = ("check", "a/c", "m")
        return computed(spark, {key: {**dict.fromkeys(hours, 10.0), hour: 20.0}}, {hour}, hour + 1)

    assert flagged([hour - 168 * k for k in (1, 2)]) == {}
    assert len(flagged([hour - 168 * k for k in (1, 4, 8)])) == 1
    assert flagged([hour - 168 * k for k in (1, 2, 9)]) == {}  # nine weeks are too long ago
    assert flagged(range(hour - 11, hour)) == {}
    assert len(flagged(range(hour - 12, hour))) == 1
    assert flagged(range(hour - 36, hour - 24)) == {}


def test_noise_alone_is_seldom_flagged_even_by_three_weeks(spark: SparkSession) -> None:
    """By the MAD of three values alone, every fourth hour would be."""
    rng = random.Random(1)
    hours = range(FIRST, FIRST + 4 * 168)
    history: History = {("check", f"a{n}/c", "load"): {hour: rng.gauss(10, 3) for hour in hours} for n in range(4)}
    parts = set(range(FIRST + 3 * 168, FIRST + 4 * 168))
    got = computed(spark, history, parts, FIRST + 4 * 168)
    assert len(got) < 0.015 * 4 * 168


def test_a_changed_hour_touches_every_complete_hour_that_it_judges() -> None:
    table = Anomalies()
    end = FIRST + 30 * 24
    touched = table.touched({SERIES.name: {FIRST}}, end * HOUR_US + 1)
    assert touched == {*range(FIRST, FIRST + 25), *(FIRST + 168 * k for k in range(5))}
    for hour in range(FIRST, end):
        assert (FIRST in table.wants({hour})[SERIES.name]) == (hour in touched)
    assert table.touched({SERIES.name: {end - 1, end}}, end * HOUR_US) == {end - 1}
    assert table.touched({}, end * HOUR_US) == set()
