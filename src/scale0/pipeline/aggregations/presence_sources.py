"""When sources were observing: gaps, restarts and holes in their journals; and the state of presence between hours.

Each boot is a chain of its own, because two boots of one source may overlap (a clock that was ahead, an old disk on a
second machine). Within a boot time and seq ascend.

A gap is known when the source is seen again, or when it was not seen for longer than the limit; that can be in a later
hour than its last event. So a step gets the samples up to the horizon, and a gap begins at the last event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, TimeRange, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SOURCE: Final = "source"
"""The last sample of a boot of a source."""
LIVE: Final = "live"
"""An open session."""
DOUBT: Final = "doubt"
"""A session that ended because its source stopped recording, and that was not seen since."""
DEATH: Final = "death"
"""A `client.lost` that was recorded after this hour began: a join before that recording is over when it begins."""
PLANNED: Final = "planned"
"""A downtime of an agent that has not ended."""
SUBJECT: Final = "subject"
"""The class of a subject of the timeline."""
SORTS: Final = (SOURCE, LIVE, DOUBT, DEATH, PLANNED, SUBJECT)

STATE: Final = DataSet(
    "carry.world",
    "",
    "hour",
    fields(
        ("sort", "string"),
        ("subject_kind", "string"),
        ("identity", "string"),
        ("role", "string"),
        ("source", "string"),
        ("boot", "bigint"),
        ("seq", "bigint"),
        ("id", "string"),
        ("ref", "string"),
        ("services", "array<string>"),
        ("slots", "bigint"),
        ("first_seq", "bigint"),
        ("first_us", "bigint"),
        ("last_us", "bigint"),
        ("opened_us", "bigint"),
        ("stopped", "boolean"),
        ("class", "string"),
        ("reason", "string"),
        ("evidence", "string"),
        ("down_evidence", "string"),
        ("peer_us", "bigint"),
        ("peer", "string"),
    ),
)
"""A row has one of SORTS; columns that its sort does not use are null. `first_us` and `last_us` are the beginning and
the end, if known.
"""


def empty_state(spark: SparkSession) -> DataFrame:
    return spark.range(0).select(*(f.lit(None).cast(c.dataType).alias(c.name) for c in STATE.schema))


def rows_of_sort(state: DataFrame, sort: str, *columns: str) -> DataFrame:
    """The rows of one sort, with the columns that it uses."""
    return state.where(f.col("sort") == sort).select(*columns)


def state_rows(rows: DataFrame, sort: str) -> DataFrame:
    """Rows with `part` and some of the columns, in the state's schema."""
    have = set(rows.columns)
    cells = (
        f.lit(sort).alias("sort")
        if c.name == "sort"
        else (f.col(c.name) if c.name in have else f.lit(None)).cast(c.dataType).alias(c.name)
        for c in STATE.schema
    )
    return rows.select(PART, *cells)


def state_hours(time_range: TimeRange, after_us: Column, upto_us: Column) -> Column:
    """The hours that need a state and begin in (after, upto], as an array; upto null: no end."""
    first = f.greatest(part_column(after_us, HOUR_US) + 1, f.lit(time_range.first + 1))
    last = f.least(
        f.coalesce(part_column(upto_us, HOUR_US), f.lit(time_range.last_state)), f.lit(time_range.last_state)
    )
    return f.when(first <= last, f.sequence(first, last)).otherwise(f.array().cast("array<int>"))


BOOT_KEPT_US: Final = DAY_US
"""How long a boot that is not its source's latest is kept: overlapping boots are rare, and end soon."""


class GapLimits(NamedTuple):
    time_range: TimeRange
    silence_us: int


def sample_chain(liveness: DataFrame, stops: DataFrame, state: DataFrame, limits: GapLimits) -> DataFrame:
    """One row per liveness sample and per boot of the previous state, each with its predecessor and successor.

    `stops` are the broker.stopped events: source, boot, seq. A stop is the last event of its boot.
    """
    horizon = f.lit(limits.time_range.horizon_us)
    fresh = liveness.where(f.col("events") > 0).select(
        "source",
        "boot",
        "first_seq",
        f.col("last_seq").alias("seq"),
        f.unix_micros("first_time").alias("first_us"),
        f.least(f.unix_micros("last_time"), horizon).alias("last_us"),
        "events",
        "duplicates",
        "rejected",
    )
    fresh = fresh.join(f.broadcast(stops.withColumn("stopped", f.lit(True))), on=["source", "boot", "seq"], how="left")
    fresh = fresh.withColumns({"fresh": f.lit(True), "opened_us": f.lit(None).cast("bigint")})
    previous_boots = rows_of_sort(
        state, SOURCE, "source", "boot", "first_seq", "seq", "first_us", "last_us", "opened_us", "stopped"
    )
    rows = fresh.unionByName(previous_boots.withColumn("fresh", f.lit(False)), allowMissingColumns=True)
    return _linked(rows.repartition("source"), limits)


def _linked(rows: DataFrame, limits: GapLimits) -> DataFrame:
    own = Window.partitionBy("source", "boot").orderBy("first_us", "first_seq")
    all_boots = Window.partitionBy("source").orderBy("first_us", "boot", "first_seq")
    before = all_boots.rowsBetween(Window.unboundedPreceding, 0)
    # In descending order: a frame that ends unbounded is recomputed for every row.
    ends_first = Window.partitionBy("source").orderBy(f.desc("first_us"), f.desc("boot"), f.desc("first_seq"))
    after = ends_first.rowsBetween(Window.unboundedPreceding, -1)
    first_event = f.struct(f.col("first_us").alias("us"), "boot", f.col("first_seq").alias("seq"))
    rows = rows.withColumns(
        {
            "own_last_us": f.lag("last_us").over(own),
            "own_seq": f.lag("seq").over(own),
            "own_next": f.lead(first_event).over(own),
        }
    )
    again = f.col("first_us") - f.col("own_last_us") > limits.silence_us
    rows = rows.withColumns(
        {
            "opened_us": f.last(f.when(again, f.col("first_us")).otherwise(f.col("opened_us")), ignorenulls=True).over(
                own
            ),
            "begins": f.col("fresh") & f.col("own_last_us").isNull(),
        }
    )
    rows = rows.withColumns(
        {
            "before_seq": f.when(f.col("begins"), f.lag("seq").over(all_boots)).otherwise(f.col("own_seq")),
            "seen_us": f.max("last_us").over(before),
            "begin": f.min(f.when(f.col("begins"), first_event)).over(after),
        }
    )
    rows = rows.withColumns(
        {
            "hole": f.col("fresh") & f.coalesce(f.col("first_seq") > f.col("before_seq") + 1, f.lit(False)),
            "rewind": f.col("begins") & f.coalesce(f.col("first_seq") <= f.col("before_seq"), f.lit(False)),
        }
    )
    link = f.struct("first_us", "boot", "first_seq", "hole", "begins")
    return rows.withColumns({"next": f.lead(link).over(all_boots), "lost_us": lost_us(limits)})


def lost_us(limits: GapLimits) -> Column:
    """When a boot's sessions end after this sample; null: it continued."""
    last, following = f.col("last_us"), f.col("own_next.us")
    fell_silent = following - last > limits.silence_us
    not_seen = f.lit(limits.time_range.horizon_us) - last > limits.silence_us
    over = following.isNull() & (f.col("begin").isNotNull() | not_seen | f.col("stopped").isNotNull())
    return f.when(f.coalesce(fell_silent, f.lit(False)) | over, last)


def boots(samples: DataFrame) -> DataFrame:
    """One row per boot: its breaks in order, when it was seen again after gaps, and what the range begins with.

    A break has `us`, where its sessions end; `seq`, its last event; `again`, the first event of its source after it;
    `begin`, the first one of another boot. `openings`: only after one may a client be known by its heartbeats alone.
    """
    own, begin = f.col("own_next"), f.col("begin")
    again = f.when(begin.isNull() | (own["us"] <= begin["us"]), own).otherwise(begin)
    lost = f.struct(f.col("lost_us").alias("us"), "seq", again.alias("again"), "begin")
    first_sample = f.when(
        f.col("fresh"), f.struct(f.col("first_us").alias("us"), "boot", f.col("first_seq").alias("seq"))
    )
    return (
        samples.groupBy("source", "boot")
        .agg(
            f.array_sort(f.collect_list(f.when(f.col("lost_us").isNotNull(), lost))).alias("breaks"),
            f.array_sort(f.collect_set("opened_us")).alias("openings"),
            f.least(f.min(first_sample), f.min("begin")).alias("again"),
            f.min("begin").alias("begin"),
        )
        .select("source", "boot", "breaks", "openings", "again", "begin")
    )


def source_state(samples: DataFrame, time_range: TimeRange) -> DataFrame:
    """The state of sources: every boot's last sample, while it is its source's latest, or recent."""
    latest = f.coalesce(f.col("next.first_us"), f.lit(time_range.last_state * HOUR_US))
    upto = f.least(f.col("own_next.us"), f.greatest(latest, f.col("last_us") + BOOT_KEPT_US))
    part = f.explode(state_hours(time_range, f.col("first_us"), upto)).alias(PART)
    return state_rows(
        samples.select(part, "source", "boot", "first_seq", "seq", "first_us", "last_us", "opened_us", "stopped"),
        SOURCE,
    )


SOURCE_HOURS: Final = DataSet(
    "source_hours",
    "",
    "hour",
    fields(
        ("source", "string"),
        ("events", "bigint"),
        ("first_seq", "bigint"),
        ("last_seq", "bigint"),
        ("holes", "bigint"),
        ("rewinds", "bigint"),
        ("duplicates", "bigint"),
        ("rejected", "bigint"),
    ),
)
"""`first_seq` and `last_seq` are the smallest and the largest; null if an hour has only duplicates or rejected events.
A hole or a rewind counts in the hour of the first event after it.
"""


def source_hours(samples: DataFrame, liveness: DataFrame, time_range: TimeRange) -> DataFrame:
    first_sample = samples.where(f.col("fresh")).select(
        "source", "first_us", "events", "first_seq", "seq", "hole", "rewind", "duplicates", "rejected"
    )
    empty = liveness.where(f.col("events") == 0).select(
        "source", f.unix_micros("first_time").alias("first_us"), "events", "duplicates", "rejected"
    )
    rows = first_sample.unionByName(empty, allowMissingColumns=True).withColumn(
        PART, part_column(f.col("first_us"), HOUR_US)
    )
    return (
        rows.where(f.col(PART).between(time_range.first, time_range.end - 1))
        .groupBy("source", PART)
        .agg(
            f.sum("events").alias("events"),
            f.min("first_seq").alias("first_seq"),
            f.max("seq").alias("last_seq"),
            f.count_if("hole").alias("holes"),
            f.count_if("rewind").alias("rewinds"),
            f.coalesce(f.sum("duplicates"), f.lit(0)).alias("duplicates"),
            f.coalesce(f.sum("rejected"), f.lit(0)).alias("rejected"),
        )
        .select(PART, *SOURCE_HOURS.schema.fieldNames())
    )
