"""Reports: counted once, acknowledged after the commit, dated as accurately as possible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.kernel.effects import Effects
from scale0.kernel.json_text import LONG_EXPONENT, MAX_BODY_EXPONENTS
from scale0.monitoring.helen.core.agents import MAX_ALL_NAMES_CHARS, MAX_LABELS
from scale0.monitoring.helen.core.reports import MAX_AGE_SECONDS
from scale0.monitoring.helen.core.schedule_push import MAX_PUSHES
from scale0.monitoring.protocol.messages import Ack, Error, Report, Schedule
from scale0.monitoring.protocol.results import AGENT_REPORT, MAX_METRICS
from scale0.storage.check_rows import PutAgent, PutSpool
from tests.fakes.simulated_helen import WALL, SimulatedHelen, report

PLAN = {"name": "load", "check": "load", "args": {}, "interval": 60, "timeout": 10}


def test_a_report_reaches_watch_and_is_acknowledged(helen: SimulatedHelen, connection: bytes):
    received = helen.receive(connection, report(1, "load", seconds=0.5))
    assert received == [Ack(1)]
    ((agent, answered),) = helen.evaluation.results
    assert (agent, answered.check, answered.ref, answered.scheduled) == ("web-1", "load", "s1:1", True)
    assert (answered.finding.state, answered.at) == ("ok", WALL)
    assert any(isinstance(write, PutSpool) for write in helen.writes)


# Promise: AGENT-6
def test_nothing_is_acknowledged_before_it_is_on_disk(helen: SimulatedHelen, connection: bytes):
    helen.holds_commits = True
    assert helen.receive(connection, report(1), report(2)) == []
    helen.commit_all()
    assert helen.sent(connection) == [Ack(2)]


def test_one_acknowledgement_speaks_for_all_reports_of_a_turn(helen: SimulatedHelen, connection: bytes):
    assert helen.receive(connection, *(report(number) for number in range(1, 500))) == [Ack(499)]
    assert len(helen.evaluation.results) == 499
    puts = [write for write in helen.writes if isinstance(write, PutSpool)]
    assert len(puts) == 1


# Promise: AGENT-6
def test_a_repeated_report_is_acknowledged_and_not_counted(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(1, n=1), report(2, n=2))
    helen.disconnect_agent(connection, orderly=False)
    again = helen.agent()
    assert helen.receive(again, report(1, n=1), report(2, n=2), report(3, n=3)) == [Ack(3)]
    assert [answered.ref for _, answered in helen.evaluation.results] == ["s1:1", "s1:2", "s1:3"]
    assert helen.machine.view()["counts"]["reports_repeated"] == 2


# Promise: AGENT-6
def test_a_repeated_report_is_known_after_a_restart(helen: SimulatedHelen):
    helen.receive(helen.agent(), report(1, n=5))
    again = SimulatedHelen(spools=helen.spool_rows())
    assert again.receive(again.agent(), report(1, n=5), report(2, n=6)) == [Ack(2)]
    assert [answered.ref for _, answered in again.evaluation.results] == ["s1:6"]


def test_the_same_spool_and_number_of_two_agents_are_two_reports(helen: SimulatedHelen):
    helen.receive(helen.agent("a"), report(1))
    helen.receive(helen.agent("b"), report(1))
    assert len(helen.evaluation.results) == 2


def test_a_report_that_names_no_spool_counts_each_time(helen: SimulatedHelen, connection: bytes):
    helen.receive(
        connection, Report(1, "load", b'{"state":"ok"}'), Report(2, "load", b'{"state":"ok","spool":"a b","n":1}')
    )
    assert [answered.ref for _, answered in helen.evaluation.results] == ["", ""]


# Promise: CHECK-5
@pytest.mark.parametrize(
    "body", [b"", b"fine", b"{}", b'{"state":"good"}', b"[" * 50_000, b'{"state":"ok","metrics":7}']
)
def test_what_is_no_result_is_unknown_and_goes_on(helen: SimulatedHelen, body: bytes):
    assert helen.receive(helen.agent(), Report(1, "load", body)) == [Ack(1)]
    assert helen.evaluation.results[0][1].finding.state == "unknown"


# Promise: CHECK-5
def test_a_report_with_many_slow_numbers_is_unknown_and_not_decoded(helen: SimulatedHelen, connection: bytes):
    number = b'{"name":"m","value":1e5,"warn":2.5e-7,"crit":3e10,"min":4e5,"max":5e5}'
    full = b'{"state":"ok","metrics":[%b]}' % b",".join([number] * MAX_METRICS)
    ages = b",".join([b'"age":3e-310'] * (MAX_BODY_EXPONENTS // LONG_EXPONENT + 1))
    slow = b'{"state":"ok","age":1e999,%b}' % ages  # decoding it would fail at 1e999
    assert helen.receive(connection, Report(1, "load", full), Report(2, "load", slow)) == [Ack(2)]
    first, second = (answered.finding for _, answered in helen.evaluation.results)
    assert (first.state, len(first.metrics)) == ("ok", MAX_METRICS)
    assert (second.state, second.message) == ("unknown", "invalid result: more than 5000 numbers with an exponent")


# Promise: AGENT-9
@pytest.mark.parametrize(
    ("fields", "ago"),
    [
        ({"age": 100}, 100),
        ({"age": 100, "sent": 5, "started": 1, "seconds": 1}, 100),
        ({"sent": 5_000, "started": 4_000, "seconds": 10}, 990),
        ({"sent": 5_000, "started": 4_000}, 0),
        ({"started": WALL - 50, "seconds": 1}, 0),
        ({"age": -1}, 0),
        ({"sent": 4_000, "started": 5_000, "seconds": 1}, 0),
        ({"age": MAX_AGE_SECONDS + 1}, 0),
        ({"age": 1e308}, 0),
        ({"sent": 1e308, "started": -1e308, "seconds": -1e308}, 0),
        ({"sent": -1e308, "started": 1e308, "seconds": 1e308}, 0),
    ],
)
def test_a_report_happened_when_it_can_be_known_and_never_later_than_now(helen, fields: dict[str, Any], ago: float):
    helen.receive(helen.agent(), report(1, **fields))
    assert helen.evaluation.results[0][1].at == WALL - ago


def test_reports_count_upwards(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(5))
    assert helen.receive(connection, report(7, n=7)) == [Ack(7)]
    received = helen.receive(connection, report(8, n=8), report(8, n=9))
    assert [type(message) for message in received] == [Error]
    assert connection in helen.closed


# Promise: AGENT-11
def test_labels_select_the_schedule_and_are_kept(helen: SimulatedHelen):
    helen.evaluation.plans["db"] = [PLAN]
    connection = helen.agent()
    about = report(1, "equus.agent", labels={"role": "db"}, checks=["load", "disk", "load"])
    schedule, ack = helen.receive(connection, about)
    assert isinstance(schedule, Schedule)
    assert msgspec.json.decode(schedule.body)["checks"] == [PLAN]
    assert ack == Ack(1)
    assert helen.evaluation.results == []  # it is no result of a check
    assert helen.events[-1].kind == "client.changed"
    assert helen.events[-1].services == ("disk", "load")
    assert any(isinstance(write, PutAgent) for write in helen.writes)
    helen.receive(connection, report(2, "load"))
    assert helen.evaluation.labels == [{"role": "db"}]


def test_an_old_report_of_an_agent_about_itself_does_not_count_again(helen: SimulatedHelen, connection: bytes):
    helen.receive(connection, report(1, "equus.agent", labels={"role": "new"}, checks=[], age=0))
    helen.receive(connection, report(2, "equus.agent", spool="old", labels={"role": "old"}, checks=[], age=500))
    assert helen.machine.state.agents.by_identity["web-1"].labels == {"role": "new"}


def test_labels_are_bounded(helen: SimulatedHelen):
    labels = {f"l{number}": "x" for number in range(500)} | {"long": "x" * 1_000, "": "blank"}
    checks = [f"c{number}" for number in range(5_000)] + ["a b", "x" * 300, ""]
    helen.receive(helen.agent(), report(1, "equus.agent", labels=labels, checks=checks))
    agent = helen.machine.state.agents.by_identity["web-1"]
    assert len(agent.labels) == MAX_LABELS
    assert len(agent.checks) == 1_000
    assert "a b" not in agent.checks


# Promise: AGENT-11
def test_a_new_configuration_reaches_all_agents_over_several_turns(helen: SimulatedHelen):
    many = MAX_PUSHES + 50
    connections = [helen.agent(f"a{number}") for number in range(many)]
    helen.evaluation.plans[""] = [PLAN]
    helen.configure()
    assert helen.machine.deadline() == 0.0
    helen.end(Effects())
    pushed = [connection for connection in connections if helen.sent(connection)]
    assert len(pushed) == MAX_PUSHES
    helen.end(Effects())
    assert sum(bool(helen.sent(connection)) for connection in connections) == 50
    helen.configure()
    helen.pass_time(1)
    assert not any(helen.sent(connection) for connection in connections)  # an equal one is not sent again


# Promise: AGENT-11
def test_a_configuration_that_cannot_be_read_changes_nothing(helen: SimulatedHelen):
    for body in (b"", b"{", b'{"chekcs": []}', b"[" * 100_000):
        helen.configure(body)
        assert helen.machine.config_error
    assert helen.evaluation.parts == []
    assert helen.machine.view()["counts"]["configs_refused"] == 4
    helen.configure()
    assert helen.machine.config_error == ""


# Promise: AGENT-6
def test_our_own_mistake_acknowledges_nothing_and_costs_one_report_only(helen: SimulatedHelen):
    helen.evaluation.fails_at = "bad"
    connection, other = helen.agent(), helen.agent("db-1")
    with pytest.raises(RuntimeError):
        helen.receive(connection, report(1, "load"), report(2, "bad"), report(3, "disk"))
    assert [type(message) for message in helen.sent(connection)] == [Error]
    assert connection in helen.closed
    assert helen.receive(other, report(1)) == [Ack(1)]
    again = helen.agent()
    assert helen.receive(again, report(1, "load"), report(2, "bad"), report(3, "disk")) == [Ack(3)]
    assert [answered.check for agent, answered in helen.evaluation.results if agent == "web-1"] == ["load", "disk"]


def test_names_of_checks_do_not_make_an_agents_events_long(helen: SimulatedHelen, connection: bytes):
    names = [f"{number:04}" + "n" * 250 for number in range(1_000)]
    helen.receive(connection, report(1, name=AGENT_REPORT, labels={}, checks=names))
    (changed,) = [event for event in helen.events if event.kind == "client.changed"]
    assert changed.services == tuple(names[: MAX_ALL_NAMES_CHARS // 254])


# Promise: AGENT-14
def test_an_agent_that_speaks_of_itself_without_end_has_its_checks_chosen_twice_in_a_turn(
    helen, connection, monkeypatch
):
    asked = 0
    plain = helen.evaluation.schedule_for

    def counted(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        return plain(*given)

    monkeypatch.setattr(helen.evaluation, "schedule_for", counted)
    roles = ["web", "db"] * 50
    about = [report(n, name=AGENT_REPORT, labels={"role": role}) for n, role in enumerate(roles, 1)]
    assert helen.receive(connection, *about)[-1] == Ack(100)
    assert asked == 2
    agent = helen.machine.state.agents.get("web-1")
    assert agent is not None
    assert agent.labels == {"role": "db"}
    assert b'"role":"db"' in helen.agent_rows()[0].body
