"""The timeline of presence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.pipeline.aggregations.presence_subjects import AWAY
from scale0.pipeline.data_file import PART, DataSet, fields
from scale0.pipeline.tables import ABSENT, CLIENT, DOWNTIME, TIMELINE
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, TimeRange, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIMELINE_WORLD: Final = DataSet("timeline.world", "timeline", "hour", TIMELINE)
NODE_SLOTS: Final = DataSet(
    "node_slots", "", "hour", fields(("node", "string"), ("slots", "bigint"), ("live_seconds", "double"))
)
"""`slots`: the most that all sessions of a node offered at one time; `live_seconds`: how long it had any session."""


def timeline(states: DataFrame, stretch: TimeRange) -> DataFrame:
    covered = (f.col("down") > 0) & (f.col("class") != ABSENT)
    shown = f.struct(
        f.when(covered, f.lit(DOWNTIME)).otherwise(f.col("class")).alias("class"),
        f.when(covered, f.lit(DOWNTIME)).otherwise(f.col("reason")).alias("reason"),
        f.when(covered, f.col("down_evidence")).otherwise(f.col("evidence")).alias("evidence"),
    )
    instants = Window.partitionBy("subject_kind", "subject").orderBy("at_us")
    been = f.max(f.col("class") != ABSENT).over(instants.rowsBetween(Window.unboundedPreceding, 0))
    rows = states.withColumn("been", been).where("been")
    rows = rows.select("subject_kind", "subject", "at_us", shown.alias("is"))
    before = f.lag("is").over(instants)
    rows = rows.withColumns({"new": before.isNull(), "before": before})
    rows = rows.where(f.col("new") | ~f.col("is").eqNullSafe(f.col("before")))
    rows = rows.withColumn("next_us", f.lead("at_us").over(instants))
    from_us = f.greatest(f.col("at_us"), f.lit(stretch.from_us))
    to_us = f.coalesce("next_us", f.lit(stretch.until_us))
    rows = rows.select(
        "subject_kind",
        "subject",
        "is.*",
        from_us.alias("from_us"),
        to_us.alias("to_us"),
        f.col("next_us").isNotNull().alias("followed"),
        (f.col("new") & (f.col("at_us") >= stretch.from_us)).alias("appears"),
    )
    pieces = f.concat(_lead_in(), f.when(f.col("class") == ABSENT, _absences()).otherwise(_hours()))
    cut = rows.select("subject_kind", "subject", f.explode(pieces).alias("p")).where("p.from_us < p.to_us")
    return cut.select(
        part_column(f.col("p.from_us"), HOUR_US).alias(PART),
        "subject_kind",
        "subject",
        f.timestamp_micros("p.from_us").alias("from"),
        f.timestamp_micros("p.to_us").alias("to"),
        "p.class",
        "p.reason",
        "p.evidence",
        f.lit(None).cast("string").alias("state"),
        f.lit(None).cast("boolean").alias("flapping"),
    )


def _piece(from_us: Column, to_us: Column, state: Column, reason: Column, evidence: Column) -> Column:
    return f.struct(
        from_us.alias("from_us"),
        to_us.alias("to_us"),
        state.alias("class"),
        reason.alias("reason"),
        evidence.alias("evidence"),
    )


def _away(from_us: Column, to_us: Column) -> Column:
    return _piece(from_us, to_us, f.lit(ABSENT), f.lit(AWAY), f.lit(None).cast("string"))


def _hour_start(us: Column) -> Column:
    return part_column(us, HOUR_US).cast("bigint") * HOUR_US


def _lead_in() -> Column:
    """A subject that appears within an hour was absent in it before."""
    from_us = f.col("from_us")
    piece = f.array(_away(_hour_start(from_us), from_us))
    return f.when(f.col("appears"), piece).otherwise(f.filter(piece, lambda _: f.lit(False)))


def _absences() -> Column:
    """In the hour in which it began, unless it began with it; and in the hour in which it ends."""
    from_us, to_us = f.col("from_us"), f.col("to_us")
    first = _hour_start(from_us)
    own = _piece(from_us, f.least(to_us, first + HOUR_US), f.col("class"), f.col("reason"), f.col("evidence"))
    back = f.col("followed") & (to_us > _hour_start(to_us))
    here = (from_us > first) | (back & (_hour_start(to_us) == first))
    later = f.when(back & (_hour_start(to_us) > first), _away(_hour_start(to_us), to_us))
    return f.array_compact(f.array(f.when(here, own), later))


def _hours() -> Column:
    from_us, to_us = f.col("from_us"), f.col("to_us")
    hours = f.sequence(part_column(from_us, HOUR_US), part_column(f.greatest(to_us - 1, from_us), HOUR_US))
    return f.transform(
        hours,
        lambda hour: _piece(
            f.greatest(from_us, hour.cast("bigint") * HOUR_US),
            f.least(to_us, (hour.cast("bigint") + 1) * HOUR_US),
            f.col("class"),
            f.col("reason"),
            f.col("evidence"),
        ),
    )


def node_slots(states: DataFrame, stretch: TimeRange) -> DataFrame:
    from_us = f.greatest(f.col("at_us"), f.lit(stretch.from_us))
    to_us = f.coalesce("next_us", f.lit(stretch.until_us))
    live = states.where((f.col("subject_kind") == CLIENT) & (f.col("live") > 0))
    rows = live.select("subject_kind", "subject", "slots", from_us.alias("from_us"), to_us.alias("to_us"))
    rows = rows.where("from_us < to_us")
    hours = f.sequence(part_column(f.col("from_us"), HOUR_US), part_column(f.col("to_us") - 1, HOUR_US))
    rows = rows.withColumn(PART, f.explode(hours))
    start = f.col(PART).cast("bigint") * HOUR_US
    live_us = f.least(f.col("to_us"), start + HOUR_US) - f.greatest(f.col("from_us"), start)
    return (
        rows.groupBy("subject_kind", "subject", PART)
        .agg(f.max("slots").alias("slots"), f.sum(live_us).alias("live_us"))
        .select(PART, f.col("subject").alias("node"), "slots", (f.col("live_us") / SECOND_US).alias("live_seconds"))
    )
