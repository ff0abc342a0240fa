"""Minutes within an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.histograms import DURATION_BITS, MAX_US, SHARES, rank

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUBMITTED: Final = 0
RETRIED: Final = 1
"""Attempts that ended without completing their task, with their time."""
FAILED_AT_WORK: Final = 2
FAILED_ELSE: Final = 3
"""A task that failed while no node had it. One that failed on a node is counted as a run too."""
CANCELLED_AT_WORK: Final = 4
CANCELLED_ELSE: Final = 5
RUN: Final = 6
"""Completing attempts, with their time."""
WAIT: Final = 7
"""Assignments, with the wait before them."""

_GROUP_BITS: Final = 3
_MINUTES: Final = 60
KEY: Final = ("service", "hour")


def packed(minute: Column, group: Column | int, us: Column | int = 0) -> Column:
    """One number, bigint; `minute` counts from 1970. Unknown durations count as 0."""
    of_group = f.lit(group) if isinstance(group, int) else group
    key = f.shiftleft((minute % _MINUTES).cast("bigint"), _GROUP_BITS) + of_group
    value = f.lit(us) if isinstance(us, int) else f.coalesce(us, f.lit(0))
    return f.shiftleft(key, DURATION_BITS) + value.cast("bigint")


def duration_of(number: Column) -> Column:
    return number.bitwiseAND(f.lit(MAX_US))


def minutes_of(hours: DataFrame) -> DataFrame:
    """From rows of (service, hour, sorted packed numbers) to rows of (service, hour, minute, counts, ranks).

    Ranks are looked up in the array after a join: grouping with the array in each row would copy it as often.
    """
    sorted_ = hours.select(*KEY, "numbers")
    each = sorted_.select(*KEY, f.posexplode("numbers").alias("place", "number"))
    keyed = each.select(*KEY, "place", duration_of(f.col("number")).alias("us"), *_minute_and_group(f.col("number")))
    rows = keyed.groupBy(*KEY, "minute").agg(*_counts(), _begin("wait", WAIT), _begin("run", RUN))
    return rows.join(sorted_, list(KEY)).select(
        *KEY,
        (f.col("hour") * _MINUTES + f.col("minute")).alias("minute"),
        "submitted",
        (f.col("runs") - f.col("at_work")).alias("finished"),
        *("failed", "cancelled", "retried", "busy_us"),
        *(column for measure in ("wait", "run") for column in _ranks(measure)),
    )


def _minute_and_group(number: Column) -> list[Column]:
    key = f.shiftright(number, DURATION_BITS).cast("int")
    group = key.bitwiseAND(f.lit((1 << _GROUP_BITS) - 1))
    return [f.shiftright(key, _GROUP_BITS).alias("minute"), group.alias("group")]


def _counts() -> list[Column]:
    group, none = f.col("group"), f.lit(0).cast("bigint")

    def count(*groups: int) -> Column:
        return f.sum(f.when(group.isin(*groups), f.lit(1).cast("bigint")).otherwise(none))

    return [
        count(SUBMITTED).alias("submitted"),
        count(FAILED_AT_WORK, FAILED_ELSE).alias("failed"),
        count(CANCELLED_AT_WORK, CANCELLED_ELSE).alias("cancelled"),
        count(FAILED_AT_WORK, CANCELLED_AT_WORK).alias("at_work"),
        count(RETRIED).alias("retried"),
        f.sum(f.when(group.isin(RUN, RETRIED), f.col("us")).otherwise(none)).alias("busy_us"),
        count(RUN).alias("runs"),
        count(WAIT).alias("waits"),
    ]


def _begin(measure: str, group: int) -> Column:
    """The index at which the numbers of a group begin; null if there are none."""
    return f.min(f.when(f.col("group") == group, f.col("place"))).alias(f"{measure}_begin")


def _ranks(measure: str) -> list[Column]:
    begin, count = f.col(f"{measure}_begin"), f.col(f"{measure}s").cast("int")
    places = [(name, rank(count, share)) for name, share in SHARES]
    return [
        duration_of(f.get("numbers", begin + place - 1)).alias(f"{measure}_{name}")
        for name, place in (*places, ("max", count))
    ]
