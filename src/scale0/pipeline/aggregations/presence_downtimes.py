"""Planned downtimes of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.config.monitoring import MAX_WALL
from scale0.pipeline.aggregations.presence_boundaries import clipped, listed, shaped
from scale0.pipeline.aggregations.presence_state import PLANNED, kept, sort_of, starts_within
from scale0.pipeline.data_file import PART, fields
from scale0.pipeline.tables import AGENT, event_id
from scale0.pipeline.time_ranges import SECOND_US, TimeRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STARTED: Final = "downtime.started"
ENDED: Final = "downtime.ended"
KINDS: Final = (STARTED, ENDED)

_DATA: Final = fields(("ends", "double"))
_COLUMNS: Final = ("identity", "ref", "source", "boot", "seq", "first_us", "last_us")


def downtimes(events: DataFrame, carry: DataFrame) -> DataFrame:
    """One row per start: [first_us, over_us), over_us null while no end is known; last_us is the planned end."""
    ends = f.from_json("data", _DATA)["ends"]
    whole = f.col("service").isNull() | (f.col("service") == "")
    new = events.where(f.col("kind").isin(*KINDS) & whole & f.col("identity").isNotNull()).select(
        "identity",
        f.coalesce("ref", f.lit("")).alias("ref"),
        "source",
        "boot",
        "seq",
        f.unix_micros("at").alias("first_us"),
        f.when(ends.between(0, MAX_WALL), f.rint(ends * SECOND_US).cast("bigint")).alias("last_us"),
        (f.col("kind") == STARTED).alias("starts"),
    )
    old = sort_of(carry, PLANNED, *_COLUMNS).withColumn("starts", f.lit(True))
    later = Window.partitionBy("identity", "ref").orderBy("first_us", "source", "boot", "seq")
    rows = new.unionByName(old).withColumn("told_us", f.lead("first_us").over(later))
    over = f.least("told_us", "last_us")
    return rows.where("starts").withColumn("over_us", over).select(*_COLUMNS, "over_us")


def of_downtimes(planned: DataFrame, stretch: TimeRange) -> DataFrame:
    rows = planned.where(f.col("over_us").isNull() | (f.col("over_us") > f.col("first_us")))
    who = {"subject_kind": f.lit(AGENT), "subject": f.col("identity")}
    who |= {name: f.col(name) for name in ("source", "boot", "seq")}
    begun = f.when(f.col("first_us") >= stretch.from_us, event_id())
    plus = shaped(**who, at_us=clipped(f.col("first_us"), stretch), down=f.lit(1), down_id=begun)
    minus = shaped(**who, at_us=f.col("over_us"), down=f.lit(-1))
    return listed(rows, plus, f.when(f.col("over_us").isNotNull(), minus), stretch=stretch)


def downtimes_kept(planned: DataFrame, stretch: TimeRange) -> DataFrame:
    """The state: downtimes that have not ended."""
    rows = planned.where(f.col("over_us").isNull() | (f.col("over_us") > f.col("first_us")))
    part = f.explode(starts_within(stretch, f.col("first_us"), f.col("over_us"))).alias(PART)
    return kept(rows.select(part, *_COLUMNS), PLANNED)
