"""Check metrics by hour (`metric_trends.hour`), from `check.answered`.

A result counts once per (agent, ref) and hour, however often it was recorded. Sums are folded over sorted values, so
that no row depends on the order of others. Every number in the table is finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.history.events.histogram import GAMMA
from scale0.pipeline.schemas import HISTOGRAM, PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.time_ranges import TimeRange

KIND: Final = "check.answered"

MAX_VALUE: Final = 1e100
"""Larger values and limits are ignored: agents are not trusted, and sums and squares must stay finite."""

CODE_OFFSET: Final = 40_000
"""Added to the log bucket of a magnitude: above 37,600 even the smallest double has a code above 0."""

_LN_GAMMA: Final = 0.01980262729617973
"""ln 1.02 as a literal, equal on every machine."""
_MIDDLE: Final = 2.0 / (1.0 + GAMMA)

SHOWN: Final = fields(
    ("agent", "string"),
    ("check", "string"),
    ("metric", "string"),
    ("grain", "string"),
    ("start", "timestamp"),
    ("count", "bigint"),
    ("min", "double"),
    ("avg", "double"),
    ("max", "double"),
    ("p95", "double"),
    ("last", "double"),
    ("unit", "string"),
)
"""The columns of `metric_trends`."""

HIDDEN: Final = ("sum", "histogram", "limit_warn", "limit_crit", "limit_max")

HOURS: Final = DataSet(
    name="metric_trends.hour",
    table="metric_trends",
    period="hour",
    schema=fields(
        *((field.name, field.dataType) for field in SHOWN),
        ("sum", "double"),
        ("histogram", HISTOGRAM),
        ("limit_warn", "double"),
        ("limit_crit", "double"),
        ("limit_max", "double"),
    ),
    key="agent",
    hidden=HIDDEN,
)
"""`unit`, `last` and the limits are those of the hour's newest result. The histogram's buckets are signed codes."""

_KEYS: Final = ("agent", "check", "metric", PART)


class MetricAggregation:
    name: Final = "metrics"
    reads: Final = ("events",)
    kinds: Final = frozenset({KIND})
    columns: Final = ("source", "boot", "seq", "at", "kind", "identity", "service", "ref", "metrics")
    key: Final = "identity"
    data_sets: Final = (HOURS,)
    state: Final = None

    def step(
        self,
        state: DataFrame | None,
        rows: Mapping[str, DataFrame],
        time_range: TimeRange,
        parameters: Parameters,
    ) -> Mapping[str, DataFrame]:
        return {HOURS.name: trends(points(rows["events"]))}


def points(events: DataFrame) -> DataFrame:
    """One row per measured value that is a number."""
    at_us = f.unix_micros("at")
    measured = events.where(f.col("kind") == KIND).select(
        f.col("identity").alias("agent"),
        f.col("service").alias("check"),
        part_column(at_us, HOUR_US).alias(PART),
        at_us.alias("at_us"),
        "source",
        "boot",
        "seq",
        # A result without a ref is never a duplicate.
        f.coalesce(f.when(f.col("ref").isNotNull(), f.xxhash64("ref")), f.xxhash64("source", "boot", "seq")).alias(
            "ref"
        ),
        f.inline("metrics"),
    )
    known = measured.where(
        f.col("agent").isNotNull()
        & f.col("check").isNotNull()
        & f.col("name").isNotNull()
        & _finite("value").isNotNull()
    )
    return known.select(
        *("agent", "check", f.col("name").alias("metric"), PART),
        *("at_us", "source", "boot", "seq", "ref", "unit"),
        # -0.0 and 0.0 compare equal but hash differently.
        f.when(f.col("value") == 0.0, 0.0).otherwise(f.col("value")).alias("value"),
        _finite("warn").alias("limit_warn"),
        _finite("crit").alias("limit_crit"),
        _finite("max").alias("limit_max"),
    )


def trends(values: DataFrame) -> DataFrame:
    """The hours of the points. Lists of structs take three times as long as lists of numbers."""
    newest = f.struct("at_us", "source", "boot", "seq", "value", "unit", "limit_warn", "limit_crit", "limit_max")
    hours = values.groupBy(*_KEYS).agg(
        f.collect_list("value").alias("values"), f.collect_list("ref").alias("refs"), f.max(newest).alias("newest")
    )
    counted = _once(hours)
    coded = counted.select(
        *_KEYS,
        "newest",
        "values",
        f.size("values").alias("count"),
        f.aggregate("values", f.lit(0.0), lambda total, value: total + value).alias("sum"),
        f.transform("values", code_of).alias("codes"),
    )
    histogrammed = coded.select("*", f.array_distinct("codes").alias("buckets"))
    return histogrammed.select(
        *("agent", "check", "metric"),
        f.lit("hour").alias("grain"),
        f.timestamp_micros(f.col(PART).cast("bigint") * HOUR_US).alias("start"),
        f.col("count").cast("bigint").alias("count"),
        f.get("values", f.lit(0)).alias("min"),
        (f.col("sum") / f.col("count")).alias("avg"),
        f.element_at("values", -1).alias("max"),
        _between(
            value_of(f.element_at("codes", p95_rank(f.col("count")).cast("int"))),
            f.get("values", f.lit(0)),
            f.element_at("values", -1),
        ).alias("p95"),
        f.col("newest.value").alias("last"),
        "newest.unit",
        "sum",
        _counts().alias("histogram"),
        *("newest.limit_warn", "newest.limit_crit", "newest.limit_max"),
        PART,
    )


def code_of(value: Column) -> Column:
    """The signed log bucket of a value: 0 for 0, and monotonic."""
    magnitude = f.ceil(f.ln(f.abs(value)) / _LN_GAMMA).cast("int") + CODE_OFFSET
    return f.when(value == 0.0, 0).when(value > 0.0, magnitude).otherwise(-magnitude)


def value_of(code: Column) -> Column:
    """The value that a code represents, within 1 % of every value that has it."""
    magnitude = f.exp((f.abs(code) - CODE_OFFSET) * _LN_GAMMA) * _MIDDLE
    return f.when(code == 0, 0.0).when(code > 0, magnitude).otherwise(-magnitude)


def p95_rank(count: Column) -> Column:
    """The nearest rank ⌈0.95 · n⌉, from 1, in whole numbers."""
    return f.call_function("div", count * 95 + 99, f.lit(100))


def _between(value: Column, low: Column, high: Column) -> Column:
    """Clamp: a bucket's middle may lie outside of the measured range."""
    return f.least(high, f.greatest(low, value))


def _finite(name: str) -> Column:
    """The number, or null: Spark orders NaN above all numbers."""
    return f.when(f.abs(name) <= MAX_VALUE, f.col(name))


def _once(hours: DataFrame) -> DataFrame:
    """Sorted values, one of each ref: the smallest, so that the order does not matter (normally they are equal). Most
    hours have each ref once.
    """
    unique = f.size(f.array_distinct("refs")) == f.size("refs")
    pairs = f.when(~unique, f.array_sort(f.arrays_zip("refs", "values")))
    paired = hours.select(*_KEYS, "newest", "values", pairs.alias("pairs"))

    def first_of_ref(pair: Column, position: Column) -> Column:
        return (position == 0) | (f.get("pairs", position - 1)["refs"] != pair["refs"])

    kept = f.transform(f.filter("pairs", first_of_ref), lambda pair: pair["values"])
    return paired.select(
        *_KEYS, "newest", f.sort_array(f.when(f.col("pairs").isNull(), f.col("values")).otherwise(kept)).alias("values")
    )


def _counts() -> Column:
    """The histogram, from sorted `codes` and the distinct ones, `buckets`."""

    def begin(bucket: Column) -> Column:
        return f.array_position("codes", bucket)

    def count(bucket: Column, position: Column) -> Column:
        after = f.coalesce(begin(f.get("buckets", position + 1)), f.col("count") + 1)
        return f.struct(bucket.alias("bucket"), (after - begin(bucket)).cast("bigint").alias("count"))

    return f.transform("buckets", count)
