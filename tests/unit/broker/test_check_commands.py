"""`run_check`: a command that becomes a request to a Helen, with a clock that the test moves.

Promise: MGMT-6
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.admin.check_commands import GRACE_SECONDS, MAX_NOTED, MAX_NOTED_CHARS, RUN_SECONDS
from scale0.broker.core.requests import ABANDONED_SLOT_SECONDS
from scale0.transport.core.sockets import BACKEND, FRONTEND
from tests.unit.broker.network import TOKEN as NETWORK_TOKEN
from tests.unit.broker.network import Network, place_of
from tests.unit.broker.world import TOKEN, Told, World

HELEN = "backend-helen"
RESULT = {"state": "ok", "message": "fine", "metrics": []}
SECRET = "hunter2"
ON: dict[str, Any] = {"agent": "web-1", "check": "load"}


@pytest.fixture
def world() -> World:
    return World(default_heartbeat_interval=100_000.0, frontend_idle=100_000.0)


@pytest.fixture
def watched(world: World) -> World:
    """With a Helen."""
    world.ready(HELEN, "helen.check", slots=4)
    return world


def run(world: World, who: str = "frontend-otto", token: str = TOKEN, body: bytes = b"", **said: Any) -> list[Told]:
    """The command; what its giver hears at once."""
    options = {"command": "run_check", "id": "r", "auth_token": token, **said}
    return world.say(who, "MANAGEMENTREQ", options, *((body,) if body else ()))


def token_of(world: World, role: str) -> str:
    made: str = msgspec.json.decode(world.manage("issue_token", name=f"t-{role}", role=role)[2][0])["token"]
    return made


def asked(world: World, helen: str = HELEN) -> tuple[str, dict[str, Any], float]:
    """What Helen is asked next: the request's id, its body, and how long it may take."""
    [(command, said, bodies)] = world.hear(helen)
    assert (command, said["service"]) == ("REQUEST", "helen.check")
    return said["id"], msgspec.json.decode(bodies[0]), said["timeout"]


def answer(world: World, id_: str, body: bytes | None = None) -> None:
    world.say(HELEN, "REPLY", {"id": id_}, msgspec.json.encode(RESULT) if body is None else body)


def refuse(world: World, id_: str, code: int, message: str) -> None:
    """Helen says no; what she hears then, she hears next."""
    world.told[HELEN.encode()] = world.say(HELEN, "ERROR", {"id": id_, "code": code, "message": message})


def told(world: World, who: str = "frontend-otto") -> tuple[int, Any]:
    """The one answer that the command got."""
    [(command, said, bodies)] = world.hear(who)
    assert (command, said["id"]) == ("MANAGEMENTREP", "r")
    return said["code"], msgspec.json.decode(bodies[0])


def events(world: World) -> list[Any]:
    return [one for one in world.events if one.kind == "management.commanded" and one.command == "run_check"]


def test_an_operator_has_a_check_run_and_it_is_known_who_it_was(watched):
    otto = token_of(watched, "operator")
    assert run(watched, token=otto, **ON, args={"password": SECRET, "url": "x"}, origin="http/10.0.0.9") == []
    [event] = events(watched)
    assert (event.identity, event.code, event.before) == ("t-operator", 200, None)
    assert event.after == {**ON, "args": ["password", "url"]}
    assert event.origin == "frontend/frontend/66726f6e74656e642d6f74746f for http/10.0.0.9"
    id_, body, seconds = asked(watched)
    assert body == {**ON, "timeout": RUN_SECONDS, "args": {"password": SECRET, "url": "x"}}
    assert seconds == RUN_SECONDS + GRACE_SECONDS
    answer(watched, id_)
    assert told(watched) == (200, RESULT)
    assert watched.promised[-1] == (b"frontend-otto", "MANAGEMENTREP"), "what is answered is recorded"
    assert len(events(watched)) == 1
    assert SECRET not in repr([(one.kind, one) for one in watched.events])
    assert otto not in repr(watched.events)
    [helen] = watched.broker.scheduler.backends
    assert (helen.busy, watched.broker.requests.under_way) == (0, {})


def test_a_viewer_is_refused_and_nobody_is_asked(watched):
    [(_, said, _)] = run(watched, token=token_of(watched, "viewer"), **ON)
    assert (said["code"], said["message"]) == (403, "run_check needs the role operator")
    [(_, said, _)] = run(watched, token="s0_guess", **ON)
    assert said["code"] == 401
    assert watched.hear(HELEN) == events(watched) == []


def test_without_a_word_on_it_a_check_runs_as_it_is_defined_and_else_as_a_mere_question(watched):
    run(watched, **ON, timeout=10)
    id_, body, _ = asked(watched)
    assert body == {**ON, "timeout": 10, "recheck": True}
    watched.pass_time(4)
    refuse(watched, id_, 404, "no check load is defined for agent web-1")
    id_, body, seconds = asked(watched)
    assert body == {**ON, "timeout": 10, "args": {}}
    assert seconds == 10 + GRACE_SECONDS - 4, "it has no more time than before"
    answer(watched, id_)
    assert told(watched) == (200, RESULT)
    assert len(events(watched)) == 1, "it is one command"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"recheck": True}, {"recheck": True}),
        ({"recheck": True, "args": {"a": 1}}, {"recheck": True}),
        ({"recheck": False}, {"args": {}}),
        ({"args": {"a": 1}}, {"args": {"a": 1}}),
    ],
)
def test_who_says_how_it_runs_gets_that_and_nothing_else(watched, said, expected):
    run(watched, **ON, **said)
    id_, body, _ = asked(watched)
    assert body == {**ON, "timeout": RUN_SECONDS, **expected}
    refuse(watched, id_, 404, "agent web-1 is not connected")
    assert told(watched)[0] == 404
    assert watched.hear(HELEN) == []


def test_where_no_helen_is_it_waits_for_one_and_is_404_in_the_end(world):
    run(world, **ON, timeout=10)
    world.pass_time(10)
    assert world.hear("frontend-otto") == []
    world.pass_time(GRACE_SECONDS + 1)
    assert told(world)[0] == 404
    assert [(one.code, one.after) for one in events(world)] == [(200, ON), (404, ON)]
    run(world, **ON, timeout=10)
    world.ready(HELEN, "helen.check")
    answer(world, asked(world)[0])
    assert told(world) == (200, RESULT)


def test_a_helen_who_dies_is_502_and_one_who_is_silent_504(watched):
    run(watched, **ON)
    watched.say(HELEN, "DISCONNECT")
    assert told(watched)[0] == 502
    watched.hear(HELEN)
    watched.ready(HELEN, "helen.check")
    run(watched, **ON, timeout=3)
    id_, _, _ = asked(watched)
    watched.pass_time(3 + GRACE_SECONDS + 0.5)
    assert told(watched)[0] == 504
    assert [one.code for one in events(watched)] == [200, 502, 200, 504]
    answer(watched, id_)
    assert watched.hear("frontend-otto") == [], "too late"
    assert watched.broker.requests.under_way == {}


def test_what_helen_refuses_is_refused_with_her_own_words(watched):
    run(watched, **ON, recheck=True)
    refuse(watched, asked(watched)[0], 429, "too many checks")
    [(_, said, bodies)] = watched.hear("frontend-otto")
    assert (said, bodies) == ({"id": "r", "code": 429, "message": "too many checks"}, [b"{}"])


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"{} {}", b'"\xff"', b"1e999"], ids=repr)
def test_an_answer_that_is_no_json_is_not_passed_on(watched, body):
    run(watched, **ON)
    answer(watched, asked(watched)[0], body)
    assert told(watched) == (500, {})


def test_an_answer_in_parts_is_none_of_a_helen_and_leaves_nothing_behind(watched):
    run(watched, **ON)
    id_, _, _ = asked(watched)
    watched.say(HELEN, "PARTIAL", {"id": id_}, b"1")
    assert watched.hear("frontend-otto") == []
    answer(watched, id_)
    assert told(watched)[0] == 500
    connection = watched.broker.connections.find("frontend", b"frontend-otto")
    assert connection is not None
    assert not connection.parts
    assert not connection.outstanding


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"agent": "web-1"},
        {"agent": "", "check": "load"},
        {"agent": "web-1", "check": "l" * 256},
        {"agent": "web\n1", "check": "load"},
        {**ON, "timeout": 0},
        {**ON, "timeout": -1},
        {**ON, "timeout": 1e99},
    ],
    ids=str,
)
def test_what_means_nothing_is_400_and_not_recorded(watched, said):
    [(_, options, _)] = run(watched, **said)
    assert options["code"] == 400
    assert events(watched) == watched.hear(HELEN) == []


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"agent": "web-1"}', b'{"agent": 1, "check": "x"}', b"[" * 70 + b"]" * 70], ids=repr
)
def test_so_is_a_body_that_means_nothing(watched, body):
    assert run(watched, body=body)[0][1]["code"] == 400


def test_in_a_body_arguments_may_be_large(watched):
    args = {f"{number:04}": "x" * 100 for number in range(2_000)}
    run(watched, body=msgspec.json.encode({**ON, "args": args, "timeout": 5}))
    assert asked(watched)[1] == {**ON, "timeout": 5, "args": args}
    [event] = events(watched)
    assert event.after["args"] == [f"{number:04}" for number in range(MAX_NOTED)]
    run(watched, **ON, args={"n" * 1_000: 1})
    assert events(watched)[-1].after["args"] == ["n" * MAX_NOTED_CHARS]


def test_commands_without_an_id_and_requests_beside_them_do_not_meet(watched):
    for id_ in ("", "", 7):
        run(watched, **ON, recheck=False, id=id_)
    watched.say("frontend-otto", "REQUEST", {"service": "helen.check", "id": 7}, b"{}")
    ids = [said["id"] for _, said, _ in watched.hear(HELEN)]
    assert len(set(ids)) == 4
    for id_ in ids:
        answer(watched, id_)
    heard = [(command, said["id"]) for command, said, _ in watched.hear("frontend-otto")]
    assert sorted(heard, key=str) == [
        ("MANAGEMENTREP", ""),
        ("MANAGEMENTREP", ""),
        ("MANAGEMENTREP", 7),
        ("REPLY", 7),
    ]


def test_whoever_leaves_is_recorded_and_costs_no_slot_for_ever(watched):
    run(watched, **ON)
    id_, _, _ = asked(watched)
    watched.say("frontend-otto", "CHECKCONFIG", {"identity": "otto"})
    watched.say("frontend-otto", "DISCONNECT")
    watched.hear("frontend-otto")
    assert [one.code for one in events(watched)] == [200]
    answer(watched, id_)
    watched.pass_time(ABANDONED_SLOT_SECONDS + 60)
    assert watched.hear("frontend-otto") == []
    [helen] = watched.broker.scheduler.backends
    assert helen.busy == 0


def test_whoever_comes_back_on_another_connection_is_answered_there(watched):
    watched.say("frontend-otto", "CHECKCONFIG", {"identity": "otto"})
    run(watched, **ON)
    watched.say("frontend-otto-2", "CHECKCONFIG", {"identity": "otto"})
    watched.hear("frontend-otto")
    answer(watched, asked(watched)[0])
    assert told(watched, "frontend-otto-2") == (200, RESULT)


def test_a_broker_that_is_told_not_to_serve_does_not_run_it(watched):
    run(watched, **ON)
    assert watched.manage("disable")[1]["code"] == 200
    assert told(watched)[0] == 503
    assert run(watched, **ON)[0][1]["code"] == 503
    watched.broker.state.full = True
    watched.manage("enable")
    assert run(watched, **ON)[0][1]["code"] == 503, "what cannot be recorded is not done"


def test_the_policy_of_the_service_counts_for_the_command_too(watched):
    policy = {"name": "helen.check", "timeout": 7, "retry": True}
    assert watched.manage("patch_config", set={"services": [policy]})[1]["code"] == 200
    watched.ready("backend-other", "helen.check")
    watched.pass_time(0.1)
    watched.hear(HELEN)
    watched.hear("backend-other")
    run(watched, **ON)
    first = HELEN if HELEN.encode() in watched.told else "backend-other"
    assert asked(watched, first)[1]["timeout"] == 7
    watched.say(first, "DISCONNECT")
    second = ({HELEN, "backend-other"} - {first}).pop()
    id_, _, _ = asked(watched, second)
    watched.say(second, "REPLY", {"id": id_}, b"{}")
    assert told(watched) == (200, {})


def test_a_helen_at_another_broker_runs_it():
    network = Network(1)
    here = network.add("a", config_service=True)
    there = network.add("b", group="east", peers=(place_of("a"),))
    network.run(6)
    helen = there.client(BACKEND)
    helen.ready("helen-1", "helen.check", slots=4)
    network.run(2)
    otto = here.client(FRONTEND)
    otto.say("MANAGEMENTREQ", {"command": "run_check", "id": 1, "auth_token": NETWORK_TOKEN, **ON, "recheck": False})
    network.run(0)
    [said] = [said for command, said, _ in helen.hears() if command == "REQUEST"]
    helen.say("REPLY", {"id": said["id"]}, msgspec.json.encode(RESULT))
    network.run(0)
    heard = [(said["code"], bodies) for command, said, bodies in otto.hears() if command == "MANAGEMENTREP"]
    assert heard == [(200, [msgspec.json.encode(RESULT)])]
    assert [one.command for one in here.events if one.kind == "management.commanded"] == ["run_check"]
