"""Writes frames to data files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.data_file import PART, ROW_HASH, DataSet
from scale0.pipeline.time_ranges import DAY_HOURS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.warehouse.records import FileEntry
    from scale0.pipeline.warehouse.staging import StagingDirectory

DAY: Final = "day_folder"
MANY_DAYS: Final = 2
"""Rows of more days are partitioned by day, so that a reader of one day opens one file of a data set."""


def write_slab(attempt: StagingDirectory, slab: DataSet, frame: DataFrame, days: int, tasks: int) -> list[FileEntry]:
    """Write rows (with `part`) of this many days, and return their entries."""
    rows = frame.select(*(f.col(field.name).cast(field.dataType) for field in slab.schema), f.col(PART).cast("int"))
    rows = rows.withColumn(ROW_HASH, row_hash(slab.schema))
    folder = attempt.new_file(slab.name, "step").with_suffix("")
    if days > MANY_DAYS and slab.period == "hour":
        rows = rows.withColumn(DAY, f.call_function("div", f.col(PART), f.lit(DAY_HOURS)).cast("int"))
        rows = rows.repartition(min(days, tasks), DAY).sortWithinPartitions(DAY, PART)
        rows.write.partitionBy(DAY).parquet(str(folder))
    else:
        rows.coalesce(1 if days <= MANY_DAYS else tasks).write.parquet(str(folder))
    return attempt.register(slab.name, sorted(folder.rglob("*.parquet")))


def row_hash(schema: t.StructType) -> Column:
    return f.xxhash64(*(hashable(field) for field in schema), f.col(PART))


def hashable(field: t.StructField) -> Column:
    """Maps have no order, so Spark refuses to hash them: hash their sorted entries."""
    column = f.col(field.name)
    return f.array_sort(f.map_entries(column)) if isinstance(field.dataType, t.MapType) else column
