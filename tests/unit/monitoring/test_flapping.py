"""The three flapping formulas, each compared with one that uses fractions and whole lists."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.config import Flapping
from scale0.monitoring.helen.core.flapping import DEFAULTS, TRANSITIONS, FlapRule, rule_of

ICINGA_WEIGHTS = [Fraction(80 + 2 * i, 100) for i in range(20)]
NAGIOS_WEIGHTS = [Fraction(75, 100) + Fraction(50, 100) * i / 19 for i in range(20)]
"""Oldest to newest."""


def history(*weights: float) -> int:
    """The bits of changes at these of icinga's weights."""
    places = [ICINGA_WEIGHTS.index(Fraction(str(weight))) for weight in weights]
    return sum(1 << (TRANSITIONS - 1 - place) for place in places)


def rule(formula: str) -> FlapRule:
    found = rule_of(Flapping(formula=formula))  # type: ignore[arg-type]
    assert found is not None
    return found


# Promise: CHECK-8
def test_the_example_of_the_pipeline_is_39_1_percent():
    bits = history(0.84, 0.86, 0.88, 0.90, 0.98, 1.06, 1.12, 1.18)
    assert rule("icinga").percent(bits, 21) == 39.1
    assert rule("sensu").percent(bits, 21) == 39.0
    assert rule("sensu").percent(bits, 20) == 0.0
    assert rule("icinga").flaps(bits, 21, False)


@pytest.mark.parametrize(
    ("weights", "formula", "starts", "stays"),
    [
        # 6.00 of 20 is 30 % exactly: above 30 it starts, and it is above 25.
        ((1.18, 1.16, 1.14, 0.82, 0.84, 0.86), "icinga", False, True),
        # 5.00 is 25 % exactly.
        ((1.18, 1.16, 1.0, 0.82, 0.84), "icinga", False, False),
        ((1.18, 1.16, 1.0, 0.82, 0.86), "icinga", False, True),
        ((1.18, 1.16, 1.14, 0.82, 0.84, 0.88), "icinga", True, True),
    ],
)
def test_the_edges_of_icinga(weights, formula, starts, stays):
    bits = history(*weights)
    assert rule(formula).flaps(bits, 21, False) is starts
    assert rule(formula).flaps(bits, 21, True) is stays


def test_sensu_starts_at_high_and_stays_above_low_in_whole_percent():
    found = FlapRule("sensu", 3000, 2500)
    exactly = history(1.18, 1.16, 1.14, 0.82, 0.84, 0.86)
    assert found.flaps(exactly, 21, False)
    assert not found.flaps(exactly, 20, False)
    # 25.9 % is 25 as a whole number, which is not above 25.
    low = history(1.18, 1.16, 1.0, 0.82, 1.02)
    assert rule("icinga").percent(low, 21) == 25.9
    assert not found.flaps(low, 21, True)


def test_nagios_starts_at_its_threshold_and_ends_at_the_other():
    # All changes make 100 % exactly, since the weights lie evenly around 1.
    assert rule("nagios").percent(2**20 - 1, 21) == 100.0
    edge = FlapRule("nagios", 10_000, 10_000)
    assert edge.flaps(2**20 - 1, 21, False)
    assert not edge.flaps(2**20 - 1, 21, True)


def test_off_is_no_rule_and_thresholds_may_be_given():
    assert rule_of(Flapping(formula="off")) is None
    assert rule_of(Flapping(start=50.0, end=10.5)) == FlapRule("icinga", 5000, 1050)
    assert rule_of(Flapping(start=10.0)) == FlapRule("icinga", 1000, 1000)


def naive_percent(formula: str, changes: list[bool], known: int) -> Fraction:
    """The percent of a list of changes, oldest first."""
    last = changes[-20:]
    padded = [False] * (20 - len(last)) + last
    weights = NAGIOS_WEIGHTS if formula == "nagios" else ICINGA_WEIGHTS
    total = sum((weight for weight, changed in zip(weights, padded, strict=True) if changed), Fraction(0)) / 20 * 100
    if formula == "sensu":
        return Fraction(int(total)) if known >= 21 else Fraction(0)
    return total


def naive_flaps(formula: str, percent: Fraction, start: Fraction, end: Fraction, was: bool) -> bool:
    if was:
        return percent > end
    return percent > start if formula == "icinga" else percent >= start


hundredths = st.integers(1, 10_000)


# Promise: CHECK-8
@given(
    st.sampled_from(["icinga", "nagios", "sensu"]),
    st.lists(st.booleans(), max_size=40),
    st.booleans(),
    st.none() | st.tuples(hundredths, hundredths),
)
def test_every_history_gives_what_the_formula_says(formula, changes, was, limits):
    start, end = (max(limits), min(limits)) if limits else (int(100 * one) for one in DEFAULTS[formula])
    bits = 0
    for changed in changes:
        bits = (bits << 1 | changed) & (2**20 - 1)
    known = min(21, len(changes) + 1)
    percent = naive_percent(formula, changes, known)
    found = FlapRule(formula, start, end)
    assert found.flaps(bits, known, was) is naive_flaps(formula, percent, Fraction(start, 100), Fraction(end, 100), was)
    assert found.percent(bits, known) == pytest.approx(float(percent), abs=0.005)
