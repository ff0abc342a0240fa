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
from tests.unit.monitoring.helen_world import HelenWorld, report

PLAN = {"name": "root-disk", "check": "disk", "args": {"path": "/"}, "interval": 60, "timeout": 10}
GOOD = msgspec.json.encode({"state": "warning", "message": "full soon", "metrics": [{"name": "used", "value": 91}]})


def body_of(answer: list[bytes]) -> Any:
    assert answer[0] == b"reply", answer
    return msgspec.json.decode(answer[1])


# Promise: AGENT-5
def test_a_check_is_asked_for_and_its_result_answered_after_the_commit():
    world = HelenWorld()
    connection = world.agent()
    assert world.request("helen.check", {"agent": "web-1", "check": "load", "args": {"warn": 5}}) == []
    (check,) = world.hear(connection)
    assert check == Check("load", 2, b'{"warn":5}')  # 1 was the schedule
    world.holds_commits = True
    world.say(connection, Result(2, "load", GOOD))
    assert world.answers() == []
    world.commit()
    (answer,) = world.answers()
    assert body_of(answer)["state"] == "warning"
    ((agent, answered),) = world.evaluation.taken
    assert (agent, answered.check, answered.ref, answered.scheduled) == ("web-1", "load", "r1", False)
    world.pass_time(60)
    assert world.answers() == []


# Promise: AGENT-4
def test_results_come_in_any_order():
    world = HelenWorld()
    connection = world.agent()
    for number in range(10):
        world.request("helen.check", {"agent": "web-1", "check": f"c{number}"}, name=b"r%d" % number)
    asked = world.hear(connection)
    for check in reversed(asked):
        world.say(connection, Result(check.message_id, check.name, GOOD))
    for number in range(10):
        assert len(world.answers(b"r%d" % number)) == 1
    assert [answered.ref for _, answered in world.evaluation.taken] == [f"r{number}" for number in reversed(range(10))]


# Promise: AGENT-5
def test_an_agent_that_is_not_connected_is_404():
    world = HelenWorld()
    (answer,) = world.request("helen.check", {"agent": "web-1", "check": "load"})
    assert answer[:2] == [b"error", b"404"]


# Promise: AGENT-4, AGENT-5
def test_no_result_in_time_is_504_and_a_late_one_is_recorded_and_dropped():
    world = HelenWorld()
    connection = world.agent()
    world.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 5})
    (check,) = world.hear(connection)
    world.pass_time(4.9)
    assert world.answers() == []
    world.pass_time(0.2)
    (answer,) = world.answers()
    assert answer[:2] == [b"error", b"504"]
    assert world.say(connection, Result(check.message_id, "load", GOOD)) == []
    assert world.events[-1].kind == "agent.late"
    assert world.evaluation.taken == []
    assert world.answers() == []
    heard = world.say(connection, Result(check.message_id, "load", GOOD))
    assert [type(word) for word in heard] == [Error]  # late once, wrong twice


def test_a_request_ends_with_the_time_that_it_has():
    world = HelenWorld()
    world.agent()
    world.request("helen.check", {"agent": "web-1", "check": "load", "timeout": 50}, timeout=2.5)
    world.pass_time(2.6)
    assert world.answers()[0][:2] == [b"error", b"504"]


# Promise: AGENT-5
def test_a_connection_that_ends_answers_whoever_waits():
    world = HelenWorld()
    connection = world.agent()
    world.request("helen.check", {"agent": "web-1", "check": "load"})
    world.gone(connection, orderly=False)
    (answer,) = world.answers()
    assert answer[:2] == [b"error", b"502"]
    world.pass_time(60)
    assert world.answers() == []


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
def test_a_wrong_body_is_400_and_reaches_no_agent(body: bytes):
    world = HelenWorld()
    connection = world.agent()
    (answer,) = world.request("helen.check", body)
    assert answer[:2] == [b"error", b"400"]
    assert world.hear(connection) == []
    assert world.helen.view()["counts"]["requests_refused"] == 1


def test_an_unknown_service_is_404():
    world = HelenWorld()
    for service in ("helen.nothing", "other", "helen.helen-2.check", ""):
        assert world.request(service)[0][:2] == [b"error", b"404"]


def test_checks_that_wait_are_bounded():
    world = HelenWorld()
    world.agent("a")
    for number in range(MAX_PENDING_CHECKS + 1):
        world.request("helen.check", {"agent": "a", "check": "load"}, name=b"a%d" % number)
    assert world.answers(b"a%d" % MAX_PENDING_CHECKS) == []  # it was heard by `request` already
    assert world.helen.view()["open_checks"] == MAX_PENDING_CHECKS
    for name in ("b", "c", "d", "e", "f", "g", "h", "i", "j", "k"):
        world.agent(name)
        for number in range(MAX_PENDING_CHECKS):
            world.request("helen.check", {"agent": name, "check": "load"}, name=b"%b%d" % (name.encode(), number))
    assert world.helen.view()["open_checks"] == MAX_OPEN
    assert world.request("helen.check", {"agent": "k", "check": "load"})[0][:2] == [b"error", b"429"]


def test_a_recheck_runs_the_definition_and_counts_as_scheduled():
    world = HelenWorld()
    world.evaluation.plans[""] = [PLAN]
    connection = world.agent()
    params = msgspec.json.encode({"agent": "web-1", "check": "root-disk"})
    for name, given in ((b"t1", params), (b"t2", b"[" + params + b"]")):
        world.task(name, "helen.recheck", given)
        (check,) = world.hear(connection)
        assert (check.name, check.args) == ("disk", b'{"path":"/"}')
        world.say(connection, Result(check.message_id, "disk", GOOD))
        assert body_of(world.answers(name)[0])["state"] == "warning"
    _, answered = world.evaluation.taken[-1]
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
def test_a_wrong_task_is_answered_so(method: str, params: bytes, code: bytes):
    world = HelenWorld()
    world.evaluation.plans[""] = [PLAN]
    world.agent()
    world.task(b"t", method, params)
    assert world.answers(b"t")[0][:2] == [b"error", code]


def forwards(world: HelenWorld) -> list[ForwardRequest]:
    out = [ask for ask in world.asks if isinstance(ask, ForwardRequest) and not ask.service.endswith(".status")]
    world.asks.clear()
    return out


def with_siblings(world: HelenWorld, *names: str) -> None:
    world.do(lambda now, effects: world.helen.learn_replicas(names, now, effects))


# Promise: AGENT-5
def test_a_check_for_an_agent_elsewhere_goes_to_the_other_helens():
    world = HelenWorld()
    with_siblings(world, "helen-2", "helen-3")
    assert world.request("helen.check", {"agent": "far-1", "check": "load", "args": {"a": [1]}, "timeout": 7}) == []
    two, three = forwards(world)
    assert (two.service, three.service) == ("helen.helen-2.check", "helen.helen-3.check")
    assert two.timeout == pytest.approx(7)
    assert msgspec.json.decode(two.body)["args"] == {"a": [1]}
    world.tell(two, Refusal(404, "agent far-1 is not connected"))
    assert world.answers() == []
    world.tell(three, GOOD)
    assert world.answers() == [[b"reply", GOOD]]
    world.tell(three, GOOD)
    assert world.answers() == []


def test_a_check_for_an_agent_that_nobody_has_is_404():
    world = HelenWorld()
    with_siblings(world, "helen-2", "helen-3")
    world.request("helen.check", {"agent": "far-1", "check": "load"})
    for ask in forwards(world):
        world.tell(ask, Refusal(404, "agent far-1 is not connected"))
    assert world.answers()[0][:2] == [b"error", b"404"]


def test_the_helen_who_has_the_agent_is_believed_before_those_who_have_not():
    world = HelenWorld()
    with_siblings(world, "helen-2", "helen-3")
    world.request("helen.check", {"agent": "far-1", "check": "load"})
    two, three = forwards(world)
    world.tell(two, Refusal(504, "no result in time"))
    world.tell(three, Refusal(404, "agent far-1 is not connected"))
    assert world.answers()[0][:2] == [b"error", b"504"]


def test_a_wrong_request_is_answered_by_the_first_who_says_so():
    world = HelenWorld()
    with_siblings(world, "helen-2", "helen-3")
    world.request("helen.check", {"agent": "far-1", "check": "load"})
    two, three = forwards(world)
    world.tell(two, Refusal(429, "too many"))
    assert world.answers()[0][:2] == [b"error", b"429"]
    world.tell(three, Refusal(404, "agent far-1 is not connected"))
    assert world.answers() == []


def test_helens_who_say_nothing_are_waited_for_as_long_as_the_asker_waits():
    world = HelenWorld()
    with_siblings(world, "helen-2")
    world.request("helen.check", {"agent": "far-1", "check": "load", "timeout": 3})
    world.pass_time(3.1)
    assert world.answers()[0][:2] == [b"error", b"504"]
    world.tell(forwards(world)[0], GOOD)
    assert world.answers() == []


def test_what_came_by_our_own_name_is_never_passed_on():
    world = HelenWorld()
    with_siblings(world, "helen-2")
    for service in ("check", "reload"):
        (answer,) = world.request(f"helen.helen-1.{service}", {"agent": "far-1", "check": "load"})
        assert answer[:2] == [b"error", b"404"]
    assert forwards(world) == []


def test_a_recheck_elsewhere_is_asked_for_as_a_recheck():
    world = HelenWorld()
    with_siblings(world, "helen-2")
    params = b'{"agent":"far-1","check":"root-disk"}'
    world.task(b"t", "helen.recheck", params)
    (ask,) = forwards(world)
    there = HelenWorld()
    there.evaluation.plans[""] = [PLAN]
    connection = there.agent("far-1")
    there.request("helen.helen-1.check", ask.body)
    (check,) = there.hear(connection)
    assert check.name == "disk"
    there.say(connection, Result(check.message_id, "disk", GOOD))
    assert there.evaluation.taken[0][1].scheduled


def test_reload_reaches_its_agent_here_or_elsewhere():
    world = HelenWorld()
    connection = world.agent(version=1)
    assert body_of(world.request("helen.reload", {"agent": "web-1"})[0]) == {"reloaded": "web-1"}
    assert world.hear(connection) == [Reload()]
    assert world.request("helen.reload", {"agent": "far-1"})[0][:2] == [b"error", b"404"]
    with_siblings(world, "helen-2")
    assert world.request("helen.reload", {"agent": "far-1"}) == []
    (ask,) = forwards(world)
    assert ask.service == "helen.helen-2.reload"
    world.tell(ask, b'{"reloaded":"far-1"}')
    assert body_of(world.answers()[0]) == {"reloaded": "far-1"}


def test_agents_are_listed_page_by_page():
    world = HelenWorld()
    for number in range(25):
        world.agent(f"a{number:02}", version=1 + number % 2)
    seen: list[str] = []
    after = ""
    while True:
        page = body_of(world.request("helen.agents", {"limit": 10, "after": after})[0])
        seen += [item["agent"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == [f"a{number:02}" for number in range(25)]
    item = page["items"][-1]
    assert item["protocol"] == 1
    assert item["since"] == world.wall
    assert item["address"] == "10.0.0.1"
    assert world.request("helen.agents", {"limit": 0})[0][:2] == [b"error", b"400"]
    assert world.request("helen.agents", {"limit": 1_000_000})[0][:2] == [b"error", b"400"]


def test_an_agent_that_is_gone_for_good_can_be_forgotten():
    world = HelenWorld(token="secret")
    gone = {"agent": "web-1", "token": "secret"}
    for stranger in ({}, {"token": ""}, {"token": "other"}):
        assert world.request("helen.forget", {"agent": "web-1", **stranger})[0][:2] == [b"error", b"401"]
    connection = world.agent()
    world.say(connection, report(1))
    assert world.request("helen.forget", gone)[0][:2] == [b"error", b"409"]
    world.gone(connection)
    assert body_of(world.request("helen.forget", gone)[0]) == {"forgotten": "web-1"}
    assert world.evaluation.forgotten == ["web-1"]
    assert world.agent_rows() == []
    assert world.spool_rows() == []
    assert world.request("helen.forget", gone)[0][:2] == [b"error", b"404"]


def test_views_of_watch_pass_through():
    world = HelenWorld()
    for service in ("checks", "incidents"):
        assert body_of(world.request(f"helen.helen-1.{service}")[0])["items"] == []


def test_status_says_how_she_is():
    world = HelenWorld(advertise="10.1.1.1:4166")
    world.agent()
    said = body_of(world.request("helen.status")[0])
    assert (said["identity"], said["advertise"], said["agents"]) == ("helen-1", "10.1.1.1:4166", 1)
    assert said["counts"]["agents_accepted"] == 1


def test_services_are_offered_for_all_and_by_name():
    names = service_names("helen-1")
    assert "helen.check" in names
    assert "helen.helen-1.incidents" in names


# Promise: AGENT-14
def test_a_page_of_talkative_agents_stays_short_enough_for_a_message_of_the_network():
    world = HelenWorld()
    labels = {f"{number:03}" + "\x01" * 250: "\x01" * 255 for number in range(64)}
    for number in range(60):
        world.say(world.agent(f"web-{number:02}"), report(1, name=AGENT_REPORT, labels=labels, checks=["load"]))
    found: list[str] = []
    after = ""
    while True:
        (answer,) = world.request("helen.agents", {"limit": 1_000, "after": after})
        assert len(answer[1]) < Limits().max_message_bytes
        page = body_of(answer)
        found += [item["agent"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [f"web-{number:02}" for number in range(60)]


# Promise: AGENT-14
def test_long_args_wait_with_who_asks_and_not_at_the_agents_door():
    world = HelenWorld()
    connection = world.agent()
    body = {"agent": "web-1", "check": "load", "args": {"x": "y" * 900_000}}
    refused = [answer for number in range(10) for answer in world.request("helen.check", body, name=b"r%d" % number)]
    sent = [word for word in world.hear(connection) if isinstance(word, Check)]
    assert len(sent) == MAX_PENDING_BYTES // 900_000
    assert [answer[:2] for answer in refused] == [[b"error", b"429"]] * (10 - len(sent))
    for word in sent:
        world.say(connection, Result(word.message_id, "load", GOOD))
    assert world.request("helen.check", body, name=b"again") == []


# Promise: AGENT-14
def test_somebody_who_names_all_agents_again_and_again_costs_no_memory():
    world = HelenWorld()
    names = [f"web-{number}" for number in range(200)]
    for name in names:
        world.agent(name)
    world.do(lambda now, effects: world.helen.learn_replicas(["helen-2"], now, effects))
    for _ in range(20):
        world.request("helen.helen-1.has", {"agents": names, "from": "helen-2"})
    assert len([ask for ask in world.asks if ask.service == "helen.helen-2.release"]) == WINDOW
    asked: list[str] = []
    while releases := [ask for ask in world.asks if ask.service == "helen.helen-2.release"]:
        assert len(releases) <= WINDOW
        world.asks.clear()
        for ask in releases:
            asked.append(msgspec.json.decode(ask.body)["agent"])
            world.tell(ask, Refusal(404, "nobody"))
    assert sorted(asked) == sorted(names)
    world.request("helen.helen-1.has", {"agents": names, "from": "helen-3"})
    assert world.asks == []
