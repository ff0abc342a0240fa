"""A task's story and a check's series, from what journals and segments hold."""

# Promise: FEED-5
from __future__ import annotations

from unittest.mock import patch

import pytest

from scale0.history.events.checks import CheckAnswered
from scale0.history.events.columns import EventMetric
from scale0.history.events.tasks import TaskAttemptEnded, TaskCompleted, TaskSubmitted
from scale0.http.events import pages
from scale0.http.events.check_series import MAX_POINTS, series_of
from scale0.http.events.task_timeline import timeline_of
from tests.processes.http.event_folders import export
from tests.unit.http.test_event_pages import Shown


@pytest.mark.parametrize("exported", [False, True])
def test_a_task_s_timeline_is_in_words_and_in_order(folder, exported):
    folder.fill(50)
    folder.enter([TaskSubmitted("0f3a", "thumbs.make", "web", 4)])
    folder.fill(50)
    folder.enter([TaskAttemptEnded("0f3a", "thumbs.make", 1, "node-1", "lost", 0.5, 3.0)])
    if exported:
        export(folder)
    folder.fill(50)
    folder.enter([TaskCompleted("0f3a", "thumbs.make", 2, "node-2", "finished", 0.25, 1.5)])
    with Shown(folder.path) as shown:
        story = timeline_of(shown.index, "0f3a")
        assert [one.kind for one in story.items] == ["task.submitted", "task.attempt_ended", "task.completed"]
        assert [one.words for one in story.items] == [
            "submitted by web for thumbs.make, priority 4",
            "attempt 1 on node-1 ended: lost after 3 s, waited 500 ms",
            "finished after 1.5 s, attempt 2 on node-2, waited 250 ms",
        ]
        assert [(one.node, one.attempt, one.state) for one in story.items] == [
            (None, None, None),
            ("node-1", 1, "lost"),
            ("node-2", 2, "finished"),
        ]
        assert story.unseen == []
        assert timeline_of(shown.index, "nobody").items == []


def test_what_was_not_scanned_is_reported(folder):
    folder.enter([TaskSubmitted("0f3a", "thumbs.make", "web", 4)])
    folder.fill(100)
    folder.enter([TaskCompleted("0f3a", "thumbs.make", 1, "node-2", "finished", 0.25, 1.5)])
    export(folder, events=10)
    with Shown(folder.path) as shown, patch.object(pages, "MAX_SCANNED", 20):
        story = timeline_of(shown.index, "0f3a")
        assert [one.kind for one in story.items] == ["task.completed"]
        assert "scale0 explain 0f3a" in story.unseen[0]


def answer(wall: float, state: str = "ok", value: float = 1.0, check: str = "disk") -> CheckAnswered:
    metrics = (EventMetric("used", value, "%"), EventMetric("free", 100 - value))
    return CheckAnswered("web-1", check, f"s:{wall}", wall, state, 0.1, metrics, "fine")


def test_a_check_s_last_day_is_a_series(folder):
    now = folder.wall
    folder.enter([answer(now - 90_000), answer(now - 200, "ok", 10.0), answer(now - 150, "ok", 11.0, "load")])
    export(folder)
    folder.enter([answer(now - 100, "critical", 20.0)])
    with Shown(folder.path) as shown:
        series = series_of(shown.index, "web-1", "disk", folder.wall)
        assert series.times == pytest.approx([now - 200, now - 100])
        assert series.states == ["ok", "critical"]
        assert series.metrics == {"used": [10.0, 20.0], "free": [90.0, 80.0]}
        assert series.units == {"used": "%", "free": ""}
        assert series.since == pytest.approx(folder.wall - 86_400)
        assert series_of(shown.index, "web-*", "disk", folder.wall).times == [], "a name is no glob"


def test_many_results_become_few_points_and_no_problem_is_lost(folder):
    now = folder.wall
    folder.wall = now
    answers = [answer(now - 86_000 + n * 40, "critical" if n == 777 else "ok", float(n)) for n in range(2_000)]
    for first in range(0, 2_000, 100):
        folder.enter([*answers[first : first + 100]])
    with Shown(folder.path) as shown:
        series = series_of(shown.index, "web-1", "disk", folder.wall)
    assert len(series.times) <= MAX_POINTS
    assert len(series.times) > MAX_POINTS * 0.8
    assert series.states.count("critical") == 1
    assert series.times == sorted(series.times)
    assert series.metrics["used"][-1] == 1_999.0
