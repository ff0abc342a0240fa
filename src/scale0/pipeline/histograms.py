"""Histograms in log buckets, as Spark columns: what `history/events/histogram.py` does, for millions of rows.

Lives here: durations as whole microseconds, their buckets, run lengths, merging, nearest ranks. Never here: what is
measured. Invariants: built-ins alone; a histogram is ascending and without zero counts, so that equal histograms are
equal arrays; nothing depends on the order of rows.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.history.events.histogram import GAMMA, ZERO_BUCKET
from scale0.pipeline.time_ranges import SECOND_US

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

HISTOGRAM: Final = t.ArrayType(
    t.StructType([t.StructField("bucket", t.IntegerType()), t.StructField("count", t.LongType())])
)
"""As slabs have it: without the promise of the events' schema that nothing in it is null, which no file can keep."""

SHARES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
"""The quantiles that tables show."""

DURATION_BITS: Final = 46
MAX_US: Final = (1 << DURATION_BITS) - 1
"""Two years. What claims to be longer is no duration, and no sum of what is left overflows."""
BUCKET_BITS: Final = 11
"""As many as the buckets from ZERO_BUCKET to that of MAX_US need."""

MAX_BUCKET: Final = ZERO_BUCKET + (1 << BUCKET_BITS) - 1
"""No summary has a bucket above it: 7 * 10^11 seconds."""

Bounds = tuple[int, int]
"""The least and the largest of something."""

BUCKETS: Final[Bounds] = (ZERO_BUCKET, MAX_BUCKET)
COUNT_BITS: Final = 48
MAX_COUNT: Final = 1 << COUNT_BITS
"""Of one bucket or code of one row: larger ones could overflow when they are added up."""

_PER_LOG: Final = 1.0 / math.log(GAMMA)
_MIDDLE: Final = 2.0 / (1.0 + GAMMA)


def micros(seconds: Column) -> Column:
    """A duration in whole microseconds, bigint; null where it is none: missing, negative, NaN, or beyond MAX_US."""
    # Spark holds NaN to be larger than every number: the second condition keeps it out too.
    known = (seconds >= 0.0) & (seconds <= MAX_US / SECOND_US)
    return f.when(known, f.rint(seconds * float(SECOND_US)).cast("bigint"))


def seconds_of(us: Column) -> Column:
    """Whole microseconds as the seconds that tables show."""
    return us / f.lit(float(SECOND_US))


def micros_of(seconds: Column) -> Column:
    """Back from `seconds_of`: exact, since doubles hold 53 bits."""
    return f.rint(seconds * float(SECOND_US)).cast("bigint")


def bucket_of(us: Column) -> Column:
    """The bucket of a duration in whole microseconds, int; ZERO_BUCKET for null.

    Never null, so that an array of buckets is sorted as an array of plain ints: measured, it takes a tenth of the time.
    """
    log = f.ceil(f.ln(us / f.lit(float(SECOND_US))) * f.lit(_PER_LOG)).cast("int")
    return f.coalesce(f.when(us >= 1, log), f.lit(ZERO_BUCKET))


def value_of(bucket: Column) -> Column:
    """The duration in seconds that a bucket stands for."""
    value = f.exp(bucket / f.lit(_PER_LOG)) * f.lit(_MIDDLE)
    return f.when(bucket.isNotNull(), f.when(bucket <= ZERO_BUCKET, f.lit(0.0)).otherwise(value))


def rank(count: Column, share: float) -> Column:
    """The nearest rank, from 1: an int."""
    return f.greatest(f.lit(1), f.ceil(f.lit(share) * count).cast("int"))


def run_ends(values: Column, of: Callable[[Column], Column] = lambda value: value) -> Column:
    """Where runs of equal keys end in a sorted array, from 1: array<int>. `of`: the key of a value."""
    last = f.size(values)

    def ends(place: Column) -> Column:
        here, behind = f.get(values, place - 1), f.get(values, place)
        return (place == last) | (of(here) != of(behind))

    places = f.when(last > 0, f.sequence(f.lit(1), last)).otherwise(f.array().cast("array<int>"))
    return f.filter(places, ends)


def run_begin(ends: Column, index: Column) -> Column:
    """Behind how many values the run with this number, from 0, begins."""
    return f.coalesce(f.get(ends, index - 1), f.lit(0))


def merged(
    rows: DataFrame, keys: Sequence[str], sums: Sequence[str], maxima: Sequence[str], counts: Mapping[str, Bounds]
) -> DataFrame:
    """All rows of a key as one: (keys, sums, maxima, counts).

    `counts` are arrays of entries (int, bigint), or maps: histograms, failures by code. Their counts are added up; an
    entry beyond its bounds is the nearest within; no count above MAX_COUNT is believed.

    Measured: to group by every bucket makes millions of groups, spills, and takes half as long again. So entries are
    collected as single numbers, which sort quickly, and equal ones are runs.
    """
    packings = {name: _Packing(bounds) for name, bounds in counts.items()}
    packed = rows.select(
        *(*keys, *sums, *maxima),
        *(one.pack(_entries(rows, name)).alias(name) for name, one in packings.items()),
    )
    gathered = packed.groupBy(*keys).agg(
        *(f.sum(f.col(name).cast("bigint")).alias(name) for name in sums),
        *(f.max(f.col(name).cast("bigint")).alias(name) for name in maxima),
        *(f.sort_array(f.flatten(f.collect_list(name))).alias(name) for name in counts),
    )
    ended = gathered.select(
        "*", *(run_ends(f.col(name), one.entry_of).alias(f"{name}_ends") for name, one in packings.items())
    )
    added = (one.added(f.col(name), f.col(f"{name}_ends")).alias(name) for name, one in packings.items())
    return ended.select(*keys, *sums, *maxima, *added)


def _entries(rows: DataFrame, name: str) -> Column:
    """An array of entries; null where there are none at all."""
    column = f.col(name)
    if isinstance(rows.schema[name].dataType, t.MapType):
        column = f.map_entries(column)
    return column.cast(HISTOGRAM)


def merged_many(
    rows: DataFrame, keys: Sequence[str], sums: Sequence[str], maxima: Sequence[str], counts: Mapping[str, Bounds]
) -> DataFrame:
    """What `merged` gives, where a key has many rows with mostly the same entries: an hour's minutes, a day's hours.

    Then there are few groups of entries, and counting them is compiled code, where `merged` has lambdas.
    """
    added = rows.groupBy(*keys).agg(
        f.count(f.lit(1)).alias("rows"),
        *(f.sum(f.col(name).cast("bigint")).alias(name) for name in sums),
        *(f.max(f.col(name).cast("bigint")).alias(name) for name in maxima),
    )
    entries = [
        rows.select(*keys, f.lit(number).alias("of"), f.inline(_entries(rows, name))).withColumn(
            "bucket", f.least(f.greatest("bucket", f.lit(low)), f.lit(high))
        )
        for number, (name, (low, high)) in enumerate(counts.items())
    ]
    believed = reduce(lambda one, other: one.unionAll(other), entries).filter(f.col("count").between(1, MAX_COUNT))
    counted = believed.groupBy(*keys, "of", "bucket").agg(f.sum("count").alias("count"))
    entry = f.struct("bucket", "count")
    gathered = counted.groupBy(*keys).agg(
        *(
            f.sort_array(f.collect_list(f.when(f.col("of") == number, entry))).alias(name)
            for number, name in enumerate(counts)
        )
    )
    known = (f.coalesce(name, f.array()).cast(HISTOGRAM).alias(name) for name in counts)
    return added.join(gathered, list(keys), "left").select(*keys, *sums, *maxima, *known)


class _Packing:
    """How an entry and its count are one value that sorts by entry: a number where both fit, else a pair."""

    def __init__(self, bounds: Bounds) -> None:
        self._low, self._high = bounds
        self._fits = self._high - self._low < 1 << BUCKET_BITS

    def pack(self, entries: Column) -> Column:
        believed = f.filter(entries, lambda entry: entry["count"].between(1, MAX_COUNT))
        return f.transform(believed, self._one)

    def _one(self, entry: Column) -> Column:
        within = f.least(f.greatest(entry["bucket"], f.lit(self._low)), f.lit(self._high))
        if not self._fits:
            return f.struct(within.alias("bucket"), entry["count"].alias("count"))
        # From 1 to MAX_COUNT: one less fits into its bits. Never null, so that plain numbers are sorted.
        number = f.shiftleft((within - self._low).cast("bigint"), COUNT_BITS) + (entry["count"] - 1)
        return f.coalesce(number, f.lit(0))

    def entry_of(self, value: Column) -> Column:
        if not self._fits:
            return value["bucket"]
        return f.shiftright(value, COUNT_BITS).cast("int") + self._low

    def _count_of(self, value: Column) -> Column:
        return value.bitwiseAND(f.lit(MAX_COUNT - 1)) + 1 if self._fits else value["count"]

    def added(self, values: Column, ends: Column) -> Column:
        """The sorted values, those of one entry added up; their runs end there. Both must be columns of a frame."""

        def one(end: Column, index: Column) -> Column:
            before = run_begin(ends, index)
            run = f.slice(values, before + 1, end - before)
            count = f.aggregate(run, f.lit(0).cast("bigint"), lambda sum_, value: sum_ + self._count_of(value))
            return f.struct(self.entry_of(f.get(values, end - 1)).alias("bucket"), count.alias("count"))

        return f.transform(ends, one).cast(HISTOGRAM)


def total(histogram: Column) -> Column:
    """How many values it holds."""
    return f.aggregate(histogram, f.lit(0).cast("bigint"), lambda sum_, entry: sum_ + entry["count"])


def quantiles(histogram: Column, count: Column) -> Column:
    """A struct of p50, p90, p99: the values of the buckets at the nearest ranks of so many values; nulls of none.

    `count` must be a column of a frame: an expression (`total`) would be computed again for every bucket.
    """

    def step(state: Column, entry: Column) -> Column:
        seen = state["seen"] + entry["count"]
        found = (
            f.coalesce(state[name], f.when(seen >= f.ceil(f.lit(share) * count), entry["bucket"])).alias(name)
            for name, share in SHARES
        )
        return f.struct(seen.alias("seen"), *found)

    none = (f.lit(None).cast("int").alias(name) for name, _ in SHARES)
    start = f.struct(f.lit(0).cast("bigint").alias("seen"), *none)
    return f.aggregate(
        histogram, start, step, lambda end: f.struct(*(value_of(end[name]).alias(name) for name, _ in SHARES))
    )
