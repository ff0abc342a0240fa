"""Checks, by hand: each agent is a story of its own, and one chain of steps tells them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.checks_steps import CARRY, STATES, TIMELINE, Event, Rows, Steps, result, us
from tests.pipeline.events import START_US, event, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORIES: dict[str, list[Event]] = {}
HORIZON = 2 * 3600 + 1800.0
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
def told(spark: SparkSession) -> dict[str, Rows]:
    """All stories, in steps of an hour."""
    events = numbered(one for events in STORIES.values() for one in events)
    return Steps(spark).steps(events, (0, 1, 2, 3), us(HORIZON))


def pieces(told: dict[str, Rows], agent: str, check: str = "disk") -> list[tuple[Any, ...]]:
    """Seconds from START, class, reason; pieces of two hours that go on are joined."""
    out: list[tuple[Any, ...]] = []
    for row in sorted((row for row in told[TIMELINE] if row[1] == f"{agent}/{check}"), key=lambda row: row[2]):
        begin, end = ((cell - START_US) / 1e6 for cell in row[2:4])
        if out and out[-1][1:] == (begin, *row[4:6]):
            begin = out.pop()[0]
        out.append((begin, end, *row[4:6]))
    return out


def states(told: dict[str, Rows], agent: str) -> list[tuple[Any, ...]]:
    """Second, state, hard, attempt, previous."""
    mine = sorted((row for row in told[STATES] if row[0] == agent), key=lambda row: row[3])
    return [((row[3] - START_US) / 1e6, *row[4:8]) for row in mine]


def carried(told: dict[str, Rows], agent: str) -> list[int]:
    """The hours at whose start something is carried."""
    return sorted(row[-1] - START_US // 3_600_000_000 for row in told[CARRY] if row[0] == agent)


UNSEEN = (0, 600, "absent", "unseen")


def test_a_result_vouches_for_its_interval_and_timeout_and_then_nobody_knows(told: dict[str, Rows]):
    assert pieces(told, "quiet") == [UNSEEN, (600, 790, "up", "ok"), (790, HORIZON, "unobserved", "silent")]
    assert carried(told, "quiet") == [1, 2]


def test_a_problem_is_hard_from_the_third_on_whatever_it_is_and_a_recovery_at_once(told: dict[str, Rows]):
    assert pieces(told, "hard")[1:6] == [
        (600, 660, "up", "ok"),
        (660, 780, "up", "soft"),
        (780, 840, "down", "critical"),
        (840, 910, "up", "ok"),
        (910, HORIZON, "unobserved", "silent"),
    ]
    assert states(told, "hard") == [
        (600, "ok", True, 0, None),
        (660, "warning", False, 1, "ok"),
        (720, "unknown", False, 2, "warning"),
        (780, "critical", True, 0, "unknown"),
        (840, "ok", True, 0, "critical"),
    ]


def test_a_hard_warning_is_up(told: dict[str, Rows]):
    assert pieces(told, "warns")[1] == (600, 670, "up", "warning")


def test_what_somebody_asked_for_does_not_count(told: dict[str, Rows]):
    assert states(told, "asked") == [(600, "ok", True, 0, None)]


def test_odd_values_vouch_for_less_and_stop_nothing(told: dict[str, Rows]):
    assert pieces(told, "odd") == [
        UNSEEN,
        (600, 700, "unobserved", "silent"),
        (700, 760, "up", "ok"),
        (760, HORIZON, "unobserved", "silent"),
    ]
    assert states(told, "odd") == [(600, "unknown", True, 0, None), (700, "ok", True, 0, "unknown")]
    assert pieces(told, "broken") == []


def test_of_two_that_recorded_one_result_the_first_counts(told: dict[str, Rows]):
    assert states(told, "doubled") == [(600, "ok", True, 0, None)]


def test_a_late_result_stands_where_it_happened(told: dict[str, Rows]):
    assert states(told, "late") == [(600, "critical", False, 1, None), (660, "ok", True, 0, "critical")]


def test_a_result_on_the_hour_belongs_to_that_hour(told: dict[str, Rows]):
    assert pieces(told, "hour")[1:3] == [(3570, 3600, "up", "ok"), (3600, 3670, "down", "critical")]
    assert pieces(told, "first-on-hour")[0] == (3600, 3670, "up", "ok")
    assert carried(told, "first-on-hour") == [2]
    assert pieces(told, "ends-on-hour")[1:] == [(3530, 3600, "up", "ok"), (3600, HORIZON, "unobserved", "silent")]


def test_after_a_removal_the_rest_of_the_hour_is_absent_and_nothing_is_carried(told: dict[str, Rows]):
    assert pieces(told, "gone") == [UNSEEN, (600, 650, "up", "ok"), (650, 3600, "absent", "removed")]
    assert carried(told, "gone") == []


def test_a_check_that_comes_back_begins_anew(told: dict[str, Rows]):
    assert pieces(told, "gone-for-hours")[2:] == [
        (650, 3600, "absent", "removed"),
        (7200, 7260, "absent", "unseen"),
        (7260, 7330, "up", "soft"),
        (7330, HORIZON, "unobserved", "silent"),
    ]
    assert states(told, "gone-for-hours")[1:] == [(7260, "critical", False, 1, None)]


def test_removing_what_was_never_there_means_nothing(told: dict[str, Rows]):
    assert pieces(told, "never-there")[:2] == [UNSEEN, (600, 670, "up", "ok")]
    assert pieces(told, "never-there", "other") == []


def test_downtimes_of_the_agent_and_of_the_check_are_a_union(told: dict[str, Rows]):
    assert pieces(told, "planned")[1:5] == [
        (600, 700, "up", "ok"),
        (700, 800, "downtime", "d"),
        (800, 900, "downtime", "e"),
        (900, 3610, "up", "ok"),
    ]


def test_a_downtime_ends_when_it_is_ended_if_that_is_earlier(told: dict[str, Rows]):
    assert pieces(told, "ended-early")[2:4] == [(700, 800, "downtime", "d"), (800, 3610, "up", "ok")]


def test_a_downtime_whose_end_is_moved_goes_on(told: dict[str, Rows]):
    assert pieces(told, "moved-end")[2:4] == [(700, 1000, "downtime", "d"), (1000, HORIZON, "up", "ok")]


def test_a_downtime_of_another_check_is_none_of_ours(told: dict[str, Rows]):
    assert pieces(told, "other-check")[1] == (600, 3610, "up", "ok")


def test_a_downtime_without_an_end_holds_over_hours_until_it_is_ended(told: dict[str, Rows]):
    assert pieces(told, "no-end")[2:] == [
        (670, 3000, "unobserved", "silent"),
        (3000, 7200, "downtime", "d"),
        (7200, HORIZON, "unobserved", "silent"),
    ]
    assert carried(told, "no-end") == [1, 1, 2, 2]


def test_downtime_beats_down_and_not_absent(told: dict[str, Rows]):
    assert pieces(told, "gone-in-downtime")[1:] == [(600, 650, "downtime", "d"), (650, 3600, "absent", "removed")]
    assert pieces(told, "down-in-downtime")[1:4] == [
        (600, 620, "down", "critical"),
        (620, 640, "downtime", "d"),
        (640, 670, "down", "critical"),
    ]


def test_a_result_at_the_horizon_counts_and_one_after_it_waits(told: dict[str, Rows]):
    assert states(told, "at-the-end")[1:] == [(HORIZON, "critical", False, 1, "ok")]
    assert pieces(told, "at-the-end")[-1] == (HORIZON - 60, HORIZON, "up", "ok")
