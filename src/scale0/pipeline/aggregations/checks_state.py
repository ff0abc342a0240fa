"""The state of checks between hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.checks_rows import REMOVED, name_of
from scale0.pipeline.data_file import DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.time_ranges import TimeRange

CARRY: Final = DataSet(
    "carry.checks",
    "",
    "hour",
    fields(
        ("agent", "string"),
        ("check", "string"),
        ("downtime", "string"),
        ("id", "string"),
        ("at_us", "bigint"),
        ("vouched_us", "bigint"),
        ("state", "string"),
        ("changes", "int"),
        ("known", "int"),
        ("attempt", "int"),
        ("hard_problem", "boolean"),
        ("flapping", "boolean"),
        ("ends_us", "bigint"),
    ),
    key="agent",
)
"""`downtime` is null: a check's last result. Otherwise the id of an open downtime of the check (blank: of all checks of
the agent), its start and its planned end (null: none).

A row has a bounded size and does not refer to the start of a run, so a late result stops mattering soon: after the next
result for the id, after 20 for the changes. A check stays live until it is removed; a removed one is dropped at the end
of its hour.
"""


def hours_between(after: Column, last: Column) -> Column:
    """One row for each hour in (after, last]."""
    none = f.array().cast("array<int>")
    return f.explode(f.when(after < last, f.sequence(after + 1, last)).otherwise(none))


def checks_carried(kept: DataFrame, stretch: TimeRange) -> DataFrame:
    """The live checks at the start of each hour."""
    after = f.greatest(part_column(f.col("at_us"), HOUR_US), f.lit(stretch.first))
    last = f.least(part_column(f.col("until_us"), HOUR_US), f.lit(stretch.last_carry))
    return kept.where(f.col("what") != REMOVED).select(
        *("agent", "check"),
        f.lit(None).cast("string").alias("downtime"),
        *("id", "at_us", "vouched_us"),
        name_of(f.col("state")).alias("state"),
        f.col("changes_now").cast("int").alias("changes"),
        f.col("known_now").alias("known"),
        f.col("attempt_now").alias("attempt"),
        f.col("problem").alias("hard_problem"),
        f.col("flaps").alias("flapping"),
        f.lit(None).cast("bigint").alias("ends_us"),
        hours_between(after, last).alias("part"),
    )
