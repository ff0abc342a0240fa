"""The aggregation of checks: their timeline and their state changes.

    events, state ─▶ checks_rows: deduplicated ─▶ checks_results: kept rows ─┬▶ check_states
                     downtimes ─────────────────────┐                        ├▶ state of the next hour
                                                    └▶ overlay ◀─────────────┴─ timeline pieces

Agents are independent: a step over some agents gives exactly their rows.

Downtimes: a downtime is (agent, check, id), and its newest start says when it ends, unless its next event comes
earlier. Events of one downtime at one instant count in recording order, because Helen moves an end by recording an end
and a start. An end without a start is ignored. A start without a readable `ends` lasts until it is ended. Downtime
overrides every class except absent; of overlapping downtimes the one that started first is shown (then by id), so that
splitting at hours changes nothing.

Timeline: in an hour in which a check has pieces, they cover the hour up to the horizon without gap or overlap, and
every hour starts a new piece. Before a check's first scheduled result the hour is absent (`unseen`); after a removal
the rest of the hour is absent (`removed`), and later hours have no rows until the next result. The evidence of a piece
is the result that began it, or the last result before it. While unobserved, state and flapping are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.config.monitoring import MAX_WALL
from scale0.pipeline.aggregations.checks_results import CHECK_STATES, kept_rows, rule_from, states_of
from scale0.pipeline.aggregations.checks_rows import (
    ANSWERED,
    OK_CODE,
    ORDER,
    REMOVED,
    REMOVED_KIND,
    RESULT,
    STATE,
    WARNING_CODE,
    check_state,
    deduplicated,
    hours_between,
    name_of,
)
from scale0.pipeline.caching import cache
from scale0.pipeline.schemas import (
    ABSENT,
    CHECK,
    DOWN,
    DOWNTIME,
    SOFT,
    TIMELINE,
    UNOBSERVED,
    UP,
    DataSet,
    event_id,
    fields,
)
from scale0.pipeline.time_ranges import HOUR_US, SECOND_US, part_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.time_ranges import TimeRange

STARTED: Final = "downtime.started"
ENDED: Final = "downtime.ended"

_DATA: Final = fields(("ends", "double"))
_NEVER_US: Final = round(MAX_WALL) * SECOND_US
"""After every recorded time."""
_SEGMENTS: Final = "array<struct<from_us:bigint,to_us:bigint,id:string,downtime:string>>"


def downtimes_of(events: DataFrame, state: DataFrame | None) -> DataFrame:
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
    if state is not None:
        open_ones = state.where(f.col("downtime").isNotNull()).select(
            *("agent", "check", "downtime", "id", "at_us", "ends_us"),
            f.lit(True).alias("started"),
            f.lit(None).cast("string").alias("source"),
            *(f.lit(None).cast("bigint").alias(name) for name in ("boot", "seq")),
        )
        rows = rows.unionByName(open_ones)
    same = Window.partitionBy("agent", "check", "downtime").orderBy(*ORDER)
    spoken = rows.repartition("agent").withColumn("next_us", f.lead("at_us").over(same))
    return spoken.where("started").select("agent", "check", "downtime", "id", "at_us", "ends_us", "next_us")


def downtime_state(downtimes: DataFrame, time_range: TimeRange) -> DataFrame:
    """The downtimes that are open at the start of each hour."""
    after = f.greatest(part_column(f.col("at_us"), HOUR_US), f.lit(time_range.first))
    spoken = part_column(f.coalesce("next_us", f.lit(_NEVER_US)), HOUR_US)
    over = part_column(f.coalesce("ends_us", f.lit(_NEVER_US)) - 1, HOUR_US)
    rows = downtimes.withColumn("part", hours_between(after, f.least(spoken, over, f.lit(time_range.last_state))))
    given = {"agent", "check", "downtime", "id", "at_us", "ends_us"}
    return rows.select(
        *(
            f.col(field.name) if field.name in given else f.lit(None).cast(field.dataType).alias(field.name)
            for field in STATE.schema
        ),
        "part",
    )


def overlay_downtimes(pieces: DataFrame, downtimes: DataFrame) -> DataFrame:
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


CHECKS_TIMELINE: Final = DataSet(
    "timeline.checks",
    "timeline",
    "hour",
    t.StructType([*TIMELINE.fields, t.StructField("agent", t.StringType(), True)]),
    key="agent",
    hidden=("agent",),
)

UNSEEN: Final = "unseen"
"""Absent: no result yet."""
GONE: Final = "removed"
"""Absent: the definition was removed."""
SILENT: Final = "silent"
"""Unobserved: the last result is no longer valid."""


def pieces_of(kept: DataFrame, time_range: TimeRange) -> DataFrame:
    """The pieces without downtimes, some of them empty: agent, check, from_us, to_us and their class."""
    rows = kept.withColumn("from_us", f.explode(_beginnings(time_range)))
    from_us, nothing = f.col("from_us"), f.lit(None)
    absent = (f.col("what") == REMOVED) | ((f.col("what") == RESULT) & (from_us < f.col("at_us")))
    unobserved = f.col("gap") & (f.col("vouched_us") <= from_us)
    seen = ~absent & ~unobserved
    soft = (f.col("state") != OK_CODE) & ~f.col("problem")
    down = f.col("problem") & (f.col("state") > WARNING_CODE)
    reason = f.when(soft, SOFT).otherwise(name_of(f.col("state")))
    return rows.select(
        *("agent", "check", "from_us"),
        _end(from_us, unobserved, time_range).alias("to_us"),
        f.when(absent, ABSENT).when(unobserved, UNOBSERVED).when(down, DOWN).otherwise(UP).alias("class"),
        f.when(f.col("what") == REMOVED, GONE)
        .when(absent, UNSEEN)
        .when(unobserved, SILENT)
        .otherwise(reason)
        .alias("reason"),
        f.when(absent & (f.col("what") == RESULT), nothing).otherwise(f.col("id")).alias("evidence"),
        f.when(seen, name_of(f.col("state"))).alias("state"),
        f.when(seen, f.col("flaps")).alias("flapping"),
    )


def _beginnings(time_range: TimeRange) -> Column:
    """When pieces of a row begin: at the hour before a first result, at the row, when its validity ends, and at every
    hour until the next row.
    """
    at_us, vouched_us, gap = f.col("at_us"), f.col("vouched_us"), f.col("gap")
    none = f.array().cast("array<bigint>")

    def only(wanted: Column, instant: Column) -> Column:
        return f.when(wanted, f.array(instant.cast("bigint"))).otherwise(none)

    hour = part_column(at_us, HOUR_US)
    gone_before = f.coalesce(part_column(f.col("gone_us"), HOUR_US) != hour, f.lit(True))
    unseen = f.col("first") & gone_before & (at_us % HOUR_US != 0)
    # An end of validity on the hour is the hour's own beginning, unless the row itself is there.
    ends = gap & (vouched_us >= time_range.from_us) & ((vouched_us % HOUR_US != 0) | (vouched_us == at_us))
    after = f.greatest(hour + 1, f.lit(time_range.first)).cast("bigint") * HOUR_US
    hours = f.when(
        (f.col("what") != REMOVED) & (after <= f.col("until_us")),
        f.sequence(after, f.col("until_us"), f.lit(HOUR_US).cast("bigint")),
    ).otherwise(none)
    return f.concat(
        only(unseen, hour.cast("bigint") * HOUR_US),
        only(f.col("start") & ~(gap & (vouched_us == at_us)), at_us),
        only(ends, vouched_us),
        hours,
    )


def _end(from_us: Column, unobserved: Column, time_range: TimeRange) -> Column:
    """The next change: the hour's end, the end of validity, another row's break, or the horizon."""
    hour_end = (part_column(from_us, HOUR_US).cast("bigint") + 1) * HOUR_US
    unvouched = f.when(f.col("gap") & ~unobserved, f.col("vouched_us"))
    return f.least(
        hour_end,
        f.when(
            (f.col("what") != RESULT) | (from_us >= f.col("at_us")), f.least(unvouched, f.col("break_us"))
        ).otherwise(f.col("at_us")),
        f.lit(time_range.until_us),
    )


def timeline_of(pieces: DataFrame) -> DataFrame:
    return pieces.select(
        f.lit(CHECK).alias("subject_kind"),
        f.concat_ws("/", "agent", "check").alias("subject"),
        f.timestamp_micros("from_us").alias("from"),
        f.timestamp_micros("to_us").alias("to"),
        *("class", "reason", "evidence", "state", "flapping", "agent"),
        part_column(f.col("from_us"), HOUR_US).alias("part"),
    )


EVENTS: Final = "events"


class CheckAggregation:
    name: Final = "checks"
    reads: Final = (EVENTS,)
    kinds: Final = frozenset({ANSWERED, REMOVED_KIND, STARTED, ENDED})
    columns: Final = ("source", "boot", "seq", "at", "kind", "identity", "service", "ref", "state", "data")
    key: Final = "identity"
    data_sets: Final[tuple[DataSet, ...]] = (CHECK_STATES, CHECKS_TIMELINE)
    state: Final[DataSet | None] = STATE

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        """One sort of an agent's rows serves every window. The kept rows are read three times, so they are cached. The
        states come first: once they are written, Spark knows the partitioning of the kept rows and needs no exchange
        for the overlay.
        """
        rule = rule_from(parameters)
        kept = cache(kept_rows(deduplicated(rows[EVENTS], state), time_range, rule))
        downtimes = downtimes_of(rows[EVENTS], state)
        from_state = check_state(kept, time_range).unionByName(downtime_state(downtimes, time_range))
        return {
            CHECK_STATES.name: states_of(kept, rule),
            CHECKS_TIMELINE.name: timeline_of(overlay_downtimes(pieces_of(kept, time_range), downtimes)),
            STATE.name: from_state,
        }
