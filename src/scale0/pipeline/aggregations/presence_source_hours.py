"""Events of every source by hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, part_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCE_HOURS: Final = DataSet(
    "source_hours",
    "",
    "hour",
    fields(
        ("source", "string"),
        ("events", "bigint"),
        ("first_seq", "bigint"),
        ("last_seq", "bigint"),
        ("holes", "bigint"),
        ("rewinds", "bigint"),
        ("duplicates", "bigint"),
        ("rejected", "bigint"),
    ),
)
"""`first_seq` and `last_seq` are the smallest and the largest; null if an hour has only duplicates or rejected events.
A hole or a rewind counts in the hour of the first event after it.
"""


def source_hours(links: DataFrame, pulses: DataFrame, stretch: TimeRange) -> DataFrame:
    heard = links.where(f.col("fresh")).select(
        "source", "first_us", "events", "first_seq", "seq", "hole", "rewind", "duplicates", "rejected"
    )
    empty = pulses.where(f.col("events") == 0).select(
        "source", f.unix_micros("first_time").alias("first_us"), "events", "duplicates", "rejected"
    )
    rows = heard.unionByName(empty, allowMissingColumns=True).withColumn(PART, part_column(f.col("first_us"), HOUR_US))
    return (
        rows.where(f.col(PART).between(stretch.first, stretch.end - 1))
        .groupBy("source", PART)
        .agg(
            f.sum("events").alias("events"),
            f.min("first_seq").alias("first_seq"),
            f.max("seq").alias("last_seq"),
            f.count_if("hole").alias("holes"),
            f.count_if("rewind").alias("rewinds"),
            f.coalesce(f.sum("duplicates"), f.lit(0)).alias("duplicates"),
            f.coalesce(f.sum("rejected"), f.lit(0)).alias("rejected"),
        )
        .select(PART, *SOURCE_HOURS.schema.fieldNames())
    )
