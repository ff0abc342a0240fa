"""Evaluation: results become events, states and incidents, and survive a restart."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.config import CheckDefinition, ClientConfig, Downtime, Flapping
from scale0.history.events.columns import EventMetric
from scale0.kernel.confirmed_clock import CONFIRM_SECONDS
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal, StoreError
from scale0.kernel.limits import Limits
from scale0.monitoring.helen.core.check_rules import MAX_MATCHES_PER_TURN
from scale0.monitoring.helen.core.evaluation import SLICE, Evaluation, StoredChecks
from scale0.monitoring.helen.core.incidents import RECENT, SWEEP_LIMIT
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS
from scale0.storage.check_rows import CheckStateRow, DropCheckState, PutCheckState, ReadCheckStates, ReadIncidents
from tests.fakes.simulated_helen import WALL, SimulatedHelen, configured_helen
from tests.unit.monitoring.test_check_state import Oracle

DISK = CheckDefinition(name="disk", interval=60.0, timeout=10.0, max_attempts=2)


@pytest.fixture
def helen() -> SimulatedHelen:
    return configured_helen(checks=(DISK,))


def changes(helen: SimulatedHelen) -> list[tuple[Any, ...]]:
    return [
        (event["state"], event["data"]["hard"], event["attempt"], event["data"]["previous"])
        for event in helen.recorded("check.state_changed")
    ]


def test_a_result_is_recorded_with_what_the_pipeline_needs(helen: SimulatedHelen):
    helen.result("ok", age=3.0, metrics=(EventMetric("used", 5.0, "%"),))
    (event,) = helen.recorded("check.answered")
    assert (event["identity"], event["service"], event["ref"], event["state"]) == ("web-1", "disk", "s:1", "ok")
    assert (event["at"], event["time"]) == ((WALL - 3.0) * 1e6, WALL * 1e6)
    assert event["metrics"][0]["value"] == 5.0
    assert event["data"] == {
        "message": "m",
        "scheduled": True,
        "interval": 60.0,
        "timeout": 10.0,
        "max_attempts": 2,
    }


# Promise: CHECK-9
@pytest.mark.parametrize("what", [{"check": "nobody"}, {"scheduled": False}])
def test_a_result_without_a_definition_or_asked_by_hand_touches_no_state(helen: SimulatedHelen, what):
    helen.result("critical", **what)
    (event,) = helen.recorded("check.answered")
    assert event["data"] == {"message": "m", "scheduled": False}
    assert helen.evaluation.checks({})["items"] == []


def test_soft_then_hard_then_up_again(helen: SimulatedHelen):
    for state in ("ok", "ok", "critical", "warning", "warning", "ok"):
        helen.result(state)
        helen.pass_time(60.0)
    assert changes(helen) == [
        ("ok", True, 0, ""),
        ("critical", False, 1, "ok"),
        ("warning", True, 0, "critical"),
        ("ok", True, 0, "warning"),
    ]
    # A warning is up: no incident.
    assert helen.recorded("incident.opened") == []


# Promise: CHECK-10
def test_an_incident_lasts_from_the_first_down_result_to_the_first_up_one(helen: SimulatedHelen):
    for state in ("ok", "unknown", "unknown", "critical", "unknown", "warning", "ok"):
        helen.result(state)
        helen.pass_time(60.0)
    (opened,) = helen.recorded("incident.opened")
    (closed,) = helen.recorded("incident.closed")
    assert (opened["state"], opened["at"]) == ("unknown", (WALL + 120) * 1e6)
    assert (closed["state"], closed["seconds"], closed["ref"]) == ("critical", 180.0, opened["ref"])
    assert closed["data"] == {"reason": "up", "flapping": False}
    (row,) = helen.store.read(ReadIncidents(False, None, "", 9))  # type: ignore[misc]
    assert row.closed_us == (WALL + 300) * 1e6  # type: ignore[union-attr]


# Promise: CHECK-9
def test_a_result_that_is_older_than_the_last_is_recorded_and_moves_nothing(helen: SimulatedHelen):
    helen.result("ok")
    helen.result("critical", age=30.0)
    assert len(helen.recorded("check.answered")) == 2
    assert helen.check()["state"] == "ok"
    assert len(changes(helen)) == 1


# Promise: CHECK-9
def test_a_wall_clock_that_went_back_stops_nothing(helen: SimulatedHelen):
    helen.result("critical")
    helen.result("critical")
    helen.pass_time(60.0, wall=-3600.0)
    helen.result("ok", age=0.5)
    assert helen.check()["state"] == "ok"
    (closed,) = helen.recorded("incident.closed")
    assert closed["seconds"] == 0.0


@pytest.mark.parametrize("seconds", [-1.0, 1e300, float("nan"), float("inf")])
def test_times_that_cannot_be_are_not_recorded(helen: SimulatedHelen, seconds):
    helen.result("ok", seconds=seconds, age=-1e300)
    (event,) = helen.recorded("check.answered")
    assert event["seconds"] is None
    assert event["at"] == WALL * 1e6


def test_thresholds_of_the_definition_count_in_the_event_and_in_the_state():
    limits = {"used": {"crit": 90}}
    helen = configured_helen(checks=(msgspec.structs.replace(DISK, thresholds=limits, max_attempts=1),))
    helen.result("ok", metrics=(EventMetric("used", 95.0),))
    (event,) = helen.recorded("check.answered")
    assert (event["state"], event["metrics"][0]["crit"]) == ("critical", 90.0)
    assert helen.check()["state"] == "critical"


# Promise: CHECK-10
def test_rows_are_written_once_in_a_turn(helen: SimulatedHelen):
    effects = Effects()
    for state in ("ok", "critical", "critical", "critical"):
        helen.add_result(effects, state)
    helen.evaluation.settle(effects)
    written = [(one.agent, one.check) for one in effects.writes if isinstance(one, PutCheckState)]
    assert written == [("web-1", "disk"), ("web-1", "")]
    again = Effects()
    helen.evaluation.settle(again)
    assert again.writes == []


# Promise: CHECK-10
def test_everything_is_as_before_after_a_restart():
    helen = configured_helen(checks=(DISK, CheckDefinition(name="load")))
    for number in range(10):
        helen.result("ok", agent=f"web-{number}")
        helen.result("critical", agent=f"web-{number}", check="load")
    for _ in range(2):
        helen.result("critical")
    before = helen.evaluation.checks({}), helen.evaluation.incidents({}), helen.evaluation.schedule_for("web-1", {})
    events = len(helen.recorded())
    helen.restart()
    assert (
        helen.evaluation.checks({}),
        helen.evaluation.incidents({}),
        helen.evaluation.schedule_for("web-1", {}),
    ) == before
    assert len(helen.recorded()) == events
    assert helen.evaluation.configured
    helen.result("ok")
    assert len(helen.recorded("incident.closed")) == 1


def test_a_new_helen_is_not_configured_and_drops_nothing():
    helen = SimulatedHelen(evaluates=True)
    assert not helen.evaluation.configured
    helen.result("ok")
    assert json.loads(helen.evaluation.schedule_for("web-1", {}))["checks"] == []
    helen.pass_time(100.0)
    helen.define(checks=(DISK,))
    assert helen.evaluation.configured


def test_a_check_that_is_no_longer_defined_is_forgotten_and_its_incident_closed():
    helen = configured_helen(checks=(DISK, CheckDefinition(name="load")))
    helen.result("ok", check="load")
    for _ in range(2):
        helen.result("critical")
    helen.define(checks=(CheckDefinition(name="load"),))
    (closed,) = helen.recorded("incident.closed")
    assert closed["data"]["reason"] == "removed"
    assert [(event["identity"], event["service"]) for event in helen.recorded("check.removed")] == [
        (closed["identity"], closed["service"])
    ]
    assert [item["check"] for item in helen.evaluation.checks({})["items"]] == ["load"]
    kept = helen.store.read(ReadCheckStates("", "", 99))
    assert [(row.agent, row.check) for row in kept] == [  # type: ignore[union-attr]
        ("", "book"),
        ("web-1", ""),
        ("web-1", "load"),
    ]


def test_other_labels_are_another_schedule():
    helen = configured_helen(checks=(msgspec.structs.replace(DISK, labels={"role": "web"}),))
    assert b"disk" not in helen.evaluation.schedule_for("web-1", {})
    assert b"disk" in helen.evaluation.schedule_for("web-1", {"role": "web"})
    helen.labels["web-1"] = {"role": "web"}
    helen.result("ok")
    assert b"disk" not in helen.evaluation.schedule_for("web-1", {"role": "db"})
    helen.pass_time(1.0)
    assert helen.evaluation.checks({})["items"] == []


def test_an_agent_that_is_forgotten_leaves_nothing():
    helen = configured_helen(checks=(DISK,), downtimes=(Downtime(name="d", starts=WALL - 9, ends=WALL + 99),))
    for _ in range(2):
        helen.result("critical")
    effects = Effects()
    helen.evaluation.forget("web-1", helen.now, effects)
    helen.evaluation.forget("web-2", helen.now, effects)
    helen.end(effects)
    assert [event["data"]["reason"] for event in helen.recorded("incident.closed")] == ["removed"]
    assert len(helen.recorded("downtime.ended")) == 1
    kept = helen.store.read(ReadCheckStates("", "", 99))
    assert [(row.agent, row.check) for row in kept] == [("", "book")]  # type: ignore[union-attr]


# Promise: CHECK-11
def test_a_downtime_is_recorded_at_its_times_for_every_agent_that_it_reaches():
    plan = Downtime(name="move", agents=("web-*",), starts=WALL + 100, ends=WALL + 200, reason="rack", author="ann")
    helen = configured_helen(checks=(DISK,), downtimes=(plan,))
    for agent in ("web-1", "web-2", "db-1"):
        helen.result("ok", agent=agent)
    helen.pass_time(99.0)
    assert helen.recorded("downtime.started") == []
    helen.pass_time(201.0)
    started, ended = helen.recorded("downtime.started"), helen.recorded("downtime.ended")
    assert [(event["identity"], event["service"], event["ref"]) for event in started] == [
        ("web-1", None, "move"),
        ("web-2", None, "move"),
    ]
    assert {event["at"] for event in started} == {(WALL + 100) * 1e6}
    assert {event["at"] for event in ended} == {(WALL + 200) * 1e6}
    assert started[0]["data"] == {"ends": WALL + 200, "reason": "rack", "author": "ann"}


def test_a_downtime_of_some_checks_is_recorded_check_by_check_and_once_over_restarts():
    plan = Downtime(name="move", checks=("d*",), starts=WALL - 100, ends=WALL + 100)
    helen = configured_helen(checks=(DISK, CheckDefinition(name="load")), downtimes=(plan,))
    helen.result("ok")
    helen.restart()
    helen.pass_time(1.0)
    (started,) = helen.recorded("downtime.started")
    assert (started["service"], started["at"]) == ("disk", WALL * 1e6)
    longer = msgspec.structs.replace(plan, ends=WALL + 500)
    helen.define(checks=(DISK,), downtimes=(longer,))
    assert [event["data"]["ends"] for event in helen.recorded("downtime.started")] == [WALL + 100, WALL + 500]
    helen.define(checks=(DISK,))
    ended = helen.recorded("downtime.ended")
    assert [event["at"] for event in ended] == [(WALL + 1) * 1e6] * 2


def test_a_clock_that_jumps_over_a_downtime_ends_it_too():
    plan = Downtime(name="move", starts=WALL - 1, ends=WALL + 1000)
    helen = configured_helen(checks=(DISK,), downtimes=(plan,))
    helen.result("ok")
    helen.pass_time(60.0, wall=5000.0)
    assert len(helen.recorded("downtime.ended")) == 1
    helen.pass_time(60.0, wall=-4500.0)
    assert len(helen.recorded("downtime.started")) == 2


def test_a_flapping_check_says_so_in_its_event_and_its_incident():
    helen = configured_helen(checks=(msgspec.structs.replace(DISK, max_attempts=1, flapping=Flapping()),))
    for _ in range(12):
        for state in ("ok", "critical"):
            helen.result(state)
            helen.pass_time(60.0)
    first = next(event for event in helen.recorded("check.state_changed") if event["data"]["flapping"])
    assert first["data"]["flapping_percent"] > 30
    assert helen.check()["flapping"]
    assert helen.evaluation.incidents({"open": True})["items"][0]["flapping"]


def test_views_are_pages_with_filters():
    helen = configured_helen(checks=(DISK, CheckDefinition(name="load", max_attempts=1)))
    for number in range(5):
        helen.result("ok", agent=f"web-{number}")
        helen.result("critical" if number % 2 else "ok", agent=f"web-{number}", check="load")
    seen: list[tuple[str, str]] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = helen.evaluation.checks(query)
        seen += [(item["agent"], item["check"]) for item in page["items"]]
        if not page["next"]:
            break
        query["after"] = page["next"]
    assert seen == [(f"web-{number}", check) for number in range(5) for check in ("disk", "load")]
    assert len(helen.evaluation.checks({"agent": "web-[01]", "check": "l*"})["items"]) == 2
    assert len(helen.evaluation.checks({"state": "problem"})["items"]) == 2
    newest = helen.evaluation.incidents({"limit": 1})
    assert [item["agent"] for item in newest["items"]] == ["web-3"]
    rest = helen.evaluation.incidents({"after": newest["next"]})
    assert ([item["agent"] for item in rest["items"]], rest["next"]) == (["web-1"], None)
    json.dumps([newest, helen.evaluation.checks({})], allow_nan=False)


def all_incidents(helen: SimulatedHelen, **query: Any) -> list[str]:
    """Page after page, as a caller reads them."""
    found: list[str] = []
    while True:
        page: dict[str, Any] = {}
        effects = Effects()
        helen.evaluation.find_incidents(query, lambda found, now, out, page=page: page.update(found), effects)
        helen.end(effects)
        found += [item["id"] for item in page["items"]]
        if page["next"] is None:
            return found
        query["after"] = page["next"]


def test_incidents_that_are_long_over_come_from_the_store():
    helen = configured_helen(checks=(msgspec.structs.replace(DISK, max_attempts=1, flapping=Flapping(formula="off")),))
    for number in range(RECENT + 150):
        helen.result("critical", agent=f"web-{number % 7}")
        helen.pass_time(1.0)
        if number < RECENT + 143:
            helen.result("ok", agent=f"web-{number % 7}")
            helen.pass_time(1.0)
    assert len(helen.evaluation.incidents({"limit": 1_000})["items"]) == 1_000
    found = all_incidents(helen, limit=99)
    assert len(found) == len(set(found)) == RECENT + 150
    times = [int(id_.rpartition("@")[2]) for id_ in found]
    assert times == sorted(times, reverse=True)
    assert len(all_incidents(helen, agent="web-3", limit=10)) == len([id_ for id_ in found if id_.startswith("web-3/")])
    assert all_incidents(helen, agent="nobody") == []
    assert len(all_incidents(helen, open=True, limit=3)) == 7
    helen.restart()
    assert all_incidents(helen, limit=1_000) == found


# Promise: TIME-1
def test_incidents_are_forgotten_90_days_after_their_end_some_at_a_time():
    helen = configured_helen(checks=(msgspec.structs.replace(DISK, max_attempts=1, flapping=Flapping(formula="off")),))
    for number in range(SWEEP_LIMIT + 10):
        helen.result("critical", agent=f"db-{number}")
        helen.result("ok", agent=f"db-{number}")
    helen.result("critical")
    helen.pass_time(1.0, wall=90 * 86_400.0)
    helen.pass_time(301.0)
    left: Any = helen.store.read(ReadIncidents(False, None, "", 10_000))
    assert len(left) == SWEEP_LIMIT + 11, "the clock jumped"
    helen.pass_time(CONFIRM_SECONDS)
    left = helen.store.read(ReadIncidents(False, None, "", 10_000))
    assert len(left) == 11
    helen.pass_time(301.0)
    left = helen.store.read(ReadIncidents(False, None, "", 10_000))
    assert [row.agent for row in left] == ["web-1"]
    assert left[0].closed_us is None


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 10_000}, {"agnt": "x"}, {"agent": 1}, {"agent": "x" * 500}])
def test_a_query_that_is_wrong_is_refused(helen: SimulatedHelen, query):
    with pytest.raises(Refusal):
        helen.evaluation.checks(query)
    with pytest.raises(Refusal):
        helen.evaluation.incidents({"after": "x@٣"})


def test_a_damaged_row_stops_the_start_and_says_which():
    with pytest.raises(StoreError, match="web-1/disk"):
        Evaluation(StoredChecks((CheckStateRow("web-1", "disk", b"\xff"),)))


# Promise: CHECK-8, CHECK-10
@given(st.lists(st.tuples(st.sampled_from(["ok", "warning", "critical", "unknown"]), st.booleans()), max_size=40))
def test_events_are_what_the_whole_list_of_results_says(results):
    """Whatever comes, with restarts between: changes and incidents are those of an oracle that keeps everything."""
    helen = configured_helen(checks=(DISK,))
    rule = helen.evaluation._rules.definitions["disk"].flap_rule
    oracle = Oracle(rule)
    for state, restart in results:
        oracle.results.append((state, 2))
        helen.result(state)
        helen.pass_time(60.0)
        if restart:
            helen.restart()
    hard = [is_hard for is_hard, _ in oracle.hardness(len(results))]
    rows = [
        (state, is_hard, flaps) for (state, _), is_hard, flaps in zip(results, hard, oracle.flapping(), strict=True)
    ]
    wanted = [row for index, row in enumerate(rows) if index == 0 or rows[index - 1] != row]
    recorded = [
        (event["state"], event["data"]["hard"], event["data"]["flapping"])
        for event in helen.recorded("check.state_changed")
    ]
    assert recorded == wanted
    down = [is_hard and state in ("critical", "unknown") for state, is_hard, _ in rows]
    opened = [index for index, is_down in enumerate(down) if is_down and not (index and down[index - 1])]
    closed = [index for index in range(1, len(down)) if down[index - 1] and not down[index]]
    assert [event["at"] for event in helen.recorded("incident.opened")] == [
        (WALL + 60 * index) * 1e6 for index in opened
    ]
    assert [event["at"] for event in helen.recorded("incident.closed")] == [
        (WALL + 60 * index) * 1e6 for index in closed
    ]


def test_where_there_are_thousands_of_definitions_fewer_agents_are_looked_at_in_a_turn(helen: SimulatedHelen):
    assert helen.evaluation.slice == SLICE
    many = tuple(CheckDefinition(name=f"c{number}", agents=("nobody",)) for number in range(1_000))
    for number in range(200):
        helen.result("ok", agent=f"web-{number}")
    effects = Effects()
    helen.evaluation.configure(ClientConfig(checks=many), helen.now, effects)
    assert helen.evaluation.slice == MAX_MATCHES_PER_TURN // 1_000
    helen.evaluation.tick(helen.now, effects)
    assert sum(isinstance(write, DropCheckState) for write in effects.writes) == helen.evaluation.slice


# Promise: AGENT-14
def test_pages_of_long_messages_stay_short_enough_for_a_message_of_the_network():
    helen = configured_helen(checks=(msgspec.structs.replace(DISK, max_attempts=1),))
    for number in range(600):
        helen.result("critical", agent=f"web-{number:03}", message="\x01" * MAX_MESSAGE_CHARS)
    found: list[str] = []
    after = ""
    while True:
        page = helen.evaluation.checks({"limit": 1_000, "after": after})
        assert len(msgspec.json.encode(page)) < Limits().max_message_bytes
        found += [item["agent"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [f"web-{number:03}" for number in range(600)]
    for query in ({"limit": 1_000}, {"limit": 1_000, "open": True}):
        assert len(msgspec.json.encode(helen.evaluation.incidents(query))) < Limits().max_message_bytes
        assert len(all_incidents(helen, **query)) == 600
