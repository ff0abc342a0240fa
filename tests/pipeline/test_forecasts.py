"""forecasts: the line, its crossing and its bounds against plain Python; and when there is nothing to say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Set
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.metrics import HOURS
from scale0.pipeline.marts.forecasts import FORECASTS, Forecasts
from scale0.pipeline.schemas import fields
from scale0.pipeline.time_ranges import HOUR_US, day_of
from tests.pipeline.events import START_HOUR

Limits = tuple[float | None, float | None, float | None]
"""warn, crit, max."""
Hours = dict[int, tuple[float, Limits]]
DAY = START_HOUR // 24
NONE: Limits = (None, None, None)

STUDENT = {46: 1.67866, 48: 1.67722, 100: 1.66023, 334: 1.64943}
"""95 % points of Student's t, from printed tables."""


def computed(spark: SparkSession, metrics: dict[str, Hours], parts: Set[int]) -> dict[tuple[str, int], dict[str, Any]]:
    """Given no more than what it wants."""
    table = Forecasts()
    wanted = table.wants(parts)[HOURS.name]
    rows = [
        ("a1", "disk", name, hour, value, *limits)
        for name, hours in metrics.items()
        for hour, (value, limits) in hours.items()
        if hour in wanted
    ]
    schema = fields(
        ("agent", "string"),
        ("check", "string"),
        ("metric", "string"),
        ("part", "int"),
        ("avg", "double"),
        *((name, "double") for name in ("limit_warn", "limit_crit", "limit_max")),
    )
    out = table.compute({HOURS.name: spark.createDataFrame(rows, schema)}, parts, 0, Parameters())[FORECASTS.name]
    assert out.columns == [*FORECASTS.schema.fieldNames(), "part"]
    got = {(row["metric"], row["part"]): row.asDict() for row in out.collect()}
    for (_, day), row in got.items():
        assert row["as_of"].timestamp() == day * 86_400
    return got


def grown(value: Callable[[int], float], hours: Iterable[int], limits: Limits = (80.0, 90.0, 100.0)) -> Hours:
    return {hour: (value(hour), limits) for hour in hours}


def fit(hours: Hours, day: int) -> tuple[float, float, float, int]:
    """Slope by the hour, the line's value at hour 0 of `day`, R², points: by the textbook."""
    points = [(h + 0.5 - day * 24, v) for h, (v, _) in sorted(hours.items()) if day - 14 < day_of(h) <= day]
    n = len(points)
    mx, my = math.fsum(x for x, _ in points) / n, math.fsum(y for _, y in points) / n
    sxx = math.fsum((x - mx) ** 2 for x, _ in points)
    sxy = math.fsum((x - mx) * (y - my) for x, y in points)
    syy = math.fsum((y - my) ** 2 for _, y in points)
    return sxy / sxx, my - sxy / sxx * mx, sxy**2 / (sxx * syy), n


def seconds(row: dict[str, Any], name: str) -> float:
    out: float = row[name].timestamp()
    return out


def test_every_day_has_the_line_of_its_own_fortnight(spark: SparkSession) -> None:
    rng = random.Random(3)
    start = START_HOUR
    disk: Hours = {
        hour: (1e12 + 2e9 * (hour - start) / 24 + rng.gauss(0, 4e9), (None, None, 1.2e12))
        for hour in range(start + 5, start + 20 * 24 - 7)
        if rng.random() < 0.9
    }
    parts = set(range(DAY, DAY + 20))
    got = computed(spark, {"used": disk}, parts)
    assert got.keys() == {("used", day) for day in parts}
    for (_, day), row in got.items():
        slope, zero, r2, n = fit(disk, day)
        assert row["slope"] == pytest.approx(slope * 24, rel=1e-8)
        assert row["points"] == n
        assert row["r2"] == pytest.approx(r2, rel=1e-8)
        used = [hour for hour in disk if day - 14 < day_of(hour) <= day]
        assert (seconds(row, "fitted_from"), seconds(row, "fitted_to")) == (min(used) * 3600, (max(used) + 1) * 3600)
        assert row["value"] == pytest.approx(zero + slope * (max(used) + 1 - day * 24), rel=1e-9)
        if r2 >= 0.5 and n >= 48 and slope > 0:
            crossing = day * 86_400 + (1.2e12 - zero) / slope * 3600
            assert seconds(row, "exhausted_at") == pytest.approx(crossing, abs=1.0)
            assert row["exhausted_low"] < row["exhausted_at"] < row["exhausted_high"]
        else:
            assert (row["exhausted_at"], row["exhausted_low"], row["exhausted_high"]) == (None, None, None)
    assert any(row["exhausted_at"] for row in got.values())
    assert any(row["exhausted_at"] is None for row in got.values())
    alone = computed(spark, {"used": disk}, {DAY + 16})
    assert alone["used", DAY + 16] == got["used", DAY + 16]  # to the last bit, from fewer hours


@pytest.mark.parametrize("points", [48, 50, 102, 336])
def test_the_bounds_are_where_the_band_of_the_line_meets_the_limit(spark: SparkSession, points: int) -> None:
    rng = random.Random(points)
    first = (DAY + 14) * 24 - points
    hours = grown(lambda hour: 10.0 + 0.1 * (hour - first) + rng.gauss(0, 0.8), range(first, first + points))
    row = computed(spark, {"used": hours}, {DAY + 13})["used", DAY + 13]
    slope, zero, _, n = fit(hours, DAY + 13)
    at = [(hour + 0.5 - (DAY + 13) * 24, value) for hour, (value, _) in hours.items()]
    mx = math.fsum(x for x, _ in at) / n
    sxx = math.fsum((x - mx) ** 2 for x, _ in at)
    s = math.sqrt(math.fsum((y - zero - slope * x) ** 2 for x, y in at) / (n - 2))
    assert row["limit"] == 90.0
    for name, sign in (("exhausted_low", 1), ("exhausted_high", -1)):
        x = (seconds(row, name) - (DAY + 13) * 86_400) / 3600
        band = STUDENT[n - 2] * s * math.sqrt(1 / n + (x - mx) ** 2 / sxx)
        assert zero + slope * x + sign * band == pytest.approx(90.0, abs=2e-3)


def test_the_limit_is_the_first_one_ahead_of_the_line(spark: SparkSession) -> None:
    first, last = START_HOUR, START_HOUR + 10 * 24

    def up(at: float) -> Callable[[int], float]:
        return lambda hour: at - (last - hour) * 0.1

    def down(at: float) -> Callable[[int], float]:
        return lambda hour: at + (last - hour) * 0.1

    cases: dict[str, tuple[Callable[[int], float], Limits, float, bool]] = {
        "crit before max": (up(50), (80.0, 90.0, 100.0), 90.0, True),
        "max, since crit is behind": (up(95), (80.0, 90.0, 100.0), 100.0, True),
        "max alone": (up(50), (None, None, 100.0), 100.0, True),
        "crit alone": (up(50), (None, 90.0, None), 90.0, True),
        "both behind": (up(150), (80.0, 90.0, 100.0), 90.0, False),
        "down to a lower limit": (down(50), (20.0, 10.0, 100.0), 10.0, True),
        "down, crit of unknown sort": (down(50), (None, 10.0, None), 10.0, True),
        "down, away from max": (down(50), (None, None, 100.0), 100.0, False),
        "down through an upper limit is recovery": (down(95), (80.0, 90.0, 100.0), 90.0, False),
        "up, away from a lower limit": (up(5), (20.0, 10.0, None), 10.0, False),
    }
    metrics = {name: grown(value, range(first, last), limits) for name, (value, limits, _, _) in cases.items()}
    got = computed(spark, metrics, {DAY + 9})
    for name, (_, _, limit, ahead) in cases.items():
        row = got[name, DAY + 9]
        assert (name, row["limit"], row["exhausted_at"] is not None) == (name, limit, ahead)
        if ahead:
            hours_left = abs(limit - row["value"]) / 0.1
            assert seconds(row, "exhausted_at") == pytest.approx(last * 3600 + hours_left * 3600, abs=1.0)
            assert abs(seconds(row, "exhausted_high") - seconds(row, "exhausted_low")) < 1.0  # no noise


def test_nothing_is_foretold_from_too_little_or_of_no_trend(spark: SparkSession) -> None:
    first = (DAY + 5) * 24
    rng = random.Random(2)
    metrics = {
        "47 points": grown(lambda hour: float(hour - first), range(first, first + 47), (None, None, 1e3)),
        "48 points": grown(lambda hour: float(hour - first), range(first, first + 48), (None, None, 1e3)),
        "one point": grown(lambda hour: 1.0, [first + 30], (None, None, 1e3)),
        "flat": grown(lambda hour: 0.1, range(first, first + 48)),
        "noise": grown(lambda hour: rng.gauss(50, 9), range(first, first + 48)),
        "in a hundred years": grown(lambda hour: (hour - first) * 1e-4, range(first, first + 48), (None, None, 88.0)),
    }
    got = computed(spark, metrics, {DAY + 6})
    assert {name for (name, _), row in got.items() if row["exhausted_at"]} == {"48 points"}
    assert got.keys() == {(name, DAY + 6) for name in metrics}
    assert (got["flat", DAY + 6]["slope"], got["flat", DAY + 6]["r2"]) == (0.0, None)
    assert (got["one point", DAY + 6]["slope"], got["one point", DAY + 6]["points"]) == (None, 1)


def test_a_row_needs_a_limit_and_a_value_of_that_day(spark: SparkSession) -> None:
    first = (DAY + 5) * 24
    metrics = {
        "no limit": grown(float, range(first, first + 60), NONE),
        "only warn": grown(float, range(first, first + 60), (1.0, None, None)),
        "ended": grown(float, range(first - 24, first)),
        "lost its limit": {**grown(float, range(first, first + 23)), **grown(float, [first + 23], NONE)},
        "got a limit": {**grown(float, range(first, first + 23), NONE), **grown(float, [first + 23])},
    }
    assert computed(spark, metrics, {DAY + 5}).keys() == {("got a limit", DAY + 5)}
    assert computed(spark, metrics, set()) == {}


def test_a_changed_hour_touches_its_day_and_the_thirteen_after() -> None:
    table = Forecasts()
    hour = (DAY + 3) * 24 + 23
    far = (DAY + 40) * 24 * HOUR_US
    assert table.touched({HOURS.name: {hour}}, far) == set(range(DAY + 3, DAY + 17))
    assert table.touched({HOURS.name: {hour}}, (DAY + 4) * 24 * HOUR_US - 1) == {DAY + 3}
    for day in range(DAY, DAY + 20):
        assert (hour in table.wants({day})[HOURS.name]) == (DAY + 3 <= day < DAY + 17)
