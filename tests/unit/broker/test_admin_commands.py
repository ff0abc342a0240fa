"""Management: every command with every role, generated from the table by which the broker decides, and `run_check`.

Promise: MGMT-6
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scale0.broker.admin.access import RANKS
from scale0.broker.admin.check_commands import GRACE_SECONDS, MAX_NOTED, MAX_NOTED_CHARS, RUN_SECONDS
from scale0.broker.core.requests import ABANDONED_SLOT_SECONDS
from scale0.kernel.confirmed_clock import CONFIRM_SECONDS
from scale0.transport.core.sockets import FRONTEND
from tests.fakes.broker import TOKEN, FakeBroker
from tests.fakes.messages import Message
from tests.fakes.network import network_of

YEAR = 365 * 86_400.0
PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
TABLE = {name: role for name, (role, _) in FakeBroker().machine.management.table.items()}


# Promise: MGMT-1
@pytest.mark.parametrize("role", RANKS)
def test_every_role_may_what_the_table_says(role):
    broker = FakeBroker(error_client_limit=1_000)
    body = broker.manage("issue_token", name="somebody", role=role)[2][0]
    token = msgspec.json.decode(body)["token"]
    wrong = []
    for command, needed in TABLE.items():
        said = {"command": command, "id": 1, "auth_token": TOKEN if command == "logout" else token}
        told = broker.exchange("frontend-somebody", "MANAGEMENTREQ", said)
        refused = [options["code"] for name, options, _ in told if name == "MANAGEMENTREP"] == [403]
        if refused != (RANKS[role] < RANKS[needed]):
            wrong.append(f"{command} ({needed}) answers {told}")
    assert not wrong, "\n".join(wrong)


def whoami(broker: FakeBroker, token: str) -> int:
    said = {"command": "whoami", "id": 1, "auth_token": token}
    (code,) = [options["code"] for name, options, _ in broker.exchange("frontend-a", "MANAGEMENTREQ", said) if options]
    return int(code)


# Promise: TIME-1
def test_a_jump_of_the_clock_revokes_no_token_until_it_has_kept_its_time():
    broker = FakeBroker(frontend_idle=1e9)
    token = msgspec.json.decode(broker.manage("issue_token", name="a", role="viewer", ttl=30 * 86_400.0)[2][0])["token"]
    assert whoami(broker, token) == 200
    broker.wall += YEAR
    assert whoami(broker, token) == 200
    listed = msgspec.json.decode(broker.manage("list_tokens")[2][0])["items"]
    assert [row["name"] for row in listed] == ["a"]
    broker.pass_time(CONFIRM_SECONDS / 2)
    assert whoami(broker, token) == 200
    broker.pass_time(CONFIRM_SECONDS / 2)
    assert whoami(broker, token) == 401
    broker.wall -= YEAR
    assert whoami(broker, token) == 200


# Promise: TIME-1
def test_a_jump_of_the_clock_while_the_broker_is_down_revokes_no_token():
    broker = FakeBroker(frontend_idle=1e9)
    token = msgspec.json.decode(broker.manage("issue_token", name="a", role="viewer", ttl=30 * 86_400.0)[2][0])["token"]
    broker.crash(wall=broker.wall + YEAR)
    assert whoami(broker, token) == 200
    broker.pass_time(CONFIRM_SECONDS)
    assert whoami(broker, token) == 401


def test_the_page_of_the_protocol_lists_every_command_with_its_role():
    section = PAGE.read_text(encoding="utf-8").partition("\n## 8. Management\n")[2].partition("\n## 9.")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (viewer|operator|admin) \|", section, re.MULTILINE)) == TABLE


HELEN = "backend-helen"
RESULT = {"state": "ok", "message": "fine", "metrics": []}
SECRET = "hunter2"
ON: dict[str, Any] = {"agent": "web-1", "check": "load"}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker(default_heartbeat_interval=80_000.0, frontend_idle=100_000.0)


@pytest.fixture
def watched(broker: FakeBroker) -> FakeBroker:
    """With a Helen."""
    broker.join(HELEN, "helen.check", slots=4)
    return broker


def run(
    broker: FakeBroker, who: str = "frontend-otto", token: str = TOKEN, body: bytes = b"", **said: Any
) -> list[Message]:
    """The command; what its giver hears at once."""
    options = {"command": "run_check", "id": "r", "auth_token": token, **said}
    return broker.exchange(who, "MANAGEMENTREQ", options, *((body,) if body else ()))


def token_of(broker: FakeBroker, role: str) -> str:
    made: str = msgspec.json.decode(broker.manage("issue_token", name=f"t-{role}", role=role)[2][0])["token"]
    return made


def asked(broker: FakeBroker, helen: str = HELEN) -> tuple[str, dict[str, Any], float]:
    """What Helen is asked next: the request's id, its body, and how long it may take."""
    [(command, said, bodies)] = broker.received(helen)
    assert (command, said["service"]) == ("REQUEST", "helen.check")
    return said["id"], msgspec.json.decode(bodies[0]), said["timeout"]


def answer(broker: FakeBroker, id_: str, body: bytes | None = None) -> None:
    broker.exchange(HELEN, "REPLY", {"id": id_}, msgspec.json.encode(RESULT) if body is None else body)


def refuse(broker: FakeBroker, id_: str, code: int, message: str) -> None:
    """Helen says no; what she hears then, she hears next."""
    broker.send(HELEN, "ERROR", {"id": id_, "code": code, "message": message})


def told(broker: FakeBroker, who: str = "frontend-otto") -> tuple[int, Any]:
    """The one answer that the command got."""
    [(command, said, bodies)] = broker.received(who)
    assert (command, said["id"]) == ("MANAGEMENTREP", "r")
    return said["code"], msgspec.json.decode(bodies[0])


def events(broker: FakeBroker) -> list[Any]:
    return [one for one in broker.events if one.kind == "management.commanded" and one.command == "run_check"]


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
    assert watched.promised[-1] == ("frontend-otto", "MANAGEMENTREP"), "what is answered is recorded"
    assert len(events(watched)) == 1
    assert SECRET not in repr([(one.kind, one) for one in watched.events])
    assert otto not in repr(watched.events)
    [helen] = watched.machine.scheduler.backends
    assert (helen.busy, watched.machine.requests.under_way) == (0, {})


def test_a_viewer_is_refused_and_nobody_is_asked(watched):
    [(_, said, _)] = run(watched, token=token_of(watched, "viewer"), **ON)
    assert (said["code"], said["message"]) == (403, "run_check needs the role operator")
    [(_, said, _)] = run(watched, token="s0_guess", **ON)
    assert said["code"] == 401
    assert watched.received(HELEN) == []
    assert [event.code for event in events(watched)] == [403, 401]


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
    assert watched.received(HELEN) == []


def test_where_no_helen_is_it_waits_for_one_and_is_404_in_the_end(broker):
    run(broker, **ON, timeout=10)
    broker.pass_time(10)
    assert broker.received("frontend-otto") == []
    broker.pass_time(GRACE_SECONDS + 1)
    assert told(broker)[0] == 404
    assert [(one.code, one.after) for one in events(broker)] == [(200, ON), (404, ON)]
    run(broker, **ON, timeout=10)
    broker.join(HELEN, "helen.check")
    answer(broker, asked(broker)[0])
    assert told(broker) == (200, RESULT)


def test_a_helen_who_dies_is_502_and_one_who_is_silent_504(watched):
    run(watched, **ON)
    watched.exchange(HELEN, "DISCONNECT")
    assert told(watched)[0] == 502
    watched.received(HELEN)
    watched.join(HELEN, "helen.check")
    run(watched, **ON, timeout=3)
    id_, _, _ = asked(watched)
    watched.pass_time(3 + GRACE_SECONDS + 0.5)
    assert told(watched)[0] == 504
    assert [one.code for one in events(watched)] == [200, 502, 200, 504]
    answer(watched, id_)
    assert watched.received("frontend-otto") == [], "too late"
    assert watched.machine.requests.under_way == {}


def test_what_helen_refuses_is_refused_with_her_own_words(watched):
    run(watched, **ON, recheck=True)
    refuse(watched, asked(watched)[0], 429, "too many checks")
    [(_, said, bodies)] = watched.received("frontend-otto")
    assert (said, bodies) == ({"id": "r", "code": 429, "message": "too many checks"}, [b"{}"])


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"{} {}", b'"\xff"', b"1e999"], ids=repr)
def test_an_answer_that_is_no_json_is_not_passed_on(watched, body):
    run(watched, **ON)
    answer(watched, asked(watched)[0], body)
    assert told(watched) == (500, {})


def test_an_answer_in_parts_is_none_of_a_helen_and_leaves_nothing_behind(watched):
    run(watched, **ON)
    id_, _, _ = asked(watched)
    watched.exchange(HELEN, "PARTIAL", {"id": id_}, b"1")
    assert watched.received("frontend-otto") == []
    answer(watched, id_)
    assert told(watched)[0] == 500
    assert not watched.connection("frontend-otto").outstanding
    assert watched.machine.requests.memory.used == 0


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
    assert events(watched) == watched.received(HELEN) == []


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
    run(watched, **ON, args={"n" * 1_000: 1}, id="another")
    assert events(watched)[-1].after["args"] == ["n" * MAX_NOTED_CHARS]


def test_commands_without_an_id_and_requests_beside_them_do_not_meet(watched):
    for id_ in ("", "", 7):
        run(watched, **ON, recheck=False, id=id_)
    watched.exchange("frontend-otto", "REQUEST", {"service": "helen.check", "id": 7}, b"{}")
    ids = [said["id"] for _, said, _ in watched.received(HELEN)]
    assert len(set(ids)) == 4
    for id_ in ids:
        answer(watched, id_)
    heard = [(command, said["id"]) for command, said, _ in watched.received("frontend-otto")]
    assert sorted(heard, key=str) == [
        ("MANAGEMENTREP", ""),
        ("MANAGEMENTREP", ""),
        ("MANAGEMENTREP", 7),
        ("REPLY", 7),
    ]


def test_whoever_leaves_is_recorded_and_costs_no_slot_for_ever(watched):
    run(watched, **ON)
    id_, _, _ = asked(watched)
    watched.exchange("frontend-otto", "CHECKCONFIG", {"identity": "otto"})
    watched.exchange("frontend-otto", "DISCONNECT")
    watched.received("frontend-otto")
    assert [one.code for one in events(watched)] == [200]
    answer(watched, id_)
    watched.pass_time(ABANDONED_SLOT_SECONDS + 60)
    assert watched.received("frontend-otto") == []
    [helen] = watched.machine.scheduler.backends
    assert helen.busy == 0


def test_whoever_comes_back_on_another_connection_is_answered_there(watched):
    watched.exchange("frontend-otto", "CHECKCONFIG", {"identity": "otto"})
    run(watched, **ON)
    watched.exchange("frontend-otto-2", "CHECKCONFIG", {"identity": "otto"})
    watched.received("frontend-otto")
    answer(watched, asked(watched)[0])
    assert told(watched, "frontend-otto-2") == (200, RESULT)


def test_a_broker_that_is_told_not_to_serve_does_not_run_it(watched):
    run(watched, **ON)
    assert watched.manage("disable")[1]["code"] == 200
    assert told(watched)[0] == 503
    assert run(watched, **ON)[0][1]["code"] == 503
    watched.machine.state.full = True
    watched.manage("enable")
    assert run(watched, **ON)[0][1]["code"] == 503, "what cannot be recorded is not done"


def test_the_policy_of_the_service_counts_for_the_command_too(watched):
    policy = {"name": "helen.check", "timeout": 7, "retry": True}
    assert watched.manage("patch_config", set={"services": [policy]})[1]["code"] == 200
    watched.join("backend-other", "helen.check")
    watched.pass_time(0.1)
    watched.received(HELEN)
    watched.received("backend-other")
    run(watched, **ON)
    first = HELEN if HELEN in dict(watched.sent) else "backend-other"
    assert asked(watched, first)[1]["timeout"] == 7
    watched.exchange(first, "DISCONNECT")
    second = ({HELEN, "backend-other"} - {first}).pop()
    id_, _, _ = asked(watched, second)
    watched.exchange(second, "REPLY", {"id": id_}, b"{}")
    assert told(watched) == (200, {})


def test_a_helen_at_another_broker_runs_it():
    network = network_of("a", "b")
    here, helen = network["a"], network["b"].worker("helen.check", slots=4)
    network.run(2)
    otto = here.client(FRONTEND)
    otto.send("MANAGEMENTREQ", {"command": "run_check", "id": 1, "auth_token": TOKEN, **ON, "recheck": False})
    network.run(0)
    helen.answer(msgspec.json.encode(RESULT))
    assert [(one.code, one.body) for one in otto.received("MANAGEMENTREP")] == [(200, RESULT)]
    assert [one.command for one in here.of_kind("management.commanded")] == ["run_check"]


# Promise: MGMT-6
def test_a_check_is_sent_after_its_event_is_on_disk(watched):
    watched.hold()
    assert run(watched, **ON) == []
    assert [event.code for event in events(watched)] == [200]
    assert watched.received(HELEN) == [], "nobody would know of this run after a kill -9"
    watched.let_go()
    id_, _, _ = asked(watched)
    answer(watched, id_)
    assert told(watched) == (200, RESULT)


# Promise: MGMT-6
@pytest.mark.parametrize("held", [False, True])
def test_the_same_command_again_does_not_run_twice(watched, held):
    if held:
        watched.hold()
    for _ in range(3):
        assert run(watched, **ON) == []
    watched.let_go()
    id_, _, _ = asked(watched)
    assert len(events(watched)) == 1
    assert run(watched, **ON) == []
    answer(watched, id_)
    assert told(watched) == (200, RESULT)
    assert watched.received(HELEN) == []
    run(watched, **ON)
    assert asked(watched)[0] != id_, "an id is used again after its answer"


# Promise: MGMT-6
@pytest.mark.parametrize("meanwhile", ["disable", "timeout", "leave"])
def test_a_check_that_is_over_before_its_event_is_on_disk_is_not_sent(watched, meanwhile):
    watched.hold()
    run(watched, **ON, timeout=1)
    if meanwhile == "timeout":
        watched.pass_time(1 + GRACE_SECONDS + 1)
    elif meanwhile == "leave":
        watched.break_connection("frontend-otto")
    else:
        watched.send("frontend-admin", "MANAGEMENTREQ", {"command": "disable", "id": "m", "auth_token": TOKEN})
    watched.let_go()
    assert "REQUEST" not in [one.command for one in watched.received(HELEN)]
    codes = [one.options["code"] for one in watched.received("frontend-otto") if one.command == "MANAGEMENTREP"]
    assert codes == {"disable": [503], "timeout": [504], "leave": []}[meanwhile]
    assert watched.machine.requests.under_way == {}
