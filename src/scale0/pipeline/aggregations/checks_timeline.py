"""The timeline of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.aggregations.checks_rows import OK_CODE, REMOVED, RESULT, WARNING_CODE, name_of
from scale0.pipeline.data_file import DataSet
from scale0.pipeline.tables import ABSENT, CHECK, DOWN, SOFT, TIMELINE, UNOBSERVED, UP
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.time_ranges import TimeRange

CHECKS_TIMELINE: Final = DataSet(
    "timeline.checks",
    "timeline",
    "hour",
    t.StructType([*TIMELINE.fields, t.StructField("agent", t.StringType(), True)]),
    key="agent",
    hidden=("agent",),
)

UNSEEN: Final = "unseen"
"""Absent: no result yet."""
GONE: Final = "removed"
"""Absent: the definition was removed."""
SILENT: Final = "silent"
"""Unobserved: the last result is no longer valid."""


def pieces_of(kept: DataFrame, stretch: TimeRange) -> DataFrame:
    """The pieces without downtimes, some of them empty: agent, check, from_us, to_us and their class."""
    rows = kept.withColumn("from_us", f.explode(_beginnings(stretch)))
    from_us, nothing = f.col("from_us"), f.lit(None)
    absent = (f.col("what") == REMOVED) | ((f.col("what") == RESULT) & (from_us < f.col("at_us")))
    unobserved = f.col("gap") & (f.col("vouched_us") <= from_us)
    seen = ~absent & ~unobserved
    soft = (f.col("state") != OK_CODE) & ~f.col("problem")
    down = f.col("problem") & (f.col("state") > WARNING_CODE)
    reason = f.when(soft, SOFT).otherwise(name_of(f.col("state")))
    return rows.select(
        *("agent", "check", "from_us"),
        _end(from_us, unobserved, stretch).alias("to_us"),
        f.when(absent, ABSENT).when(unobserved, UNOBSERVED).when(down, DOWN).otherwise(UP).alias("class"),
        f.when(f.col("what") == REMOVED, GONE)
        .when(absent, UNSEEN)
        .when(unobserved, SILENT)
        .otherwise(reason)
        .alias("reason"),
        f.when(absent & (f.col("what") == RESULT), nothing).otherwise(f.col("id")).alias("evidence"),
        f.when(seen, name_of(f.col("state"))).alias("state"),
        f.when(seen, f.col("flaps")).alias("flapping"),
    )


def _beginnings(stretch: TimeRange) -> Column:
    """When pieces of a row begin: at the hour before a first result, at the row, when its validity ends, and at every
    hour until the next row.
    """
    at_us, vouched_us, gap = f.col("at_us"), f.col("vouched_us"), f.col("gap")
    none = f.array().cast("array<bigint>")

    def only(wanted: Column, instant: Column) -> Column:
        return f.when(wanted, f.array(instant.cast("bigint"))).otherwise(none)

    hour = part_column(at_us, HOUR_US)
    gone_before = f.coalesce(part_column(f.col("gone_us"), HOUR_US) != hour, f.lit(True))
    unseen = f.col("first") & gone_before & (at_us % HOUR_US != 0)
    # An end of validity on the hour is the hour's own beginning, unless the row itself is there.
    ends = gap & (vouched_us >= stretch.from_us) & ((vouched_us % HOUR_US != 0) | (vouched_us == at_us))
    after = f.greatest(hour + 1, f.lit(stretch.first)).cast("bigint") * HOUR_US
    hours = f.when(
        (f.col("what") != REMOVED) & (after <= f.col("until_us")),
        f.sequence(after, f.col("until_us"), f.lit(HOUR_US).cast("bigint")),
    ).otherwise(none)
    return f.concat(
        only(unseen, hour.cast("bigint") * HOUR_US),
        only(f.col("start") & ~(gap & (vouched_us == at_us)), at_us),
        only(ends, vouched_us),
        hours,
    )


def _end(from_us: Column, unobserved: Column, stretch: TimeRange) -> Column:
    """The next change: the hour's end, the end of validity, another row's break, or the horizon."""
    hour_end = (part_column(from_us, HOUR_US).cast("bigint") + 1) * HOUR_US
    unvouched = f.when(f.col("gap") & ~unobserved, f.col("vouched_us"))
    return f.least(
        hour_end,
        f.when(
            (f.col("what") != RESULT) | (from_us >= f.col("at_us")), f.least(unvouched, f.col("break_us"))
        ).otherwise(f.col("at_us")),
        f.lit(stretch.until_us),
    )


def timeline_of(pieces: DataFrame) -> DataFrame:
    return pieces.select(
        f.lit(CHECK).alias("subject_kind"),
        f.concat_ws("/", "agent", "check").alias("subject"),
        f.timestamp_micros("from_us").alias("from"),
        f.timestamp_micros("to_us").alias("to"),
        *("class", "reason", "evidence", "state", "flapping", "agent"),
        part_column(f.col("from_us"), HOUR_US).alias("part"),
    )
