"""Task and request statistics by day, from the hours.

Counts and histograms are summed, maxima are maxima, percentiles are those of the merged histograms, and seconds are
summed as whole microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations import request_stats, task_stats
from scale0.pipeline.histograms import BUCKETS, SHARES, merged_many, micros_of, quantiles, seconds_of, total
from scale0.pipeline.schemas import PART, DataSet
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, days_of, hours_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters

TASK_DAY: Final = DataSet("task_stats.day", "task_stats", "day", task_stats.SCHEMA)
REQUEST_DAY: Final = DataSet("request_stats.day", "request_stats", "day", request_stats.SCHEMA)


class TaskDays:
    name: Final = "task_days"
    data_sets: Final = (TASK_DAY,)
    inputs: Final = (task_stats.HOUR.name,)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        return days_of(changed.get(task_stats.HOUR.name, frozenset()))

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        return {task_stats.HOUR.name: hours_of(parts)}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        del parts, horizon_us, parameters
        return {TASK_DAY.name: task_days(inputs[task_stats.HOUR.name])}


class RequestDays:
    name: Final = "request_days"
    data_sets: Final = (REQUEST_DAY,)
    inputs: Final = (request_stats.HOUR.name,)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        return days_of(changed.get(request_stats.HOUR.name, frozenset()))

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        return {request_stats.HOUR.name: hours_of(parts)}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        del parts, horizon_us, parameters
        return {REQUEST_DAY.name: request_days(inputs[request_stats.HOUR.name])}


def task_days(hours: DataFrame) -> DataFrame:
    rows = hours.select(
        f.col("method").alias("service"),
        _day(),
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
    ranks = [f.col(measure)[name].alias(f"{measure}_{name}") for name, _ in SHARES]
    return [*ranks, seconds_of(f.col(f"{measure}_max")).alias(f"{measure}_max")]


def request_days(hours: DataFrame) -> DataFrame:
    rows = hours.select(
        "service", _day(), "answered", "bytes", micros_of(f.col("max")).alias("max_us"), "histogram", "failed"
    )
    days = merged_many(rows, ("service", "day"), request_stats.SUMS, request_stats.MAXIMA, request_stats.COUNTS)
    return request_stats.shown(days, "day", f.col("day"), DAY_US, f.col("day"))


def _day() -> Column:
    return f.call_function("div", f.col(PART), f.lit(DAY_HOURS)).cast("int").alias("day")
