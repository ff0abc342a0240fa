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

from scale0.pipeline.aggregations.presence_state import SOURCE, kept, sort_of, starts_within
from scale0.pipeline.data_file import PART
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, SECOND_US, TimeRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.parameters import Parameters

TAIL_US: Final = DAY_US
"""How long a boot that is not its source's latest is kept: overlapping boots are rare, and end soon."""


class Sight(NamedTuple):
    stretch: TimeRange
    silence_us: int

    @property
    def known_us(self) -> int:
        """Up to where missing samples are known to be missing."""
        return self.stretch.horizon_us


def sight(stretch: TimeRange, parameters: Parameters) -> Sight:
    return Sight(stretch, parameters.silence_seconds * SECOND_US)


def chain(pulses: DataFrame, stops: DataFrame, carry: DataFrame, seen: Sight) -> DataFrame:
    """One row per liveness sample and per boot of the previous state, each with its predecessor and successor.

    `stops` are the broker.stopped events: source, boot, seq. A stop is the last event of its boot.
    """
    horizon = f.lit(seen.stretch.horizon_us)
    fresh = pulses.where(f.col("events") > 0).select(
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
    tails = sort_of(carry, SOURCE, "source", "boot", "first_seq", "seq", "first_us", "last_us", "opened_us", "stopped")
    rows = fresh.unionByName(tails.withColumn("fresh", f.lit(False)), allowMissingColumns=True)
    return _linked(rows.repartition("source"), seen)


def _linked(rows: DataFrame, seen: Sight) -> DataFrame:
    own = Window.partitionBy("source", "boot").orderBy("first_us", "first_seq")
    all_boots = Window.partitionBy("source").orderBy("first_us", "boot", "first_seq")
    before = all_boots.rowsBetween(Window.unboundedPreceding, 0)
    # In descending order: a frame that ends unbounded is recomputed for every row.
    ends_first = Window.partitionBy("source").orderBy(f.desc("first_us"), f.desc("boot"), f.desc("first_seq"))
    after = ends_first.rowsBetween(Window.unboundedPreceding, -1)
    sound = f.struct(f.col("first_us").alias("us"), "boot", f.col("first_seq").alias("seq"))
    rows = rows.withColumns(
        {
            "own_last_us": f.lag("last_us").over(own),
            "own_seq": f.lag("seq").over(own),
            "own_next": f.lead(sound).over(own),
        }
    )
    again = f.col("first_us") - f.col("own_last_us") > seen.silence_us
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
            "heard_us": f.max("last_us").over(before),
            "begin": f.min(f.when(f.col("begins"), sound)).over(after),
        }
    )
    rows = rows.withColumns(
        {
            "hole": f.col("fresh") & f.coalesce(f.col("first_seq") > f.col("before_seq") + 1, f.lit(False)),
            "rewind": f.col("begins") & f.coalesce(f.col("first_seq") <= f.col("before_seq"), f.lit(False)),
        }
    )
    link = f.struct("first_us", "boot", "first_seq", "hole", "begins")
    return rows.withColumns({"next": f.lead(link).over(all_boots), "lost_us": lost_us(seen)})


def lost_us(seen: Sight) -> Column:
    """When a boot's sessions end after this sample; null: it continued."""
    last, following = f.col("last_us"), f.col("own_next.us")
    fell_silent = following - last > seen.silence_us
    unheard = f.lit(seen.known_us) - last > seen.silence_us
    over = following.isNull() & (f.col("begin").isNotNull() | unheard | f.col("stopped").isNotNull())
    return f.when(f.coalesce(fell_silent, f.lit(False)) | over, last)


def boots(links: DataFrame) -> DataFrame:
    """One row per boot: its breaks in order, when it was seen again after gaps, and what the range begins with.

    A break has `us`, where its sessions end; `seq`, its last event; `again`, the first event of its source after it;
    `begin`, the first one of another boot. `openings`: only after one may a client be known by its heartbeats alone.
    """
    own, begin = f.col("own_next"), f.col("begin")
    again = f.when(begin.isNull() | (own["us"] <= begin["us"]), own).otherwise(begin)
    lost = f.struct(f.col("lost_us").alias("us"), "seq", again.alias("again"), "begin")
    heard = f.when(f.col("fresh"), f.struct(f.col("first_us").alias("us"), "boot", f.col("first_seq").alias("seq")))
    return (
        links.groupBy("source", "boot")
        .agg(
            f.array_sort(f.collect_list(f.when(f.col("lost_us").isNotNull(), lost))).alias("breaks"),
            f.array_sort(f.collect_set("opened_us")).alias("openings"),
            f.least(f.min(heard), f.min("begin")).alias("again"),
            f.min("begin").alias("begin"),
        )
        .select("source", "boot", "breaks", "openings", "again", "begin")
    )


def tails(links: DataFrame, stretch: TimeRange) -> DataFrame:
    """The state of sources: every boot's last sample, while it is its source's latest, or recent."""
    latest = f.coalesce(f.col("next.first_us"), f.lit(stretch.last_carry * HOUR_US))
    upto = f.least(f.col("own_next.us"), f.greatest(latest, f.col("last_us") + TAIL_US))
    part = f.explode(starts_within(stretch, f.col("first_us"), upto)).alias(PART)
    return kept(
        links.select(part, "source", "boot", "first_seq", "seq", "first_us", "last_us", "opened_us", "stopped"), SOURCE
    )
