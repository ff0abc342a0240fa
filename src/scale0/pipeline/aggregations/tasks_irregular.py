"""Irregular tasks: reopened, ended twice, submitted late, or retried across hours.

A fold over the sorted events assigns each event to a row of its task. It sees the state and the events, never the
range, so its result does not depend on the length of the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from scale0.pipeline.aggregations.tasks_events import (
    ATTEMPT_ENDED,
    COMPLETED,
    LIFE,
    REOPENED,
    SUBMITTED,
    attempt,
    closes_attempt,
    group_in,
    known,
    priority_in,
)
from scale0.pipeline.aggregations.tasks_regular import IRREGULAR, KEY
from scale0.pipeline.histograms import micros
from scale0.pipeline.schemas import PART
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.time_ranges import TimeRange

FROM_STATE: Final = "carried"
FROM_STATE_ENDED: Final = "carried.ended"
"""The first rows of a task in the state, as if they were events."""

_NONE, _OPEN, _ENDED = 0, 1, 2
_FOR_EVER: Final = 1 << 30
_NO_ROW: Final = 0

_EVENT: Final = (
    *("hour", "rank", "at", "tie", "source", "boot", "seq", "kind", "identity", "group", "priority"),
    *("number", "code", "state", "run_us", "waited_us", "closes", "life"),
)
"""The fields of an event, sorted by the first seven."""


def keys(grouped: DataFrame) -> DataFrame:
    return grouped.filter(f.col("sort") == IRREGULAR).select(*KEY)


def lives(events: DataFrame, state: DataFrame, irregular: DataFrame | None, time_range: TimeRange) -> DataFrame:
    """The events that belong to a row of these tasks (None: all), each with what was known about the row after it."""
    known_events = events.filter(known() & f.col("ref").isNotNull()).withColumn(
        "method", f.coalesce("service", f.lit(""))
    )
    if irregular is not None:
        # Filter first: nearly all events are of other tasks.
        known_events, state = (
            rows.join(f.broadcast(irregular), list(KEY), how="left_semi") for rows in (known_events, state)
        )
    mine = _of_events(known_events).unionByName(_of_state(state, time_range))
    sorted_ = mine.groupBy(*KEY).agg(f.sort_array(f.collect_list(f.struct(*_EVENT))).alias("events"))
    start = f.struct(
        f.lit(_NONE).alias("phase"),
        f.lit(0).alias("until"),
        f.lit(_NO_ROW).alias("row"),
        f.array().cast("array<int>").alias("path"),
    )
    walked = sorted_.select(*KEY, "events", f.aggregate("events", start, _after, lambda end: end["path"]).alias("path"))
    placed = walked.select(*KEY, f.posexplode(f.arrays_zip("events", "path")).alias("place", "pair"))
    found = placed.select(*KEY, "place", f.col("pair.path").alias("row"), "pair.events.*").filter("row > 0")
    return _known_after(found)


def _of_events(known_events: DataFrame) -> DataFrame:
    kind, at = f.col("kind"), f.unix_micros("at")
    submission = f.when(kind == SUBMITTED, f.col("data"))
    return known_events.select(
        *KEY,
        part_column(at, HOUR_US).alias("hour"),
        f.when(kind == SUBMITTED, 0).otherwise(1).alias("rank"),
        at.alias("at"),
        f.when(kind == ATTEMPT_ENDED, 0).otherwise(1).alias("tie"),
        *("source", "boot", "seq", "kind", "identity"),
        group_in(submission).alias("group"),
        priority_in(submission).alias("priority"),
        attempt().alias("number"),
        *("code", "state"),
        f.coalesce(micros(f.col("seconds")), f.lit(0)).alias("run_us"),
        micros(f.col("waited")).alias("waited_us"),
        closes_attempt().alias("closes"),
        f.lit(None).cast(LIFE).alias("life"),
    )


def _of_state(state: DataFrame, time_range: TimeRange) -> DataFrame:
    """Rows of the state precede all events of the range's first hour."""
    made = {
        "hour": f.lit(time_range.first),
        "rank": f.lit(-1),
        "at": f.col("start_us"),
        "tie": f.lit(0),
        "kind": f.when(f.col("ended"), FROM_STATE_ENDED).otherwise(FROM_STATE),
        "identity": f.col("client"),
        "group": f.col("group"),
        "priority": f.col("priority"),
        "run_us": f.lit(0).cast("bigint"),
        "closes": f.lit(False),
        "life": f.struct(*(x.name for x in LIFE)),
    }
    absent = {"source": "string", "boot": "bigint", "seq": "bigint", "number": "int"}
    absent |= {"code": "int", "state": "string", "waited_us": "bigint"}
    nothing = {name: f.lit(None).cast(kind) for name, kind in absent.items()}
    return state.select(*KEY, *((made | nothing)[name].alias(name) for name in _EVENT))


def _after(state: Column, event: Column) -> Column:
    """One more event: the phase of the task, and which of its rows the event belongs to (_NO_ROW: none)."""
    kind, hour = event["kind"], event["hour"]
    phase = f.when(hour <= state["until"], state["phase"]).otherwise(_NONE)
    opens = (kind == FROM_STATE) | ((kind == SUBMITTED) & (phase == _NONE)) | ((kind == REOPENED) & (phase != _OPEN))
    alone = (kind == COMPLETED) & (phase == _NONE)
    joins = kind.isin(ATTEMPT_ENDED, COMPLETED) & (phase == _OPEN)
    ends = (kind == FROM_STATE_ENDED) | (kind == COMPLETED)
    until = f.when(opens, _FOR_EVER).when(alone, hour + 1).when(ends & (phase != _ENDED), hour)
    row = state["row"] + f.when(opens | alone, 1).otherwise(0)
    mine = f.when(opens | alone | joins, row).otherwise(_NO_ROW)
    return f.struct(
        f.when(opens, _OPEN).when(ends, _ENDED).otherwise(state["phase"]).alias("phase"),
        f.coalesce(until, state["until"]).alias("until"),
        row.alias("row"),
        f.concat(state["path"], f.array(mine)).alias("path"),
    )


def _known_after(rows: DataFrame) -> DataFrame:
    """The columns of a row after each of its events: running values, all over one sort."""
    so_far = Window.partitionBy(*KEY, "row").orderBy("place").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    kind, closes, life = f.col("kind"), f.col("closes"), f.col("life")
    number = f.coalesce("number", f.lit(1))
    opener = kind.isin(SUBMITTED, REOPENED)
    reopened = f.when(kind == FROM_STATE, life["reopened"]).otherwise(kind == REOPENED)
    begun = rows.select(
        "*",
        *(
            f.first(f.when(kind == FROM_STATE, life[name]).when(opener, here)).over(so_far).alias(f"life_{name}")
            for name, here in (
                ("start_us", f.col("at")),
                ("client", f.col("identity")),
                ("group", f.col("group")),
                ("priority", f.col("priority")),
            )
        ),
        f.first(reopened).over(so_far).alias("life_reopened"),
        f.first(f.coalesce(life["base"], f.when(closes, number - 1)), ignorenulls=True)
        .over(so_far)
        .alias("first_base"),
    )
    base = f.when(f.col("life_reopened"), f.col("first_base")).otherwise(0)
    counted = f.when(closes | ~f.col("life_reopened"), f.col("number") - base)
    first = f.when(closes & (f.col("life_reopened") | (number == 1)), f.col("at") - f.col("run_us"))
    hand_out = f.struct(
        f.coalesce(life["first_us"], first).alias("first_us"),
        f.coalesce(life["wait_us"], f.col("waited_us")).alias("wait_us"),
    )
    wasted = f.coalesce(life["wasted_us"], f.when(kind == ATTEMPT_ENDED, f.col("run_us")), f.lit(0))
    in_task = Window.partitionBy(*KEY).orderBy("row", "place")
    known_ = begun.select(
        "*",
        base.alias("life_base"),
        f.greatest(f.max(f.coalesce(life["attempts"], counted)).over(so_far), f.lit(0)).alias("life_attempts"),
        f.first(f.when(hand_out["first_us"].isNotNull(), hand_out), ignorenulls=True).over(so_far).alias("hand_out"),
        f.sum(wasted).over(so_far).alias("life_wasted_us"),
        f.lead("hour").over(in_task).alias("next_hour"),
        (f.coalesce(f.lead("row").over(in_task), f.lit(_NO_ROW)) != f.col("row")).alias("last"),
    )
    handed = known_.select(
        "*", f.col("hand_out.first_us").alias("life_first_us"), f.col("hand_out.wait_us").alias("life_wait_us")
    )
    known_events = ("hour", "at", "kind", "state", "identity", "code", "run_us", "closes", "next_hour", "last")
    return handed.select(
        *KEY, *known_events, f.struct(*(f.col(f"life_{x.name}").alias(x.name) for x in LIFE)).alias("life")
    )


def ended(rows: DataFrame) -> DataFrame:
    """(ref, method, LIFE, how it ended)."""
    return rows.filter(f.col("kind") == COMPLETED).select(
        *KEY,
        "life.*",
        f.col("at").alias("ended_us"),
        f.col("state").alias("outcome"),
        f.col("identity").alias("node"),
        "code",
        f.when(f.col("closes"), f.col("run_us")).alias("run_us"),
    )


def still_open(rows: DataFrame) -> DataFrame:
    """(ref, method, LIFE) of those that have not ended."""
    return rows.filter((f.col("kind") != COMPLETED) & f.col("last")).select(*KEY, "life.*")


def state_of(rows: DataFrame, time_range: TimeRange) -> DataFrame:
    """(ref, method, ended, LIFE, part) for every hour's start."""
    hour, next_hour = f.col("hour"), f.col("next_hour")
    done, alone = f.col("kind") == COMPLETED, f.col("life.start_us").isNull()
    last = f.lit(time_range.last_state)
    to = (
        f.when(~done, f.coalesce(f.when(~f.col("last"), next_hour), last))
        # Known to have ended for an hour, unless it is open again before.
        .when(alone & f.coalesce(next_hour > hour, f.lit(True)), hour + 1)
    )
    spans = rows.select(
        *KEY,
        done.alias("ended"),
        "life",
        (hour + 1).alias("from"),
        f.when(to.isNotNull(), f.least(to, last)).alias("to"),
    )
    life = [f.when(~f.col("ended"), f.col("life")[x.name]).alias(x.name) for x in LIFE]
    hours = f.explode(f.sequence(f.col("from"), f.col("to"))).alias(PART)
    return spans.filter(f.col("from") <= f.col("to")).select(*KEY, "ended", *life, hours)
