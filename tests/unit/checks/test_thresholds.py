"""Ranges have the meaning that Nagios plugins define."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.checks.thresholds import MAX_RANGE_CHARS, Range, judge

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


# Promise: CHECK-7
@pytest.mark.parametrize(
    ("text", "quiet", "alerting"),
    [
        ("10", [0, 5, 10], [-0.1, 10.1, math.inf]),
        ("10:", [10, 11, math.inf], [9.9, 0, -math.inf]),
        ("~:10", [-1e9, 10], [10.1]),
        ("10:20", [10, 20], [9.9, 20.1]),
        ("@10:20", [9.9, 20.1], [10, 15, 20]),
        ("@10", [-1, 11], [0, 10]),
        ("@~:0", [1], [0, -5]),
        (":5", [0, 5], [-1, 6]),
        ("-5:-1", [-5, -1], [0, -6]),
        ("0", [0], [1, -1]),
        ("1.5e3", [1500], [1501]),
        (10, [0, 10], [11, -1]),
        (10.5, [10.5], [10.6]),
    ],
)
def test_a_range_alerts_where_plugins_do(text, quiet, alerting):
    found = Range.parse(text)
    assert [value for value in quiet if found.alerts(value)] == []
    assert [value for value in alerting if not found.alerts(value)] == []


# Promise: CHECK-7
@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "10 ", " 10", "1_000", "+5", "٣", "10:20:30", "a", "@", "~", "~:~", "10:~", ":", "--5", "5.", ".5"),
        *("nan", "inf", "1e999", "20:10", "-5", "1\n", "@@1", "1" * (MAX_RANGE_CHARS + 1), "0x10"),
        *(True, None, [1], math.nan, math.inf, 10**400, -3),
    ],
)
def test_whatever_is_no_range_is_refused_with_a_reason(text):
    if text == ":":  # from 0 up: odd, and still a range
        assert Range.parse(text) == Range(0.0, math.inf)
        return
    with pytest.raises(ValueError, match=r"range|threshold"):
        Range.parse(text)


def test_the_reason_for_a_negative_number_says_what_to_write():
    with pytest.raises(ValueError, match="~:-5"):
        Range.parse("-5")


@given(FINITE, FINITE, st.booleans(), st.sampled_from(["both", "low", "high"]))
def test_a_range_reads_back_what_it_writes(one, other, inside, kind):
    start, end = sorted((float(one), float(other)))
    found = Range(-math.inf if kind == "high" else start, math.inf if kind == "low" else end, inside)
    assert Range.parse(str(found)) == found


@given(st.text(max_size=12))
def test_no_text_raises_anything_but_a_reason(text):
    try:
        Range.parse(text)
    except ValueError:
        pass


def test_the_graver_range_decides():
    warn, crit = Range.parse(80), Range.parse(90)
    assert [judge(value, warn, crit) for value in (80, 81, 91)] == ["ok", "warning", "critical"]
    assert judge(95, warn, None) == "warning"
    assert judge(95, None, None) == "ok"


def test_what_is_no_number_is_unknown_where_a_range_is_set():
    assert judge(math.nan, Range.parse(1), None) == "unknown"
    assert judge(math.nan, None, None) == "ok"


@pytest.mark.parametrize(("text", "bound"), [("10", 10), ("10:", 10), ("~:10", 10), ("10:20", 20), ("~:", None)])
def test_a_chart_gets_one_number(text, bound):
    assert Range.parse(text).bound == bound
