"""Request statistics by service, minute and hour, from the summaries that brokers record. Stateless.

A summary counts as a whole in the minute of its `at`. Percentiles are those of the merged histograms; `max` is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.history.events.columns import MAX_INT
from scale0.history.events.histogram import QUANTILES
from scale0.history.events.requests import RequestFailed, RequestSummed
from scale0.pipeline.caching import cache
from scale0.pipeline.histograms import (
    BUCKETS,
    merged,
    merged_many,
    micros,
    quantiles,
    seconds_of,
    total,
)
from scale0.pipeline.schemas import HISTOGRAM, PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, MINUTE_US, part_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.time_ranges import TimeRange

EVENTS_NAME: Final = "events"
SUMMED: Final = RequestSummed.kind
FAILED: Final = RequestFailed.kind

MAX_COUNT: Final = 1 << 40
"""No broker answers more within ten seconds, in requests or bytes: larger counts are ignored."""

_FAILED_MAP: Final = t.MapType(t.IntegerType(), t.LongType())

SCHEMA: Final = fields(
    ("service", t.StringType()),
    ("grain", t.StringType()),
    ("start", t.TimestampType()),
    ("answered", t.LongType()),
    ("failed", _FAILED_MAP),
    *((name, t.DoubleType()) for name, _ in QUANTILES),
    ("max", t.DoubleType()),
    ("bytes", t.LongType()),
    ("histogram", HISTOGRAM),
)

MINUTE: Final = DataSet("request_stats.minute", "request_stats", "hour", SCHEMA)
HOUR: Final = DataSet("request_stats.hour", "request_stats", "hour", SCHEMA)

SUMS: Final = ("answered", "bytes")
MAXIMA: Final = ("max_us",)
COUNTS: Final = {"histogram": BUCKETS, "failed": (-MAX_INT - 1, MAX_INT)}


class RequestStatsAggregation:
    name: Final = "request_stats"
    reads: Final = (EVENTS_NAME,)
    kinds: Final = frozenset((SUMMED, FAILED))
    columns: Final = ("at", "kind", "service", "code", "seconds", "histogram", "bytes", "data")
    key: Final = ""
    data_sets: Final = (MINUTE, HOUR)
    state: Final = None

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """Minutes from the events, hours from the minutes."""
        del state, time_range, parameters
        minutes = cache(merged(contributions(rows[EVENTS_NAME]), ("service", "minute"), SUMS, MAXIMA, COUNTS))
        hour = f.call_function("div", f.col("minute"), f.lit(HOUR_US // MINUTE_US)).cast("int")
        hours = merged_many(minutes.withColumn("hour", hour), ("service", "hour"), SUMS, MAXIMA, COUNTS)
        return {
            MINUTE.name: shown(minutes, "minute", f.col("minute"), MINUTE_US, hour),
            HOUR.name: shown(hours, "hour", f.col("hour"), HOUR_US, f.col("hour")),
        }


def contributions(events: DataFrame) -> DataFrame:
    """What each event adds: (service, minute, answered, bytes, max_us, histogram, failed)."""
    summed = f.col("kind") == SUMMED
    return events.select(
        f.coalesce("service", f.lit("")).alias("service"),
        part_column(f.unix_micros("at"), MINUTE_US).alias("minute"),
        f.when(summed, counted(f.col("code"))).otherwise(0).alias("answered"),
        f.when(summed, counted(f.col("bytes"))).otherwise(0).alias("bytes"),
        f.when(summed, micros(f.col("seconds"))).alias("max_us"),
        f.when(summed, f.col("histogram")).alias("histogram"),
        f.when(summed, _too_many()).otherwise(f.array(_one())).alias("failed"),
    )


def counted(number: Column) -> Column:
    """A plausible count, bigint; otherwise 0."""
    return f.when((number >= 0) & (number <= MAX_COUNT), number.cast("bigint")).otherwise(0)


def _one() -> Column:
    """One failure, by its code; 0 if it has none."""
    return f.struct(f.coalesce("code", f.lit(0)).alias("entry"), f.lit(1).cast("bigint").alias("entry_count"))


def _too_many() -> Column:
    """Failures that a summary counts because there were too many to record; null if there were not."""
    by_code = f.from_json(f.get_json_object("data", "$.failed"), "map<string,bigint>")
    entries = f.transform(
        f.map_entries(by_code),
        lambda entry: f.struct(
            f.coalesce(entry["key"].try_cast("int"), f.lit(0)).alias("entry"), entry["value"].alias("entry_count")
        ),
    )
    return f.when(f.col("data").isNotNull(), entries)


def shown(rows: DataFrame, grain: str, number: Column, part_us: int, part: Column) -> DataFrame:
    """Merged rows in the table's columns; `number` counts the grain's periods."""
    counted_ = rows.select(
        "*",
        f.timestamp_micros(number.cast("bigint") * part_us).alias("start"),
        part.cast("int").alias(PART),
        total(f.col("histogram")).alias("total"),
    )
    ranked = counted_.select("*", quantiles(f.col("histogram"), f.col("total")).alias("ranks"))
    return ranked.select(
        "service",
        f.lit(grain).alias("grain"),
        "start",
        "answered",
        f.map_from_entries("failed").cast(_FAILED_MAP).alias("failed"),
        *(f.col("ranks")[name].alias(name) for name, _ in QUANTILES),
        seconds_of(f.col("max_us")).alias("max"),
        "bytes",
        "histogram",
        PART,
    )
