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
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal, StoreError
from scale0.kernel.limits import Limits
from scale0.monitoring.helen.core.check_rules import MAX_MATCHES_PER_TURN
from scale0.monitoring.helen.core.evaluation import SLICE, Evaluation, StoredChecks
from scale0.monitoring.helen.core.incidents import RECENT, SWEEP_LIMIT
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS
from scale0.storage.check_rows import CheckStateRow, DropCheckState, PutCheckState, ReadCheckStates, ReadIncidents
from tests.unit.monitoring.evaluation_world import START, World
from tests.unit.monitoring.test_check_state import Oracle

DISK = CheckDefinition(name="disk", interval=60.0, timeout=10.0, max_attempts=2)


def changes(world: World) -> list[tuple[Any, ...]]:
    return [
        (event["state"], event["data"]["hard"], event["attempt"], event["data"]["previous"])
        for event in world.kinds("check.state_changed")
    ]


def test_a_result_is_recorded_with_what_the_pipeline_needs():
    world = World(checks=(DISK,))
    world.result("ok", age=3.0, metrics=(EventMetric("used", 5.0, "%"),))
    (event,) = world.kinds("check.answered")
    assert (event["identity"], event["service"], event["ref"], event["state"]) == ("web-1", "disk", "s:1", "ok")
    assert (event["at"], event["time"]) == ((START - 3.0) * 1e6, START * 1e6)
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
def test_a_result_without_a_definition_or_asked_by_hand_touches_no_state(what):
    world = World(checks=(DISK,))
    world.result("critical", **what)
    (event,) = world.kinds("check.answered")
    assert event["data"] == {"message": "m", "scheduled": False}
    assert world.evaluation.checks({})["items"] == []


def test_soft_then_hard_then_up_again():
    world = World(checks=(DISK,))
    for state in ("ok", "ok", "critical", "warning", "warning", "ok"):
        world.result(state)
        world.wait(60.0)
    assert changes(world) == [
        ("ok", True, 0, ""),
        ("critical", False, 1, "ok"),
        ("warning", True, 0, "critical"),
        ("ok", True, 0, "warning"),
    ]
    # A warning is up: no incident.
    assert world.kinds("incident.opened") == []


# Promise: CHECK-10
def test_an_incident_lasts_from_the_first_down_result_to_the_first_up_one():
    world = World(checks=(DISK,))
    for state in ("ok", "unknown", "unknown", "critical", "unknown", "warning", "ok"):
        world.result(state)
        world.wait(60.0)
    (opened,) = world.kinds("incident.opened")
    (closed,) = world.kinds("incident.closed")
    assert (opened["state"], opened["at"]) == ("unknown", (START + 120) * 1e6)
    assert (closed["state"], closed["seconds"], closed["ref"]) == ("critical", 180.0, opened["ref"])
    assert closed["data"] == {"reason": "up", "flapping": False}
    (row,) = world.store.read(ReadIncidents(False, None, "", 9))  # type: ignore[misc]
    assert row.closed_us == (START + 300) * 1e6  # type: ignore[union-attr]


# Promise: CHECK-9
def test_a_result_that_is_older_than_the_last_is_recorded_and_moves_nothing():
    world = World(checks=(DISK,))
    world.result("ok")
    world.result("critical", age=30.0)
    assert len(world.kinds("check.answered")) == 2
    assert world.check()["state"] == "ok"
    assert len(changes(world)) == 1


# Promise: CHECK-9
def test_a_wall_clock_that_went_back_stops_nothing():
    world = World(checks=(DISK,))
    world.result("critical")
    world.result("critical")
    world.wait(60.0, wall=-3600.0)
    world.result("ok", age=0.5)
    assert world.check()["state"] == "ok"
    (closed,) = world.kinds("incident.closed")
    assert closed["seconds"] == 0.0


@pytest.mark.parametrize("seconds", [-1.0, 1e300, float("nan"), float("inf")])
def test_times_that_cannot_be_are_not_recorded(seconds):
    world = World(checks=(DISK,))
    world.result("ok", seconds=seconds, age=-1e300)
    (event,) = world.kinds("check.answered")
    assert event["seconds"] is None
    assert event["at"] == START * 1e6


def test_thresholds_of_the_definition_count_in_the_event_and_in_the_state():
    limits = {"used": {"crit": 90}}
    world = World(checks=(msgspec.structs.replace(DISK, thresholds=limits, max_attempts=1),))
    world.result("ok", metrics=(EventMetric("used", 95.0),))
    (event,) = world.kinds("check.answered")
    assert (event["state"], event["metrics"][0]["crit"]) == ("critical", 90.0)
    assert world.check()["state"] == "critical"


# Promise: CHECK-10
def test_rows_are_written_once_in_a_turn():
    world = World(checks=(DISK,))
    effects = Effects()
    for state in ("ok", "critical", "critical", "critical"):
        world.take(effects, state)
    world.evaluation.settle(effects)
    written = [(one.agent, one.check) for one in effects.writes if isinstance(one, PutCheckState)]
    assert written == [("web-1", "disk"), ("web-1", "")]
    again = Effects()
    world.evaluation.settle(again)
    assert again.writes == []


# Promise: CHECK-10
def test_everything_is_as_before_after_a_restart():
    world = World(checks=(DISK, CheckDefinition(name="load")))
    for number in range(10):
        world.result("ok", agent=f"web-{number}")
        world.result("critical", agent=f"web-{number}", check="load")
    for _ in range(2):
        world.result("critical")
    before = world.evaluation.checks({}), world.evaluation.incidents({}), world.evaluation.schedule_for("web-1", {})
    events = len(world.events)
    world.restart()
    assert (
        world.evaluation.checks({}),
        world.evaluation.incidents({}),
        world.evaluation.schedule_for("web-1", {}),
    ) == before
    assert len(world.events) == events
    assert world.evaluation.configured
    world.result("ok")
    assert len(world.kinds("incident.closed")) == 1


def test_a_new_helen_is_not_configured_and_drops_nothing():
    world = World()
    assert not world.evaluation.configured
    world.result("ok")
    assert json.loads(world.evaluation.schedule_for("web-1", {}))["checks"] == []
    world.wait(100.0)
    world.configure(checks=(DISK,))
    assert world.evaluation.configured


def test_a_check_that_is_no_longer_defined_is_forgotten_and_its_incident_closed():
    world = World(checks=(DISK, CheckDefinition(name="load")))
    world.result("ok", check="load")
    for _ in range(2):
        world.result("critical")
    world.configure(checks=(CheckDefinition(name="load"),))
    (closed,) = world.kinds("incident.closed")
    assert closed["data"]["reason"] == "removed"
    assert [(event["identity"], event["service"]) for event in world.kinds("check.removed")] == [
        (closed["identity"], closed["service"])
    ]
    assert [item["check"] for item in world.evaluation.checks({})["items"]] == ["load"]
    kept = world.store.read(ReadCheckStates("", "", 99))
    assert [(row.agent, row.check) for row in kept] == [  # type: ignore[union-attr]
        ("", "book"),
        ("web-1", ""),
        ("web-1", "load"),
    ]


def test_other_labels_are_another_schedule():
    world = World(checks=(msgspec.structs.replace(DISK, labels={"role": "web"}),))
    assert b"disk" not in world.evaluation.schedule_for("web-1", {})
    assert b"disk" in world.evaluation.schedule_for("web-1", {"role": "web"})
    world.labels["web-1"] = {"role": "web"}
    world.result("ok")
    assert b"disk" not in world.evaluation.schedule_for("web-1", {"role": "db"})
    world.wait(1.0)
    assert world.evaluation.checks({})["items"] == []


def test_an_agent_that_is_forgotten_leaves_nothing():
    world = World(checks=(DISK,), downtimes=(Downtime(name="d", starts=START - 9, ends=START + 99),))
    for _ in range(2):
        world.result("critical")
    effects = Effects()
    world.evaluation.forget("web-1", world.now, effects)
    world.evaluation.forget("web-2", world.now, effects)
    world.finish(effects)
    assert [event["data"]["reason"] for event in world.kinds("incident.closed")] == ["removed"]
    assert len(world.kinds("downtime.ended")) == 1
    kept = world.store.read(ReadCheckStates("", "", 99))
    assert [(row.agent, row.check) for row in kept] == [("", "book")]  # type: ignore[union-attr]


# Promise: CHECK-11
def test_a_downtime_is_recorded_at_its_times_for_every_agent_that_it_reaches():
    plan = Downtime(name="move", agents=("web-*",), starts=START + 100, ends=START + 200, reason="rack", author="ann")
    world = World(checks=(DISK,), downtimes=(plan,))
    for agent in ("web-1", "web-2", "db-1"):
        world.result("ok", agent=agent)
    world.wait(99.0)
    assert world.kinds("downtime.started") == []
    world.wait(201.0)
    started, ended = world.kinds("downtime.started"), world.kinds("downtime.ended")
    assert [(event["identity"], event["service"], event["ref"]) for event in started] == [
        ("web-1", None, "move"),
        ("web-2", None, "move"),
    ]
    assert {event["at"] for event in started} == {(START + 100) * 1e6}
    assert {event["at"] for event in ended} == {(START + 200) * 1e6}
    assert started[0]["data"] == {"ends": START + 200, "reason": "rack", "author": "ann"}


def test_a_downtime_of_some_checks_is_recorded_check_by_check_and_once_over_restarts():
    plan = Downtime(name="move", checks=("d*",), starts=START - 100, ends=START + 100)
    world = World(checks=(DISK, CheckDefinition(name="load")), downtimes=(plan,))
    world.result("ok")
    world.restart()
    world.wait(1.0)
    (started,) = world.kinds("downtime.started")
    assert (started["service"], started["at"]) == ("disk", START * 1e6)
    longer = msgspec.structs.replace(plan, ends=START + 500)
    world.configure(checks=(DISK,), downtimes=(longer,))
    assert [event["data"]["ends"] for event in world.kinds("downtime.started")] == [START + 100, START + 500]
    world.configure(checks=(DISK,))
    ended = world.kinds("downtime.ended")
    assert [event["at"] for event in ended] == [(START + 1) * 1e6] * 2


def test_a_clock_that_jumps_over_a_downtime_ends_it_too():
    plan = Downtime(name="move", starts=START - 1, ends=START + 1000)
    world = World(checks=(DISK,), downtimes=(plan,))
    world.result("ok")
    world.wait(60.0, wall=5000.0)
    assert len(world.kinds("downtime.ended")) == 1
    world.wait(60.0, wall=-4500.0)
    assert len(world.kinds("downtime.started")) == 2


def test_a_flapping_check_says_so_in_its_event_and_its_incident():
    world = World(checks=(msgspec.structs.replace(DISK, max_attempts=1, flapping=Flapping()),))
    for _ in range(12):
        for state in ("ok", "critical"):
            world.result(state)
            world.wait(60.0)
    first = next(event for event in world.kinds("check.state_changed") if event["data"]["flapping"])
    assert first["data"]["flapping_percent"] > 30
    assert world.check()["flapping"]
    assert world.evaluation.incidents({"open": True})["items"][0]["flapping"]


def test_views_are_pages_with_filters():
    world = World(checks=(DISK, CheckDefinition(name="load", max_attempts=1)))
    for number in range(5):
        world.result("ok", agent=f"web-{number}")
        world.result("critical" if number % 2 else "ok", agent=f"web-{number}", check="load")
    seen: list[tuple[str, str]] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = world.evaluation.checks(query)
        seen += [(item["agent"], item["check"]) for item in page["items"]]
        if not page["next"]:
            break
        query["after"] = page["next"]
    assert seen == [(f"web-{number}", check) for number in range(5) for check in ("disk", "load")]
    assert len(world.evaluation.checks({"agent": "web-[01]", "check": "l*"})["items"]) == 2
    assert len(world.evaluation.checks({"state": "problem"})["items"]) == 2
    newest = world.evaluation.incidents({"limit": 1})
    assert [item["agent"] for item in newest["items"]] == ["web-3"]
    rest = world.evaluation.incidents({"after": newest["next"]})
    assert ([item["agent"] for item in rest["items"]], rest["next"]) == (["web-1"], None)
    json.dumps([newest, world.evaluation.checks({})], allow_nan=False)


def all_incidents(world: World, **query: Any) -> list[str]:
    """Page after page, as a caller reads them."""
    found: list[str] = []
    while True:
        page: dict[str, Any] = {}
        effects = Effects()
        world.evaluation.find_incidents(query, lambda found, now, out, page=page: page.update(found), effects)  # type: ignore[misc]
        world.finish(effects)
        found += [item["id"] for item in page["items"]]
        if page["next"] is None:
            return found
        query["after"] = page["next"]


def test_incidents_that_are_long_over_come_from_the_store():
    world = World(checks=(msgspec.structs.replace(DISK, max_attempts=1, flapping=Flapping(formula="off")),))
    for number in range(RECENT + 150):
        world.result("critical", agent=f"web-{number % 7}")
        world.wait(1.0)
        if number < RECENT + 143:
            world.result("ok", agent=f"web-{number % 7}")
            world.wait(1.0)
    assert len(world.evaluation.incidents({"limit": 1_000})["items"]) == 1_000
    found = all_incidents(world, limit=99)
    assert len(found) == len(set(found)) == RECENT + 150
    times = [int(id_.rpartition("@")[2]) for id_ in found]
    assert times == sorted(times, reverse=True)
    assert len(all_incidents(world, agent="web-3", limit=10)) == len([id_ for id_ in found if id_.startswith("web-3/")])
    assert all_incidents(world, agent="nobody") == []
    assert len(all_incidents(world, open=True, limit=3)) == 7
    world.restart()
    assert all_incidents(world, limit=1_000) == found


def test_incidents_are_forgotten_90_days_after_their_end_some_at_a_time():
    world = World(checks=(msgspec.structs.replace(DISK, max_attempts=1, flapping=Flapping(formula="off")),))
    for number in range(SWEEP_LIMIT + 10):
        world.result("critical", agent=f"db-{number}")
        world.result("ok", agent=f"db-{number}")
    world.result("critical")
    world.wait(1.0, wall=90 * 86_400.0)
    world.wait(301.0)
    left: Any = world.store.read(ReadIncidents(False, None, "", 10_000))
    assert len(left) == 11
    world.wait(301.0)
    left = world.store.read(ReadIncidents(False, None, "", 10_000))
    assert [row.agent for row in left] == ["web-1"]
    assert left[0].closed_us is None


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 10_000}, {"agnt": "x"}, {"agent": 1}, {"agent": "x" * 500}])
def test_a_query_that_is_wrong_is_refused(query):
    world = World(checks=(DISK,))
    with pytest.raises(Refusal):
        world.evaluation.checks(query)
    with pytest.raises(Refusal):
        world.evaluation.incidents({"after": "x@٣"})


def test_a_damaged_row_stops_the_start_and_says_which():
    with pytest.raises(StoreError, match="web-1/disk"):
        Evaluation(StoredChecks((CheckStateRow("web-1", "disk", b"\xff"),)))


# Promise: CHECK-8, CHECK-10
@given(st.lists(st.tuples(st.sampled_from(["ok", "warning", "critical", "unknown"]), st.booleans()), max_size=40))
def test_events_are_what_the_whole_list_of_results_says(results):
    """Whatever comes, with restarts between: changes and incidents are those of an oracle that keeps everything."""
    world = World(checks=(DISK,))
    rule = world.evaluation._rules.definitions["disk"].flap_rule
    oracle = Oracle(rule)
    for state, restart in results:
        oracle.results.append((state, 2))
        world.result(state)
        world.wait(60.0)
        if restart:
            world.restart()
    hard = [is_hard for is_hard, _ in oracle.hardness(len(results))]
    rows = [
        (state, is_hard, flaps) for (state, _), is_hard, flaps in zip(results, hard, oracle.flapping(), strict=True)
    ]
    wanted = [row for index, row in enumerate(rows) if index == 0 or rows[index - 1] != row]
    told = [
        (event["state"], event["data"]["hard"], event["data"]["flapping"])
        for event in world.kinds("check.state_changed")
    ]
    assert told == wanted
    down = [is_hard and state in ("critical", "unknown") for state, is_hard, _ in rows]
    opened = [index for index, is_down in enumerate(down) if is_down and not (index and down[index - 1])]
    closed = [index for index in range(1, len(down)) if down[index - 1] and not down[index]]
    assert [event["at"] for event in world.kinds("incident.opened")] == [(START + 60 * index) * 1e6 for index in opened]
    assert [event["at"] for event in world.kinds("incident.closed")] == [(START + 60 * index) * 1e6 for index in closed]


def test_where_there_are_thousands_of_definitions_fewer_agents_are_looked_at_in_a_turn():
    world = World(checks=(DISK,))
    assert world.evaluation.slice == SLICE
    many = tuple(CheckDefinition(name=f"c{number}", agents=("nobody",)) for number in range(1_000))
    for number in range(200):
        world.result("ok", agent=f"web-{number}")
    effects = Effects()
    world.evaluation.configure(ClientConfig(checks=many), world.now, effects)
    assert world.evaluation.slice == MAX_MATCHES_PER_TURN // 1_000
    world.evaluation.tick(world.now, effects)
    assert sum(isinstance(write, DropCheckState) for write in effects.writes) == world.evaluation.slice


# Promise: AGENT-14
def test_pages_of_long_messages_stay_short_enough_for_a_message_of_the_network():
    world = World(checks=(msgspec.structs.replace(DISK, max_attempts=1),))
    for number in range(600):
        world.result("critical", agent=f"web-{number:03}", message="\x01" * MAX_MESSAGE_CHARS)
    found: list[str] = []
    after = ""
    while True:
        page = world.evaluation.checks({"limit": 1_000, "after": after})
        assert len(msgspec.json.encode(page)) < Limits().max_message_bytes
        found += [item["agent"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [f"web-{number:03}" for number in range(600)]
    for query in ({"limit": 1_000}, {"limit": 1_000, "open": True}):
        assert len(msgspec.json.encode(world.evaluation.incidents(query))) < Limits().max_message_bytes
        assert len(all_incidents(world, **query)) == 600
