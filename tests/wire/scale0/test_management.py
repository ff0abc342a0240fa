"""MANAGEMENTREQ: who may command what, and what comes of it (PROTOCOL 4)."""

from __future__ import annotations

import base64
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from scale0.broker.admin.access import DECOY_HASH
from scale0.kernel.edge.passwords import hash_password
from tests.fakes.journals import recorded
from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.raw import Raw, Raws, unique

pytestmark = pytest.mark.processes


def password(name: str, secret: str | None = None) -> dict[str, str]:
    return {"auth_id": name, "auth_password": secret or f"{name}-secret"}


def token(client: Raw, name: str) -> dict[str, str]:
    return {"auth_token": client.manage("login", password(name)).body["token"]}


@pytest.mark.parametrize("socket", ["frontend", "backend", "peer"])
@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_management_is_answered_on_every_socket(net, local, socket, kind):
    heard = net(socket, kind).manage("status", local)
    assert heard.code == 200
    assert heard.body["broker"] == "broker-1"
    assert heard.body["state"] == "active"


# Promise: CONF-5
@pytest.mark.parametrize("key", [1, b"x", True, None, 1.5])
@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("services", lambda key: [{"name": "a", key: 1}]),
        ("services.a", lambda key: {key: 1}),
        ("checks", lambda key: [{"name": "a", "args": {"deep": {key: 1}}}]),
        ("checks", lambda key: [{"name": "a", "labels": {key: "x"}}]),
        ("group_config", lambda key: {key: 1}),
    ],
)
def test_a_key_that_is_no_text_is_refused(caller, local, path, made, key):
    caller.batch(["MANAGEMENTREQ", {"command": "patch_config", "id": 1, **local, "set": {path: made(key)}}])
    heard = caller.hear()
    assert (heard.command, heard.code) == ("MANAGEMENTREP", 400)


def test_management_in_a_batch_means_the_same(caller, local):
    caller.batch(
        ["MANAGEMENTREQ", {"command": "status", "id": "a", **local}],
        ["MANAGEMENTREQ", {"command": "list_peers", "id": 2, **local}],
    )
    assert [caller.hear().options for _ in range(2)] == [
        {"id": "a", "code": 200, "message": "done"},
        {"id": 2, "code": 200, "message": "done"},
    ]


def test_a_password_gives_a_token_and_the_token_the_role(caller):
    heard = caller.manage("login", password("operator"))
    assert heard.body["role"] == "operator"
    assert 3_500 < heard.body["expires"] - time.time() < 3_700
    assert caller.manage("status", {"auth_token": heard.body["token"]}).code == 200


def test_a_password_works_with_any_command(net):
    assert net.frontend().manage("status", password("viewer")).code == 200


# Promise: MGMT-1
@pytest.mark.parametrize(
    ("role", "command", "code"),
    [
        ("viewer", "list_clients", 200),
        ("viewer", "drain", 403),
        ("operator", "forgive", 404),
        ("operator", "list_tokens", 403),
    ],
)
def test_the_role_of_a_token_decides(caller, role, command, code):
    """Every command with every role: tests/unit/broker/test_admin_commands.py."""
    assert caller.manage(command, token(caller, role)).code == code


def test_a_wrong_token_and_no_credentials_are_refused_with_401(caller):
    assert caller.manage("status", {"auth_token": "s0_guess"}).code == 401
    assert caller.manage("status", {}).code == 401
    assert caller.manage("status", {"auth_id": "admin"}).code == 401
    assert caller.manage("status", {"auth_token": "", **password("admin")}).code == 401


def test_an_unknown_command_is_501_and_too_many_make_an_error_client(caller, local):
    for _ in range(11):
        assert caller.manage("make_coffee", local).code == 501
    caller.say("MANAGEMENTREQ", {"command": "status", "id": 1, **local})
    assert caller.silent()


# Promise: MGMT-2
def test_wrong_passwords_are_answered_later_each_time(tmp_path):
    with own_broker(tmp_path) as (_, net):
        client, waits = net.frontend(), []
        for _ in range(3):
            start = time.monotonic()
            assert client.manage("status", password("admin", "guess")).code == 401
            waits.append(time.monotonic() - start)
        assert waits[0] >= 0.25
        assert waits == sorted(waits)
        assert waits[2] >= 1.0
        assert client.manage("status", password("admin")).code == 200


# Promise: MGMT-2
def test_the_password_of_a_name_that_nobody_has_is_hashed_too():
    real = hash_password("x").split("$")
    decoy = DECOY_HASH.split("$")
    assert decoy[:4] == real[:4], "it costs the same"
    assert [len(part) for part in decoy] == [len(part) for part in real]
    assert all(base64.b64decode(part + "=" * (-len(part) % 4), validate=True) for part in decoy[4:])


# Promise: MGMT-2
def test_a_flood_of_passwords_slows_no_request_and_locks_nobody_out(tmp_path):
    with own_broker(tmp_path) as (_, net):
        caller, admin = net.frontend(), net.frontend()
        calm = slowest_ping(caller)
        crowd = [net.frontend() for _ in range(60)]
        for member in crowd:
            for number in range(5):
                member.say("MANAGEMENTREQ", {"command": "status", "id": number, **password(unique("x"), "guess")})
        assert slowest_ping(caller) < max(0.25, 10 * calm)
        end = time.monotonic() + 3
        while (code := admin.manage("login", password("admin")).code) != 200:
            assert code == 429
            assert time.monotonic() < end, "the right password must get its turn while the wrong ones wait"
            admin.silent(0.02)


def slowest_ping(caller: Raw) -> float:
    slowest = 0.0
    for _ in range(100):
        start = time.monotonic()
        assert caller.request("scale0.ping").command == "REPLY"
        slowest = max(slowest, time.monotonic() - start)
    return slowest


# Promise: MGMT-3
def test_the_token_file_is_its_owners_alone_and_new_with_every_start(tmp_path):
    with own_broker(tmp_path) as (broker, net):
        file = Path(broker.config["data_dir"]) / "token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        first = token_of(broker)
        broker.restart()
        assert token_of(broker) != first
        client = net.frontend()
        assert client.manage("status", first).code == 401
        assert client.manage("status", token_of(broker)).code == 200


# Promise: MGMT-3
def test_issued_tokens_work_until_they_are_revoked_and_survive_a_restart(tmp_path):
    with own_broker(tmp_path) as (broker, net):
        client, admin = net.frontend(), token_of(broker)
        made = client.manage("issue_token", admin, name="ci", role="viewer", ttl=1_000).body
        mine = {"auth_token": made["token"]}
        assert client.manage("status", mine).code == 200
        assert client.manage("drain", mine).code == 403
        broker.kill9()
        broker.restart()
        client, admin = net.frontend(), token_of(broker)
        assert client.manage("status", mine).code == 200
        assert client.manage("revoke_token", admin, name="ci").body == {"revoked": 1}
        assert client.manage("status", mine).code == 401
        assert client.manage("revoke_token", admin, name="ci").code == 404


# Promise: MGMT-3
def test_a_token_ends_at_its_time(net, caller, local):
    made = caller.manage("issue_token", local, name="short", ttl=0.3).body
    mine = {"auth_token": made["token"]}
    assert caller.manage("status", mine).code == 200
    net.frontend().silent(0.4)
    assert caller.manage("status", mine).code == 401


@pytest.mark.parametrize(
    "wrong",
    [{}, {"name": "a b"}, {"name": "a", "role": "king"}, {"name": "a", "ttl": -1}, {"name": "a", "ttl": 1e99}],
    ids=str,
)
def test_a_token_that_makes_no_sense_is_not_issued(net, local, wrong):
    assert net.frontend().manage("issue_token", local, **wrong).code == 400


# Promise: MGMT-5
def test_lists_come_in_pages_that_together_hold_everything_once(net, local):
    names = {unique("paged") for _ in range(7)}
    for name in names:
        net.backend(name, identity=name)
    client = net.frontend()
    for command, key in (("list_services", "service"), ("list_clients", "identity")):
        seen: list[str] = []
        after: dict[str, Any] = {}
        while True:
            answer = client.manage(command, local, limit=2, **after).body
            assert len(answer["items"]) <= 2
            seen += [row[key] for row in answer["items"]]
            if answer["next"] is None:
                break
            after = {"after": answer["next"]}
        assert len(seen) == len(set(seen))
        assert names <= set(seen)


# Promise: MGMT-4
def test_a_disabled_broker_answers_management_only_and_stays_so_over_a_restart(tmp_path):
    with own_broker(tmp_path) as (broker, net):
        worker, caller = net.backend("echo", identity="worker"), net.frontend()
        caller.check("caller")
        caller.say("REQUEST", {"service": "nobody", "id": "waits"})
        admin = net.frontend()
        assert admin.manage("disable", token_of(broker)).body == {"state": "disabled", "draining": False}
        assert caller.hear().code == 503
        assert_silent(net, worker, caller)
        broker.kill9()
        broker.restart()
        worker, caller, admin = net("backend"), net.frontend(), net.frontend()
        assert_silent(net, worker, caller)
        assert admin.manage("status", token_of(broker)).body["state"] == "disabled"
        assert admin.manage("enable", token_of(broker)).body["state"] == "active"
        assert worker.ask("HEARTBEAT").command == "FORCENEGOTIATE"
        assert caller.request("scale0.ping").command in ("REPLY", "FORCENEGOTIATE")


def assert_silent(net: Raws, worker: Raw, caller: Raw) -> None:
    """Nothing that is said to a disabled broker gets an answer, not even an error."""
    worker.say("HEARTBEAT")
    worker.say("CHECKCONFIG")
    worker.say("NONSENSE")
    worker.say("REPLY", {"id": "x"})
    caller.say("REQUEST", {"service": "scale0.ping", "id": 1})
    caller.say("NEEDBROKER", {"services": []})
    caller.say("REQUEST", b"{", b"")
    caller.frames(b"SCALE0/1", b"REQUEST", b'{"service":"x","id":1}', b"x" * (9 << 20))
    newcomer = net.frontend()
    newcomer.say("CHECKCONFIG")
    assert worker.silent()
    assert caller.silent(0.1)
    assert newcomer.silent(0.1)


def test_after_enable_everybody_who_speaks_must_negotiate(tmp_path):
    with own_broker(tmp_path) as (broker, net):
        worker, caller = net.backend("echo"), net.frontend()
        caller.check("caller")
        stranger = net.frontend()
        stranger.request("scale0.ping")
        admin, auth = net.frontend(), token_of(broker)
        admin.manage("disable", auth)
        admin.manage("enable", auth)
        assert worker.ask("HEARTBEAT").command == "FORCENEGOTIATE"
        assert caller.ask("HEARTBEAT").command == "FORCENEGOTIATE"
        assert stranger.request("scale0.ping").command == "FORCENEGOTIATE"
        assert stranger.hear().command == "REPLY"
        worker.ready("echo")
        caller.say("REQUEST", {"service": "echo", "id": 1})
        worker.answer()
        assert caller.hear().command == "REPLY"


# Promise: MGMT-4
def test_a_draining_broker_finishes_its_work_and_takes_no_more(tmp_path):
    with own_broker(tmp_path) as (broker, net):
        worker, caller = net.backend("echo"), net.frontend()
        caller.say("REQUEST", {"service": "echo", "id": "old"})
        asked = worker.hear_until("REQUEST")
        admin, auth = net.frontend(), token_of(broker)
        assert admin.manage("drain", auth).body["draining"] is True
        assert caller.request("echo", id_="new").code == 503
        worker.say("REPLY", {"id": asked.options["id"]}, b"old")
        assert caller.hear_until("REPLY").bodies == [b"old"]
        assert admin.manage("enable", auth).body == {"state": "active", "draining": False}
        caller.say("REQUEST", {"service": "echo", "id": "again"})
        worker.answer()
        assert caller.hear_until("REPLY").options["id"] == "again"


def test_the_brokers_own_file_is_read_again(tmp_path):
    with own_broker(tmp_path, request_timeout=20) as (broker, net):
        client, auth = net.frontend(), token_of(broker)
        broker.file.write_text(broker.file.read_text().replace('"request_timeout": 20', '"request_timeout": 0.1'))
        assert client.manage("reload_config", auth).body == {"changed": ["request_timeout"]}
        assert client.request("nobody").code == 404
        broker.file.write_text('{"request_timeuot": 1}')
        refused = client.manage("reload_config", auth)
        assert refused.code == 400
        assert "request_timeout" in refused.body["reasons"][0]
        assert client.manage("status", auth).code == 200


# Promise: MGMT-3
def test_whoever_logs_out_has_no_token_any_more_and_nobody_else_loses_one(caller, local):
    mine, other = token(caller, "viewer"), token(caller, "viewer")
    said = caller.manage("whoami", mine).body
    assert (said["name"], said["role"]) == ("viewer", "viewer")
    assert 3_500 < said["expires"] - time.time() <= 3_600
    assert caller.manage("whoami", local).body == {"name": "local", "role": "admin", "expires": None}
    assert caller.manage("logout", mine).body == {"revoked": 1}
    assert caller.manage("whoami", mine).code == 401
    assert caller.manage("whoami", other).code == 200
    assert caller.manage("logout", local).body == {"revoked": 0}
    assert caller.manage("logout", password("viewer")).body == {"revoked": 0}


# Promise: MGMT-3
def test_tokens_are_listed_by_their_ids_and_revoked_by_them(net, local):
    client, name = net.frontend(), unique("ci")
    made = [client.manage("issue_token", local, name=name, ttl=1_000).body for _ in range(2)]
    listed = [row for row in client.manage("list_tokens", local, limit=1_000).body["items"] if row["name"] == name]
    assert {row["id"] for row in listed} == {row["id"] for row in made}
    assert not any(one["token"] in str(listed) for one in made)
    assert client.manage("revoke_token", local, token_id=made[0]["id"]).body == {"revoked": 1}
    assert client.manage("whoami", {"auth_token": made[0]["token"]}).code == 401
    assert client.manage("whoami", {"auth_token": made[1]["token"]}).code == 200


# Promise: MGMT-2
def test_wrong_passwords_that_one_connection_sends_wait_by_name_whatever_origin_they_write(caller):
    for number in range(3):
        wrong = {"auth_id": f"nobody-{number}", "auth_password": "no"}
        caller.say("MANAGEMENTREQ", {"command": "login", "id": number, **wrong})
    again = {"auth_id": "nobody-0", "auth_password": "no", "origin": "10.0.0.9"}
    caller.say("MANAGEMENTREQ", {"command": "login", "id": "same", **again})
    assert caller.hear().options["code"] == 429
    caller.say("MANAGEMENTREQ", {"command": "login", "id": "right", **password("viewer")})
    codes = {one["id"]: one["code"] for one in (caller.hear().options for _ in range(4))}
    assert codes == {0: 401, 1: 401, 2: 401, "right": 200}


# Promise: MGMT-1
def test_rates_and_queues_tell_what_was_done_and_who_is_next(net, local):
    name = unique("counted")
    backend = net.backend(name, slots=2)
    caller = net.frontend()
    for number in range(3):
        caller.say("REQUEST", {"service": name, "id": number}, b"x")
        backend.answer()
        assert caller.hear().command == "REPLY"
    watcher = net.frontend()
    row = next(one for one in watcher.manage("list_rates", local, limit=1_000).body["items"] if one["service"] == name)
    assert (row["answered"], row["failed"]) == (3, 0)
    assert sum(count for _, count in row["histogram"]) == 3
    assert 0 < row["longest"] <= row["seconds"]
    for number in range(3):
        caller.say("REQUEST", {"service": name, "id": f"w{number}"}, b"x")
    for _ in range(2):
        backend.hear_until("REQUEST")
    queue = next(q for q in watcher.manage("list_queues", local, limit=1_000).body["items"] if q["service"] == name)
    assert (queue["waiting"], queue["backends"]) == (1, 1)
    assert queue["oldest_seconds"] >= 0
    assert [(one["slots"], one["busy"]) for one in queue["lru"]] == [(2, 2)]


# Promise: MGMT-6
@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_a_check_is_run_by_a_helen_and_its_result_is_the_commands_answer(broker, net, kind):
    helen, client = net.backend("helen.check", slots=2), net("frontend", kind)
    otto, agent = token(client, "operator"), unique("web")
    said = {"command": "run_check", "id": 1, **otto, "agent": agent, "check": "tcp", "args": {"password": "hunter2"}}
    client.say("MANAGEMENTREQ", {**said, "timeout": 5, "origin": "http/10.0.0.9"})
    asked = helen.hear_until("REQUEST")
    assert (asked.options["service"], asked.options["timeout"]) == ("helen.check", pytest.approx(10, abs=1))
    assert asked.body == {"agent": agent, "check": "tcp", "timeout": 5, "args": {"password": "hunter2"}}
    helen.say("REPLY", {"id": asked.options["id"]}, b'{"state": "ok"}')
    heard = client.hear()
    assert (heard.command, heard.options) == ("MANAGEMENTREP", {"id": 1, "code": 200, "message": "done"})
    assert heard.bodies == [b'{"state": "ok"}']
    [event] = [one for one in recorded(broker, "run_check") if one["after"]["agent"] == agent]
    assert (event["identity"], event["code"]) == ("operator", 200)
    assert event["after"] == {"agent": agent, "check": "tcp", "args": ["password"]}
    assert event["origin"].endswith(" for http/10.0.0.9")
    assert "hunter2" not in str(event)
    helen.say("DISCONNECT")


# Promise: MGMT-6
def test_a_check_that_is_not_run_is_answered_with_the_reason_and_recorded_so(broker, net):
    helen, client = net.backend("helen.check", slots=2), net.frontend()
    otto, agent = token(client, "operator"), unique("web")
    client.say(
        "MANAGEMENTREQ", {"command": "run_check", "id": 1, **otto}, b'{"agent": "%b", "check": "x"}' % agent.encode()
    )
    for code in (404, 429):
        asked = helen.hear_until("REQUEST")
        helen.say("ERROR", {"id": asked.options["id"], "code": code, "message": "so it is"})
    assert client.hear().options == {"id": 1, "code": 429, "message": "so it is"}
    client.say("MANAGEMENTREQ", {"command": "run_check", "id": 2, **otto, "agent": agent, "check": "x"})
    helen.hear_until("REQUEST")
    helen.say("DISCONNECT")
    assert client.hear().code == 502
    codes = [one["code"] for one in recorded(broker, "run_check") if one["after"]["agent"] == agent]
    assert codes == [200, 429, 200, 502]
