"""Task statistics by method and minute, by method and hour, and the work of nodes by hour. Stateless.

Each event counts in its own period. A wait is that of an assignment, counted when its attempt ended. A run is that of
an attempt that completed its task, as finished, failed or cancelled; other attempts are in `retried` and `busy_seconds`
only.

Grouping by minute makes a million small arrays and takes five times as long as grouping by hour. So an hour's events
are collected as arrays of packed numbers (minute of the hour, group, microseconds); sorted, the numbers of one minute
and group are adjacent, by size, so that a count is a length and a nearest rank is a position. Spark interprets a lambda
for every value of an array, at about 0.2 µs each; an exploded array goes through compiled code, at 0.01 µs. So lambdas
see only distinct values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.history.events.histogram import QUANTILES, ZERO_BUCKET
from scale0.pipeline.aggregations.tasks_events import (
    ATTEMPT_ENDED,
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    OUTCOMES,
    SUBMITTED,
    closes_attempt,
    known,
)
from scale0.pipeline.caching import cache
from scale0.pipeline.histograms import (
    BUCKET_BITS,
    DURATION_BITS,
    MAX_US,
    bucket_of,
    micros,
    rank,
    seconds_of,
    value_of,
)
from scale0.pipeline.schemas import HISTOGRAM, PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, MINUTE_US, part_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.time_ranges import TimeRange

GROUP_SUBMITTED: Final = 0
GROUP_RETRIED: Final = 1
"""Attempts that ended without completing their task, with their time."""
GROUP_FAILED_RUNNING: Final = 2
GROUP_FAILED: Final = 3
"""A task that failed while no node had it. One that failed on a node is counted as a run too."""
GROUP_CANCELLED_RUNNING: Final = 4
GROUP_CANCELLED: Final = 5
GROUP_RUN: Final = 6
"""Completing attempts, with their time."""
GROUP_WAIT: Final = 7
"""Assignments, with the wait before them."""

_GROUP_BITS: Final = 3
_MINUTES: Final = 60
KEY: Final = ("service", "hour")


def pack_minute(minute: Column, group: Column | int, us: Column | int = 0) -> Column:
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
    rows = keyed.groupBy(*KEY, "minute").agg(*_counts(), _begin("wait", GROUP_WAIT), _begin("run", GROUP_RUN))
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
        count(GROUP_SUBMITTED).alias("submitted"),
        count(GROUP_FAILED_RUNNING, GROUP_FAILED).alias("failed"),
        count(GROUP_CANCELLED_RUNNING, GROUP_CANCELLED).alias("cancelled"),
        count(GROUP_FAILED_RUNNING, GROUP_CANCELLED_RUNNING).alias("at_work"),
        count(GROUP_RETRIED).alias("retried"),
        f.sum(f.when(group.isin(GROUP_RUN, GROUP_RETRIED), f.col("us")).otherwise(none)).alias("busy_us"),
        count(GROUP_RUN).alias("runs"),
        count(GROUP_WAIT).alias("waits"),
    ]


def _begin(measure: str, group: int) -> Column:
    """The index at which the numbers of a group begin; null if there are none."""
    return f.min(f.when(f.col("group") == group, f.col("place"))).alias(f"{measure}_begin")


def _ranks(measure: str) -> list[Column]:
    begin, count = f.col(f"{measure}_begin"), f.col(f"{measure}s").cast("int")
    positions = [(name, rank(count, share)) for name, share in QUANTILES]
    return [
        duration_of(f.get("numbers", begin + position - 1)).alias(f"{measure}_{name}")
        for name, position in (*positions, ("max", count))
    ]


EVENTS_NAME: Final = "events"
COUNTS: Final = ("submitted", "finished", "failed", "cancelled", "retried")
MEASURES: Final = ("wait", "run")
PERCENTILE_COLUMNS: Final = tuple(
    f"{measure}_{name}" for measure in MEASURES for name in (*(name for name, _ in QUANTILES), "max")
)

SCHEMA: Final = fields(
    ("method", t.StringType()),
    ("grain", t.StringType()),
    ("start", t.TimestampType()),
    *((name, t.LongType()) for name in COUNTS),
    *((name, t.DoubleType()) for name in PERCENTILE_COLUMNS),
    ("busy_seconds", t.DoubleType()),
    ("wait_histogram", HISTOGRAM),
    ("run_histogram", HISTOGRAM),
)
"""Minutes have no histograms: their percentiles are exact."""

_POSITION_BITS: Final = 32
"""Bits of a position in an array."""

MINUTE: Final = DataSet("task_stats.minute", "task_stats", "hour", SCHEMA)
HOUR: Final = DataSet("task_stats.hour", "task_stats", "hour", SCHEMA)
NODE_WORK: Final = DataSet(
    "node_work",
    "",
    "hour",
    fields(("node", t.StringType()), ("attempts", t.LongType()), ("busy_us", t.LongType()), ("lost", t.LongType())),
)
"""Attempts count in the hour in which they ended, with all their time."""


class TaskStatsAggregation:
    name: Final = "task_stats"
    reads: Final = (EVENTS_NAME,)
    kinds: Final = frozenset((SUBMITTED, ATTEMPT_ENDED, COMPLETED))
    columns: Final = ("at", "kind", "identity", "service", "attempt", "code", "state", "seconds", "waited")
    key: Final = ""
    data_sets: Final = (MINUTE, HOUR, NODE_WORK)
    state: Final = None

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        del state, time_range, parameters
        events = rows[EVENTS_NAME]
        hours = cache(by_hour(contributions(events)))
        return {
            MINUTE.name: minute_rows(hours),
            HOUR.name: hour_rows(hours),
            NODE_WORK.name: node_work(events),
        }


def contributions(events: DataFrame) -> DataFrame:
    """The numbers that each event adds."""
    kind, state, at_us = f.col("kind"), f.col("state"), f.unix_micros("at")
    rows = events.filter(known()).select(
        f.coalesce("service", f.lit("")).alias("service"),
        part_column(at_us, MINUTE_US).alias("minute"),
        (kind == SUBMITTED).alias("submitted"),
        (kind == ATTEMPT_ENDED).alias("retried"),
        *(((kind == COMPLETED) & f.coalesce(state == each, f.lit(False))).alias(each) for each in OUTCOMES),
        closes_attempt().alias("closes"),
        f.coalesce(micros(f.col("seconds")), f.lit(0)).alias("run_us"),
        f.coalesce(micros(f.col("waited")), f.lit(0)).alias("wait_us"),
    )
    minute, closes = f.col("minute"), f.col("closes")
    group = (
        f.when(f.col("submitted"), GROUP_SUBMITTED)
        .when(f.col("retried"), GROUP_RETRIED)
        .when(f.col(FAILED), f.when(closes, GROUP_FAILED_RUNNING).otherwise(GROUP_FAILED))
        .when(f.col(CANCELLED), f.when(closes, GROUP_CANCELLED_RUNNING).otherwise(GROUP_CANCELLED))
    )
    mark = pack_minute(minute, group, f.when(f.col("retried"), f.col("run_us")))
    completes = closes & ~f.col("retried")
    return rows.select(
        "service",
        f.call_function("div", minute, f.lit(HOUR_US // MINUTE_US)).cast("int").alias("hour"),
        *(f.col(name).cast("bigint").alias(name) for name in COUNTS),
        f.when(closes, f.col("run_us")).otherwise(0).alias("busy_us"),
        f.when(completes, f.col("run_us")).alias("run_us"),
        f.when(closes, f.col("wait_us")).alias("wait_us"),
        mark.alias("mark"),
        f.when(completes, pack_minute(minute, GROUP_RUN, f.col("run_us"))).alias("run"),
        f.when(closes, pack_minute(minute, GROUP_WAIT, f.col("wait_us"))).alias("wait"),
        f.when(completes, _marked_bucket("run", f.col("run_us"))).alias("run_bucket"),
        f.when(closes, _marked_bucket("wait", f.col("wait_us"))).alias("wait_bucket"),
    )


def _marked_bucket(measure: str, us: Column) -> Column:
    """An int that sorts by measure, then by bucket."""
    return bucket_of(us) - ZERO_BUCKET + (MEASURES.index(measure) << BUCKET_BITS)


def by_hour(rows: DataFrame) -> DataFrame:
    """One row for each method and hour: its sums, the sorted numbers of all its minutes, and its sorted buckets."""
    return rows.groupBy(*KEY).agg(
        *(f.sum(name).alias(name) for name in (*COUNTS, "busy_us")),
        *(f.max(f"{measure}_us").alias(f"{measure}_max") for measure in MEASURES),
        *(f.count(measure).cast("int").alias(f"{measure}s") for measure in MEASURES),
        _sorted("mark", *MEASURES).alias("numbers"),
        _sorted(*(f"{measure}_bucket" for measure in MEASURES)).alias("buckets"),
    )


def _sorted(*columns: str) -> Column:
    """All values of these columns, as one sorted array."""
    return f.sort_array(f.concat(*(f.collect_list(column) for column in columns)))


def minute_rows(hours: DataFrame) -> DataFrame:
    """The exact statistics of every minute with events."""
    return minutes_of(hours).select(
        *stat_keys("minute", f.col("minute"), MINUTE_US),
        *COUNTS,
        *(seconds_of(f.col(name)).alias(name) for name in PERCENTILE_COLUMNS),
        seconds_of(f.col("busy_us")).alias("busy_seconds"),
        *(f.lit(None).cast(HISTOGRAM).alias(f"{measure}_histogram") for measure in MEASURES),
        f.col("hour").alias(PART),
    )


def hour_rows(hours: DataFrame) -> DataFrame:
    """The statistics of every hour, with percentiles from its buckets."""
    ranked = hours.select(
        *(*KEY, *COUNTS, "busy_us", *(f"{measure}s" for measure in MEASURES)),
        *(column for measure in MEASURES for column in _bucket_ranks(measure)),
    )
    rows = ranked.join(_bucket_ends(hours), list(KEY), "left")
    return rows.select(
        *stat_keys("hour", f.col("hour"), HOUR_US),
        *COUNTS,
        *PERCENTILE_COLUMNS,
        seconds_of(f.col("busy_us")).alias("busy_seconds"),
        *(_histogram(measure).alias(f"{measure}_histogram") for measure in MEASURES),
        f.col("hour").alias(PART),
    )


def _bucket_ranks(measure: str) -> list[Column]:
    """From the sorted buckets."""
    count = f.col(f"{measure}s")
    ranks = [
        value_of(f.when(count > 0, _bucket(f.get("buckets", _before(measure) + rank(count, share) - 1)))).alias(
            f"{measure}_{name}"
        )
        for name, share in QUANTILES
    ]
    return [*ranks, seconds_of(f.col(f"{measure}_max")).alias(f"{measure}_max")]


def _before(measure: str) -> Column:
    """How many sorted buckets precede those of a measure."""
    return sum((f.col(f"{each}s") for each in MEASURES[: MEASURES.index(measure)]), f.lit(0))


def _bucket(marked: Column) -> Column:
    return marked.bitwiseAND(f.lit((1 << BUCKET_BITS) - 1)).cast("int") + ZERO_BUCKET


def _bucket_ends(hours: DataFrame) -> DataFrame:
    """By hour and measure: each bucket, and the number of values up to its last; packed, sorted."""
    each = hours.select(*KEY, "buckets", f.posexplode("buckets").alias("place", "marked"))
    marked = f.col("marked")
    last = each.filter(f.coalesce(f.get("buckets", f.col("place") + 1) != marked, f.lit(True)))
    packed = f.shiftleft(marked.cast("bigint"), _POSITION_BITS) + f.col("place") + 1
    return last.groupBy(*KEY).agg(
        *(
            f.sort_array(f.collect_list(f.when(f.shiftright(marked, BUCKET_BITS) == number, packed))).alias(
                f"{measure}_ends"
            )
            for number, measure in enumerate(MEASURES)
        )
    )


def _histogram(measure: str) -> Column:
    """From the ends of its buckets."""
    ends, before = f.col(f"{measure}_ends"), _before(measure)

    def position(packed: Column) -> Column:
        return packed.bitwiseAND(f.lit((1 << _POSITION_BITS) - 1))

    def entry(packed: Column, index: Column) -> Column:
        begin = f.coalesce(position(f.get(ends, index - 1)), before)
        return f.struct(
            _bucket(f.shiftright(packed, _POSITION_BITS)).alias("bucket"), (position(packed) - begin).alias("count")
        )

    return f.coalesce(f.transform(ends, entry), f.array()).cast(HISTOGRAM)


def stat_keys(grain: str, number: Column, part_us: int) -> list[Column]:
    """The key columns of a row of `task_stats`: `number` counts the grain's periods."""
    start = f.timestamp_micros(number.cast("bigint") * part_us)
    return [f.col("service").alias("method"), f.lit(grain).alias("grain"), start.alias("start")]


def node_work(events: DataFrame) -> DataFrame:
    """Attempts of each node that ended in each hour, their time, and how many of them were lost."""
    node = f.col("identity")
    ended = events.filter(f.col("kind").isin(ATTEMPT_ENDED, COMPLETED) & closes_attempt() & (node != ""))
    rows = ended.select(
        node.alias("node"),
        f.coalesce(micros(f.col("seconds")), f.lit(0)).alias("busy_us"),
        f.when(f.col("state") == LOST, 1).otherwise(0).alias("lost"),
        part_column(f.unix_micros("at"), HOUR_US).alias(PART),
    )
    return (
        rows.groupBy("node", PART)
        .agg(f.count(f.lit(1)).alias("attempts"), f.sum("busy_us").alias("busy_us"), f.sum("lost").alias("lost"))
        .select("node", "attempts", "busy_us", "lost", PART)
    )
