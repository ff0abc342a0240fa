"""Frames from listed files (data sets, events, liveness samples), and data files from frames.

A frame holds exactly the parts that the manifest lists; replaced parts in a file are filtered out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.caching import cache
from scale0.pipeline.engine.liveness import CutSample, samples_at_horizon
from scale0.pipeline.schemas import EVENTS, LIVENESS_SAMPLES, DataSet, day_of_hour, fields
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, hour_of
from scale0.pipeline.warehouse.records import LIVENESS, PART, ROW_HASH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from scale0.pipeline.warehouse.records import FileEntry, ListedFile
    from scale0.pipeline.warehouse.staging import StagingDirectory
    from scale0.pipeline.warehouse.transaction import Transaction

SHARED_EVENTS: Final = 1_000_000
"""At most this many events are read once for all aggregations: above, each reads only its own columns."""


class WarehouseFrames:
    def __init__(self, spark: SparkSession, transaction: Transaction) -> None:
        self._spark = spark
        self._transaction = transaction
        self._shared: tuple[frozenset[int], DataFrame] | None = None

    def share(self, time_range: TimeRange, kinds: Set[str], columns: Iterable[str]) -> None:
        """Cache the events of a range for all following reads, if they are few. The caller releases them."""
        counts = self._transaction.kinds_in(time_range.hours)
        if sum(counts[kind] for kind in kinds & counts.keys()) <= SHARED_EVENTS:
            self._shared = time_range.hours, cache(self.events(time_range, kinds, columns))

    def data_set(self, data_set: DataSet, parts: Set[int] | None = None) -> DataFrame:
        """The rows of these parts (None: of all), with `part`."""
        return self._listed(self._transaction.files(data_set.name, parts), data_set.schema, parts)

    def liveness_samples(self, time_range: TimeRange) -> DataFrame:
        """Samples from the first hour of the range to the horizon: that a source stopped recording is visible only
        later.
        """
        hours = frozenset(range(time_range.first, hour_of(time_range.horizon_us) + 1))
        rows = self._listed(self._transaction.files(LIVENESS, hours), LIVENESS_SAMPLES, hours)
        rows = rows.filter(f.unix_micros("first_time") <= time_range.horizon_us)
        crossing = samples_at_horizon(self._transaction, time_range.horizon_us)
        return self._cut(rows, crossing) if crossing else rows

    def _cut(self, samples: DataFrame, crossing: list[CutSample]) -> DataFrame:
        """Replace samples that cross the horizon by their state at the horizon."""
        whose, what = CutSample._fields[:3], CutSample._fields[3:]
        pairs = (
            f.struct(*(f.lit(cell).alias(f"cut_{name}") for name, cell in zip(CutSample._fields, cut, strict=True)))
            for cut in crossing
        )
        at_horizon = self._spark.range(1).select(f.inline(f.array(*pairs)))
        same = reduce(
            lambda one, other: one & other, (f.col(name) == f.col(f"cut_{name}") for name in whose), f.col("events") > 0
        )
        rows = samples.join(f.broadcast(at_horizon), same, how="left")
        return rows.select(
            *(f.coalesce(f"cut_{name}", name).alias(name) if name in what else name for name in samples.columns)
        )

    def events(self, time_range: TimeRange, kinds: Iterable[str], columns: Iterable[str]) -> DataFrame:
        """Events of these kinds (empty: all) in the range, up to the horizon."""
        if self._shared is not None and time_range.hours <= self._shared[0]:
            events = self._shared[1]
        else:
            events = self._read(self._transaction.event_files(time_range.hours), EVENTS)
        return events_in(events, time_range, kinds).select(*columns)

    def events_of(self, paths: Iterable[str], time_range: TimeRange, kinds: Iterable[str], column: str) -> DataFrame:
        """One column of the events of these files."""
        return events_in(self._read(list(paths), EVENTS), time_range, kinds).select(column)

    def _read(self, paths: list[str], schema: t.StructType) -> DataFrame:
        if not paths:
            # Built by Spark: rows from Python would start a Python worker even for an empty frame.
            nothing = (f.lit(None).cast(field.dataType).alias(field.name) for field in schema)
            return self._spark.range(0).select(*nothing)
        return self._spark.read.schema(schema).parquet(*paths)

    def _listed(self, files: Sequence[ListedFile], schema: t.StructType, parts: Set[int] | None) -> DataFrame:
        """Files whose rows are all valid are read together; the others with a filter for their valid parts."""
        shape = with_part_column(schema)
        groups: dict[frozenset[int], list[str]] = {}
        whole: list[str] = []
        for path, listed, carved in files:
            if not carved and (parts is None or listed <= parts):
                whole.append(path)
            else:
                groups.setdefault(frozenset(listed if parts is None else listed & parts), []).append(path)
        frames = [self._read(whole, shape)] if whole or not groups else []
        for listed, paths in groups.items():
            frames.append(self._read(paths, shape).filter(in_parts(listed)))
        return reduce(lambda one, other: one.unionByName(other), frames)


def with_part_column(schema: t.StructType) -> t.StructType:
    return fields(*((field.name, field.dataType) for field in schema), (PART, "int"))


def in_parts(parts: Set[int]) -> Column:
    """Whether a row belongs to one of these parts; consecutive parts become ranges."""
    condition = f.lit(False)
    for first, last in runs_of(parts):
        condition = condition | f.col(PART).between(first, last)
    return condition


def runs_of(parts: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive parts as (first, last), ascending."""
    runs: list[tuple[int, int]] = []
    for part in sorted(parts):
        if runs and part == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], part)
        else:
            runs.append((part, part))
    return runs


def events_in(events: DataFrame, time_range: TimeRange, kinds: Iterable[str]) -> DataFrame:
    wanted = sorted(kinds)
    if wanted:
        events = events.filter(f.col("kind").isin(*wanted))
    from_time = f.timestamp_micros(f.lit(time_range.from_us))
    if time_range.end * HOUR_US <= time_range.horizon_us:
        return events.filter(
            (f.col("at") >= from_time) & (f.col("at") < f.timestamp_micros(f.lit(time_range.until_us)))
        )
    return events.filter((f.col("at") >= from_time) & (f.col("at") <= f.timestamp_micros(f.lit(time_range.horizon_us))))


DAY: Final = "day_folder"
MANY_DAYS: Final = 2
"""Rows of more days are partitioned by day, so that a reader of one day opens one file of a data set."""


def write_data_set(
    staging: StagingDirectory, data_set: DataSet, frame: DataFrame, days: int, tasks: int
) -> list[FileEntry]:
    """Write rows (with `part`) of this many days, and return their entries."""
    rows = frame.select(*(f.col(field.name).cast(field.dataType) for field in data_set.schema), f.col(PART).cast("int"))
    rows = rows.withColumn(ROW_HASH, row_hash(data_set.schema))
    folder = staging.new_file(data_set.name, "step").with_suffix("")
    if days > MANY_DAYS and data_set.period == "hour":
        rows = rows.withColumn(DAY, day_of_hour())
        rows = rows.repartition(min(days, tasks), DAY).sortWithinPartitions(DAY, PART)
        rows.write.partitionBy(DAY).parquet(str(folder))
    else:
        rows.coalesce(1 if days <= MANY_DAYS else tasks).write.parquet(str(folder))
    return staging.register(data_set.name, sorted(folder.rglob("*.parquet")))


def row_hash(schema: t.StructType) -> Column:
    return f.xxhash64(*(hashable(field) for field in schema), f.col(PART))


def hashable(field: t.StructField) -> Column:
    """Maps have no order, so Spark refuses to hash them: hash their sorted entries."""
    column = f.col(field.name)
    return f.array_sort(f.map_entries(column)) if isinstance(field.dataType, t.MapType) else column
