"""Each check runs at its own phase of its interval: spread, steady, never in bursts, never twice at once."""

from __future__ import annotations

import json
from collections import Counter
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.clock import Now
from scale0.monitoring.agent.core.check_schedule import (
    FIRST_RUN_SECONDS,
    LATE_SECONDS,
    MAX_SCHEDULED,
    MIN_INTERVAL_SECONDS,
    ROUNDING,
    CheckSchedule,
    DueCheck,
    phase_of,
)

WALL = 1_700_000_000.0


def schedule_json(*checks: dict[str, Any]) -> bytes:
    return json.dumps({"version": 1, "checks": checks}).encode()


def check(name: Any = "load", interval: Any = 60.0, **more: Any) -> dict[str, Any]:
    return {"name": name, "check": name, "args": {}, "interval": interval, "timeout": 10, **more}


class Day:
    """A check schedule and a clock that the test moves; every run takes `seconds`."""

    def __init__(self, *checks: dict[str, Any], identity: str = "agent-1", mono: float = 1_000.0) -> None:
        self.mono = mono
        self.schedule = CheckSchedule(identity)
        self.seconds = 0.1
        self._ends: list[tuple[float, str]] = []
        self.runs: list[tuple[float, str]] = []
        assert self.schedule.replace(schedule_json(*checks), self.now) == []

    @property
    def now(self) -> Now:
        return Now(self.mono, WALL)

    def passes(self, seconds: float) -> list[float]:
        """Let time pass as an agent does, from deadline to deadline; when something was run."""
        until = self.mono + seconds
        before = len(self.runs)
        while True:
            deadline = self.schedule.deadline()
            if deadline is None or deadline > until:
                break
            self.mono = max(self.mono, deadline)
            self._look()
        self.mono = until
        return [at for at, _ in self.runs[before:]]

    def sleeps(self, seconds: float) -> list[float]:
        """The machine stands still; then one look."""
        self.mono += seconds
        before = len(self.runs)
        self._look()
        return [at for at, _ in self.runs[before:]]

    def _look(self) -> None:
        for end, name in [one for one in self._ends if one[0] <= self.mono]:
            self.schedule.done(name)
            self._ends.remove((end, name))
        for due in self.schedule.due(self.now):
            self.runs.append((self.mono, due.name))
            self._ends.append((self.mono + self.seconds, due.name))


# Promise: AGENT-10
def test_a_check_runs_once_per_interval_at_one_place():
    runs = Day(check(interval=60)).passes(600)
    assert len(runs) == 10
    assert {round(at % 60, 6) for at in runs} == {round(60 * phase_of("agent-1", "load"), 6)}


def test_what_is_due_says_all_that_is_needed_to_run_it():
    schedule = CheckSchedule("a")
    schedule.replace(
        schedule_json(check("disk root", 5) | {"name": "disk-root", "check": "disk", "args": {"path": "/"}}), Now(0, 0)
    )
    assert schedule.checks == (DueCheck("disk-root", "disk", b'{"path": "/"}', 5.0, 10.0),)
    assert schedule.due(Now(5, 0)) == list(schedule.checks)


def test_a_check_without_the_name_of_what_runs_is_called_as_it_is_reported():
    schedule = CheckSchedule("a")
    assert schedule.replace(b'{"checks": [{"name": "load", "interval": 60}]}', Now(0, 0)) == []
    assert schedule.checks == (DueCheck("load", "load", b"{}", 60.0, 10.0),)


# Promise: AGENT-10
def test_a_fleet_spreads_over_the_interval():
    places = Counter(int(10 * phase_of(f"host-{number}.example", "load")) for number in range(10_000))
    assert set(places) == set(range(10))
    assert max(places.values()) < 1_150


def test_the_checks_of_one_agent_spread_too():
    day = Day(*(check(f"check-{number}", 60) for number in range(600)))
    per_second = Counter(int(at) for at in day.passes(60))
    assert sum(per_second.values()) == 600
    assert max(per_second.values()) < 30


# Promise: AGENT-10
def test_a_restart_keeps_every_place():
    first = Day(check("a", 10), check("b", 7))
    first.passes(100)
    again = Day(check("a", 10), check("b", 7), mono=first.mono)
    assert again.passes(100)
    places = {(name, round(at % {"a": 10, "b": 7}[name], 6)) for at, name in first.runs}
    assert {(name, round(at % {"a": 10, "b": 7}[name], 6)) for at, name in again.runs} == places


def test_a_long_interval_does_not_keep_a_new_check_waiting():
    day = Day(check(interval=86_400))
    runs = day.passes(2 * 86_400)
    assert runs[0] <= 1_000 + FIRST_RUN_SECONDS
    # Then at its own place, day by day.
    assert [round(at % 86_400, 3) for at in runs[1:]] == 2 * [round(86_400 * phase_of("agent-1", "load"), 3)]


# Promise: AGENT-10
def test_unchanged_checks_keep_their_turn_when_the_schedule_changes():
    day = Day(check("a", 3_600), check("b", 60))
    day.passes(90)
    deadline = day.schedule._scheduled["a"].next_at
    day.schedule.replace(schedule_json(check("c", 60), check("b", 120), check("a", 3_600)), day.now)
    assert day.schedule._scheduled["a"].next_at == deadline
    assert {one.name: one.interval for one in day.schedule.checks} == {"c": 60, "b": 120, "a": 3_600}
    # A changed one is run soon.
    day.runs.clear()
    day.passes(FIRST_RUN_SECONDS)
    assert {"b", "c"} <= {name for _, name in day.runs}


def test_a_check_that_is_no_longer_scheduled_does_not_run():
    day = Day(check("a", 5), check("b", 5))
    day.passes(10)
    day.schedule.replace(schedule_json(check("b", 5)), day.now)
    day.runs.clear()
    day.passes(20)
    assert {name for _, name in day.runs} == {"b"}
    day.schedule.replace(schedule_json(), day.now)
    assert day.schedule.deadline() is None
    assert day.passes(100) == []


# Promise: AGENT-10
def test_missed_runs_are_left_out_and_counted():
    day = Day(check(interval=10))
    day.passes(100)
    assert len(day.sleeps(3_600)) <= 1
    assert 359 <= day.schedule.missed <= 361
    assert len(day.passes(100)) == 10


def test_after_a_sleep_not_all_checks_run_at_once():
    day = Day(*(check(f"check-{number}", 60) for number in range(600)))
    day.passes(120)
    assert len(day.sleeps(3_600)) <= 600 * 1.5 * LATE_SECONDS / 60
    assert len(day.passes(60)) >= 550


def test_a_little_late_is_not_missed():
    day = Day(check(interval=60))
    deadline = day.schedule.deadline()
    assert deadline is not None
    assert len(day.sleeps(deadline - day.mono + LATE_SECONDS)) == 1
    assert day.schedule.missed == 0


# Promise: AGENT-10
def test_a_check_that_still_runs_is_skipped_and_counted():
    day = Day(check(interval=10))
    day.seconds = 25
    assert len(day.passes(300)) == 10
    assert day.schedule.skipped == 20
    assert day.schedule.missed == 0


def test_a_check_that_runs_is_not_started_again_by_a_new_schedule():
    schedule = CheckSchedule("a")
    schedule.replace(schedule_json(check("a", 5)), Now(0, 0))
    assert len(schedule.due(Now(5, 0))) == 1
    schedule.replace(schedule_json(), Now(5, 0))
    schedule.replace(schedule_json(check("a", 6)), Now(5, 0))
    assert schedule.due(Now(11, 0)) == []
    assert schedule.skipped == 1
    schedule.done("a")
    assert len(schedule.due(Now(17, 0))) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"{}",
        b"null",
        b'{"checks": {}}',
        b'{"checks": 5}',
        b'{"checks": [NaN]}',
        b'{"checks": ' + 100_000 * b"[" + 100_000 * b"]" + b"}",
    ],
)
def test_a_schedule_that_is_not_understood_changes_nothing(body):
    day = Day(check())
    before = day.schedule.body, day.schedule.checks, day.schedule.deadline()
    assert day.schedule.replace(body, day.now)
    assert (day.schedule.body, day.schedule.checks, day.schedule.deadline()) == before


@pytest.mark.parametrize(
    "bad",
    [
        5,
        {},
        {"name": "x"},
        check(""),
        check("a b"),
        check("a\nb"),
        check("a\x00"),
        check("x" * 129),
        check(check="two words"),
        check(interval=0),
        check(interval=-5),
        check(interval=MIN_INTERVAL_SECONDS / 2),
        check(interval=1e300),
        check(interval="60"),
        check(timeout=0),
        check(timeout=-1),
        check(timeout=1e9),
        check(args=None),
        check(args=[1]),
        check(args="x"),
        check(name=5),
    ],
)
def test_a_bad_check_is_left_out_and_the_others_run(bad):
    schedule = CheckSchedule("a")
    faults = schedule.replace(schedule_json(check("good"), bad, check("fine")), Now(0, 0))
    assert len(faults) == 1
    assert "check 2" in faults[0]
    assert [one.name for one in schedule.checks] == ["good", "fine"]


@pytest.mark.parametrize("text", [b'{"x": "\xff"}', b'"\xff"'])
def test_args_that_are_no_text_are_left_out(text):
    schedule = CheckSchedule("a")
    body = b'{"checks": [{"name": "a", "interval": 60, "args": %b}, {"name": "b", "interval": 60}]}' % text
    assert len(schedule.replace(body, Now(0, 0))) == 1
    assert [one.name for one in schedule.checks] == ["b"]


def test_a_name_that_is_there_twice_counts_once():
    schedule = CheckSchedule("a")
    assert "duplicate name" in schedule.replace(schedule_json(check("a", 5), check("a", 7)), Now(0, 0))[0]
    assert [one.interval for one in schedule.checks] == [5.0]


def test_a_schedule_has_a_limit():
    schedule = CheckSchedule("a")
    faults = schedule.replace(schedule_json(*(check(f"c{number}") for number in range(MAX_SCHEDULED + 2))), Now(0, 0))
    assert len(schedule.checks) == MAX_SCHEDULED
    assert faults == [f"2 checks over the limit of {MAX_SCHEDULED} are ignored"]


def test_the_same_schedule_again_says_the_same_and_changes_nothing():
    schedule = CheckSchedule("a")
    body = schedule_json(check("a", 3_600), check(""))
    faults = schedule.replace(body, Now(0, 0))
    deadline = schedule.deadline()
    assert schedule.replace(body, Now(1_000, 0)) == faults
    assert schedule.deadline() == deadline
    assert schedule.body == body


steps = st.one_of(
    st.tuples(st.just("pass"), st.floats(0, 100)),
    st.tuples(st.just("sleep"), st.floats(0, 1_000)),
    st.tuples(st.just("slow"), st.floats(0, 50)),
    st.tuples(st.just("take"), st.lists(st.sampled_from("abcd"), unique=True)),
)
INTERVALS = {"a": 1.0, "b": 7.5, "c": 60.0, "d": 3_600.0}


# Promise: AGENT-10
@given(st.lists(steps, max_size=30), st.floats(0, 1e7))
def test_whatever_happens_a_check_runs_at_most_once_per_interval_and_alone(plan, mono):
    day = Day(mono=mono)
    taken: dict[str, float] = {}
    for effects, value in plan:
        if effects == "pass":
            day.passes(value)
        elif effects == "sleep":
            day.sleeps(value)
        elif effects == "slow":
            day.seconds = value
        else:
            day.schedule.replace(schedule_json(*(check(name, INTERVALS[name]) for name in value)), day.now)
            taken = {name: taken.get(name, day.mono) for name in value}
        deadline = day.schedule.deadline()
        assert (deadline is None) == (not day.schedule.checks)
        assert deadline is None or deadline >= day.mono - 1_000
        for name, since in taken.items():
            runs = [at for at, who in day.runs if who == name and at >= since]
            # One more for the place at which it began, and one for the early run of a long interval.
            assert len(runs) <= (day.mono - since) / INTERVALS[name] + 2
            if INTERVALS[name] <= FIRST_RUN_SECONDS:
                # No two runs at one place, however the floats are rounded.
                places = [floor(at / INTERVALS[name] - phase_of("agent-1", name) + ROUNDING) for at in runs]
                assert len(set(places)) == len(places)
