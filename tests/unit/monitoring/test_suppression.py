"""Each suppression is named; no check suppresses itself."""

from __future__ import annotations

from typing import Any

from hypothesis import given as given_by
from hypothesis import strategies as st

from scale0.config import CheckDefinition, Downtime, Flapping, Silence
from scale0.monitoring.helen.core.check_rules import CheckRules
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.suppression import causes, covered

DOWN = CheckState(state="critical", hard=True)
WARNING = CheckState(state="warning", hard=True)
SOFT = CheckState(state="critical", hard=False, attempt=1)


def found(
    given: CheckDefinition,
    others: dict[tuple[str, str], CheckState] | None = None,
    state: CheckState = DOWN,
    wall: float = 15.0,
    **rest: Any,
) -> tuple[str, ...]:
    rules = CheckRules([given], **rest)
    known = others or {}
    return causes(
        rules, "web-1", {"site": "a"}, rules.definitions[given.name], state, lambda *key: known.get(key), wall
    )


# Promise: CHECK-11
def test_a_dependency_excuses_while_it_is_down_and_only_then():
    disk = CheckDefinition(name="disk", depends_on=("ping", "router/ping"))
    assert found(disk, {("web-1", "ping"): DOWN}) == ("depends_on ping",)
    assert found(disk, {("router", "ping"): DOWN}) == ("depends_on router/ping",)
    assert found(disk, {("web-1", "ping"): WARNING, ("router", "ping"): SOFT}) == ()
    assert found(disk, {("web-2", "ping"): DOWN}) == ()


def test_a_check_does_not_excuse_itself():
    assert found(CheckDefinition(name="ping", depends_on=("web-1/ping",)), {("web-1", "ping"): DOWN}) == ()


# Promise: CHECK-11
def test_downtimes_and_silences_count_from_their_start_until_their_end():
    disk = CheckDefinition(name="disk")
    night = Downtime(name="night", starts=10.0, ends=20.0)
    quiet = Silence(name="quiet", ends=20.0)
    at = {wall: found(disk, wall=wall, downtimes=[night], silences=[quiet]) for wall in (9.0, 10.0, 19.0, 20.0)}
    assert at == {
        9.0: ("silence quiet",),
        10.0: ("downtime night", "silence quiet"),
        19.0: ("downtime night", "silence quiet"),
        20.0: (),
    }
    assert found(disk, wall=1e9, silences=[Silence(name="ever")]) == ("silence ever",)


def test_they_reach_by_agent_check_and_label():
    disk = CheckDefinition(name="disk")
    silences = [
        Silence(name="a", agents=("db-*",)),
        Silence(name="b", checks=("load",)),
        Silence(name="c", labels={"site": "b"}),
        Silence(name="d", agents=("web-?",), checks=("d*",), labels={"site": "a"}),
    ]
    assert found(disk, silences=silences) == ("silence d",)


def test_flapping_suppresses_if_it_was_asked_for():
    flapping = CheckState(state="critical", hard=True, flapping=True)
    assert found(CheckDefinition(name="disk"), state=flapping) == ()
    asked = CheckDefinition(name="disk", flapping=Flapping(suppress=True))
    assert found(asked, state=flapping) == ("flapping",)
    assert found(asked) == ()


def test_a_downtime_covers_an_agent_or_single_checks_of_it():
    whole = Downtime(name="whole", starts=0.0, ends=9.0)
    some = Downtime(name="some", starts=0.0, ends=9.0, checks=("d*",))
    rules = CheckRules(downtimes=[whole, some, Downtime(name="later", starts=5.0, ends=9.0)])
    assert covered(rules, "web-1", {}, ["disk", "dns", "load"], 1.0) == {
        ("whole", ""): whole,
        ("some", "disk"): some,
        ("some", "dns"): some,
    }


@given_by(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 5)), max_size=5),
    st.lists(st.integers(0, 20), max_size=3),
    st.lists(st.integers(0, 50).map(lambda half: half / 2), min_size=1, max_size=20),
)
def test_what_is_at_work_is_known_at_any_time_whichever_way_the_clock_goes(spans, ends, walls):
    downtimes = [
        Downtime(name=f"d{number}", starts=float(starts), ends=float(starts + length))
        for number, (starts, length) in enumerate(spans)
    ]
    silences = [Silence(name=f"s{number}", ends=float(end)) for number, end in enumerate(ends)]
    rules = CheckRules((), (), downtimes, silences)
    for wall in walls:
        found = rules.active_at(wall)
        assert [one for one, _ in found.downtimes] == [one for one in downtimes if one.starts <= wall < one.ends]
        assert [one for one, _ in found.silences] == [one for one in silences if not one.ends or wall < one.ends]


def test_what_is_long_over_costs_nothing():
    downtimes = [Downtime(name=f"d{number}", starts=1.0, ends=2.0 + number) for number in range(100)]
    rules = CheckRules((), (), downtimes)
    assert rules.active_at(1_000.0).downtimes == ()
    assert rules.active_at(2_000.0) is rules.active_at(1_000_000.0)
