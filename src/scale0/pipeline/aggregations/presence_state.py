"""The carry of the world: what later hours need to know of sources, sessions, downtimes and subjects.

Lives here: its one schema, its sorts of rows, and how a sort is read from it and written to it. Never here: what a row
means to whoever made it. Invariants: a row is one of SORTS and leaves null what its sort has no use for; nobody is kept
who cannot matter to a later hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SOURCE: Final = "source"
"""Where a boot of a source was heard last."""
LIVE: Final = "live"
"""A session that goes on."""
DOUBT: Final = "doubt"
"""A session that ended because its source fell silent, and of which nothing was heard since."""
DEATH: Final = "death"
"""A `client.lost` that was recorded later than this hour began: a join before that recording is over as it begins."""
PLANNED: Final = "planned"
"""A downtime of an agent that has not ended."""
SUBJECT: Final = "subject"
"""How a subject of the timeline stands."""
SORTS: Final = (SOURCE, LIVE, DOUBT, DEATH, PLANNED, SUBJECT)

CARRY: Final = DataSet(
    "carry.world",
    "",
    "hour",
    fields(
        ("sort", "string"),
        ("subject_kind", "string"),
        ("identity", "string"),
        ("role", "string"),
        ("source", "string"),
        ("boot", "bigint"),
        ("seq", "bigint"),
        ("id", "string"),
        ("ref", "string"),
        ("services", "array<string>"),
        ("slots", "bigint"),
        ("first_seq", "bigint"),
        ("first_us", "bigint"),
        ("last_us", "bigint"),
        ("opened_us", "bigint"),
        ("stopped", "boolean"),
        ("class", "string"),
        ("reason", "string"),
        ("evidence", "string"),
        ("down_evidence", "string"),
        ("peer_us", "bigint"),
        ("peer", "string"),
    ),
)
"""`first_us` and `last_us` are the beginning and the end of what the row is about, as far as they are known."""


def empty(spark: SparkSession) -> DataFrame:
    """The carry of a world in which nothing has happened."""
    return spark.range(0).select(*(f.lit(None).cast(c.dataType).alias(c.name) for c in CARRY.schema))


def sort_of(carry: DataFrame, sort: str, *columns: str) -> DataFrame:
    """The rows of one sort, with the columns that it uses."""
    return carry.where(f.col("sort") == sort).select(*columns)


def kept(rows: DataFrame, sort: str) -> DataFrame:
    """Rows with `part` and some of the columns, as the carry has them."""
    have = set(rows.columns)
    cells = (
        f.lit(sort).alias("sort")
        if c.name == "sort"
        else (f.col(c.name) if c.name in have else f.lit(None)).cast(c.dataType).alias(c.name)
        for c in CARRY.schema
    )
    return rows.select(PART, *cells)


def starts_within(stretch: TimeRange, after_us: Column, upto_us: Column) -> Column:
    """The hours that get a carry and begin in (after, upto], as an array; upto null: there is no end."""
    first = f.greatest(part_column(after_us, HOUR_US) + 1, f.lit(stretch.first + 1))
    last = f.least(f.coalesce(part_column(upto_us, HOUR_US), f.lit(stretch.last_carry)), f.lit(stretch.last_carry))
    return f.when(first <= last, f.sequence(first, last)).otherwise(f.array().cast("array<int>"))
