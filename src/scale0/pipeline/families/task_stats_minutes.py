"""Minutes within an hour: what happened in them, as one sorted array of packed numbers, and rows made of it.

Lives here: the packing, and the way back. Never here: which events count (`task_stats.py`). A packed number is
(minute of the hour, group, microseconds); sorted, the numbers of one minute and group stand together, by size, so that
a count is a length and a nearest rank is a place. Invariant: the rows of a minute depend on its numbers alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.histograms import DURATION_BITS, MAX_US, SHARES, rank, run_begin, run_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

SUBMITTED: Final = 0
RETRIED: Final = 1
"""Attempts that ended without completing their task, with their time."""
FAILED_AT_WORK: Final = 2
FAILED_ELSE: Final = 3
"""Of a task that failed while no node had it. What did is counted as a run too."""
CANCELLED_AT_WORK: Final = 4
CANCELLED_ELSE: Final = 5
RUN: Final = 6
"""Completing attempts, with their time."""
WAIT: Final = 7
"""Hand-outs, with the wait before them."""

_GROUP_BITS: Final = 3
_MINUTES: Final = 60
_KEY: Final = ("service", "hour")


def packed(minute: Column, group: Column | int, us: Column | int = 0) -> Column:
    """One number, bigint; `minute` is that of all time. Unknown durations count as none."""
    of_group = f.lit(group) if isinstance(group, int) else group
    key = f.shiftleft((minute % _MINUTES).cast("bigint"), _GROUP_BITS) + of_group
    value = f.lit(us) if isinstance(us, int) else f.coalesce(us, f.lit(0))
    return f.shiftleft(key, DURATION_BITS) + value.cast("bigint")


def duration_of(number: Column) -> Column:
    """The microseconds of a packed number."""
    return number.bitwiseAND(f.lit(MAX_US))


def _key_of(number: Column) -> Column:
    return f.shiftright(number, DURATION_BITS)


def minutes_of(hours: DataFrame, arrays: Sequence[str]) -> DataFrame:
    """From rows of (service, hour, arrays of packed numbers): rows of (service, hour, minute, counts, ranks)."""
    sorted_ = hours.select(*_KEY, f.sort_array(f.concat(*arrays)).alias("numbers"))
    ended = sorted_.select(*_KEY, "numbers", run_ends(f.col("numbers"), _key_of).alias("ends"))
    bounded = ended.select(*_KEY, "numbers", _bounds(f.col("ends")).alias("bounds"))
    runs = bounded.select(*_KEY, f.inline(_runs(f.col("numbers"), f.col("bounds"))))
    keyed = runs.select(
        *_KEY,
        (f.col("hour") * _MINUTES + f.shiftright(f.col("key"), _GROUP_BITS)).cast("int").alias("minute"),
        f.col("key").bitwiseAND(f.lit((1 << _GROUP_BITS) - 1)).alias("group"),
        "*",
    )
    return keyed.groupBy(*_KEY, "minute").agg(*_counts(), *_ranks("wait", WAIT), *_ranks("run", RUN))


def _bounds(ends: Column) -> Column:
    """Of each run: before which place it begins, and where it ends."""
    return f.transform(ends, lambda end, index: f.struct(run_begin(ends, index).alias("begin"), end.alias("end")))


def _runs(numbers: Column, bounds: Column) -> Column:
    """Of each run: its key, how many there are, their sum, and the ranks that are asked for."""

    def one(bound: Column) -> Column:
        begin, end = bound["begin"], bound["end"]
        count = end - begin
        key = _key_of(f.get(numbers, begin))
        group = key.bitwiseAND(f.lit((1 << _GROUP_BITS) - 1))
        worked = (group == RUN) | (group == RETRIED)
        sum_ = f.aggregate(
            f.slice(numbers, begin + 1, count), f.lit(0).cast("bigint"), lambda sum_, each: sum_ + duration_of(each)
        )
        ranks = (duration_of(f.get(numbers, begin + rank(count, share) - 1)).alias(name) for name, share in SHARES)
        return f.struct(
            key.cast("int").alias("key"),
            count.alias("count"),
            f.when(worked, sum_).alias("busy_us"),
            *ranks,
            duration_of(f.get(numbers, end - 1)).alias("max"),
        )

    return f.transform(bounds, one)


def _counts() -> list[Column]:
    def count(*groups: int, without: tuple[int, ...] = ()) -> Column:
        group, one = f.col("group"), f.col("count").cast("bigint")
        return f.sum(f.when(group.isin(*groups), one).when(group.isin(*without), -one).otherwise(0))

    at_work = (FAILED_AT_WORK, CANCELLED_AT_WORK)
    return [
        count(SUBMITTED).alias("submitted"),
        count(RUN, without=at_work).alias("finished"),
        count(FAILED_AT_WORK, FAILED_ELSE).alias("failed"),
        count(CANCELLED_AT_WORK, CANCELLED_ELSE).alias("cancelled"),
        count(RETRIED).alias("retried"),
        f.coalesce(f.sum("busy_us"), f.lit(0)).alias("busy_us"),
    ]


def _ranks(name: str, group: int) -> list[Column]:
    """There is one run of a group in a minute: its largest is it."""
    return [
        f.max(f.when(f.col("group") == group, f.col(each))).alias(f"{name}_{each}")
        for each in (*(share for share, _ in SHARES), "max")
    ]
