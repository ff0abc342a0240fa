"""Durations and times as people type them: each accepted text has one meaning, and every other text is refused."""

from __future__ import annotations

import datetime

import pytest

from scale0.kernel.time_text import duration_seconds, iso_seconds, time_us

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
