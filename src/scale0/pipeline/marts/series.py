"""`series`: all hourly values in which anomalies are searched, in one schema. An hour without data has no value,
not 0.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregation import PeriodMart
from scale0.pipeline.aggregations.heartbeats import BEATS
from scale0.pipeline.aggregations.metrics import HOURS
from scale0.pipeline.schemas import CHECK, CLIENT, PART, SERVICE, DataSet, day_of_hour, fields
from scale0.pipeline.time_ranges import DAY_HOURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

METHOD: Final = "method"
"""The subject kind of a task's method; the others are those of the timeline."""

TASK_RATE: Final = "task.rate"
TASK_P99: Final = "task.p99"
TASK_FAILURES: Final = "task.failures"
REQUEST_RATE: Final = "request.rate"
REQUEST_P99: Final = "request.p99"
REQUEST_FAILURES: Final = "request.failures"
HEARTBEAT_GAP: Final = "heartbeat.gap"

TASK_HOURS: Final = "task_stats.hour"
REQUEST_HOURS: Final = "request_stats.hour"

SERIES: Final = DataSet(
    name="series",
    table="",
    period="hour",
    schema=fields(("subject_kind", "string"), ("subject", "string"), ("metric", "string"), ("value", "double")),
)
"""Rates and failures are counts of the hour, p99 and gaps seconds, a check's metrics their averages."""

SERIES_KEYS: Final = ("subject_kind", "subject", "metric")


def series(inputs: Mapping[str, DataFrame], _horizon_us: int) -> DataFrame:
    """An hour from the same hour of four data sets, without a shuffle."""
    failed = f.aggregate(f.map_values("failed"), f.lit(0).cast("bigint"), lambda total, count: total + count)
    pieces = [
        _unpivoted(
            inputs[TASK_HOURS],
            METHOD,
            f.col("method"),
            {TASK_RATE: f.col("submitted"), TASK_P99: f.col("run_p99"), TASK_FAILURES: f.col("failed")},
        ),
        _unpivoted(
            inputs[REQUEST_HOURS],
            SERVICE,
            f.col("service"),
            {
                REQUEST_RATE: f.col("answered"),
                REQUEST_P99: f.col("p99"),
                REQUEST_FAILURES: f.coalesce(failed, f.lit(0)),
            },
        ),
        _unpivoted(inputs[BEATS.name], CLIENT, f.col("identity"), {HEARTBEAT_GAP: f.col("gap_seconds")}),
        _averages(inputs[HOURS.name]),
    ]
    return reduce(lambda left, right: left.unionByName(right), pieces)


SERIES_HOURS: Final = PeriodMart("series", SERIES, (TASK_HOURS, REQUEST_HOURS, BEATS.name, HOURS.name), series)


def _unpivoted(rows: DataFrame, kind: str, subject: Column, metrics: Mapping[str, Column]) -> DataFrame:
    """One row per metric that has a value."""
    each = f.array(
        *(f.struct(f.lit(name).alias("metric"), value.cast("double").alias("value")) for name, value in metrics.items())
    )
    return (
        rows.select(f.lit(kind).alias("subject_kind"), subject.alias("subject"), f.inline(each), PART)
        .where(f.col("subject").isNotNull() & f.col("value").isNotNull())
        .select(*SERIES_KEYS, "value", PART)
    )


def _averages(hours: DataFrame) -> DataFrame:
    return hours.select(
        f.lit(CHECK).alias("subject_kind"),
        f.concat_ws("/", "agent", "check").alias("subject"),
        "metric",
        f.col("avg").alias("value"),
        PART,
    )


def by_day(rows: DataFrame, keys: Sequence[str], value: str, others: Sequence[Column] = ()) -> DataFrame:
    """Hours as days: `day`, `hours` (24 values or nulls), and other aggregates.

    24 conditional maxima are a fixed-width buffer, which a hash aggregation can hold.
    """
    hour_of_day = f.col(PART) % DAY_HOURS
    cells = [f.max(f.when(hour_of_day == hour, f.col(value))).alias(f"hour_{hour}") for hour in range(DAY_HOURS)]
    days = rows.groupBy(*keys, day_of_hour().alias("day"))
    return (
        days.agg(*cells, *others)
        .withColumn("hours", f.array(*(f"hour_{hour}" for hour in range(DAY_HOURS))))
        .drop(*(f"hour_{hour}" for hour in range(DAY_HOURS)))
    )
