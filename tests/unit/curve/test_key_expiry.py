"""The time by which keys expire: no jump of the wall clock expires them at once, and none keeps them for ever."""

# Promise: KEY-4
from __future__ import annotations

import pytest

from scale0.broker.core.key_expiry import DAY_SECONDS, DailyReport, expiring, left_text
from scale0.broker.core.keys import Key
from scale0.kernel.clock import Now
from scale0.kernel.confirmed_clock import CONFIRM_SECONDS, LONG_AGO, ConfirmedClock

WALL = 1_900_000_000.0
YEAR = 365 * DAY_SECONDS


def at(passed: float, jump: float = 0.0) -> Now:
    return Now(100.0 + passed, WALL + passed + jump)


def test_time_follows_a_wall_clock_that_does_not_jump():
    clock = ConfirmedClock(at(0))
    assert [clock.read(at(passed)) for passed in (0.5, 1.0, 7_200.0)] == [WALL + 0.5, WALL + 1.0, WALL + 7_200.0]


def test_after_a_jump_forward_time_goes_on_until_the_wall_clock_has_kept_its_time():
    clock = ConfirmedClock(at(0))
    assert clock.read(at(1, YEAR)) == WALL + 1
    assert clock.read(at(CONFIRM_SECONDS, YEAR)) == WALL + CONFIRM_SECONDS
    assert clock.read(at(1 + CONFIRM_SECONDS, YEAR)) == WALL + 1 + CONFIRM_SECONDS + YEAR


def test_a_clock_that_jumps_again_or_that_clients_contradict_is_not_confirmed():
    clock = ConfirmedClock(at(0))
    clock.read(at(1, YEAR))
    clock.read(at(CONFIRM_SECONDS - 1, 2 * YEAR))
    assert clock.read(at(CONFIRM_SECONDS + 2, 2 * YEAR)) == WALL + CONFIRM_SECONDS + 2
    assert clock.read(at(2 * CONFIRM_SECONDS, 2 * YEAR), is_suspect=True) == WALL + 2 * CONFIRM_SECONDS
    assert clock.read(at(2 * CONFIRM_SECONDS + 1, 2 * YEAR)) == WALL + 2 * CONFIRM_SECONDS + 1


def test_a_clock_that_is_set_right_again_counts_at_once():
    clock = ConfirmedClock(at(0))
    clock.read(at(1, YEAR))
    assert clock.read(at(2)) == WALL + 2
    assert clock.read(at(3, -YEAR)) == WALL + 3 - YEAR


def test_a_start_long_after_the_last_event_is_such_a_jump():
    clock = ConfirmedClock(at(0), WALL - YEAR)
    assert clock.read(at(1)) == WALL + 1 - YEAR
    assert clock.read(at(CONFIRM_SECONDS)) == WALL + CONFIRM_SECONDS


# Promise: TIME-1
def test_what_is_deleted_for_good_waits_for_a_clock_that_has_kept_its_time_since_the_start():
    clock = ConfirmedClock(at(0), LONG_AGO)
    assert clock.read(at(CONFIRM_SECONDS - 1)) == LONG_AGO + CONFIRM_SECONDS - 1
    assert clock.jump_seconds == 0.0
    assert clock.read(at(CONFIRM_SECONDS)) == WALL + CONFIRM_SECONDS
    clock.read(at(CONFIRM_SECONDS + 1, YEAR))
    assert clock.jump_seconds == YEAR


# Promise: KEY-5
def test_keys_that_expire_soon_are_reported_once_a_day_the_first_one_first():
    keys = [
        Key("a", "frontend", "later", WALL + 13 * DAY_SECONDS),
        Key("b", "backend", "over", WALL - 1),
        Key("c", "frontend", "far", WALL + 15 * DAY_SECONDS),
        Key("d", "frontend", "token", WALL + 60, is_token=True),
        Key("e", "peer", "never"),
    ]
    assert [key.name for key in expiring(keys, WALL)] == ["over", "later"]
    report = DailyReport()
    assert report.text(keys, WALL, 5.0) == "backend/over has expired, frontend/later expires in 13 days"
    assert report.text(keys, WALL, 5.0 + DAY_SECONDS - 1) == ""
    assert "later" in report.text(keys, WALL, 5.0 + DAY_SECONDS)
    assert DailyReport().text(keys[2:], WALL, 5.0) == ""


@pytest.mark.parametrize(
    ("left", "text"), [(-1, "has expired"), (7_200, "expires in 2 h"), (172_800, "expires in 2 d")]
)
def test_the_time_that_is_left_is_shown_in_hours_or_days(left: float, text: str):
    assert left_text(Key("a", "frontend", "web", WALL + left), WALL).startswith(text)
