"""`anomalies`: hours whose value is far from the usual one of its series, from `series`.

Only complete hours are judged, by earlier hours alone. Medians are of sorted lists, so nothing depends on order.

The score is |value - median| / deviation. The deviation is 1.4826 · MAD, or a floor if that is larger: - the series'
own jitter: the MAD of three values says little about the hourly variation, but 24 consecutive hours do: 1.4826 / √2 ·
median |difference of consecutive values| of the previous 24 hours, times √(1 + π / 2n), since the median of n values
varies too. For pure normal noise the MAD of three weeks alone flags 27 % of the hours, with this floor 0.4 %; - for
counts (rates, failures) 1 + √median: the standard deviation of independent events is the root of their number; - for
seconds (p99, gaps) 5 % of the median: histograms have steps of 2 %; at least 1 ms, for a gap 100 ms; - for a check's
metric 2 % of |median|, and a tiny number, so that any change from a constant 0 shows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.marts.series import (
    HEARTBEAT_GAP,
    REQUEST_FAILURES,
    REQUEST_RATE,
    SERIES,
    SERIES_KEYS,
    TASK_FAILURES,
    TASK_RATE,
    by_day,
)
from scale0.pipeline.schemas import CHECK, PART, DataSet, fields
from scale0.pipeline.time_ranges import DAY_HOURS, HOUR_US, day_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters

WEEK_HOURS: Final = 7 * DAY_HOURS
WEEKS: Final = 8
"""The same hour of this many previous weeks."""
MIN_WEEKS: Final = 3
"""With fewer of them the previous day is used."""
MIN_DAY_VALUES: Final = 12
"""Of the previous 24 hours: with fewer values an hour is not judged."""

MAD_SCALE: Final = 1.4826
"""From a median of absolute deviations to the standard deviation of a normal distribution."""
JITTER_SCALE: Final = MAD_SCALE / math.sqrt(2.0)
"""The difference of two values has √2 times the standard deviation of one."""
SECONDS_SHARE: Final = 0.05
METRIC_SHARE: Final = 0.02
MIN_SECONDS: Final = 0.001
MIN_GAP_SECONDS: Final = 0.1
MIN_DEVIATION: Final = 1e-9

WEEK: Final = "week"
DAY: Final = "day"

ANOMALIES: Final = DataSet(
    name="anomalies",
    table="anomalies",
    period="hour",
    schema=fields(
        ("subject", "string"),
        ("metric", "string"),
        ("hour", "timestamp"),
        ("value", "double"),
        ("expected", "double"),
        ("deviation", "double"),
        ("score", "double"),
        ("subject_kind", "string"),
        ("basis", "string"),
    ),
)
"""`expected` is the median, `basis` its sample: `week` or `day`. Only hours above the score have a row."""


class Anomalies:
    name: Final = "anomalies"
    data_sets: Final = (ANOMALIES,)
    inputs: Final = (SERIES.name,)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        """Every complete hour that depends on a changed one, and the changed ones themselves.

        The engine also reports hours that became complete as changed: it alone knows the previous horizon.
        """
        reach = (*range(DAY_HOURS + 1), *(WEEK_HOURS * week for week in range(1, WEEKS + 1)))
        end = horizon_us // HOUR_US
        return {hour + ahead for hour in changed.get(SERIES.name, ()) for ahead in reach if hour + ahead < end}

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        """The hours themselves, the 24 before each, and the same hour of eight weeks."""
        reach = (*range(DAY_HOURS + 1), *(WEEK_HOURS * week for week in range(1, WEEKS + 1)))
        return {SERIES.name: {hour - back for hour in parts for back in reach if hour >= back}}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        series = inputs[SERIES.name]
        hours = sorted(hour for hour in parts if hour < horizon_us // HOUR_US)
        if not hours:
            empty = fields(*((field.name, field.dataType) for field in ANOMALIES.schema), (PART, "int"))
            return {ANOMALIES.name: series.sparkSession.createDataFrame([], empty)}
        return {ANOMALIES.name: flagged(judged(windows(series, hours)), parameters.anomaly_score)}


def windows(series: DataFrame, hours: list[int]) -> DataFrame:
    """One row per series and hour (of these) that has a value: with `day`, the previous 24 hours, and `week`.

    The hours of a series are one dense list, so that other hours are found by their distance.
    """
    first = day_of(hours[0] - WEEKS * WEEK_HOURS)
    last = day_of(hours[-1])
    days = (
        by_day(series, SERIES_KEYS, "value")
        .groupBy(*SERIES_KEYS)
        .agg(f.map_from_entries(f.collect_list(f.struct("day", "hours"))).alias("days"))
    )
    nothing = f.array_repeat(f.lit(None).cast("double"), DAY_HOURS)
    dense = f.flatten(
        f.transform(
            f.sequence(f.lit(first), f.lit(last)), lambda day: f.coalesce(f.try_element_at("days", day), nothing)
        )
    )
    # As text: one call instead of one for every hour.
    wanted = f.split(f.lit(",".join(str(hour - first * DAY_HOURS) for hour in hours)), ",").cast("array<int>")
    placed = days.select(*SERIES_KEYS, dense.alias("dense")).select(
        *SERIES_KEYS, "dense", f.filter(wanted, lambda position: f.get("dense", position).isNotNull()).alias("places")
    )

    def window(position: Column) -> Column:
        return f.struct(
            (position + first * DAY_HOURS).alias(PART),
            f.get("dense", position).alias("value"),
            f.slice("dense", position - DAY_HOURS + 1, DAY_HOURS).alias("day"),
            f.array(*(f.get("dense", position - WEEK_HOURS * week) for week in range(1, WEEKS + 1))).alias("week"),
        )

    return placed.select(*SERIES_KEYS, f.inline(f.transform("places", window)))


def judged(rows: DataFrame) -> DataFrame:
    """Each hour with `basis`, `expected` and `deviation`: null without enough history."""
    known = rows.select(
        *(*SERIES_KEYS, PART, "value"), f.array_compact("day").alias("day"), f.array_compact("week").alias("week")
    )
    by_week = f.size("week") >= MIN_WEEKS
    by_previous_day = f.size("day") >= MIN_DAY_VALUES
    chosen = known.select(
        *(*SERIES_KEYS, PART, "value"),
        f.when(by_week, WEEK).when(by_previous_day, DAY).alias("basis"),
        f.sort_array(f.when(by_week, f.col("week")).when(by_previous_day, f.col("day"))).alias("sample"),
        f.when(by_previous_day, f.sort_array(_steps("day"))).alias("steps"),
    )
    centred = chosen.select("*", _median("sample").alias("expected"))
    spread = centred.select(
        "*",
        f.sort_array(f.transform("sample", lambda value: f.abs(value - f.col("expected")))).alias("distances"),
        f.coalesce(_median("steps") * JITTER_SCALE * _median_scatter(), f.lit(0.0)).alias("jitter"),
    )
    deviation = f.greatest(_median("distances") * MAD_SCALE, f.col("jitter"), _floor())
    return spread.select(*(*SERIES_KEYS, PART, "value", "basis", "expected"), deviation.alias("deviation"))


def flagged(rows: DataFrame, score: float) -> DataFrame:
    """Hours above the score.

    Spark pushes a filter below the projections together with a copy of everything they compute, but not below a
    generator: hence the list of one.
    """
    score_of = f.abs(f.col("value") - f.col("expected")) / f.col("deviation")
    columns = (*SERIES_KEYS, PART, "value", "basis", "expected", "deviation")
    scored = rows.select(f.inline(f.array(f.struct(*columns, score_of.alias("score")))))
    return scored.where(f.col("score") > score).select(
        *("subject", "metric"),
        f.timestamp_micros(f.col(PART).cast("bigint") * HOUR_US).alias("hour"),
        *("value", "expected", "deviation", "score", "subject_kind", "basis", PART),
    )


def _steps(name: str) -> Column:
    """The distances between consecutive values."""
    rest = f.slice(name, f.lit(2), f.greatest(f.size(name) - 1, f.lit(0)))
    return f.transform(rest, lambda value, position: f.abs(value - f.get(name, position)))


def _median(name: str) -> Column:
    """Of a sorted list."""
    size = f.size(name)
    return (f.get(name, f.floor((size - 1) / 2).cast("int")) + f.get(name, f.floor(size / 2).cast("int"))) / 2.0


def _median_scatter() -> Column:
    """How much more a value differs from the median of `sample` than from the true one."""
    return f.sqrt(f.lit(math.pi / 2.0) / f.size("sample") + 1.0)


def _floor() -> Column:
    """The smallest deviation of a series of this kind; the names of a check's metrics have no defined meaning."""
    usual = f.abs("expected")
    counts = f.col("metric").isin(TASK_RATE, TASK_FAILURES, REQUEST_RATE, REQUEST_FAILURES)
    least_seconds = f.when(f.col("metric") == HEARTBEAT_GAP, MIN_GAP_SECONDS).otherwise(MIN_SECONDS)
    return (
        f.when(f.col("subject_kind") == CHECK, f.greatest(usual * METRIC_SHARE, f.lit(MIN_DEVIATION)))
        .when(counts, f.sqrt(usual) + 1.0)
        .otherwise(f.greatest(usual * SECONDS_SHARE, least_seconds))
    )
