"""The state of a check after every result: soft or hard, change history, flapping; and which rows matter.

States equal those of `monitoring.helen.core.check_state.CheckState.advance` on the same results in the same order, and
flapping equals `monitoring.helen.core.flapping` (tests compare); all arithmetic uses whole numbers. A row is dropped
only if nothing begins or ends at it and no state is taken from it. A removal clears everything; a removal of an unknown
check is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.checks_flapping import (
    history,
    history_passes,
    known_states,
    percent,
    starts_or_stops,
    weighed,
)
from scale0.pipeline.aggregations.checks_order import before, nth_known, ordered, up_to
from scale0.pipeline.aggregations.checks_rows import CARRIED, OK_CODE, REMOVED, RESULT, name_of
from scale0.pipeline.data_file import DataSet, fields
from scale0.pipeline.tables import event_id
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.monitoring.helen.core.flapping import FlapRule
    from scale0.pipeline.time_ranges import TimeRange

CHECK_STATES: Final = DataSet(
    "check_states",
    "check_states",
    "hour",
    fields(
        ("agent", "string"),
        ("check", "string"),
        ("id", "string"),
        ("time", "timestamp"),
        ("state", "string"),
        ("hard", "boolean"),
        ("attempt", "int"),
        ("previous", "string"),
        ("flapping", "boolean"),
        ("flapping_percent", "double"),
    ),
    key="agent",
)


def _is(*what: int) -> Column:
    return f.col("what").isin(*what)


def _ok() -> Column:
    return f.col("state") == OK_CODE


def kept_rows(rows: DataFrame, stretch: TimeRange, rule: FlapRule) -> DataFrame:
    """The rows at which something begins or ends, with everything known about the check there.

    `until_us`: the next row, or the end. `start`: a piece begins here. `gap`: its validity ends before `until_us`.
    `break_us`: when a later row ends the piece that is current at its end.
    """
    history_of = history_passes(rule)
    passes = _hardness_passes()
    if rule.hard_only:
        passes = passes + history_of
    else:
        passes = [{**one, **other} for one, other in zip(passes, history_of, strict=True)]
    for columns in passes:
        rows = rows.withColumns(columns)
    return _breaks(_flags(_flapping(rows, rule), stretch))


def _hardness_passes() -> list[dict[str, Column]]:
    """Passes up to `problem`, a hard problem. `problems` counts results that are not ok, also before the last ok."""
    counted = f.when(_is(CARRIED), f.col("attempt")).when(_is(RESULT) & ~_ok(), 1).otherwise(0)
    settled = _is(REMOVED) | (_is(RESULT) & _ok())
    enough = _attempts() >= f.col("max_attempts")
    mark = f.when(_is(CARRIED), f.col("hard_problem")).when(settled, False).when(enough, True)
    return [
        {
            "problems": f.sum(counted).over(up_to()),
            "was_state": f.lag("state").over(ordered()),
            "was_what": f.lag("what").over(ordered()),
            "was_vouched_us": f.lag("vouched_us").over(ordered()),
            "next_us": f.lead("at_us").over(ordered()),
        },
        {
            "problems_before": f.max(f.when(settled, f.col("problems"))).over(up_to()),
            "gone_us": f.last(f.when(_goes(), f.col("at_us")), ignorenulls=True).over(up_to()),
        },
        {"problem": f.coalesce(f.last(mark, ignorenulls=True).over(up_to()), f.lit(False))},
    ]


def _attempts() -> Column:
    return f.col("problems") - f.coalesce("problems_before", f.lit(0))


def _goes() -> Column:
    """A removal of a known check."""
    return _is(REMOVED) & f.col("was_what").isin(CARRIED, RESULT)


def _flapping(rows: DataFrame, rule: FlapRule) -> DataFrame:
    known, changes = f.col("known_now"), f.col("changes_now")
    rows = rows.withColumn("known_now", known_states()).withColumn("changes_now", history(known))
    mark = (
        f.when(_is(CARRIED), f.col("flapping"))
        .when(_is(REMOVED), False)
        .when(weighed(rule), starts_or_stops(changes, known, rule))
    )
    return rows.withColumns(
        {
            "flaps": f.coalesce(f.last(mark, ignorenulls=True).over(up_to()), f.lit(False)),
            "flapped": f.coalesce(f.last(mark, ignorenulls=True).over(before()), f.lit(False)),
            "was_problem": f.lag("problem").over(ordered()),
        }
    )


def _flags(rows: DataFrame, stretch: TimeRange) -> DataFrame:
    """Computes whether something changes at a row, and keeps the rows where it does or an hour ends."""
    at_us, until_us = f.col("at_us"), f.coalesce("next_us", f.lit(stretch.until_us))
    hard, was_hard = f.col("problem") | _ok(), f.col("was_problem") | (f.col("was_state") == OK_CODE)
    other = (f.col("state") != f.col("was_state")) | (hard != was_hard) | (f.col("flaps") != f.col("flapped"))
    first = _is(RESULT) & f.col("was_state").isNull()
    changed = first | (_is(RESULT) & other)
    again = _is(RESULT) & (f.col("was_vouched_us") < at_us)
    rows = rows.select(
        *("agent", "check", "at_us", "source", "boot", "seq", "what", "state", "was_state", "vouched_us", "gone_us"),
        *("id", "problem", "flaps", "known_now", "changes_now"),
        f.when(_ok() | f.col("problem"), 0).otherwise(_attempts()).cast("int").alias("attempt_now"),
        until_us.alias("until_us"),
        first.alias("first"),
        changed.alias("changed"),
        (changed | f.coalesce(again, f.lit(False)) | _goes()).alias("start"),
        (~_is(REMOVED) & (f.col("vouched_us") < until_us)).alias("gap"),
    )
    crosses = ~_is(REMOVED) & (part_column(f.col("until_us"), HOUR_US) > part_column(at_us, HOUR_US))
    return rows.where(f.col("start") | f.col("gap") | crosses)


def _breaks(rows: DataFrame) -> DataFrame:
    """Adds the first instant after a row's own at which another kept row begins or ends something."""
    own = f.when(f.col("start"), f.col("at_us")).when(f.col("gap"), f.col("vouched_us"))
    return rows.withColumn("own_break_us", own).select(
        *("agent", "check", "at_us", "what", "state", "was_state", "vouched_us", "gone_us", "problem", "flaps"),
        *("known_now", "changes_now", "attempt_now", "until_us", "first", "changed", "start", "gap"),
        f.coalesce("id", event_id()).alias("id"),
        nth_known("lead", "own_break_us", 1).alias("break_us"),
    )


def states_of(kept: DataFrame, rule: FlapRule) -> DataFrame:
    """One row for each result that changed something."""
    return kept.where("changed").select(
        *("agent", "check", "id"),
        f.timestamp_micros("at_us").alias("time"),
        name_of(f.col("state")).alias("state"),
        (f.col("problem") | _ok()).alias("hard"),
        f.col("attempt_now").alias("attempt"),
        name_of(f.col("was_state")).alias("previous"),
        f.col("flaps").alias("flapping"),
        percent(f.col("changes_now"), f.col("known_now"), rule).cast("double").alias("flapping_percent"),
        part_column(f.col("at_us"), HOUR_US).alias("part"),
    )
