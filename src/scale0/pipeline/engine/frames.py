"""Frames from listed files (data sets, events, liveness samples), and data files from frames.

A frame holds exactly the parts that the manifest lists; replaced parts in a file are filtered out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.caching import hold
from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.engine.horizon_cut import Cut, cuts
from scale0.pipeline.event_schema import EVENTS
from scale0.pipeline.tables import PULSES
from scale0.pipeline.time_ranges import HOUR_US, TimeRange, hour_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as t

    from scale0.pipeline.warehouse.entries import Listed
    from scale0.pipeline.warehouse.transaction import Transaction

EVENTS_NAME: Final = "events"
PULSES_NAME: Final = "pulses"
SHARED_EVENTS: Final = 1_000_000
"""At most this many events are read once for all aggregations: above, each reads only its own columns."""


class WarehouseFrames:
    def __init__(self, spark: SparkSession, draft: Transaction) -> None:
        self._spark = spark
        self._draft = draft
        self._shared: tuple[frozenset[int], DataFrame] | None = None

    def share(self, stretch: TimeRange, kinds: Set[str], columns: Iterable[str]) -> None:
        """Cache the events of a range for all following reads, if they are few. The caller releases them."""
        counts = self._draft.kinds_in(stretch.hours)
        if sum(counts[kind] for kind in kinds & counts.keys()) <= SHARED_EVENTS:
            self._shared = stretch.hours, hold(self.events(stretch, kinds, columns))

    def slab(self, slab: DataSet, parts: Set[int] | None = None) -> DataFrame:
        """The rows of these parts (None: of all), with `part`."""
        return self._listed(self._draft.files(slab.name, parts), slab.schema, parts)

    def pulses(self, stretch: TimeRange) -> DataFrame:
        """Samples from the first hour of the range to the horizon: that a source stopped recording is visible only
        later.
        """
        hours = frozenset(range(stretch.first, hour_of(stretch.horizon_us) + 1))
        rows = self._listed(self._draft.pulses(hours), PULSES, hours)
        rows = rows.filter(f.unix_micros("first_time") <= stretch.horizon_us)
        crossing = cuts(self._draft, stretch.horizon_us)
        return self._cut(rows, crossing) if crossing else rows

    def _cut(self, pulses: DataFrame, crossing: list[Cut]) -> DataFrame:
        """Replace samples that cross the horizon by their state at the horizon."""
        whose, what = Cut._fields[:3], Cut._fields[3:]
        pairs = (
            f.struct(*(f.lit(cell).alias(f"cut_{name}") for name, cell in zip(Cut._fields, cut, strict=True)))
            for cut in crossing
        )
        stand = self._spark.range(1).select(f.inline(f.array(*pairs)))
        same = reduce(
            lambda one, other: one & other, (f.col(name) == f.col(f"cut_{name}") for name in whose), f.col("events") > 0
        )
        rows = pulses.join(f.broadcast(stand), same, how="left")
        return rows.select(
            *(f.coalesce(f"cut_{name}", name).alias(name) if name in what else name for name in pulses.columns)
        )

    def events(self, stretch: TimeRange, kinds: Iterable[str], columns: Iterable[str]) -> DataFrame:
        """Events of these kinds (empty: all) in the range, up to the horizon."""
        if self._shared is not None and stretch.hours <= self._shared[0]:
            events = self._shared[1]
        else:
            events = self._read(self._draft.event_files(stretch.hours), EVENTS)
        return narrowed(events, stretch, kinds).select(*columns)

    def events_of(self, paths: Iterable[str], stretch: TimeRange, kinds: Iterable[str], column: str) -> DataFrame:
        """One column of the events of these files."""
        return narrowed(self._read(list(paths), EVENTS), stretch, kinds).select(column)

    def _read(self, paths: list[str], schema: t.StructType) -> DataFrame:
        if not paths:
            # Built by Spark: rows from Python would start a Python worker even for an empty frame.
            nothing = (f.lit(None).cast(field.dataType).alias(field.name) for field in schema)
            return self._spark.range(0).select(*nothing)
        return self._spark.read.schema(schema).parquet(*paths)

    def _listed(self, files: Sequence[Listed], schema: t.StructType, parts: Set[int] | None) -> DataFrame:
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
    """The stored schema."""
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


def narrowed(events: DataFrame, stretch: TimeRange, kinds: Iterable[str]) -> DataFrame:
    """Events of a range, up to its horizon."""
    wanted = sorted(kinds)
    if wanted:
        events = events.filter(f.col("kind").isin(*wanted))
    from_time = f.timestamp_micros(f.lit(stretch.from_us))
    if stretch.end * HOUR_US <= stretch.horizon_us:
        return events.filter((f.col("at") >= from_time) & (f.col("at") < f.timestamp_micros(f.lit(stretch.until_us))))
    return events.filter((f.col("at") >= from_time) & (f.col("at") <= f.timestamp_micros(f.lit(stretch.horizon_us))))
