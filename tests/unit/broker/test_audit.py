"""What the audit log records besides changes: keys, refused commands, forged tokens, and checks without a role."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.core.audit_limit import MAX_SINGLE, MAX_SUBJECTS, WINDOW_SECONDS
from scale0.broker.core.key_audit import MAX_CHANGES
from scale0.broker.core.keys import Key, Keys, KeyTable, table_at
from scale0.broker.core.permissions import KeyRules
from scale0.config.broker_file import AdminConfig
from scale0.kernel.effects import Effects
from tests.fakes.broker import TOKEN, FakeBroker

ANNA = AdminConfig(auth_id="anna", password_hash="$argon2id$x", role="admin")


def key(name: str, public: str = "k", role: str = "frontend", **more: Any) -> Key:
    return Key((public + name).ljust(40, "."), role, name, **more)


def commanded(broker: FakeBroker) -> list[Any]:
    return [event for event in broker.events if event.kind == "management.commanded"]


def keyed(*keys: Key) -> FakeBroker:
    broker = FakeBroker(keys=Keys(lambda *_: "frontend/admin", KeyTable(keys)), curve=True)
    change(broker, *keys)
    return broker


def change(broker: FakeBroker, *keys: Key, time: float = 0.0) -> list[tuple[str, str, str]]:
    """As `broker.edge.curve` reports them; what is recorded about them."""
    assert broker.keys is not None
    broker.events.clear()
    broker.keys.know(table_at(keys, time))
    effects = Effects()
    broker.machine.lose_users((), broker.now, effects)
    broker.host.finish(effects)
    changed = [event for event in broker.events if event.kind == "key.changed"]
    return [(event.identity, event.state, event.public_key) for event in changed]


# Promise: AUDIT-2
def test_each_key_that_is_stored_replaced_or_removed_is_recorded_once():
    broker = keyed(key("a"))
    assert change(broker, key("a")) == []
    assert change(broker, key("a"), key("b")) == [("frontend/b", "stored", key("b").public)]
    assert change(broker, key("a", "n"), key("b")) == [("frontend/a", "replaced", key("a", "n").public)]
    assert change(broker, key("b")) == [("frontend/a", "removed", key("a", "n").public)]
    token = key("t", expires=9e9, is_token=True)
    assert change(broker, key("b"), token) == [("token:frontend/t", "stored", token.public)]


# Promise: KEY-3
def test_an_expiry_that_is_set_and_one_that_is_reached_are_recorded_also_over_a_restart():
    broker = keyed(key("a"))
    dated = key("a", expires=500.0)
    assert change(broker, dated) == [("frontend/a", "dated", dated.public)]
    assert change(broker, dated) == []
    assert change(broker, dated, time=500.0) == [("frontend/a", "expired", dated.public)]
    assert change(broker, key("a"), time=500.0) == [("frontend/a", "stored", dated.public)]
    assert change(broker, dated, time=499.0) == [("frontend/a", "dated", dated.public)]
    broker.crash()
    assert change(broker, dated, time=501.0) == [("frontend/a", "expired", dated.public)]


# Promise: KEY-3
def test_refused_handshakes_of_an_expired_key_are_recorded_and_a_flood_as_a_number():
    broker, effects = keyed(key("a")), Effects()
    for _ in range(100):
        broker.machine.permission_check.refuse_expired("frontend/a", "frontend", broker.now, effects)
    broker.host.finish(effects)
    refused = commanded(broker)
    assert len(refused) == MAX_SINGLE
    assert (refused[0].identity, refused[0].command, refused[0].code) == ("frontend/a", "connect", 403)


# Promise: AUDIT-2
def test_a_key_that_changed_while_the_broker_was_stopped_is_recorded_at_its_start():
    broker = keyed(key("a"), key("b"))
    broker.crash()
    assert change(broker, key("a"), key("c")) == [
        ("frontend/c", "stored", key("c").public),
        ("frontend/b", "removed", key("b").public),
    ]
    broker.crash()
    assert change(broker, key("a"), key("c")) == []


def test_many_keys_are_recorded_in_several_turns():
    many = [key(f"n{number}") for number in range(2 * MAX_CHANGES + 5)]
    broker = FakeBroker(keys=Keys(lambda *_: "frontend/admin", KeyTable(many)), curve=True)
    assert len(change(broker, *many)) == len(many)


# Promise: AUDIT-2
def test_a_command_that_a_role_does_not_permit_is_recorded_with_its_user():
    broker = FakeBroker()
    token = msgspec.json.decode(broker.manage("issue_token", name="vera", role="viewer")[2][0])["token"]
    said = {"command": "disable", "id": 1, "auth_token": token, "origin": "http/10.0.0.9", "auth_id": "anna"}
    broker.exchange("frontend-v", "MANAGEMENTREQ", said)
    event = commanded(broker)[-1]
    assert (event.identity, event.command, event.code, event.after) == ("vera", "disable", 403, None)
    assert event.origin.endswith("for http/10.0.0.9")


# Promise: AUDIT-2
def test_unknown_and_expired_tokens_are_recorded_without_the_name_that_they_claim():
    broker = FakeBroker()
    token = msgspec.json.decode(broker.manage("issue_token", name="vera", role="viewer", ttl=5.0)[2][0])["token"]
    broker.pass_time(10)
    broker.events.clear()
    for one in ("s0_forged", token):
        said = {"command": "status", "id": 1, "auth_token": one, "auth_id": "anna"}
        broker.exchange("frontend-m", "MANAGEMENTREQ", said)
    assert [(event.identity, event.command, event.code) for event in commanded(broker)] == [("", "status", 401)] * 2
    assert not any(text in repr(broker.events) for text in ("s0_forged", token))


# Promise: AUDIT-2
def test_a_flood_of_forged_tokens_is_recorded_as_a_number_and_hides_no_refused_user():
    broker = FakeBroker(max_control_per_second=100_000)
    token = msgspec.json.decode(broker.manage("issue_token", name="vera", role="viewer", ttl=900.0)[2][0])["token"]
    broker.events.clear()
    for number in range(500):
        broker.exchange("frontend-m", "MANAGEMENTREQ", {"command": "status", "id": number, "auth_token": "s0_forged"})
    broker.exchange("frontend-v", "MANAGEMENTREQ", {"command": "disable", "id": 1, "auth_token": token})
    assert [event.code for event in commanded(broker)] == [401] * MAX_SINGLE + [403]
    broker.events.clear()
    broker.pass_time(WINDOW_SECONDS + 1)
    [summary] = commanded(broker)
    assert (summary.command, summary.code, summary.after) == ("refused", 401, {"refused": 500 - MAX_SINGLE})
    broker.exchange("frontend-m", "MANAGEMENTREQ", {"command": "status", "id": 1, "auth_token": "s0_forged"})
    assert commanded(broker)[-1].command == "status", "a new window"


# Promise: AUDIT-3
@pytest.mark.parametrize("name", ["anna", "local"])
def test_no_token_has_the_name_of_an_administrator(name):
    broker = FakeBroker(admins=(ANNA,))
    _, said, _ = broker.manage("issue_token", name=name, role="viewer")
    assert (said["code"], said["message"]) == (409, f"{name} is the name of an administrator: choose another name")
    assert broker.manage("issue_token", name="anna.ci", role="viewer")[1]["code"] == 200


# Promise: AUDIT-3
def test_no_client_enrols_with_the_name_of_an_administrator():
    keys = Keys(lambda *_: "token:frontend/t1", KeyTable([key("t1", expires=9e9, is_token=True)]))
    broker = FakeBroker(keys=keys, admins=(ANNA,), curve=True)
    said = {"name": "anna", "public_key": "k" * 40}
    [(command, told, _)] = broker.exchange("frontend-1", "ENROL", said)
    assert (command, told["code"]) == ("DISCONNECTERROR", 409)


# Promise: AUDIT-2
@pytest.mark.parametrize("service", ["helen.check", "helen.h1.check"])
def test_a_check_that_a_client_runs_without_a_role_is_recorded_without_its_arguments(service):
    broker = FakeBroker()
    broker.join("backend-helen", "helen.check", "helen.h1.check", "helen.agents", slots=4)
    body = {"agent": "web-1", "check": "log", "args": {"path": "/etc/secret"}}
    broker.send("frontend-1", "REQUEST", {"id": 1, "service": service}, msgspec.json.encode(body))
    broker.send("frontend-1", "REQUEST", {"id": 2, "service": "helen.agents"}, b"{}")
    [event] = commanded(broker)
    assert (event.command, event.after) == (service, {"agent": "web-1", "check": "log", "args": ["path"]})
    assert event.identity == broker.connection("frontend-1").name
    assert "secret" not in repr(event)


# Promise: AUDIT-4
def test_a_flood_of_checks_is_recorded_as_a_number_with_what_it_was_about_and_hides_no_other_client():
    rules = KeyRules(("call:helen.*",))
    helen = key("helen", role="backend", rules=KeyRules(("offer:helen.*",)))
    table = KeyTable([key("web", rules=rules), key("ops", rules=rules), helen])
    users = {"frontend-web": "frontend/web", "frontend-ops": "frontend/ops", "backend-helen": "backend/helen"}
    keys = Keys(lambda _, routing_id: users[routing_id.decode()], table)
    broker = FakeBroker(keys=keys, curve=True, max_control_per_second=100_000)
    broker.join("backend-helen", "helen.check", identity="helen", slots=4)
    broker.events.clear()

    def check(client: str, number: int) -> None:
        body = {"agent": f"web-{number % 30}", "check": "load", "args": {"path": "/etc/secret"}}
        broker.send(client, "REQUEST", {"id": number, "service": "helen.check"}, msgspec.json.encode(body))

    for number in range(500):
        check("frontend-web", number)
    check("frontend-ops", 1)
    assert [event.identity for event in commanded(broker)] == ["frontend/web"] * MAX_SINGLE + ["frontend/ops"]
    broker.events.clear()
    broker.pass_time(WINDOW_SECONDS + 1)
    [summary] = commanded(broker)
    assert (summary.identity, summary.command, summary.code) == ("frontend/web", "helen.check", 200)
    assert summary.after["checks"] == 500 - MAX_SINGLE
    assert len(summary.after["of"]) == MAX_SUBJECTS
    assert "web-25/load" in summary.after["of"]
    check("frontend-web", 1_000)
    assert commanded(broker)[-1].after["agent"] == "web-10", "a new window"


def test_a_check_with_a_role_is_recorded_once():
    broker = FakeBroker()
    broker.join("backend-helen", "helen.check", slots=4)
    said = {"command": "run_check", "id": "r", "auth_token": TOKEN, "agent": "web-1", "check": "load"}
    broker.send("frontend-1", "MANAGEMENTREQ", said)
    assert [event.command for event in commanded(broker)] == ["run_check"]
