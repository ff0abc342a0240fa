"""Check rules: which agent runs what, the schedule as bytes, and findings under thresholds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scale0.config import CheckDefinition, Downtime, Silence
from scale0.config.value_types import is_range
from scale0.history.events.columns import EventMetric
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.helen.core.check_rules import CheckRules
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, MAX_UNIT_CHARS, CheckFinding, read_result


def selected(given: dict[str, Any]) -> bool:
    return bool(CheckRules([CheckDefinition(name="c", **given)]).select("web-1", {"role": "web", "site": "b"}))


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, True),
        ({"agents": ("web-*",)}, True),
        ({"agents": ("db-*", "web-1")}, True),
        ({"agents": ("web",)}, False),
        ({"agents": ("WEB-1",)}, False),
        ({"labels": {"role": "web"}}, True),
        ({"labels": {"role": "w*", "site": "[ab]"}}, True),
        ({"labels": {"role": "w*", "rack": "*"}}, False),
        ({"agents": ("db-*",), "labels": {"role": "web"}}, False),
        ({"enabled": False}, False),
    ],
)
def test_an_agent_is_chosen_by_name_and_by_every_label(given, chosen):
    assert selected(given) is chosen


def test_a_schedule_holds_the_protocols_keys_and_depends_on_its_content_alone():
    disk = CheckDefinition(name="disk", check="disk_free", args={"path": "/"}, interval=30.0, timeout=5.0)
    load = CheckDefinition(name="load", agents=("db-*",))
    rules = CheckRules([disk, load])
    body = rules.schedule(rules.select("web-1", {}))
    plan = json.loads(body)
    assert plan["checks"] == [
        {"name": "disk", "check": "disk_free", "args": {"path": "/"}, "interval": 30.0, "timeout": 5.0}
    ]
    assert 0 <= plan["version"] < 2**32
    other = CheckRules(
        [disk, CheckDefinition(name="load", agents=("db-*",), interval=7.0)], silences=[Silence(name="s")]
    )
    assert other.schedule(other.select("web-1", {})) == body
    assert other.schedule(other.select("db-1", {})) != rules.schedule(rules.select("db-1", {}))


def test_agents_with_the_same_checks_share_one_selection():
    rules = CheckRules([CheckDefinition(name="disk")])
    assert rules.select("a", {}) is rules.select("b", {"x": "y"})
    assert json.loads(CheckRules().schedule({}))["checks"] == []


def judged(finding: CheckFinding, **thresholds: Any) -> tuple[str, str, tuple[EventMetric, ...]]:
    return CheckRules([CheckDefinition(name="c", thresholds=thresholds)]).definitions["c"].judge(finding)


# Promise: CHECK-7
def test_the_worst_of_the_agents_state_and_the_limits_counts():
    used = EventMetric("used", 91.0, "%", None, None, 0.0, 100.0)
    found = CheckFinding("ok", "fine", (used, EventMetric("free", 3.0)))
    state, message, metrics = judged(found, used={"warn": 80, "crit": "95"}, free={"crit": "1:"})
    assert (state, message) == ("warning", "fine; used = 91% is warning")
    assert metrics == (
        EventMetric("used", 91.0, "%", 80.0, 95.0, 0.0, 100.0),
        EventMetric("free", 3.0, None, None, 1.0),
    )
    assert judged(found, free={"crit": "10:"})[0] == "critical"
    assert judged(CheckFinding("critical", "bad", (used,)), used={"warn": 80})[:2] == ("critical", "bad")
    assert judged(CheckFinding("ok", "", (used,)), used={"crit": 80})[1] == "used = 91% is critical"
    assert judged(found) == ("ok", "fine", found.metrics)
    assert judged(found, other={"crit": 1}) == ("ok", "fine", found.metrics)


numbers = st.integers(-(10**19), 10**19) | st.floats() | st.booleans() | st.none()
texts = st.text("0123456789.:@~-e+ ", max_size=14) | st.text(max_size=5)


# Promise: CHECK-7
@given(numbers | texts)
@example("0" * 19)
@example("1e999")
@example("-" + "9" * 18 + "." + "9" * 18 + "e-99:" + "9" * 18 + "." + "9" * 18 + "e-99")
@example("10:5")
@example("@")
@example(":")
@example("~:")
def test_every_limit_that_configuration_takes_is_a_range(value):
    if is_range(value):
        Range.parse(value)


@pytest.mark.parametrize("text", ["10", "10:", "~:10", "10:20", "@10:20", "-5.5:5e3", ":7", 0, 90, 12.5])
def test_the_usual_limits_are_taken(text):
    assert is_range(text)


def test_the_next_boundary_is_the_next_begin_or_end():
    rules = CheckRules(
        downtimes=[Downtime(name="d", starts=10.0, ends=20.0)],
        silences=[Silence(name="s", ends=15.0), Silence(name="t")],
    )
    assert [rules.next_boundary(wall) for wall in (0.0, 10.0, 15.0, 19.9, 20.0)] == [10.0, 15.0, 20.0, 20.0, None]


def test_a_metric_that_comes_hundreds_of_times_makes_no_endless_message():
    (definition,) = (
        CheckRules([CheckDefinition(name="c", thresholds={"used": {"crit": 1}})]).select("web-1", {}).values()
    )
    sent = {"state": "ok", "message": "m", "metrics": [{"name": "used", "value": 2, "unit": "u" * 2_000}] * 500}
    state, message, metrics = definition.judge(read_result(json.dumps(sent).encode()).finding)
    assert state == "critical"
    assert message.startswith("m; used = 2u")
    assert len(message) == MAX_MESSAGE_CHARS
    assert {metric.unit for metric in metrics} == {"u" * MAX_UNIT_CHARS}
