"""`metric_trends.day`, from the hours. Sums are folded in the order of the hours. A day has no histogram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregation import PeriodMart
from scale0.pipeline.aggregations.metrics import HOURS, SHOWN, p95_rank, value_of
from scale0.pipeline.schemas import PART, DataSet, day_of_hour
from scale0.pipeline.time_ranges import DAY_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

DAYS: Final = DataSet(name="metric_trends.day", table="metric_trends", period="day", schema=SHOWN)

_KEYS: Final = ("agent", "check", "metric", PART)
_COUNT_BITS: Final = 32
"""A bucket and its count are packed into one bigint, which sorts as a number: no day has 2^32 results of one metric."""


def metric_days(inputs: Mapping[str, DataFrame], _horizon_us: int) -> DataFrame:
    hour = f.struct(PART, "count", "min", "max", "sum", "last", "unit", _packed().alias("buckets"))
    listed = (
        inputs[HOURS.name]
        .select("agent", "check", "metric", day_of_hour().alias("day"), hour.alias("hour"))
        .groupBy("agent", "check", "metric", "day")
        .agg(f.sort_array(f.collect_list("hour")).alias("hours"))
    )
    folded = listed.select(
        *("agent", "check", "metric"),
        f.col("day").alias(PART),
        f.aggregate("hours.count", f.lit(0).cast("bigint"), lambda total, count: total + count).alias("count"),
        f.array_min("hours.min").alias("min"),
        f.array_max("hours.max").alias("max"),
        f.aggregate("hours.sum", f.lit(0.0), lambda total, part: total + part).alias("sum"),
        f.sort_array(f.flatten("hours.buckets")).alias("buckets"),
        f.element_at("hours", -1).alias("newest"),
    )
    return folded.select(
        *("agent", "check", "metric"),
        f.lit("day").alias("grain"),
        f.timestamp_micros(f.col(PART).cast("bigint") * DAY_US).alias("start"),
        "count",
        "min",
        (f.col("sum") / f.col("count")).alias("avg"),
        "max",
        f.least("max", f.greatest("min", value_of(_code_at(p95_rank(f.col("count")))))).alias("p95"),
        f.col("newest.last").alias("last"),
        f.col("newest.unit").alias("unit"),
        PART,
    )


def _packed() -> Column:
    """A histogram as numbers: code · 2^32 + count."""
    return f.transform("histogram", lambda one: f.shiftleft(one["bucket"].cast("bigint"), _COUNT_BITS) + one["count"])


def _code_at(rank: Column) -> Column:
    """The code of the value with this rank, from the sorted `buckets` of all hours."""
    start = f.struct(f.lit(0).cast("bigint").alias("seen"), f.lit(0).cast("int").alias("code"))

    def walk(at: Column, packed: Column) -> Column:
        code = f.shiftright(packed, _COUNT_BITS)
        further = f.struct(
            (at["seen"] + packed - f.shiftleft(code, _COUNT_BITS)).alias("seen"), code.cast("int").alias("code")
        )
        return f.when(at["seen"] >= rank, at).otherwise(further)

    return f.aggregate("buckets", start, walk)["code"]


METRIC_DAYS: Final = PeriodMart("metric_days", DAYS, (HOURS.name,), metric_days)
