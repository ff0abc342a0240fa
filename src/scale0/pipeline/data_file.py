"""Schemas of everything the pipeline stores or reads with Spark: events, data sets, the timeline, liveness samples.

Every stored row has `part`, the hour, day or month it belongs to, and `row_hash`. A row never moves to another part.
What is still open at the horizon is in a data set of its own (period `open`), so that closed parts do not change when
it ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type

from scale0.pipeline.time_ranges import Period
from scale0.pipeline.warehouse.types import arrow_type

PART: Final = "part"
"""int: hours, days or months since 1970 (`time_ranges.py`)."""
ROW_HASH: Final = "row_hash"
"""xxhash64 of the row's other columns, bigint. The engine adds it when it writes."""


class DataSet(NamedTuple):
    """One stored relation. A table is one data set, or the union of several with one schema."""

    name: str
    """The table and a suffix, for example `task_stats.hour`."""
    table: str
    """The table that shows it; "" for internal data."""
    period: Period
    schema: t.StructType
    """The columns without `part` and `row_hash`, in the table's order; the first ones are the key."""
    key: str = ""
    """For a separable aggregation: the column that holds the separating key."""
    hidden: tuple[str, ...] = ()
    """Columns that the table does not show."""


def fields(*columns: tuple[str, t.DataType | str]) -> t.StructType:
    """A schema from (name, type) pairs; a type may be the name Spark uses for it."""
    out = t.StructType()
    for name, kind in columns:
        # Spark parses type names only with a running session, and schemas are needed before that.
        out.add(name, from_arrow_type(arrow_type(kind)) if isinstance(kind, str) else kind, True)
    return out
