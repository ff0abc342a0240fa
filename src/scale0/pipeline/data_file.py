"""Slabs: what the warehouse stores. A table that people read is one slab, or several of one shape.

Lives here: the description of a slab. Never here: its files, or how it is computed. Invariants: every stored row has
`part`, the hour, day or month that it belongs to, and `row_hash`; a row belongs to one part for ever; what is still
open at the horizon stands in a slab of its own (period `open`), so that closed parts do not change when it ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type

from scale0.pipeline.time_ranges import Period
from scale0.pipeline.warehouse.types import arrow_type

PART: Final = "part"
"""The number of the part, int: hours, days or months since 1970 (`hours.py`)."""
ROW_HASH: Final = "row_hash"
"""xxhash64 of the row's other columns, bigint: the engine adds it when it writes."""


class DataSet(NamedTuple):
    """One stored relation."""

    name: str
    """`task_stats.hour`: the table, and what tells this slab from the others of it."""
    table: str
    """The table that shows it, or "" for what only the pipeline itself reads."""
    period: Period
    schema: t.StructType
    """The columns without `part` and `row_hash`; the first ones are the key, in the table's order."""
    key: str = ""
    """In a family that is separable: the column that says whose row it is."""
    hidden: tuple[str, ...] = ()
    """Columns that the table does not show."""


def fields(*columns: tuple[str, t.DataType | str]) -> t.StructType:
    """A schema from (name, type) pairs; a type may be Spark's word for it."""
    out = t.StructType()
    for name, kind in columns:
        # Spark reads such words only once a session runs, and schemas are wanted before.
        out.add(name, from_arrow_type(arrow_type(kind)) if isinstance(kind, str) else kind, True)
    return out
