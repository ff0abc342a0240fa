"""Histograms in log buckets, as Spark columns: what `events/histogram.py` does, for millions of rows.

Lives here: durations as whole microseconds, their buckets, run lengths, merging, nearest ranks. Never here: what is
measured. Invariants: built-ins alone; a histogram is ascending and without zero counts, so that equal histograms are
equal arrays; nothing depends on the order of rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.events.histogram import GAMMA, ZERO_BUCKET
from scale0.pipeline.hours import SECOND_US

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
MAX_COUNT: Final = 1 << 48
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


def of_sorted(buckets: Column, ends: Column) -> Column:
    """The histogram of a sorted array of buckets, whose runs end there (`run_ends`).

    Both must be columns of a frame: an expression would be computed again for every entry.
    """

    def entry(end: Column, index: Column) -> Column:
        before = f.coalesce(f.get(ends, index - 1), f.lit(0))
        return f.struct(f.get(buckets, end - 1).alias("bucket"), (end - before).cast("bigint").alias("count"))

    return f.transform(ends, entry).cast(HISTOGRAM)


def merged(
    rows: DataFrame, keys: Sequence[str], sums: Sequence[str], maxima: Sequence[str], counts: Mapping[str, Bounds]
) -> DataFrame:
    """All rows of a key as one: (keys, sums, maxima, counts).

    `counts` are arrays of entries (int, bigint), or maps: histograms, failures by code. Their counts are added up; an
    entry beyond its bounds is the nearest within; no count above MAX_COUNT is believed.
    """
    numbers = [*(f.sum(name).alias(name) for name in sums), *(f.max(name).alias(name) for name in maxima)]
    nothing = [f.lit(None).cast("bigint").alias(name) for name in (*sums, *maxima)]
    pieces = rows.select(
        *keys,
        f.lit(-1).alias("which"),
        f.lit(0).alias("entry"),
        f.lit(0).cast("bigint").alias("entry_count"),
        *(f.col(name).cast("bigint").alias(name) for name in (*sums, *maxima)),
    )
    for which, (name, bounds) in enumerate(counts.items()):
        entries = rows.select(*keys, f.lit(which).alias("which"), _entries(rows, name), *nothing)
        within = f.least(f.greatest("entry", f.lit(bounds[0])), f.lit(bounds[1]))
        believed = entries.filter((f.col("entry_count") > 0) & (f.col("entry_count") <= MAX_COUNT))
        pieces = pieces.unionByName(believed.withColumn("entry", within))
    added = pieces.groupBy(*keys, "which", "entry").agg(f.sum("entry_count").alias("entry_count"), *numbers)
    return added.groupBy(*keys).agg(*numbers, *(_gathered(which, name) for which, name in enumerate(counts)))


def _entries(rows: DataFrame, name: str) -> Column:
    """Rows of (entry, entry_count)."""
    column = f.col(name)
    if isinstance(rows.schema[name].dataType, t.MapType):
        return f.explode(column).alias("entry", "entry_count")
    return f.inline(column).alias("entry", "entry_count")


def _gathered(which: int, name: str) -> Column:
    entry = f.struct(f.col("entry").alias("bucket"), f.col("entry_count").alias("count"))
    mine = f.when(f.col("which") == which, entry)
    return f.sort_array(f.collect_list(mine)).cast(HISTOGRAM).alias(name)


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
