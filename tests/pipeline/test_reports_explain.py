"""A story tells each event once, in order and in plain words, and says what nobody saw."""

from __future__ import annotations

from typing import Any

import pytest

from scale0.history.events.columns import COLUMN_NAMES
from scale0.pipeline.explain import ExplainEntry, WarehouseFacts, explanation_of, is_about, warehouse_facts
from scale0.pipeline.explain_sentences import sentence_of
from scale0.pipeline.reports.query import ReportQuery, with_reader
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, to_time
from tests.pipeline import reports_made as made
from tests.pipeline.warehouse_made import put

SECOND = 1_000_000


def event(seq: int, kind: str, at: int = 0, **columns: Any) -> dict[str, Any]:
    """One, as the journal's reader gives it."""
    us = (at or seq) * SECOND
    return {
        **dict.fromkeys(COLUMN_NAMES),
        "source": "b-1",
        "boot": 7,
        "seq": seq,
        "time": us,
        "at": us,
        "kind": kind,
        **columns,
    }


TASK: dict[str, Any] = {"ref": "t-1", "service": "thumbs.make"}
LIFE = [
    event(1, "task.submitted", **TASK, identity="c-1", data='{"priority": 5}'),
    event(
        5, "task.attempt_ended", **TASK, identity="node-2", attempt=1, state="lost", code=502, waited=3.0, seconds=1.5
    ),
    event(9, "task.completed", **TASK, identity="node-3", attempt=2, state="finished", waited=0.25, seconds=2.1),
]


def texts(what: str, events: list[dict[str, Any]], known: WarehouseFacts | None = None) -> list[str]:
    return [one.text for one in explanation_of(what, 0, 10**12, events, known or WarehouseFacts()).entries]


def test_a_task_is_described_in_plain_words():
    assert texts("t-1", LIFE) == [
        "submitted by c-1 for thumbs.make, priority 5",
        "attempt 1 on node-2 ended: lost (code 502) after 1.5 s, waited 3 s",
        "finished after 2.1 s, attempt 2 on node-3, waited 250 ms",
    ]


def test_each_event_is_shown_once_wherever_it_was_found():
    story = explanation_of("t-1", 0, 10**12, [*LIFE[1:], LIFE[2]], WarehouseFacts(events=tuple(LIFE[:2])))
    assert [one.id for one in story.entries] == ["b-1:7:1", "b-1:7:5", "b-1:7:9"]
    assert story.sort == "task"
    assert story.summary == "finished; 3 events within 8 s"
    assert story.others == ("c-1", "node-2", "node-3")


def test_the_same_number_of_another_boot_is_another_event():
    other = {**LIFE[0], "boot": 8, "at": 2 * SECOND}
    assert len(explanation_of("t-1", 0, 10**12, [LIFE[0], other], WarehouseFacts()).entries) == 2


def test_what_happened_late_in_the_journal_stands_where_it_happened():
    lost = event(20, "client.lost", at=30, identity="node-2") | {"at": 4 * SECOND}
    joined = event(19, "client.joined", at=10, identity="node-2", data='{"role": "backend"}')
    assert texts("node-2", [joined, lost]) == [
        "last seen; b-1 declared it lost 26 s later",
        "joined b-1 as backend",
    ]


def test_what_goes_on_as_always_is_one_line():
    seen = [event(n, "client.seen", identity="node-2", code=60, seconds=n / 10) for n in range(1, 8)]
    done = [event(n, "task.completed", ref=f"t-{n}", identity="node-2", state="finished") for n in range(8, 10)]
    bad = event(10, "task.completed", ref="t-10", service="m", identity="node-2", state="failed", code=500, attempt=1)
    assert texts("node-2", [*seen, *done, bad, event(11, "client.seen", identity="node-2", seconds=1.0)]) == [
        "2 tasks finished; alive, longest heartbeat gap 700 ms",
        "failed t-10 (m) (code 500), attempt 1 on node-2",
        "alive, longest heartbeat gap 1 s",
    ]


def test_a_check_that_says_the_same_again_is_shown_when_it_changes():
    answers = [
        event(n, "check.answered", identity="web-1", service="disk", state=state, seconds=0.5, data='{"message": "m"}')
        for n, state in enumerate(["ok", "ok", "critical", "critical", "critical", "ok"], 1)
    ]
    assert texts("web-1/disk", answers) == [
        "answered ok 2 times, at most in 500 ms",
        "answered critical in 500 ms: m",
        "answered critical 2 times, at most in 500 ms",
        "answered ok once, at most in 500 ms",
    ]


@pytest.mark.parametrize(
    ("columns", "mine"),
    [
        ({"kind": "check.answered", "identity": "web-1", "service": "disk"}, True),
        ({"kind": "check.answered", "identity": "web-1", "service": "load"}, False),
        ({"kind": "check.answered", "identity": "web-2", "service": "disk"}, False),
        ({"kind": "downtime.started", "identity": "web-1", "service": None}, True),
        ({"kind": "downtime.started", "identity": "web-1", "service": "load"}, False),
        ({"kind": "client.lost", "identity": "web-1"}, True),
        ({"kind": "client.seen", "identity": "web-1"}, False),
    ],
)
def test_a_check_is_concerned_by_its_own_events_and_those_of_its_agent(columns, mine):
    assert is_about(event(1, columns["kind"]) | columns, "web-1/disk") is mine


@pytest.mark.parametrize("data", [None, "", "no json", "[1]", "{", "NaN", "[" * 5_000])
@pytest.mark.parametrize("kind", ["client.joined", "check.answered", "check.state_changed", "turbine.spun", "odd"])
def test_whatever_an_event_says_it_can_be_described(kind, data):
    assert sentence_of(event(1, kind, data=data), "client")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ('{"previous": "ok", "hard": true, "message": "gone"}', "became critical (hard), was ok: gone"),
        ('{"previous": "", "hard": true}', "became critical (hard), first result"),
    ],
)
def test_a_change_says_from_what_unless_there_was_nothing_before(data, sentence):
    change = event(3, "check.state_changed", identity="web-1", service="port", state="critical", data=data)
    assert sentence_of(change, "check") == sentence


def test_what_came_before_is_not_shown_but_what_lasted_until_then_is():
    old = ExplainEntry(1 * SECOND, 20 * SECOND, "timeline", "down")
    gone = ExplainEntry(1 * SECOND, 5 * SECOND, "timeline", "was down")
    story = explanation_of(
        "node-2", 10 * SECOND, 10**12, [event(3, "client.joined", identity="node-2")], WarehouseFacts((), (old, gone))
    )
    assert [one.text for one in story.entries] == ["down"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The network of the reports; and in its last day a task that was tried twice."""
    folder = tmp_path_factory.mktemp("explain")
    start = made.HORIZON_US - 60 * SECOND
    kept = [name for name in COLUMN_NAMES if name not in ("source", "boot")]
    life = []
    for number, one in enumerate(LIFE, 1):
        us = start + one["seq"] * SECOND
        life.append({**{name: one[name] for name in kept}, "time": us, "at": us, "seq": number})
    put(folder / "segments", life, source="broker-1", day="2026-05-20")
    rows = made.data_sets()
    row = {
        "ref": "t-1",
        "submitted": to_time(start),
        "ended": to_time(start + 9 * SECOND),
        "outcome": "finished",
    }
    rows["tasks"] = [(start // HOUR_US, {**row, "attempts": 2, "wait_seconds": 3.0, "wasted_seconds": 1.5})]
    session = {"identity": "node-1", "id": "x", "joined": to_time(start - HOUR_US), "left": to_time(start)}
    rows["sessions"] = [(start // HOUR_US, {**session, "reason": "broker_lost", "broker": "broker-1"})]
    made.write(folder / "warehouse", rows, made.results(folder / "segments"))
    return folder / "warehouse"


def known(root, what: str, **question: Any) -> WarehouseFacts:
    return with_reader(root, ReportQuery(**question), lambda reader: warehouse_facts(reader, what))


def test_the_warehouse_tells_events_and_what_they_come_to(root):
    found = known(root, "t-1")
    assert [one["kind"] for one in found.events] == ["task.submitted", "task.attempt_ended", "task.completed"]
    assert [one.text for one in found.computed] == ["total: finished, 2 attempts, waited 3 s, wasted 1.5 s"]
    assert found.horizon_us == made.HORIZON_US
    story = explanation_of("t-1", 0, 10**18, found.events, found)
    assert [one.kind for one in story.entries][-2:] == ["task.completed", "tasks"]
    assert len(story.entries) == 4


def test_the_warehouse_tells_when_it_was_down_and_when_nobody_looked(root):
    found = known(root, "web-1/load")
    assert [(one.kind, one.at_us) for one in found.computed if one.kind == "incidents"] == [
        ("incidents", start) for start, _ in made.DOWN["check", "web-1/load"]
    ]
    down = [one.text for one in found.computed if one.kind == "timeline"]
    assert down[0] == "the check was down for 2 min (down it was), by broker-1:7:1778551200"
    unobserved = known(root, "node-1")
    assert "the client was unobserved for 1 d 6 h (unobserved it was)" in unobserved.computed[0].text
    assert unobserved.computed[-1].text == "its session at broker-1 ended when broker-1 stopped, after 1 h"
    assert any("broker-1 has 1 hole on 2026-05-" in one for one in unobserved.unseen)


def test_a_period_is_kept(root):
    assert not known(root, "web-1/load", last_us=DAY_US).computed
