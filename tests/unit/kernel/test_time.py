"""Timers, rate windows, backoff, and times as text."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.backoff import Backoff, pause
from scale0.kernel.rate_window import RateWindow
from scale0.kernel.time_text import duration_seconds, iso_seconds, time_us, utc_text
from scale0.kernel.timers import TimerWheel

times = st.floats(0, 1_000)


# Promise: REQ-7
@given(st.lists(st.tuples(times, st.booleans()), max_size=60), st.lists(times, max_size=20))
def test_every_entry_comes_out_once_never_early_and_at_most_a_grain_late(entries, looks):
    wheel: TimerWheel[int] = TimerWheel()
    buckets = {number: wheel.add(number, when) for number, (when, _) in enumerate(entries)}
    for number, (_, removed) in enumerate(entries):
        if removed:
            wheel.remove(number, buckets[number])
    waiting = {number: when for number, (when, removed) in enumerate(entries) if not removed}
    assert len(wheel) == len(waiting)
    for now in [*sorted(looks), 2_000.0]:
        due = wheel.deadline()
        assert (due is None) == (not waiting)
        if due is not None:
            assert min(waiting.values()) <= due <= min(waiting.values()) + wheel.grain
        for number in wheel.expire(now):
            assert waiting.pop(number) <= now
        assert all(when + wheel.grain > now for when in waiting.values())
    assert not waiting
    assert wheel.deadline() is None


def test_removing_what_is_not_there_is_no_error():
    wheel: TimerWheel[str] = TimerWheel()
    bucket = wheel.add("a", 1.0)
    wheel.remove("b", bucket)
    wheel.remove("a", bucket + 1)
    assert wheel.expire(1.0) == ["a"]
    wheel.remove("a", bucket)


@pytest.mark.parametrize("when", [1e300, 1e308, math.inf])
def test_an_entry_that_is_later_than_any_number_waits_and_can_be_removed(when):
    wheel: TimerWheel[str] = TimerWheel()
    bucket = wheel.add("never", when)
    wheel.add("soon", 1.0)
    assert wheel.expire(1e9) == ["soon"]
    due = wheel.deadline()
    assert due is not None
    assert 1e9 < due < math.inf
    wheel.remove("never", bucket)
    assert wheel.deadline() is None


def test_a_removed_entry_costs_nothing():
    wheel: TimerWheel[int] = TimerWheel()
    for number in range(10_000):
        wheel.remove(number, wheel.add(number, 30.0 + number / 1_000))
    assert len(wheel) == 0
    assert wheel.deadline() is None


def test_a_pause_doubles_until_its_maximum_and_starts_again_after_a_reset():
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
    assert pause(0.5, 60.0, 10**9) == 60.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 5)), max_size=30))
def test_a_window_counts_what_came_since_it_began(steps):
    window, now, began, used = RateWindow(), 0.0, None, 0
    for pause_seconds, amount in steps:
        now += pause_seconds
        if began is None or now - began >= 2.0:
            began, used = now, 0
        if used + amount <= 10:
            used += amount
            assert window.allows(amount, 10, 2.0, now)
        else:
            assert not window.allows(amount, 10, 2.0, now)
        assert window.left(10, 2.0, now) == 10 - used


NOW_US = 1_800_000_000_000_000
NOVEMBER = 1_793_491_200
"""2026-11-01 UTC."""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800), ("4w", 2_419_200)]
)
def test_a_duration_is_a_number_with_a_unit(text, seconds):
    assert duration_seconds(text) == seconds
    assert time_us(text, NOW_US) == NOW_US - seconds * 1_000_000


@pytest.mark.parametrize("text", ["", "h", "90", "1.5h", "-1d", "+1d", "1_0s", "٣d", "2y", "1h ", "123456789s"])
def test_another_text_is_no_duration(text):
    assert duration_seconds(text) is None


def test_a_time_is_in_the_zone_that_it_names_or_in_the_given_one():
    assert iso_seconds("2026-11-01") == NOVEMBER
    assert iso_seconds("2026-11-01T12:30") == NOVEMBER + 45_000
    assert iso_seconds("2026-11-01T02:00+02:00") == NOVEMBER
    assert iso_seconds("2026-11-01T02:00", datetime.timezone(datetime.timedelta(hours=2))) == NOVEMBER
    assert iso_seconds("2026-11-01", zone=None) == datetime.datetime(2026, 11, 1).astimezone().timestamp()
    assert time_us("2026-11-01T00:00:00.000001Z", NOW_US) == NOVEMBER * 1_000_000 + 1


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-11-01T25:00", "99999-01-01"])
def test_another_text_is_no_time(text):
    assert iso_seconds(text) is None
    assert time_us(text, NOW_US) is None


def test_a_time_as_text_is_read_again_to_the_second():
    assert utc_text(1_794_775_099.65) == "2026-11-15T20:38:19Z"
    assert iso_seconds(utc_text(1_794_775_099.65)) == 1_794_775_099.0
