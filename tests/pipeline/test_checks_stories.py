"""Checks, by hand: each agent is a story of its own, and one chain of steps computes them all."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.checks_steps import CARRY, STATES, TIMELINE, Event, Rows, Steps, result, us
from tests.pipeline.events import START_US, event, numbered, written

STORIES: dict[str, list[Event]] = {}
HORIZON = 9000.0
pytestmark = pytest.mark.slow


def story(agent: str, *events: Event) -> None:
    STORIES[agent] = [one | {"identity": agent} for one in events]


def downtime(second: float, ref: str, ends: Any, check: str | None = None, **others: Any) -> Event:
    data = {"ends": ends if not isinstance(ends, int | float) else START_US / 1e6 + ends}
    return event(second, "downtime.started", ref=ref, service=check, data=data, **others)


def ended(second: float, ref: str, check: str | None = None, **others: Any) -> Event:
    return event(second, "downtime.ended", ref=ref, service=check, **others)


def removed(second: float, check: str = "disk") -> Event:
    return event(second, "check.removed", service=check)


story("quiet", result(600), result(660), result(720))
story("hard", *(result(600 + 60 * n, state) for n, state in enumerate(["ok", "warning", "unknown", "critical", "ok"])))
story("warns", result(600, "warning", data={"max_attempts": 1}))
story("asked", result(600), result(620, "critical", data={"scheduled": False}))
story("odd", result(600, "fine", data={"interval": None, "max_attempts": None}), result(700, data={"timeout": "x"}))
story("broken", event(600, "check.answered", service="disk", state="ok", data="{not json"))
story("doubled", result(600, "critical", ref="s:1", source="helen-2"), result(600, "ok", ref="s:1", source="helen-1"))
story("late", result(660, "ok", seq=1), result(600, "critical", seq=2, time=900))
story("hour", result(3600 - 30), result(3600, "critical", data={"max_attempts": 1}))
story("first-on-hour", result(3600))
story("ends-on-hour", result(3600 - 70))
story("gone", result(600), removed(650), removed(660))
story("gone-for-hours", result(600), removed(650), removed(4000), result(7200 + 60, "critical"))
story("never-there", removed(500), result(600), removed(8000, "other"))
story("planned", result(600, data={"interval": 3000.0}), downtime(700, "d", 800), downtime(750, "e", 900, "disk"))
story("ended-early", result(600, data={"interval": 3000.0}), downtime(700, "d", 3000), ended(800, "d"), ended(900, "d"))
story("moved-end", result(600, data={"interval": 9000.0}), downtime(700, "d", 3000, seq=1), ended(800, "d", seq=2),
      downtime(800, "d", 1000, seq=3))  # fmt: skip
story("other-check", result(600, data={"interval": 3000.0}), downtime(700, "d", 800, "load"))
story("no-end", result(600), downtime(3000, "d", None), ended(7200, "d"))
story("gone-in-downtime", result(600), downtime(600, "d", 700), removed(650))
story("down-in-downtime", result(600, "critical", data={"max_attempts": 1}), downtime(620, "d", 640))
story("at-the-end", result(HORIZON - 60), result(HORIZON, "critical"), result(HORIZON + 1, "ok"))


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, Rows]:
    events = numbered(one for events in STORIES.values() for one in events)
    return Steps(spark).steps(events, (0, 1, 2, 3), us(HORIZON))


def timeline(tables: dict[str, Rows], agent: str, check: str = "disk") -> str:
    """Class and reason by the second from which on they hold, as in "0 absent:unseen 600 up:ok 9000"."""
    mine = sorted((row for row in tables[TIMELINE] if row[1] == f"{agent}/{check}"), key=lambda row: row[2])
    return written((row[2], row[3], f"{row[4]}:{row[5]}") for row in mine)


def states(tables: dict[str, Rows], agent: str) -> list[tuple[Any, ...]]:
    """Second, state, hard, attempt, previous."""
    mine = sorted((row for row in tables[STATES] if row[0] == agent), key=lambda row: row[3])
    return [((row[3] - START_US) / 1e6, *row[4:8]) for row in mine]


def carried(tables: dict[str, Rows], agent: str) -> list[int]:
    """The hours at whose start something is carried."""
    return sorted(row[-1] - START_US // 3_600_000_000 for row in tables[CARRY] if row[0] == agent)


def test_a_result_vouches_for_its_interval_and_timeout_and_then_nobody_knows(tables: dict[str, Rows]):
    assert timeline(tables, "quiet") == "0 absent:unseen 600 up:ok 790 unobserved:silent 9000"
    assert carried(tables, "quiet") == [1, 2]


def test_a_problem_is_hard_from_the_third_on_whatever_it_is_and_a_recovery_at_once(tables: dict[str, Rows]):
    expected = "0 absent:unseen 600 up:ok 660 up:soft 780 down:critical 840 up:ok 910 unobserved:silent 9000"
    assert timeline(tables, "hard") == expected
    assert states(tables, "hard") == [
        (600, "ok", True, 0, None),
        (660, "warning", False, 1, "ok"),
        (720, "unknown", False, 2, "warning"),
        (780, "critical", True, 0, "unknown"),
        (840, "ok", True, 0, "critical"),
    ]


def test_a_hard_warning_is_up(tables: dict[str, Rows]):
    assert timeline(tables, "warns") == "0 absent:unseen 600 up:warning 670 unobserved:silent 9000"


def test_what_somebody_asked_for_does_not_count(tables: dict[str, Rows]):
    assert states(tables, "asked") == [(600, "ok", True, 0, None)]


def test_odd_values_vouch_for_less_and_stop_nothing(tables: dict[str, Rows]):
    assert timeline(tables, "odd") == "0 absent:unseen 600 unobserved:silent 700 up:ok 760 unobserved:silent 9000"
    assert states(tables, "odd") == [(600, "unknown", True, 0, None), (700, "ok", True, 0, "unknown")]
    assert timeline(tables, "broken") == ""


def test_of_two_that_recorded_one_result_the_first_counts(tables: dict[str, Rows]):
    assert states(tables, "doubled") == [(600, "ok", True, 0, None)]


def test_a_late_result_stands_where_it_happened(tables: dict[str, Rows]):
    assert states(tables, "late") == [(600, "critical", False, 1, None), (660, "ok", True, 0, "critical")]


def test_a_result_on_the_hour_belongs_to_that_hour(tables: dict[str, Rows]):
    assert timeline(tables, "hour") == "0 absent:unseen 3570 up:ok 3600 down:critical 3670 unobserved:silent 9000"
    assert timeline(tables, "first-on-hour") == "3600 up:ok 3670 unobserved:silent 9000"
    assert carried(tables, "first-on-hour") == [2]
    assert timeline(tables, "ends-on-hour") == "0 absent:unseen 3530 up:ok 3600 unobserved:silent 9000"


def test_after_a_removal_the_rest_of_the_hour_is_absent_and_nothing_is_carried(tables: dict[str, Rows]):
    assert timeline(tables, "gone") == "0 absent:unseen 600 up:ok 650 absent:removed 3600"
    assert carried(tables, "gone") == []


def test_a_check_that_comes_back_begins_again(tables: dict[str, Rows]):
    before, after = timeline(tables, "gone-for-hours").split(" 3600 ")
    assert before == "0 absent:unseen 600 up:ok 650 absent:removed"
    assert after == "7200 absent:unseen 7260 up:soft 7330 unobserved:silent 9000"
    assert states(tables, "gone-for-hours")[1:] == [(7260, "critical", False, 1, None)]


def test_removing_what_was_never_there_means_nothing(tables: dict[str, Rows]):
    assert timeline(tables, "never-there") == "0 absent:unseen 600 up:ok 670 unobserved:silent 9000"
    assert timeline(tables, "never-there", "other") == ""


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("planned", "700 downtime:d 800 downtime:e 900 up:ok 3610 unobserved:silent"),  # of the agent and of the check
        ("ended-early", "700 downtime:d 800 up:ok 3610 unobserved:silent"),
        ("moved-end", "700 downtime:d 1000 up:ok"),
        ("other-check", "3610 unobserved:silent"),
    ],
)
def test_a_downtime_lasts_to_its_planned_or_earlier_end_for_its_own_checks(
    tables: dict[str, Rows], agent: str, expected: str
):
    assert timeline(tables, agent) == f"0 absent:unseen 600 up:ok {expected} 9000"


def test_a_downtime_without_an_end_holds_over_hours_until_it_is_ended(tables: dict[str, Rows]):
    expected = "0 absent:unseen 600 up:ok 670 unobserved:silent 3000 downtime:d 7200 unobserved:silent 9000"
    assert timeline(tables, "no-end") == expected
    assert carried(tables, "no-end") == [1, 1, 2, 2]


def test_downtime_beats_down_and_not_absent(tables: dict[str, Rows]):
    assert timeline(tables, "gone-in-downtime") == "0 absent:unseen 600 downtime:d 650 absent:removed 3600"
    expected = "0 absent:unseen 600 down:critical 620 downtime:d 640 down:critical 670 unobserved:silent 9000"
    assert timeline(tables, "down-in-downtime") == expected


def test_a_result_at_the_horizon_counts_and_one_after_it_waits(tables: dict[str, Rows]):
    assert states(tables, "at-the-end")[1:] == [(HORIZON, "critical", False, 1, "ok")]
    assert timeline(tables, "at-the-end") == "7200 absent:unseen 8940 up:ok 9000"
