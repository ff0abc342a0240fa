"""Task and request statistics by day, from the hours.

Counts and histograms are summed, maxima are maxima, percentiles are those of the merged histograms, and seconds are
summed as whole microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.history.events.histogram import QUANTILES
from scale0.pipeline.aggregation import PeriodMart
from scale0.pipeline.aggregations import request_stats, task_stats
from scale0.pipeline.histograms import BUCKETS, merged_many, micros_of, quantiles, seconds_of, total
from scale0.pipeline.schemas import PART, DataSet, day_of_hour
from scale0.pipeline.time_ranges import DAY_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

TASK_DAY: Final = DataSet("task_stats.day", "task_stats", "day", task_stats.SCHEMA)
REQUEST_DAY: Final = DataSet("request_stats.day", "request_stats", "day", request_stats.SCHEMA)


def task_days(inputs: Mapping[str, DataFrame], _horizon_us: int) -> DataFrame:
    rows = inputs[task_stats.HOUR.name].select(
        f.col("method").alias("service"),
        day_of_hour().alias("day"),
        *task_stats.COUNTS,
        micros_of(f.col("busy_seconds")).alias("busy_us"),
        *(micros_of(f.col(f"{measure}_max")).alias(f"{measure}_max") for measure in task_stats.MEASURES),
        *(f"{measure}_histogram" for measure in task_stats.MEASURES),
    )
    days = merged_many(
        rows,
        ("service", "day"),
        (*task_stats.COUNTS, "busy_us"),
        [f"{measure}_max" for measure in task_stats.MEASURES],
        {f"{measure}_histogram": BUCKETS for measure in task_stats.MEASURES},
    )
    counted = days.select(
        "*", *(total(f.col(f"{measure}_histogram")).alias(f"{measure}s") for measure in task_stats.MEASURES)
    )
    ranked = counted.select(
        "*",
        *(
            quantiles(f.col(f"{measure}_histogram"), f.col(f"{measure}s")).alias(measure)
            for measure in task_stats.MEASURES
        ),
    )
    return ranked.select(
        *task_stats.stat_keys("day", f.col("day"), DAY_US),
        *task_stats.COUNTS,
        *(column for measure in task_stats.MEASURES for column in _ranks(measure)),
        seconds_of(f.col("busy_us")).alias("busy_seconds"),
        *(f"{measure}_histogram" for measure in task_stats.MEASURES),
        f.col("day").alias(PART),
    )


def _ranks(measure: str) -> list[Column]:
    ranks = [f.col(measure)[name].alias(f"{measure}_{name}") for name, _ in QUANTILES]
    return [*ranks, seconds_of(f.col(f"{measure}_max")).alias(f"{measure}_max")]


def request_days(inputs: Mapping[str, DataFrame], _horizon_us: int) -> DataFrame:
    rows = inputs[request_stats.HOUR.name].select(
        "service",
        day_of_hour().alias("day"),
        "answered",
        "bytes",
        micros_of(f.col("max")).alias("max_us"),
        "histogram",
        "failed",
    )
    days = merged_many(rows, ("service", "day"), request_stats.SUMS, request_stats.MAXIMA, request_stats.COUNTS)
    return request_stats.shown(days, "day", f.col("day"), DAY_US, f.col("day"))


TASK_DAYS: Final = PeriodMart("task_days", TASK_DAY, (task_stats.HOUR.name,), task_days)
REQUEST_DAYS: Final = PeriodMart("request_days", REQUEST_DAY, (request_stats.HOUR.name,), request_days)
