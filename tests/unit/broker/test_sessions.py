"""Sessions end with the token that made them, and with no other session.

Promise: MGMT-3
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.broker.admin import access as access_module
from scale0.broker.admin.access import SESSION_SECONDS, Access, digest_of
from scale0.broker.admin.token_commands import token_id
from scale0.kernel.clock import Now
from scale0.storage.rows import DropToken, PutToken
from tests.fakes.broker import WALL, FakeBroker


def sent(broker: FakeBroker, command: str, auth_token: str, /, **arguments: Any) -> tuple[int, Any]:
    """The code and the result of a command with this token."""
    said = {"command": command, "id": 1, "auth_token": auth_token, **arguments}
    [(_, options, bodies)] = broker.exchange("frontend-somebody", "MANAGEMENTREQ", said)
    return options["code"], msgspec.json.decode(bodies[0])


def issued(broker: FakeBroker, name: str = "ci", ttl: float = 100_000.0) -> Any:
    return sent(broker, "issue_token", "s0_test", name=name, role="admin", ttl=ttl)[1]


def logged_in(broker: FakeBroker, token: str) -> str:
    session: str = sent(broker, "login", token)[1]["token"]
    return session


def valid(broker: FakeBroker, *tokens: str) -> list[bool]:
    return [sent(broker, "whoami", token)[0] == 200 for token in tokens]


@pytest.mark.parametrize("by", ["token", "token_id", "name"])
@pytest.mark.parametrize("restarts", [False, True])
def test_all_sessions_of_a_token_end_with_it_and_no_others(by, restarts):
    broker = FakeBroker()
    made, other = issued(broker), issued(broker, "other")["token"]
    token = made["token"]
    first, second = logged_in(broker, token), logged_in(broker, token)
    renewed, others = logged_in(broker, first), logged_in(broker, other)
    if restarts:
        broker.crash(stored=True)
    meant = {"token": token, "token_id": made["id"], "name": "ci"}[by]
    assert sent(broker, "revoke_token", "s0_test", **{by: meant}) == (200, {"revoked": 4})
    for _ in range(2):
        assert valid(broker, token, first, second, renewed, other, others) == [False] * 4 + [True] * 2
        assert [row["name"] for row in sent(broker, "list_tokens", "s0_test")[1]["items"]] == ["other"] * 2
        broker.crash(stored=True)


def test_a_session_that_is_logged_out_ends_alone_and_what_it_renewed_still_ends_with_the_token():
    broker = FakeBroker()
    made = issued(broker)
    first = logged_in(broker, made["token"])
    renewed = logged_in(broker, first)
    assert sent(broker, "logout", first) == (200, {"revoked": 1})
    broker.crash(stored=True)
    assert valid(broker, made["token"], first, renewed) == [True, False, True]
    assert sent(broker, "revoke_token", "s0_test", token_id=made["id"]) == (200, {"revoked": 2})
    assert valid(broker, renewed) == [False]


def test_a_revoked_session_takes_what_it_renewed_and_not_the_token():
    broker = FakeBroker()
    made = issued(broker)
    first = logged_in(broker, made["token"])
    renewed = logged_in(broker, first)
    assert sent(broker, "revoke_token", "s0_test", token_id=token_id(digest_of(first)))[1] == {"revoked": 2}
    assert valid(broker, made["token"], first, renewed) == [True, False, False]


def test_a_session_expires_with_its_token():
    broker = FakeBroker()
    made = issued(broker, ttl=SESSION_SECONDS / 2)
    session = sent(broker, "login", made["token"])[1]
    assert session["expires"] <= made["expires"]


def test_a_session_of_the_local_token_ends_with_it_and_not_by_its_logout():
    broker = FakeBroker()
    session = logged_in(broker, "s0_test")
    assert sent(broker, "logout", "s0_test")[1] == {"revoked": 0}
    assert valid(broker, session) == [True]
    rows = broker.store.snapshot().tokens.values()
    access = Access(broker.machine.state, rows, digest_of("s0_of_the_next_start"))
    assert access.valid_tokens(Now(0.0, broker.wall)) == []


def test_a_session_of_an_older_version_works_on_and_one_without_its_token_does_not():
    broker = FakeBroker()
    made = issued(broker)
    expires = int((WALL + 600) * 1_000_000)
    broker.store.commit([PutToken(digest_of("s0_old"), "ci", "admin", expires)])
    lost = logged_in(broker, made["token"])
    broker.store.commit([DropToken(digest_of(made["token"]))])
    broker.crash(stored=True)
    assert valid(broker, "s0_old", lost) == [True, False]
    assert sent(broker, "revoke_token", "s0_test", name="ci")[0] == 200
    assert valid(broker, "s0_old") == [False]


# Promise: HTTP-11
def test_the_sessions_of_one_name_keep_out_no_other(monkeypatch):
    monkeypatch.setattr(access_module, "MAX_TOKENS", 300)
    broker = FakeBroker()
    viewer = issued(broker, "vera")["token"]
    honest = logged_in(broker, issued(broker, "ada")["token"])
    flood = [logged_in(broker, viewer) for _ in range(600)]
    assert valid(broker, honest, viewer, flood[-1], flood[0]) == [True, True, True, False]
    broker.crash(stored=True)
    assert valid(broker, honest, logged_in(broker, honest), flood[0]) == [True, True, False]
    assert len(sent(broker, "list_tokens", "s0_test")[1]["items"]) <= 300
