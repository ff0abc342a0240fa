"""One-time links: a token of a kind of its own, which can only be exchanged, once, for a session.

Promise: HTTP-12
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.admin.access import LINK_SESSION_SECONDS, digest_of
from scale0.storage.rows import PutToken
from tests.fakes.broker import WALL, FakeBroker

COMMANDS = sorted(FakeBroker().machine.management.table)


def sent(broker: FakeBroker, command: str, token: str, **arguments: Any) -> tuple[int, Any]:
    """The code and the result of a command with this token."""
    said = {"command": command, "id": 1, "auth_token": token, **arguments}
    [(_, options, bodies)] = broker.exchange("frontend-somebody", "MANAGEMENTREQ", said)
    return options["code"], msgspec.json.decode(bodies[0])


def link_of(broker: FakeBroker, role: str = "admin", **arguments: Any) -> str:
    issued = broker.manage("issue_token", name="link-1", role=role, ttl=600.0, once=True, **arguments)
    token: str = msgspec.json.decode(issued[2][0])["token"]
    return token


@pytest.mark.parametrize("command", [one for one in COMMANDS if one != "exchange_link"])
def test_every_other_command_refuses_a_link(command):
    broker = FakeBroker()
    link = link_of(broker)
    assert sent(broker, command, link)[0] == 401
    assert sent(broker, "exchange_link", link)[0] == 200, "the refused command did not use it up"


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_a_link_is_exchanged_once_for_a_session_of_its_role(role):
    broker = FakeBroker()
    link = link_of(broker, role)
    code, session = sent(broker, "exchange_link", link)
    assert (code, session["role"]) == (200, role)
    assert session["expires"] == pytest.approx(broker.wall + LINK_SESSION_SECONDS)
    assert sent(broker, "exchange_link", link)[0] == 401
    assert sent(broker, "whoami", session["token"]) == (
        200,
        {"name": "link-1", "role": role, "expires": session["expires"]},
    )


def test_a_session_of_a_link_is_no_link_and_cannot_renew_itself():
    broker = FakeBroker()
    session = sent(broker, "exchange_link", link_of(broker))[1]
    assert sent(broker, "exchange_link", session["token"])[0] == 401
    assert sent(broker, "whoami", session["token"])[0] == 200, "the attempt did not end it"
    renewed = sent(broker, "login", session["token"])[1]
    assert renewed["expires"] <= session["expires"]
    assert sent(broker, "exchange_link", renewed["token"])[0] == 401


def test_no_name_makes_a_token_a_link():
    broker = FakeBroker()
    for name in ("once-1", "link-1", "once:admin"):
        _, options, bodies = broker.manage("issue_token", name=name, role="admin")
        if options["code"] == 200:
            assert sent(broker, "exchange_link", msgspec.json.decode(bodies[0])["token"])[0] == 401
    assert broker.manage("issue_token", name="x", role="once:admin")[1]["code"] == 400


def test_a_link_is_still_one_after_a_restart_and_its_use_is_stored_with_its_session():
    broker = FakeBroker()
    link, used = link_of(broker), link_of(broker)
    session = sent(broker, "exchange_link", used)[1]
    broker.crash(stored=True)
    assert sent(broker, "exchange_link", used)[0] == 401
    assert sent(broker, "whoami", session["token"])[0] == 200
    assert sent(broker, "whoami", link)[0] == 401
    assert sent(broker, "exchange_link", link)[0] == 200


def test_two_that_exchange_a_link_before_either_is_stored_get_one_session():
    broker = FakeBroker()
    link = link_of(broker)
    broker.hold()
    said = {"command": "exchange_link", "id": 1, "auth_token": link}
    broker.send("frontend-a", "MANAGEMENTREQ", said)
    broker.send("frontend-b", "MANAGEMENTREQ", said)
    assert broker.received("frontend-a") == [], "the session is not sent before it is stored"
    broker.let_go()
    codes = [options["code"] for who in ("frontend-a", "frontend-b") for _, options, _ in broker.received(who)]
    assert sorted(codes) in ([200, 401], [200]), codes


def test_links_are_listed_as_such_and_their_exchange_is_recorded():
    broker = FakeBroker()
    link = link_of(broker, "viewer")
    [row] = sent(broker, "list_tokens", "s0_test")[1]["items"]
    assert (row["name"], row["role"], row["once"]) == ("link-1", "viewer", True)
    broker.events.clear()
    sent(broker, "exchange_link", link, origin="http/10.0.0.9")
    [event] = [one for one in broker.events if one.kind == "management.commanded"]
    assert (event.identity, event.command, event.code) == ("link-1", "exchange_link", 200)
    assert "s0_" not in repr(event)
    [row] = sent(broker, "list_tokens", "s0_test")[1]["items"]
    assert (row["name"], row["once"]) == ("link-1", False)


def test_a_link_that_an_older_version_stored_by_name_is_a_link():
    broker = FakeBroker()
    expires = int((WALL + 600) * 1_000_000)
    for name, token in (("once-0a1b2c3d", "s0_old"), ("once-upon", "s0_program")):
        broker.store.commit([PutToken(digest_of(token), name, "operator", expires)])
    broker.crash(stored=True)
    assert sent(broker, "whoami", "s0_old")[0] == 401
    code, session = sent(broker, "exchange_link", "s0_old")
    assert (code, session["role"]) == (200, "operator")
    assert sent(broker, "whoami", "s0_program")[0] == 200, "another name"
