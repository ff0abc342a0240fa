"""Flapping as Spark columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.config.monitoring import Flapping
from scale0.monitoring.helen.core.flapping import HISTORY, NAGIOS, SENSU, STATES, TRANSITIONS, FlapRule, rule_of
from scale0.pipeline.aggregations.checks_order import before, nth_known, ordered, up_to
from scale0.pipeline.aggregations.checks_rows import CARRIED, OK_CODE, REMOVED, RESULT

if TYPE_CHECKING:
    from pyspark.sql import Column

    from scale0.pipeline.parameters import Parameters

_RING: Final = 2 * TRANSITIONS
_NEWEST: Final = {NAGIOS: 95}
_NEWEST_ICINGA: Final = 118
"""The newest change's weight: icinga's in hundredths, nagios's in 1/76. Each older one weighs 2 less."""
_STEP: Final = 2
_NOTHING: Final = -1
"""Represents a missing state."""
_HUNDREDTHS: Final = 100
_PLACE_BITS: Final = tuple(
    sum(1 << place for place in range(TRANSITIONS) if place >> bit & 1) for bit in range((TRANSITIONS - 1).bit_length())
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
    entered = f.when(what == CARRIED, _carried_state(rule)).when(what == REMOVED, _NOTHING).when(counts, state)
    seen = f.when(what == CARRIED, f.col("known")).when((what == RESULT) & counts, 1).otherwise(0)
    changed = (what == RESULT) & counts & (f.col("entered_before") != _NOTHING) & (f.col("entered_before") != state)
    bit = f.call_function("shiftleft", f.lit(1).cast("bigint"), f.pmod(-f.col("place"), f.lit(_RING)).cast("int"))
    part = f.when(what == CARRIED, f.col("changes")).when(changed, bit).otherwise(f.lit(0).cast("bigint"))
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


def _carried_state(rule: FlapRule) -> Column:
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
    places = [f.bit_count(changes.bitwiseAND(f.lit(mask))) * (1 << bit) for bit, mask in enumerate(_PLACE_BITS)]
    newest = _NEWEST.get(rule.formula, _NEWEST_ICINGA)
    return f.bit_count(changes) * newest - sum(places[1:], places[0]) * _STEP


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
