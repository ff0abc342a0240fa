"""The state of a check after every result: soft or hard, change history, flapping; and which rows matter.

States equal those of `monitoring.helen.core.check_state.CheckState.advance` on the same results in the same order, and
flapping equals `monitoring.helen.core.flapping` (tests compare); all arithmetic uses whole numbers. A row is dropped
only if nothing begins or ends at it and no state is taken from it. A removal clears everything; a removal of an unknown
check is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.config.monitoring import Flapping
from scale0.monitoring.helen.core.flapping import HISTORY, NAGIOS, SENSU, STATES, TRANSITIONS, FlapRule, rule_of
from scale0.pipeline.aggregations.checks_rows import (
    FROM_STATE,
    OK_CODE,
    REMOVED,
    RESULT,
    before,
    name_of,
    nth_known,
    ordered,
    up_to,
)
from scale0.pipeline.schemas import DataSet, event_id, fields
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.time_ranges import TimeRange

_RING: Final = 2 * TRANSITIONS
_NEWEST: Final = {NAGIOS: 95}
_NEWEST_ICINGA: Final = 118
"""The newest change's weight: icinga's in hundredths, nagios's in 1/76. Each older one weighs 2 less."""
_STEP: Final = 2
_NOTHING: Final = -1
"""Represents a missing state."""
_HUNDREDTHS: Final = 100
_POSITION_BITS: Final = tuple(
    sum(1 << position for position in range(TRANSITIONS) if position >> bit & 1)
    for bit in range((TRANSITIONS - 1).bit_length())
)
"""By bit of a position: the positions that have it. So a sum of positions is a few bit counts."""


def rule_from(parameters: Parameters) -> FlapRule:
    """The run's formula, with thresholds as Helen reads them."""
    rule = rule_of(Flapping(formula=parameters.flapping, start=parameters.flapping_start, end=parameters.flapping_end))
    if rule is None:
        raise ValueError("a run has a flapping formula")
    return rule


def weighed(rule: FlapRule) -> Column:
    """Whether a row enters the history: under nagios a soft problem does not. Needs `problem` only there."""
    if not rule.hard_only:
        return f.lit(True)
    return (f.col("what") != RESULT) | (f.col("state") == OK_CODE) | f.col("problem")


def history_passes(rule: FlapRule) -> list[dict[str, Column]]:
    """The columns of each pass over the sorted rows; after the last one `known_states` and `history` are available.

    The change at the i-th counted row is bit (-i mod 40) of a running XOR. XOR with its value 20 rows before leaves the
    newest 20; rotated by i, the newest is lowest. 40 instead of 20 bits, so that the history of the previous hour, in
    bits 0 to 19 of row 0, is shifted out above bit 19 and never overlaps later bits.
    """
    counts, what, state = weighed(rule), f.col("what"), f.col("state")
    entered = f.when(what == FROM_STATE, _last_counted_state(rule)).when(what == REMOVED, _NOTHING).when(counts, state)
    seen = f.when(what == FROM_STATE, f.col("known")).when((what == RESULT) & counts, 1).otherwise(0)
    changed = (what == RESULT) & counts & (f.col("entered_before") != _NOTHING) & (f.col("entered_before") != state)
    bit = f.call_function("shiftleft", f.lit(1).cast("bigint"), f.pmod(-f.col("place"), f.lit(_RING)).cast("int"))
    part = f.when(what == FROM_STATE, f.col("changes")).when(changed, bit).otherwise(f.lit(0).cast("bigint"))
    passes = [
        {
            "entered_before": f.last(entered, ignorenulls=True).over(before()),
            "place": f.sum(f.when(counts, 1).otherwise(0)).over(up_to()) - 1,
            "seen": f.sum(seen).over(up_to()),
        },
        {
            "ring": f.bit_xor(part).over(up_to()),
            "seen_before": f.max(f.when(what == REMOVED, f.col("seen"))).over(up_to()),
        },
    ]
    if rule.hard_only:
        passes += [{"ring_weighed": f.when(counts, f.col("ring"))}]
        passes += [{"ring_before": nth_known("lag", "ring_weighed", TRANSITIONS)}]
        # A row that does not count looks back one row too few; it takes the value of the last row that counts.
        passes += [{"ring_before": f.last(f.when(counts, f.col("ring_before")), ignorenulls=True).over(up_to())}]
    else:
        passes += [{"ring_before": f.lag("ring", TRANSITIONS).over(ordered())}]
    return passes


def _last_counted_state(rule: FlapRule) -> Column:
    """The state that last entered the history, at a row of the previous state."""
    if not rule.hard_only:
        return f.col("state")
    # A soft problem did not count; the state before it was ok, or missing.
    soft = (f.col("state") != OK_CODE) & ~f.col("hard_problem")
    return f.when(~soft, f.col("state")).when(f.col("known") > 0, OK_CODE).otherwise(_NOTHING)


def known_states() -> Column:
    """The number of states since the check appeared, at most 21."""
    return f.least(f.col("seen") - f.coalesce("seen_before", f.lit(0)), f.lit(STATES)).cast("int")


def history(known: Column) -> Column:
    """The 20 newest changes, the newest lowest; changes before a removal are cleared."""
    ring = f.col("ring").bitwiseXOR(f.coalesce("ring_before", f.lit(0).cast("bigint")))
    turn = f.pmod(f.col("place"), f.lit(_RING)).cast("int")
    left = f.call_function("shiftleft", ring, turn)
    right = f.call_function("shiftright", ring, f.lit(_RING) - turn)
    own = f.call_function("shiftleft", f.lit(1).cast("bigint"), f.greatest(known - 1, f.lit(0))) - 1
    return left.bitwiseOR(right).bitwiseAND(f.lit(HISTORY)).bitwiseAND(own)


def weight(changes: Column, rule: FlapRule) -> Column:
    """The sum of the weights of the changes, in the formula's units."""
    positions = [f.bit_count(changes.bitwiseAND(f.lit(mask))) * (1 << bit) for bit, mask in enumerate(_POSITION_BITS)]
    newest = _NEWEST.get(rule.formula, _NEWEST_ICINGA)
    return f.bit_count(changes) * newest - sum(positions[1:], positions[0]) * _STEP


def starts_or_stops(changes: Column, known: Column, rule: FlapRule) -> Column:
    """True: flapping starts. False: it stops. Null: unchanged. At or below the end threshold it never flaps."""
    total = weight(changes, rule).cast("bigint")
    if rule.formula == NAGIOS:
        # percent = 100 / 20 / 76 of the sum, so hundredths of it are sum * 125 / 19.
        scaled, starts, end = total * 125, total * 125 >= rule.start * 19, rule.end * 19
    elif rule.formula == SENSU:
        whole = f.when(known >= STATES, f.call_function("div", total, f.lit(TRANSITIONS)) * _HUNDREDTHS).otherwise(0)
        scaled, starts, end = whole, whole >= rule.start, rule.end
    else:
        scaled, starts, end = total * 5, total * 5 > rule.start, rule.end
    return f.when(scaled <= end, False).when(starts, True)


def percent(changes: Column, known: Column, rule: FlapRule) -> Column:
    """The percentage shown to users."""
    total = weight(changes, rule)
    if rule.formula == NAGIOS:
        return f.round(total * 5 / 76, 2)
    if rule.formula == SENSU:
        whole = f.call_function("div", total.cast("bigint"), f.lit(TRANSITIONS)).cast("double")
        return f.when(known >= STATES, whole).otherwise(f.lit(0.0))
    return total / TRANSITIONS


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


def kept_rows(rows: DataFrame, time_range: TimeRange, rule: FlapRule) -> DataFrame:
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
    return _breaks(_flags(_flapping(rows, rule), time_range))


def _hardness_passes() -> list[dict[str, Column]]:
    """Passes up to `problem`, a hard problem. `problems` counts results that are not ok, also before the last ok."""
    counted = f.when(_is(FROM_STATE), f.col("attempt")).when(_is(RESULT) & ~_ok(), 1).otherwise(0)
    settled = _is(REMOVED) | (_is(RESULT) & _ok())
    enough = _attempts() >= f.col("max_attempts")
    mark = f.when(_is(FROM_STATE), f.col("hard_problem")).when(settled, False).when(enough, True)
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
    return _is(REMOVED) & f.col("was_what").isin(FROM_STATE, RESULT)


def _flapping(rows: DataFrame, rule: FlapRule) -> DataFrame:
    known, changes = f.col("known_now"), f.col("changes_now")
    rows = rows.withColumn("known_now", known_states()).withColumn("changes_now", history(known))
    mark = (
        f.when(_is(FROM_STATE), f.col("flapping"))
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


def _flags(rows: DataFrame, time_range: TimeRange) -> DataFrame:
    """Computes whether something changes at a row, and keeps the rows where it does or an hour ends."""
    at_us, until_us = f.col("at_us"), f.coalesce("next_us", f.lit(time_range.until_us))
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
