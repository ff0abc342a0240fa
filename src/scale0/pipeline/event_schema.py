"""Events in Spark's types, derived from `history/events/columns.py`."""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as t

from scale0.history.events.columns import COLUMNS, HISTOGRAM_FIELDS, METRIC_FIELDS, Type

HISTOGRAM: Final = t.ArrayType(
    t.StructType(
        [t.StructField(name, {"int": t.IntegerType(), "bigint": t.LongType()}[kind]) for name, kind in HISTOGRAM_FIELDS]
    )
)
"""Counts by log bucket, ascending, without zero counts."""

METRICS: Final = t.ArrayType(
    t.StructType(
        [
            t.StructField(name, {"string": t.StringType(), "double": t.DoubleType()}[kind])
            for name, kind in METRIC_FIELDS
        ]
    ),
)

_TYPES: Final[dict[Type, t.DataType]] = {
    "string": t.StringType(),
    "bigint": t.LongType(),
    "int": t.IntegerType(),
    "double": t.DoubleType(),
    "timestamp_us": t.TimestampType(),
    "histogram": HISTOGRAM,
    "metrics": METRICS,
}

EVENTS: Final = t.StructType([t.StructField(c.name, _TYPES[c.type], True) for c in COLUMNS])
"""All nullable: a Parquet file does not guarantee otherwise."""
