"""The state of presence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SOURCE: Final = "source"
"""The last sample of a boot of a source."""
LIVE: Final = "live"
"""An open session."""
DOUBT: Final = "doubt"
"""A session that ended because its source stopped recording, and that was not seen since."""
DEATH: Final = "death"
"""A `client.lost` that was recorded after this hour began: a join before that recording is over when it begins."""
PLANNED: Final = "planned"
"""A downtime of an agent that has not ended."""
SUBJECT: Final = "subject"
"""The class of a subject of the timeline."""
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
"""A row has one of SORTS; columns that its sort does not use are null. `first_us` and `last_us` are the beginning and
the end, if known.
"""


def empty(spark: SparkSession) -> DataFrame:
    return spark.range(0).select(*(f.lit(None).cast(c.dataType).alias(c.name) for c in CARRY.schema))


def sort_of(carry: DataFrame, sort: str, *columns: str) -> DataFrame:
    """The rows of one sort, with the columns that it uses."""
    return carry.where(f.col("sort") == sort).select(*columns)


def kept(rows: DataFrame, sort: str) -> DataFrame:
    """Rows with `part` and some of the columns, in the state's schema."""
    have = set(rows.columns)
    cells = (
        f.lit(sort).alias("sort")
        if c.name == "sort"
        else (f.col(c.name) if c.name in have else f.lit(None)).cast(c.dataType).alias(c.name)
        for c in CARRY.schema
    )
    return rows.select(PART, *cells)


def starts_within(stretch: TimeRange, after_us: Column, upto_us: Column) -> Column:
    """The hours that need a state and begin in (after, upto], as an array; upto null: no end."""
    first = f.greatest(part_column(after_us, HOUR_US) + 1, f.lit(stretch.first + 1))
    last = f.least(f.coalesce(part_column(upto_us, HOUR_US), f.lit(stretch.last_carry)), f.lit(stretch.last_carry))
    return f.when(first <= last, f.sequence(first, last)).otherwise(f.array().cast("array<int>"))
