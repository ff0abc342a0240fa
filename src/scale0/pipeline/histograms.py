"""Histograms in log buckets as Spark columns: the vectorised counterpart of `history/events/histogram.py`.

Only built-in functions are used. A histogram is ascending and has no zero counts, so equal histograms are equal arrays.
Nothing depends on the order of rows.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.history.events.histogram import GAMMA, QUANTILES, ZERO_BUCKET
from scale0.pipeline.schemas import HISTOGRAM
from scale0.pipeline.time_ranges import SECOND_US

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

DURATION_BITS: Final = 46
MAX_US: Final = (1 << DURATION_BITS) - 1
"""Two years. A longer value is not a duration; sums of valid durations cannot overflow."""
BUCKET_BITS: Final = 11
"""Bits for the buckets from ZERO_BUCKET to that of MAX_US."""

MAX_BUCKET: Final = ZERO_BUCKET + (1 << BUCKET_BITS) - 1
"""No summary has a higher bucket: 7 * 10^11 seconds."""

Bounds = tuple[int, int]
"""The smallest and the largest allowed value."""

BUCKETS: Final[Bounds] = (ZERO_BUCKET, MAX_BUCKET)
COUNT_BITS: Final = 48
MAX_COUNT: Final = 1 << COUNT_BITS
"""Limit for one bucket or code of one row: larger counts could overflow when summed."""

_PER_LOG: Final = 1.0 / math.log(GAMMA)
_MIDDLE: Final = 2.0 / (1.0 + GAMMA)


def micros(seconds: Column) -> Column:
    """A duration in whole microseconds, bigint; null if it is missing, negative, NaN, or beyond MAX_US."""
    # Spark orders NaN above every number, so the second condition excludes it too.
    known = (seconds >= 0.0) & (seconds <= MAX_US / SECOND_US)
    return f.when(known, f.rint(seconds * float(SECOND_US)).cast("bigint"))


def seconds_of(us: Column) -> Column:
    return us / f.lit(float(SECOND_US))


def micros_of(seconds: Column) -> Column:
    """The inverse of `seconds_of`: exact, since doubles hold 53 bits."""
    return f.rint(seconds * float(SECOND_US)).cast("bigint")


def bucket_of(us: Column) -> Column:
    """The bucket of a duration in whole microseconds, int; ZERO_BUCKET for null.

    Never null, so that Spark sorts an array of buckets as plain ints, which takes a tenth of the time.
    """
    log = f.ceil(f.ln(us / f.lit(float(SECOND_US))) * f.lit(_PER_LOG)).cast("int")
    return f.coalesce(f.when(us >= 1, log), f.lit(ZERO_BUCKET))


def value_of(bucket: Column) -> Column:
    """The duration in seconds that a bucket represents."""
    value = f.exp(bucket / f.lit(_PER_LOG)) * f.lit(_MIDDLE)
    return f.when(bucket.isNotNull(), f.when(bucket <= ZERO_BUCKET, f.lit(0.0)).otherwise(value))


def rank(count: Column, share: float) -> Column:
    """The nearest rank, from 1: an int."""
    return f.greatest(f.lit(1), f.ceil(f.lit(share) * count).cast("int"))


def run_ends(values: Column, of: Callable[[Column], Column] = lambda value: value) -> Column:
    """The 1-based positions at which runs of equal keys end in a sorted array: array<int>. `of` returns a value's
    key.
    """
    last = f.size(values)

    def ends(position: Column) -> Column:
        here, behind = f.get(values, position - 1), f.get(values, position)
        return (position == last) | (of(here) != of(behind))

    positions = f.when(last > 0, f.sequence(f.lit(1), last)).otherwise(f.array().cast("array<int>"))
    return f.filter(positions, ends)


def run_begin(ends: Column, index: Column) -> Column:
    """The number of values before the run with this index (from 0)."""
    return f.coalesce(f.get(ends, index - 1), f.lit(0))


def merged(
    rows: DataFrame, keys: Sequence[str], sums: Sequence[str], maxima: Sequence[str], counts: Mapping[str, Bounds]
) -> DataFrame:
    """Merge all rows of a key into one: (keys, sums, maxima, counts).

    `counts` are arrays of entries (int, bigint), or maps: histograms, failures by code. Their counts are summed; an
    entry outside its bounds is clamped; counts above MAX_COUNT are ignored.

    Grouping by every bucket creates millions of groups, spills, and takes half as long again. So entries are collected
    as single numbers, which sort quickly, and equal entries form runs.
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
    """An array of entries; null if the column is null."""
    column = f.col(name)
    if isinstance(rows.schema[name].dataType, t.MapType):
        column = f.map_entries(column)
    return column.cast(HISTOGRAM)


def merged_many(
    rows: DataFrame, keys: Sequence[str], sums: Sequence[str], maxima: Sequence[str], counts: Mapping[str, Bounds]
) -> DataFrame:
    """The same result as `merged`, for keys with many rows that mostly share entries: an hour's minutes, a day's hours.

    There are few groups of entries then, and Spark compiles their counting, whereas `merged` uses lambdas.
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
    """Encodes an entry and its count as one value that sorts by entry: a number if both fit, otherwise a struct."""

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
        # Counts go from 1 to MAX_COUNT: minus one they fit into their bits. Never null, so that plain numbers are
        # sorted.
        number = f.shiftleft((within - self._low).cast("bigint"), COUNT_BITS) + (entry["count"] - 1)
        return f.coalesce(number, f.lit(0))

    def entry_of(self, value: Column) -> Column:
        if not self._fits:
            return value["bucket"]
        return f.shiftright(value, COUNT_BITS).cast("int") + self._low

    def _count_of(self, value: Column) -> Column:
        return value.bitwiseAND(f.lit(MAX_COUNT - 1)) + 1 if self._fits else value["count"]

    def added(self, values: Column, ends: Column) -> Column:
        """Sum the counts of equal entries in the sorted values. Both arguments must be columns of a frame."""

        def one(end: Column, index: Column) -> Column:
            before = run_begin(ends, index)
            run = f.slice(values, before + 1, end - before)
            count = f.aggregate(run, f.lit(0).cast("bigint"), lambda sum_, value: sum_ + self._count_of(value))
            return f.struct(self.entry_of(f.get(values, end - 1)).alias("bucket"), count.alias("count"))

        return f.transform(ends, one).cast(HISTOGRAM)


def total(histogram: Column) -> Column:
    return f.aggregate(histogram, f.lit(0).cast("bigint"), lambda sum_, entry: sum_ + entry["count"])


def quantiles(histogram: Column, count: Column) -> Column:
    """A struct of p50, p90, p99: the bucket values at the nearest ranks; nulls for an empty histogram.

    `count` must be a column of a frame: an expression (`total`) would be computed again for every bucket.
    """

    def step(state: Column, entry: Column) -> Column:
        seen = state["seen"] + entry["count"]
        found = (
            f.coalesce(state[name], f.when(seen >= f.ceil(f.lit(share) * count), entry["bucket"])).alias(name)
            for name, share in QUANTILES
        )
        return f.struct(seen.alias("seen"), *found)

    none = (f.lit(None).cast("int").alias(name) for name, _ in QUANTILES)
    start = f.struct(f.lit(0).cast("bigint").alias("seen"), *none)
    return f.aggregate(
        histogram, start, step, lambda end: f.struct(*(value_of(end[name]).alias(name) for name, _ in QUANTILES))
    )
