"""What keys may do: rules to allow and to deny, the closed services of Helens, and where the broker checks them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from scale0.broker.core import permissions
from scale0.broker.core.audit_limit import MAX_SINGLE
from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.broker.core.permissions import KeyRules, Permissions, added, rules_error, why_not
from scale0.kernel.effects import Effects
from scale0.transport.core import codec
from tests.fakes.broker import FakeBroker

HELEN = KeyRules(("call:helen.*", "submit:helen.*"))


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


def key(role: str, name: str, allow: str = "", deny: str = "", is_program: bool = False) -> Key:
    rules = KeyRules(tuple(allow.split()), tuple(deny.split()))
    return Key(f"{role}{name}".ljust(40, "."), role, name, rules=rules, is_program=is_program)


def broker_with(*keys: Key) -> FakeBroker:
    return FakeBroker(keys=Keys(user_of, KeyTable(keys)), curve=True)


def change(broker: FakeBroker, *keys: Key) -> None:
    """As `broker.edge.curve` reports them."""
    assert broker.keys is not None
    broker.keys.know(KeyTable(keys))
    effects = Effects()
    broker.machine.lose_users((), broker.now, effects)
    broker.host.finish(effects)


def call(broker: FakeBroker, who: str, service: str, id_: int = 1) -> list[tuple[str, Any]]:
    answers = broker.exchange(who, "REQUEST", {"service": service, "id": id_, "timeout": 5.0}, b"{}")
    return [(message.command, message.options) for message in answers]


def submit(broker: FakeBroker, who: str, method: str) -> Any:
    broker.ask(who, "client_connect", who)
    broker.received(who)
    broker.ask(who, "client_new_task", who, method, {})
    return broker.received(who)[-1].bodies[0]


def refused(broker: FakeBroker) -> list[tuple[str, str, int, Any]]:
    events = [event for event in broker.events if event.kind == "management.commanded" and event.code == 403]
    return [(event.identity, event.command, event.code, event.after) for event in events]


# Promise: PERM-1
@pytest.mark.parametrize(
    ("rules", "action", "service", "permitted"),
    [
        (KeyRules(), "call", "orders.new", True),
        (KeyRules(), "call", "helen.check", False),
        (KeyRules(), "submit", "helen.notify", False),
        (KeyRules(), "discover", "helen.check", True),
        (KeyRules(("call:orders.*",)), "call", "orders.new", True),
        (KeyRules(("call:orders.*",)), "call", "billing", False),
        (KeyRules(("call:orders.*",)), "submit", "billing", True),
        (KeyRules(("call:*",)), "call", "helen.check", False),
        (KeyRules(("call:helen.?heck",)), "call", "helen.check", True),
        (KeyRules(("call:*",), ("call:orders.delete",)), "call", "orders.delete", False),
        (KeyRules(("call:orders.delete",), ("call:*",)), "call", "orders.delete", False),
        (KeyRules(("call:a[bc]",)), "call", "ab", False),
        (KeyRules(("call:a[bc]",)), "call", "a[bc]", True),
    ],
)
def test_a_rule_to_deny_wins_and_helens_are_closed_unless_a_rule_names_them(rules, action, service, permitted):
    assert (why_not("frontend/web", rules, False, action, service) == "") is permitted


# Promise: PERM-1
def test_a_refusal_names_the_key_the_action_the_service_and_the_command_that_grants_it():
    reason = why_not("frontend/web", KeyRules(), False, "call", "helen.x y")
    assert "the frontend key web may not call helen.x y" in reason
    assert "scale0 keys permissions frontend web --add 'call:helen.x y'" in reason
    assert "call:orders.*" in why_not("frontend/web", KeyRules((), ("call:orders.*",)), False, "call", "orders.new")


def test_a_grant_takes_nothing_away():
    rules = added(KeyRules(), ["call:helen.check"])
    assert rules.allow == ("call:*", "call:helen.check")
    assert added(rules, ["call:helen.check"]) == rules
    assert added(KeyRules(("call:a",)), ["call:b"]).allow == ("call:a", "call:b")


@pytest.mark.parametrize("rule", ["call", "call:", "jump:x", "offer:x", "call:a b", 'call:"', "call:" + "x" * 300])
def test_a_rule_that_cannot_be_read_is_an_error(rule):
    assert rules_error("frontend", KeyRules((rule,)))
    assert rules_error("frontend", KeyRules((), (rule,)))


def test_many_stars_cost_no_time():
    began = time.process_time()
    assert why_not("frontend/web", KeyRules((), ("call:" + "*a" * 120 + "b",)), False, "call", "a" * 255) == ""
    assert time.process_time() - began < 1.0


# Promise: PERM-1
def test_without_a_rule_a_frontend_key_calls_every_service_but_those_of_helens():
    work = key("backend", "work", "offer:* offer:helen.*")
    broker = broker_with(key("frontend", "web"), key("frontend", "local", is_program=True), work)
    broker.join("backend-work", "orders", "helen.check", identity="work")
    assert call(broker, "frontend-web", "orders") == []
    [(command, options)] = call(broker, "frontend-web", "helen.check", 2)
    assert (command, options["id"], options["code"]) == ("ERROR", 2, 403)
    assert "the frontend key web may not call helen.check" in options["message"]
    assert call(broker, "frontend-local", "helen.check") == [], "programs on the broker's machine may"
    assert refused(broker) == [("frontend/web", "call", 403, {"service": "helen.check"})]


# Promise: PERM-2
def test_a_name_that_no_service_can_have_is_refused_before_anything_else():
    broker = broker_with(key("frontend", "web"))
    [(command, options)] = call(broker, "frontend-web", "helen." + "x" * 60_000)
    assert (command, options["code"]) == ("ERROR", 400)
    assert refused(broker) == []


# Promise: PERM-1
def test_a_pair_that_an_administrator_stored_in_both_roles_is_a_helens():
    helen = key("backend", "helen")
    other = key("frontend", "other")._replace(public=helen.public)
    broker = broker_with(helen, helen._replace(role="frontend"), other)
    broker.join("backend-helen", "helen.check", identity="helen")
    assert call(broker, "frontend-helen", "helen.check") == []
    assert call(broker, "frontend-other", "helen.check")[0][1]["code"] == 403, "another name is another program"


# Promise: PERM-6
@pytest.mark.parametrize(
    ("rules", "is_trusted", "user", "action", "service", "permitted"),
    [
        ("", False, "backend/work", "offer", "helen.check", False),
        ("offer:*", False, "backend/work", "offer", "helen.helen-1.has", False),
        ("", False, "backend/work", "take", "helen.notify", False),
        ("offer:helen.*", False, "backend/old-helen", "offer", "helen.old-helen.has", True),
        ("", True, "backend/helen-1", "offer", "helen.helen-1.has", True),
        ("", True, "backend/helen-1", "take", "helen.notify", True),
        ("call:helen.*", False, "frontend/ops", "call", "helen.check", True),
        ("call:helen.*", False, "frontend/ops", "call", "helen.helen-1.release", False),
        ("call:helen.*", False, "frontend/ops", "call", "helen.helen-1.has", False),
        ("call:helen.*.release", False, "frontend/old-helen", "call", "helen.helen-1.release", True),
        ("call:helen.*.release", False, "frontend/old-helen", "call", "helen.helen-1.has", False),
        ("", True, "frontend/helen-2", "call", "helen.helen-1.release", True),
        ("", True, "frontend/helen-2", "call", "helen.helen-1.has", True),
    ],
)
def test_only_keys_of_helens_offer_their_services_and_move_agents(rules, is_trusted, user, action, service, permitted):
    made = KeyRules(tuple(rules.split()))
    assert (why_not(user, made, is_trusted, action, service) == "") is permitted


# Promise: PERM-6
def test_a_backend_without_rules_offers_no_service_of_helens_and_takes_none_of_their_tasks():
    broker = broker_with(key("backend", "work"))
    version = broker.exchange("backend-work", "CHECKCONFIG", {"identity": "work"})[0].options["config_version"]
    ready = {"services": ["helen.helen-1.has"], "config_version": version, "time": broker.now.wall}
    [answer] = broker.exchange("backend-work", "READY", ready)
    assert (answer.command, answer.options["code"]) == ("DISCONNECTERROR", 403)
    assert "--add 'offer:helen.*' --add 'take:helen.*'" in answer.options["message"]
    broker.ask("backend-work", "node_connect", "work", ["helen.notify"])
    assert broker.received("backend-work")[-1].bodies[0]["error"]["code"] == -32040
    assert [row[:2] for row in refused(broker)] == [("backend/work", "offer"), ("backend/work", "take")]


# Promise: PERM-6
def test_a_pair_in_the_files_of_two_brokers_is_no_helens():
    """Two tokens of two brokers store it so; one administrator, or the token of a Helen, stores it at one."""
    backend = key("backend", "x")
    broker = broker_with(backend, backend._replace(role="frontend", broker="east-2"))
    assert call(broker, "frontend-x", "helen.check")[0][1]["code"] == 403


# Promise: PERM-1
def test_in_a_batch_only_the_request_that_is_not_permitted_is_refused():
    broker = broker_with(key("frontend", "web", "call:orders"), key("backend", "work"))
    broker.join("backend-work", "orders", "billing", identity="work", slots=9)
    broker.send("frontend-web", "CHECKCONFIG", {"identity": "web", "batch": True})
    broker.received("frontend-web")
    names = enumerate(("orders", "billing", "orders"))
    parts = [("REQUEST", {"service": name, "id": number, "timeout": 5.0}, b"{}") for number, name in names]
    broker.send_frames("frontend-web", *codec.encode_batch(parts, 100, 10_000))
    answers = broker.received("frontend-web")
    assert [(one.command, one.options["id"], one.options["code"]) for one in answers] == [("ERROR", 1, 403)]
    assert len(broker.received("backend-work", "REQUEST")) == 2


# Promise: PERM-1
def test_without_curve_every_client_may_call_helens_as_before():
    broker = FakeBroker()
    broker.join("backend-1", "helen.check")
    assert call(broker, "frontend-1", "helen.check") == []


# Promise: PERM-1
def test_a_task_is_accepted_only_from_a_key_that_may_submit_it():
    broker = broker_with(key("frontend", "web"), key("frontend", "helen", " ".join(HELEN.allow)))
    assert submit(broker, "frontend-web", "helen.notify")["error"]["code"] == -32040
    assert "result" in submit(broker, "frontend-web", "mail")
    assert "result" in submit(broker, "frontend-helen", "helen.notify")
    assert refused(broker) == [("frontend/web", "submit", 403, {"service": "helen.notify"})]


# Promise: PERM-1
def test_a_backend_offers_and_takes_only_what_its_key_may():
    keys = key("frontend", "web"), key("backend", "work", "offer:orders", "take:orders"), key("backend", "node")
    broker = broker_with(*keys)
    version = broker.exchange("backend-work", "CHECKCONFIG", {"identity": "work"})[0].options["config_version"]
    ready = {"services": ["billing"], "config_version": version, "time": broker.now.wall}
    [answer] = broker.exchange("backend-work", "READY", ready)
    assert (answer.command, answer.options["code"]) == ("DISCONNECTERROR", 403)
    broker.join("backend-work", "orders", identity="work")
    assert "result" in submit(broker, "frontend-web", "orders")
    assert broker.received("backend-work", "TASKS") == [], "it may not take tasks of the service"
    assert call(broker, "frontend-web", "orders") == []
    assert len(broker.received("backend-work", "REQUEST")) == 1
    broker.join("backend-node", "orders", identity="node")
    assert len(broker.received("backend-node", "TASKS")) == 1, "another key may"


# Promise: PERM-1
def test_a_node_of_json_rpc_takes_only_tasks_that_its_key_may():
    broker = broker_with(key("frontend", "web"), key("backend", "node", "take:orders"))
    submitted = submit(broker, "frontend-web", "billing")["result"]
    broker.ask("backend-node", "node_connect", "node", ["billing"])
    assert broker.received("backend-node")[-1].bodies[0]["error"]["code"] == -32040
    broker.ask("backend-node", "node_connect", "node", ["orders"])
    broker.received("backend-node")
    broker.ask("backend-node", "node_task_request", submitted)
    assert broker.received("backend-node")[-1].bodies[0]["error"]["code"] == -32040


# Promise: PERM-5
@pytest.mark.parametrize("deny", ["offer:*", ""])
def test_a_node_that_only_takes_tasks_offers_nothing_to_callers(deny):
    broker = broker_with(key("backend", "node", "take:*", deny), key("backend", "work"), key("frontend", "web"))
    broker.ask("backend-node", "node_connect", "node", ["orders"])
    assert broker.received("backend-node")[-1].bodies[0]["result"] == "node"
    assert not broker.machine.scheduler.offered("orders")
    assert "result" in submit(broker, "frontend-web", "orders"), "its tasks are queued, and it takes them"
    broker.ask("backend-node", "node_tasks_request", "node", 1)
    assert len(broker.received("backend-node")[-1].bodies[0]["result"]) == 1
    assert call(broker, "frontend-web", "orders") == []
    broker.pass_time(6)
    [error] = broker.received("frontend-web", "ERROR")
    assert error.options["code"] == 404, "no backend offered the service"
    broker.join("backend-work", "orders", identity="work")
    assert broker.machine.scheduler.offered("orders"), "another backend with slots does"


# Promise: PERM-7
def test_a_key_with_rules_is_no_reader_of_the_whole_network_document():
    web, free, east = key("frontend", "web", "call:orders.*"), key("frontend", "free"), key("peer", "east-2")
    helen = key("backend", "helen", "offer:helen.*")
    work = key("backend", "work", "", "offer:x")
    broker = broker_with(web, free, east, helen, helen._replace(role="frontend"), work)
    published = []
    broker.host.publish = lambda *one: published.append(one)  # type: ignore[method-assign]
    effects = Effects()
    document = broker.machine.documents.document
    broker.machine.documents.change(
        msgspec.structs.replace(document, version=document.version + 1), "ops", (), broker.now, effects
    )
    broker.host.finish(effects)
    [(socket, _, readers)] = [one for one in published if one[1][0] == b"config"]
    assert socket == "config_pub"
    read = {one.name: readers(one.public) for one in (web, free, east, helen, work)}
    assert read == {"web": False, "free": True, "east-2": True, "helen": True, "work": False}


# Promise: PERM-1
def test_a_backend_that_may_no_longer_offer_its_service_is_disconnected():
    web, work = key("frontend", "web"), key("backend", "work")
    broker = broker_with(web, work)
    broker.join("backend-work", "orders", identity="work")
    change(broker, web, key("backend", "work", deny="offer:orders"))
    [answer] = broker.received("backend-work", "DISCONNECTERROR")
    assert answer.options["code"] == 403
    assert not broker.machine.scheduler.offered("orders")


# Promise: PERM-1
def test_a_frontend_key_gets_no_part_of_the_document_that_is_for_helens():
    broker = broker_with(key("frontend", "web", deny="call:x"))
    [answer] = broker.exchange("frontend-web", "CHECKCONFIG", {"identity": "web", "services": ["helen.check"]})
    assert (answer.command, answer.options["code"]) == ("DISCONNECTERROR", 403)


# Promise: PERM-1
def test_a_listing_has_only_services_that_the_key_may_discover():
    broker = broker_with(key("frontend", "web", "discover:orders"), key("frontend", "all"), key("backend", "work"))
    broker.join("backend-work", "orders", "billing", identity="work")

    def listed(who: str) -> list[str]:
        [answer] = broker.exchange(who, "REQUEST", {"service": "scale0.services", "id": 1})
        return sorted(row["service"] for row in msgspec.json.decode(answer.bodies[0])["items"])

    assert listed("frontend-web") == ["orders"]
    assert listed("frontend-all") == ["billing", "orders"]
    assert call(broker, "frontend-web", "scale0.clients")[0][1]["code"] == 403


# Promise: AUDIT-2
def test_changed_permissions_are_recorded_once_also_over_a_restart():
    web = key("frontend", "web")
    broker = broker_with(web)
    change(broker, web)
    broker.events.clear()
    restricted = key("frontend", "web", "call:orders")
    for _ in range(2):
        change(broker, restricted)
    broker.crash()
    change(broker, restricted)
    change(broker, web)
    events = [event for event in broker.events if event.kind == "key.changed"]
    assert [(event.state, event.allow) for event in events] == [("permitted", ())]


# Promise: AUDIT-2
def test_a_flood_of_refused_calls_does_not_fill_the_journal():
    broker = broker_with(key("frontend", "web"))
    for number in range(5 * MAX_SINGLE):
        call(broker, "frontend-web", "helen.check", number)
    assert len(refused(broker)) == MAX_SINGLE


# Promise: PERM-2
def test_a_decision_is_made_once_and_the_number_that_is_remembered_is_bounded(monkeypatch):
    made = Permissions()
    made.know({"frontend/web": (KeyRules(tuple(f"call:s{number}*" for number in range(60))), False)})
    began = time.process_time()
    for _ in range(100_000):
        made.why_not("frontend/web", "call", "s59")
    assert time.process_time() - began < 1.0, "a look-up, not sixty comparisons"
    monkeypatch.setattr(permissions, "MAX_DECISIONS", 10)
    for number in range(100):
        made.why_not("frontend/web", "call", f"x{number}")
    assert len(made._decisions) <= 10
    made.why_not("frontend/web", "call", "y" * 1_000_000)
    assert max(len(service) for _, _, service in made._decisions) <= 255, "names come from clients"
    made.know({})
    assert made.why_not("frontend/web", "call", "x1") == "", "other rules, another decision"
