"""Helen's services: each request is answered exactly once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits
from scale0.monitoring.helen.core.agent_connection import MAX_PENDING_BYTES, MAX_PENDING_CHECKS
from scale0.monitoring.helen.core.migration import WINDOW
from scale0.monitoring.helen.core.pending_requests import MAX_OPEN, ForwardRequest
from scale0.monitoring.helen.core.services import service_names
from scale0.monitoring.protocol.messages import Check, Error, Reload, Result
from scale0.monitoring.protocol.results import AGENT_REPORT
from tests.fakes.simulated_helen import SimulatedHelen, report

PLAN = {"name": "root-disk", "check": "disk", "args": {"path": "/"}, "interval": 60, "timeout": 10}
GOOD = msgspec.json.encode({"state": "warning", "message": "full soon", "metrics": [{"name": "used", "value": 91}]})


def body_of(answer: list[bytes]) -> Any:
    assert answer[0] == b"reply", answer
    return msgspec.json.decode(answer[1])


# Promise: AGENT-5
def test_a_check_is_asked_for_and_its_result_answered_after_the_commit(helen: SimulatedHelen, connection: bytes):
    assert helen.request("helen.check", {"agent": "web-1", "check": "load", "args": {"warn": 5}}) == []
    (check,) = helen.sent(connection)
    assert check == Check("load", 2, b'{"warn":5}')  # 1 was the schedule
    helen.holds_commits = True
    helen.receive(connection, Result(2, "load", GOOD))
    assert helen.replies() == []
    helen.commit_all()
    (answer,) = helen.replies()
    assert body_of(answer)["state"] == "warning"
    ((agent, answered),) = helen.evaluation.results
    assert (agent, answered.check, answered.ref, answered.scheduled) == ("web-1", "load", "r1", False)
    helen.pass_time(60)
    assert helen.replies() == []


# Promise: AGENT-4
def test_results_come_in_any_order(helen: SimulatedHelen, connection: bytes):
    for number in range(10):
        helen.request("helen.check", {"agent": "web-1", "check": f"c{number}"}, name=b"r%d" % number)
    asked = helen.sent(connection)
    for check in reversed(asked):
        helen.receive(connection, Result(check.message_id, check.name, GOOD))
    for number in range(10):
        assert len(helen.replies(b"r%d" % number)) == 1
    assert [answered.ref for _, answered in helen.evaluation.results] == [
        f"r{number}" for number in reversed(range(10))
    ]


# Promise: AGENT-5
def test_an_agent_that_is_not_connected_is_404(helen: SimulatedHelen):
    assert helen.refuses("helen.check", {"agent": "web-1", "check": "load"}) == 404


# Promise: AGENT-4, AGENT-5
def test_no_result_in_time_is_504_and_a_late_one_is_recorded_and_dropped(helen: SimulatedHelen, connection: bytes):
    helen.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 5})
    (check,) = helen.sent(connection)
    helen.pass_time(4.9)
    assert helen.replies() == []
    helen.pass_time(0.2)
    assert helen.error_code() == 504
    assert helen.receive(connection, Result(check.message_id, "load", GOOD)) == []
    assert helen.events[-1].kind == "agent.late"
    assert helen.evaluation.results == []
    assert helen.replies() == []
    received = helen.receive(connection, Result(check.message_id, "load", GOOD))
    assert [type(message) for message in received] == [Error]  # late once, wrong twice


def test_a_request_ends_with_the_time_that_it_has(helen: SimulatedHelen):
    helen.agent()
    helen.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 50}, timeout=2.5)
    helen.pass_time(2.6)
    assert helen.error_code() == 504


# Promise: AGENT-5
def test_a_connection_that_ends_answers_its_pending_requests(helen: SimulatedHelen, connection: bytes):
    helen.request("helen.check", {"agent": "web-1", "check": "load"})
    helen.disconnect_agent(connection, orderly=False)
    assert helen.error_code() == 502
    helen.pass_time(60)
    assert helen.replies() == []


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"{}", b'{"agent":"web-1"}', b'{"agent":1,"check":"load"}', b"[" * 100_000),
        *(b'{"agent":"web-1","check":"a b"}', b'{"agent":"web-1","check":""}', b'{"agent":"web-1","check":"a\\nb"}'),
        *(b'{"agent":"web-1","check":"load","timeout":0}', b'{"agent":"web-1","check":"load","timeout":1e9}'),
        *(b'{"agent":"web-1","check":"load","args":[]}', b'{"agent":"web-1","check":"load","args":7}'),
        *(b'{"agent":"web-1","check":"load","timeout":NaN}', b'\xff{"agent":"web-1","check":"load"}'),
        b'{"agent":"web-1","check":"load","args":{"a":' + b'"' + b"x" * 1_048_576 + b'"}}',
    ],
)
def test_a_wrong_body_is_400_and_reaches_no_agent(helen: SimulatedHelen, connection: bytes, body: bytes):
    assert helen.refuses("helen.check", body) == 400
    assert helen.sent(connection) == []
    assert helen.machine.view()["counts"]["requests_refused"] == 1


def test_an_unknown_service_is_404(helen: SimulatedHelen):
    for service in ("helen.nothing", "other", "helen.helen-2.check", ""):
        assert helen.refuses(service) == 404


def test_checks_that_wait_are_bounded(helen: SimulatedHelen):
    helen.agent("a")
    for number in range(MAX_PENDING_CHECKS + 1):
        helen.request("helen.check", {"agent": "a", "check": "load"}, name=b"a%d" % number)
    assert helen.replies(b"a%d" % MAX_PENDING_CHECKS) == []  # it was received by `request` already
    assert helen.machine.view()["open_checks"] == MAX_PENDING_CHECKS
    for name in ("b", "c", "d", "e", "f", "g", "h", "i", "j", "k"):
        helen.agent(name)
        for number in range(MAX_PENDING_CHECKS):
            helen.request("helen.check", {"agent": name, "check": "load"}, name=b"%b%d" % (name.encode(), number))
    assert helen.machine.view()["open_checks"] == MAX_OPEN
    assert helen.refuses("helen.check", {"agent": "k", "check": "load"}) == 429


def test_a_recheck_runs_the_definition_and_counts_as_scheduled(helen: SimulatedHelen):
    helen.evaluation.plans[""] = [PLAN]
    connection = helen.agent()
    params = msgspec.json.encode({"agent": "web-1", "check": "root-disk"})
    for name, given in ((b"t1", params), (b"t2", b"[" + params + b"]")):
        helen.task(name, "helen.recheck", given)
        (check,) = helen.sent(connection)
        assert (check.name, check.args) == ("disk", b'{"path":"/"}')
        helen.receive(connection, Result(check.message_id, "disk", GOOD))
        assert body_of(helen.replies(name)[0])["state"] == "warning"
    _, answered = helen.evaluation.results[-1]
    assert (answered.check, answered.ref, answered.scheduled) == ("root-disk", "task-9", True)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("helen.recheck", b'{"agent":"web-1","check":"unknown"}', b"404"),
        ("helen.recheck", b'{"agent":"nobody","check":"root-disk"}', b"404"),
        ("helen.recheck", b"[]", b"400"),
        ("helen.recheck", b"7", b"400"),
        ("helen.else", b"{}", b"404"),
    ],
)
def test_a_wrong_task_is_answered_so(helen: SimulatedHelen, method: str, params: bytes, code: bytes):
    helen.evaluation.plans[""] = [PLAN]
    helen.agent()
    helen.task(b"t", method, params)
    assert helen.replies(b"t")[0][:2] == [b"error", code]


def forwards(helen: SimulatedHelen) -> list[ForwardRequest]:
    out = [ask for ask in helen.asks if isinstance(ask, ForwardRequest) and not ask.service.endswith(".status")]
    helen.asks.clear()
    return out


# Promise: AGENT-5
def test_a_check_for_an_agent_elsewhere_goes_to_the_other_helens(helen: SimulatedHelen):
    helen.learn_replicas("helen-2", "helen-3")
    assert helen.request("helen.check", {"agent": "far-1", "check": "load", "args": {"a": [1]}, "timeout": 7}) == []
    two, three = forwards(helen)
    assert (two.service, three.service) == ("helen.helen-2.check", "helen.helen-3.check")
    assert two.timeout == pytest.approx(7)
    assert msgspec.json.decode(two.body)["args"] == {"a": [1]}
    helen.answer(two, Refusal(404, "agent far-1 is not connected"))
    assert helen.replies() == []
    helen.answer(three, GOOD)
    assert helen.replies() == [[b"reply", GOOD]]
    helen.answer(three, GOOD)
    assert helen.replies() == []


def test_a_check_for_an_agent_that_nobody_has_is_404(helen: SimulatedHelen):
    helen.learn_replicas("helen-2", "helen-3")
    helen.request("helen.check", {"agent": "far-1", "check": "load"})
    for ask in forwards(helen):
        helen.answer(ask, Refusal(404, "agent far-1 is not connected"))
    assert helen.error_code() == 404


def test_the_helen_who_has_the_agent_is_believed_before_those_who_have_not(helen: SimulatedHelen):
    helen.learn_replicas("helen-2", "helen-3")
    helen.request("helen.check", {"agent": "far-1", "check": "load"})
    two, three = forwards(helen)
    helen.answer(two, Refusal(504, "no result in time"))
    helen.answer(three, Refusal(404, "agent far-1 is not connected"))
    assert helen.error_code() == 504


def test_a_wrong_request_is_answered_by_the_first_refusal(helen: SimulatedHelen):
    helen.learn_replicas("helen-2", "helen-3")
    helen.request("helen.check", {"agent": "far-1", "check": "load"})
    two, three = forwards(helen)
    helen.answer(two, Refusal(429, "too many"))
    assert helen.error_code() == 429
    helen.answer(three, Refusal(404, "agent far-1 is not connected"))
    assert helen.replies() == []


def test_helens_who_do_not_answer_are_waited_for_until_the_request_times_out(helen: SimulatedHelen):
    helen.learn_replicas("helen-2")
    helen.request("helen.check", {"agent": "far-1", "check": "load", "timeout": 3})
    helen.pass_time(3.1)
    assert helen.error_code() == 504
    helen.answer(forwards(helen)[0], GOOD)
    assert helen.replies() == []


def test_what_came_by_our_own_name_is_never_passed_on(helen: SimulatedHelen):
    helen.learn_replicas("helen-2")
    for service in ("check", "reload"):
        assert helen.refuses(f"helen.helen-1.{service}", {"agent": "far-1", "check": "load"}) == 404
    assert forwards(helen) == []


def test_a_recheck_elsewhere_is_asked_for_as_a_recheck(helen: SimulatedHelen):
    helen.learn_replicas("helen-2")
    params = b'{"agent":"far-1","check":"root-disk"}'
    helen.task(b"t", "helen.recheck", params)
    (ask,) = forwards(helen)
    there = SimulatedHelen()
    there.evaluation.plans[""] = [PLAN]
    connection = there.agent("far-1")
    there.request("helen.helen-1.check", ask.body)
    (check,) = there.sent(connection)
    assert check.name == "disk"
    there.receive(connection, Result(check.message_id, "disk", GOOD))
    assert there.evaluation.results[0][1].scheduled


def test_reload_reaches_its_agent_here_or_elsewhere(helen: SimulatedHelen):
    connection = helen.agent(version=1)
    assert helen.call("helen.reload", {"agent": "web-1"}) == {"reloaded": "web-1"}
    assert helen.sent(connection) == [Reload()]
    assert helen.refuses("helen.reload", {"agent": "far-1"}) == 404
    helen.learn_replicas("helen-2")
    assert helen.request("helen.reload", {"agent": "far-1"}) == []
    (ask,) = forwards(helen)
    assert ask.service == "helen.helen-2.reload"
    helen.answer(ask, b'{"reloaded":"far-1"}')
    assert body_of(helen.replies()[0]) == {"reloaded": "far-1"}


def test_agents_are_listed_page_by_page(helen: SimulatedHelen):
    for number in range(25):
        helen.agent(f"a{number:02}", version=1 + number % 2)
    seen: list[str] = []
    after = ""
    while True:
        page = helen.call("helen.agents", {"limit": 10, "after": after})
        seen += [item["agent"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == [f"a{number:02}" for number in range(25)]
    item = page["items"][-1]
    assert item["protocol"] == 1
    assert item["since"] == helen.wall
    assert item["address"] == "10.0.0.1"
    assert helen.refuses("helen.agents", {"limit": 0}) == 400
    assert helen.refuses("helen.agents", {"limit": 1_000_000}) == 400


def test_an_agent_that_is_gone_for_good_can_be_forgotten():
    helen = SimulatedHelen(token="secret")
    gone = {"agent": "web-1", "token": "secret"}
    for stranger in ({}, {"token": ""}, {"token": "other"}):
        assert helen.refuses("helen.forget", {"agent": "web-1", **stranger}) == 401
    connection = helen.agent()
    helen.receive(connection, report(1))
    assert helen.refuses("helen.forget", gone) == 409
    helen.disconnect_agent(connection)
    assert helen.call("helen.forget", gone) == {"forgotten": "web-1"}
    assert helen.evaluation.forgotten == ["web-1"]
    assert helen.agent_rows() == []
    assert helen.spool_rows() == []
    assert helen.refuses("helen.forget", gone) == 404


def test_views_of_watch_pass_through(helen: SimulatedHelen):
    for service in ("checks", "incidents"):
        assert helen.call(f"helen.helen-1.{service}")["items"] == []


def test_status_has_identity_address_and_counts():
    helen = SimulatedHelen(advertise="10.1.1.1:4166")
    helen.agent()
    status = helen.call("helen.status")
    assert (status["identity"], status["advertise"], status["agents"]) == ("helen-1", "10.1.1.1:4166", 1)
    assert status["counts"]["agents_accepted"] == 1


def test_services_are_offered_for_all_and_by_name():
    names = service_names("helen-1")
    assert "helen.check" in names
    assert "helen.helen-1.incidents" in names


# Promise: AGENT-14
def test_a_page_of_talkative_agents_stays_short_enough_for_a_message_of_the_network(helen: SimulatedHelen):
    labels = {f"{number:03}" + "\x01" * 250: "\x01" * 255 for number in range(64)}
    for number in range(60):
        helen.receive(helen.agent(f"web-{number:02}"), report(1, name=AGENT_REPORT, labels=labels, checks=["load"]))
    found: list[str] = []
    after = ""
    while True:
        (answer,) = helen.request("helen.agents", {"limit": 1_000, "after": after})
        assert len(answer[1]) < Limits().max_message_bytes
        page = body_of(answer)
        found += [item["agent"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [f"web-{number:02}" for number in range(60)]


# Promise: AGENT-14
def test_long_args_are_refused_and_not_queued_for_the_agent(helen: SimulatedHelen, connection: bytes):
    body = {"agent": "web-1", "check": "load", "args": {"x": "y" * 900_000}}
    refused = [answer for number in range(10) for answer in helen.request("helen.check", body, name=b"r%d" % number)]
    sent = [message for message in helen.sent(connection) if isinstance(message, Check)]
    assert len(sent) == MAX_PENDING_BYTES // 900_000
    assert [answer[:2] for answer in refused] == [[b"error", b"429"]] * (10 - len(sent))
    for message in sent:
        helen.receive(connection, Result(message.message_id, "load", GOOD))
    assert helen.request("helen.check", body, name=b"again") == []


# Promise: AGENT-14
def test_a_client_that_names_all_agents_again_and_again_costs_no_memory(helen: SimulatedHelen):
    names = [f"web-{number}" for number in range(200)]
    for name in names:
        helen.agent(name)
    helen.learn_replicas("helen-2")
    for _ in range(20):
        helen.request("helen.helen-1.has", {"agents": names, "from": "helen-2"})
    assert len([ask for ask in helen.asks if ask.service == "helen.helen-2.release"]) == WINDOW
    asked: list[str] = []
    while releases := [ask for ask in helen.asks if ask.service == "helen.helen-2.release"]:
        assert len(releases) <= WINDOW
        helen.asks.clear()
        for ask in releases:
            asked.append(msgspec.json.decode(ask.body)["agent"])
            helen.answer(ask, Refusal(404, "nobody"))
    assert sorted(asked) == sorted(names)
    helen.request("helen.helen-1.has", {"agents": names, "from": "helen-3"})
    assert helen.asks == []
