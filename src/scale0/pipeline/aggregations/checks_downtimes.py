"""Planned downtimes in the timeline of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.config.monitoring import MAX_WALL
from scale0.pipeline.aggregations.checks_order import ORDER
from scale0.pipeline.aggregations.checks_state import CARRY, hours_between
from scale0.pipeline.data_file import fields
from scale0.pipeline.tables import ABSENT, DOWNTIME, event_id
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.time_ranges import TimeRange

STARTED: Final = "downtime.started"
ENDED: Final = "downtime.ended"

_DATA: Final = fields(("ends", "double"))
_NEVER_US: Final = round(MAX_WALL) * SECOND_US
"""After every recorded time."""
_SEGMENTS: Final = "array<struct<from_us:bigint,to_us:bigint,id:string,downtime:string>>"


def downtimes_of(events: DataFrame, carry: DataFrame | None) -> DataFrame:
    """Every start of a downtime, with `next_us`: the time of its next event."""
    ends = f.from_json("data", _DATA)["ends"]
    rows = events.where(f.col("kind").isin(STARTED, ENDED) & (f.col("identity") != "")).select(
        f.col("identity").alias("agent"),
        f.coalesce("service", f.lit("")).alias("check"),
        f.coalesce("ref", f.lit("")).alias("downtime"),
        event_id().alias("id"),
        f.unix_micros("at").alias("at_us"),
        f.when(ends.between(0, MAX_WALL), f.rint(ends * SECOND_US).cast("bigint")).alias("ends_us"),
        (f.col("kind") == STARTED).alias("started"),
        *("source", "boot", "seq"),
    )
    if carry is not None:
        open_ones = carry.where(f.col("downtime").isNotNull()).select(
            *("agent", "check", "downtime", "id", "at_us", "ends_us"),
            f.lit(True).alias("started"),
            f.lit(None).cast("string").alias("source"),
            *(f.lit(None).cast("bigint").alias(name) for name in ("boot", "seq")),
        )
        rows = rows.unionByName(open_ones)
    same = Window.partitionBy("agent", "check", "downtime").orderBy(*ORDER)
    spoken = rows.repartition("agent").withColumn("next_us", f.lead("at_us").over(same))
    return spoken.where("started").select("agent", "check", "downtime", "id", "at_us", "ends_us", "next_us")


def downtimes_carried(downtimes: DataFrame, stretch: TimeRange) -> DataFrame:
    """The downtimes that are open at the start of each hour."""
    after = f.greatest(part_column(f.col("at_us"), HOUR_US), f.lit(stretch.first))
    spoken = part_column(f.coalesce("next_us", f.lit(_NEVER_US)), HOUR_US)
    over = part_column(f.coalesce("ends_us", f.lit(_NEVER_US)) - 1, HOUR_US)
    rows = downtimes.withColumn("part", hours_between(after, f.least(spoken, over, f.lit(stretch.last_carry))))
    given = {"agent", "check", "downtime", "id", "at_us", "ends_us"}
    return rows.select(
        *(
            f.col(field.name) if field.name in given else f.lit(None).cast(field.dataType).alias(field.name)
            for field in CARRY.schema
        ),
        "part",
    )


def lay_over(pieces: DataFrame, downtimes: DataFrame) -> DataFrame:
    """The pieces, with downtime wherever one applies; empty pieces are dropped."""
    end = f.least(f.coalesce("ends_us", f.lit(_NEVER_US)), f.coalesce("next_us", f.lit(_NEVER_US)))
    one = f.struct("at_us", "id", end.alias("end_us"), "check", "downtime")
    by_agent = (
        downtimes.where(end > f.col("at_us")).groupBy("agent").agg(f.sort_array(f.collect_list(one)).alias("all"))
    )
    # Both sides are partitioned by agent already: a merge would sort all pieces, a broadcast would be a separate job.
    by_agent = by_agent.hint("shuffle_hash")
    cut = pieces.join(by_agent, on="agent", how="left").select(*pieces.columns, f.explode(_segments()).alias("segment"))
    down = f.col("segment.id").isNotNull()
    laid = {
        "class": f.when(down, DOWNTIME).otherwise(f.col("class")),
        "reason": f.when(down, f.col("segment.downtime")).otherwise(f.col("reason")),
        "evidence": f.when(down, f.col("segment.id")).otherwise(f.col("evidence")),
        "from_us": f.col("segment.from_us"),
        "to_us": f.col("segment.to_us"),
    }
    return cut.where("segment.from_us < segment.to_us").select(
        *(laid[name].alias(name) if name in laid else f.col(name) for name in pieces.columns)
    )


def _segments() -> Column:
    """A piece, split where downtimes begin and end: with the id of the downtime that applies, or null."""
    from_us, to_us = f.col("from_us"), f.col("to_us")
    whole = f.array(_segment(from_us, to_us, None))
    holding = f.filter(
        "all",
        lambda one: (
            ((one["check"] == "") | (one["check"] == f.col("check")))
            & (one["at_us"] < to_us)
            & (one["end_us"] > from_us)
        ),
    )

    def lay(done: Column, one: Column) -> Column:
        reached = done["reached_us"]
        begin, end = f.greatest(reached, one["at_us"]), f.least(one["end_us"], to_us)
        more = f.array(_segment(reached, begin, None), _segment(begin, end, one))
        return f.struct(
            f.greatest(reached, end).alias("reached_us"), f.concat(done["out"], more).cast(_SEGMENTS).alias("out")
        )

    nothing = f.struct(from_us.alias("reached_us"), f.array().cast(_SEGMENTS).alias("out"))
    laid = f.aggregate(
        holding, nothing, lay, lambda done: f.concat(done["out"], f.array(_segment(done["reached_us"], to_us, None)))
    )
    return f.when(f.col("all").isNull() | (f.col("class") == ABSENT), whole).otherwise(laid)


def _segment(from_us: Column, to_us: Column, one: Column | None) -> Column:
    nothing = f.lit(None).cast("string")
    return f.struct(
        from_us.alias("from_us"),
        to_us.alias("to_us"),
        (nothing if one is None else one["id"]).alias("id"),
        (nothing if one is None else one["downtime"]).alias("downtime"),
    )
