"""The table `tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.histograms import seconds_of
from scale0.pipeline.time_ranges import HOUR_US, OPEN_PART, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OPEN: Final = "open"
"""The outcome of a task that has not ended."""

SCHEMA: Final = fields(
    ("ref", t.StringType()),
    ("submitted", t.TimestampType()),
    ("client", t.StringType()),
    ("method", t.StringType()),
    ("group", t.StringType()),
    ("priority", t.IntegerType()),
    ("first_assigned", t.TimestampType()),
    ("ended", t.TimestampType()),
    ("outcome", t.StringType()),
    ("attempts", t.IntegerType()),
    ("node", t.StringType()),
    ("code", t.IntegerType()),
    ("wait_seconds", t.DoubleType()),
    ("delay_seconds", t.DoubleType()),
    ("run_seconds", t.DoubleType()),
    ("wasted_seconds", t.DoubleType()),
)

LIFE: Final = fields(
    ("start_us", t.LongType()),
    ("client", t.StringType()),
    ("group", t.StringType()),
    ("priority", t.IntegerType()),
    ("reopened", t.BooleanType()),
    ("base", t.IntegerType()),
    ("attempts", t.IntegerType()),
    ("first_us", t.LongType()),
    ("wait_us", t.LongType()),
    ("wasted_us", t.LongType()),
)
"""What is known about an open task.

`base` is the number of the attempt before its first one: 0, or null for a reopened task until an attempt ends.
`attempts` counts from there. `first_us` and `wait_us` are of its first assignment, null until that attempt ends.
"""

TASKS_SLAB: Final = DataSet("tasks", "tasks", "hour", SCHEMA, key="ref")
OPEN_SLAB: Final = DataSet("tasks.open", "tasks", "open", SCHEMA, key="ref")
CARRY: Final = DataSet(
    "carry.tasks",
    "",
    "hour",
    fields(
        ("ref", t.StringType()),
        ("method", t.StringType()),
        ("ended", t.BooleanType()),
        *((x.name, x.dataType) for x in LIFE),
    ),
    key="ref",
)
"""Open tasks; and, with `ended` and nothing else, those that ended in the hour before without a known submission: it
may still arrive, by another broker's clock.
"""

_END: Final = ("ended_us", "outcome", "node", "code", "run_us")


def ended_rows(rows: DataFrame) -> DataFrame:
    """From (ref, method, LIFE, how it ended): rows of `tasks`."""
    return rows.select(*_columns(), part_column(f.col("ended_us"), HOUR_US).alias(PART))


def open_rows(rows: DataFrame) -> DataFrame:
    """From (ref, method, LIFE): rows of `tasks` that have not ended."""
    whole = rows.withColumns(
        {
            "ended_us": f.lit(None).cast("bigint"),
            "outcome": f.lit(OPEN),
            "node": f.lit(None).cast("string"),
            "code": f.lit(None).cast("int"),
            "run_us": f.lit(None).cast("bigint"),
        }
    )
    return whole.select(*_columns(), f.lit(OPEN_PART).alias(PART))


def carry_rows(rows: DataFrame) -> DataFrame:
    """From (ref, method, ended, LIFE, part): the state."""
    return rows.select(*(f.col(x.name).cast(x.dataType).alias(x.name) for x in CARRY.schema), f.col(PART).cast("int"))


def _columns() -> list[Column]:
    start, first, wait = f.col("start_us"), f.col("first_us"), f.col("wait_us")
    delay = f.greatest(f.lit(0), first - start - f.coalesce(wait, f.lit(0)))
    return [
        f.col("ref"),
        f.timestamp_micros(start).alias("submitted"),
        f.col("client"),
        f.col("method"),
        f.col("group"),
        f.col("priority"),
        f.timestamp_micros(first).alias("first_assigned"),
        f.timestamp_micros("ended_us").alias("ended"),
        f.col("outcome"),
        f.col("attempts"),
        f.col("node"),
        f.col("code"),
        seconds_of(wait).alias("wait_seconds"),
        # `greatest` skips nulls: without an assignment or a submission, the delay is unknown.
        seconds_of(f.when(first.isNotNull() & start.isNotNull(), delay)).alias("delay_seconds"),
        seconds_of(f.col("run_us")).alias("run_seconds"),
        seconds_of(f.col("wasted_us")).alias("wasted_seconds"),
    ]
