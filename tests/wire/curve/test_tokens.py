"""Joining by token: once, in time, for its role, and for nothing else (PROTOCOL 11).

Promise: CURVE-8, CURVE-9
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import zmq

from scale0.broker.edge.join_tokens import new_join_token
from scale0.broker.edge.key_folder import KeyFolder
from scale0.transport.edge.joining import JoinToken, read_join_token
from tests.fakes.messages import Message
from tests.fakes.waiting import until
from tests.wire.curve.keys import FOLDERS, ROLES, Lock, Pair, new_pair
from tests.wire.scale0.raw import Raw, unique

pytestmark = pytest.mark.processes

MOMENT_SECONDS = 0.8
PUBLISHED_SECONDS = 1.5
"""A beacon is published every second."""


def token_for(lock: Lock, role: str, name: str = "", seconds: float = 60.0) -> JoinToken:
    """A token that the broker knows of by now."""
    token = new_join_token(KeyFolder(lock.folder.parent), role, name, seconds)
    lock.admitted(role, pair_of(token))
    return token


def tokens_for(lock: Lock, role: str, count: int) -> list[JoinToken]:
    """The broker looks at its folder now and then: many are known as soon as one."""
    tokens = [new_join_token(KeyFolder(lock.folder.parent), role, "", 60.0) for _ in range(count)]
    for token in tokens:
        lock.admitted(role, pair_of(token))
    return tokens


def pair_of(token: JoinToken) -> Pair:
    return Pair(zmq.curve_public(token.secret.encode()), token.secret.encode())


def enrol(raw: Raw, name: str, pair: Pair) -> Message:
    return raw.ask("ENROL", {"name": name, "public_key": pair.public.decode()})


@pytest.mark.parametrize("role", ROLES)
def test_a_token_is_traded_for_a_key_of_ones_own(lock: Lock, role: str) -> None:
    name, pair = unique("newcomer"), new_pair()
    token = token_for(lock, role)
    heard = enrol(lock.raw(role, pair_of(token)), name, pair)
    assert (heard.command, heard.options["name"]) == ("ENROLLED", name)
    assert (lock.folder / FOLDERS[role] / f"{name}.key").exists()
    raw = lock.raw(role, pair)  # at once, without waiting for the broker to look at its folder
    if role == "peer":
        raw.say("HELLO", {"identity": name, "time": time.time()})
        assert raw.hear().command == "HELLO"
    else:
        assert raw.check(name).command == "CONFIG"


def test_a_token_works_once(lock: Lock) -> None:
    token = token_for(lock, "backend")
    raw, other = lock.raw("backend", pair_of(token)), lock.raw("backend", pair_of(token))
    raw.say("ENROL", {"name": unique("one"), "public_key": new_pair().public.decode()})
    other.say("ENROL", {"name": unique("two"), "public_key": new_pair().public.decode()})
    heard = [one.hear_or_none(3.0) for one in (raw, other)]
    assert sorted(one.command for one in heard if one is not None)[-1] == "ENROLLED"
    assert sum(one is not None and one.command == "ENROLLED" for one in heard) == 1
    late = lock.raw("backend", pair_of(token))
    late.say("ENROL", {"name": unique("three"), "public_key": new_pair().public.decode()})
    assert late.silent(MOMENT_SECONDS)


def test_many_enrolments_in_one_batch_are_one(lock: Lock) -> None:
    token = token_for(lock, "backend")
    raw = lock.raw("backend", pair_of(token))
    names = [unique("batch") for _ in range(5)]
    raw.batch(*(["ENROL", {"name": name, "public_key": new_pair().public.decode()}] for name in names))
    heard = [raw.hear_or_none(1.0) for _ in names]
    assert [one.command for one in heard if one is not None].count("ENROLLED") == 1
    assert sum((lock.folder / "backends" / f"{name}.key").exists() for name in names) == 1


def test_a_token_whose_time_is_over_is_worth_nothing(lock: Lock) -> None:
    token = token_for(lock, "frontend", seconds=2.0)
    raw = lock.raw("frontend", pair_of(token))
    raw.say("REQUEST", {"service": "scale0.ping", "id": 1})
    assert raw.hear().code == 403
    late = lock.raw("frontend", pair_of(token))
    until(lambda: time.time() > token.expires)
    for one in (raw, late, lock.raw("frontend", pair_of(token))):
        one.say("ENROL", {"name": unique("late"), "public_key": new_pair().public.decode()})
        heard = one.hear_or_none(MOMENT_SECONDS)
        assert heard is None or heard.code == 403


@pytest.mark.parametrize("role", ROLES)
def test_a_token_of_one_role_is_worth_nothing_elsewhere(lock: Lock, role: str) -> None:
    token = token_for(lock, role)
    sockets = [lock.subscriber(socket, pair_of(token)) for socket in ("config_pub", "task_pub")]
    for socket in set(ROLES) - {role}:
        raw = lock.raw(socket, pair_of(token))
        raw.say("ENROL", {"name": unique("elsewhere"), "public_key": new_pair().public.decode()})
        sockets.append(raw.socket)
    assert not zmq.select(sockets, [], [], PUBLISHED_SECONDS)[0]


def test_a_forged_token_is_worth_nothing(lock: Lock) -> None:
    forged = JoinToken("frontend", lock.server_key.decode(), new_pair().secret.decode(), int(time.time()) + 600)
    assert read_join_token(forged.text()) == forged
    raw = lock.raw("frontend", pair_of(forged))
    raw.say("ENROL", {"name": "forger", "public_key": new_pair().public.decode()})
    assert raw.silent(MOMENT_SECONDS)
    assert not (lock.folder / "frontends" / "forger.key").exists()


WORDS: list[Any] = [
    ["CHECKCONFIG", {"config_type": "json"}],
    ["REQUEST", {"service": "scale0.services", "id": 1}],
    ["READY", {"services": ["x"], "config_version": 1}],
    ["HELLO", {"identity": "x"}],
    ["TABLEREQ", {}],
    ["MANAGEMENTREQ", {"command": "status", "id": "m"}],
]


@pytest.mark.parametrize("role", ROLES)
def test_a_token_may_say_enrol_and_nothing_else(lock: Lock, role: str) -> None:
    last, *tokens = tokens_for(lock, role, len(WORDS) + 1)
    for (command, options), token in zip(WORDS, tokens, strict=True):
        raw = lock.raw(role, pair_of(token))
        raw.say(command, options)
        heard = raw.hear()
        assert (heard.command, heard.code) == ("DISCONNECTERROR", 403), command
    raw = lock.raw(role, pair_of(last))
    raw.frames(b'{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_connect","params":[]}')
    raw.frames(b"MDPC02", b"\x01", b"mmi.service", b"x")
    assert raw.silent(MOMENT_SECONDS)


REFUSED: list[tuple[dict[str, str], int]] = [
    ({"name": "../evil", "public_key": "k"}, 400),
    ({"name": ".hidden", "public_key": "k"}, 400),
    ({"name": "a" * 65, "public_key": "k"}, 400),
    ({"name": "short", "public_key": "k"}, 400),
    ({"name": "not-z85", "public_key": "$" * 40}, 400),
    ({"name": "nothing"}, 400),
    ({"name": "local.mine", "public_key": "k"}, 403),
    ({"name": "local", "public_key": "k"}, 409),
]


def test_a_name_or_key_that_cannot_be_is_refused_and_the_token_is_not_spent(lock: Lock) -> None:
    for (said, code), token in zip(REFUSED, tokens_for(lock, "frontend", len(REFUSED)), strict=True):
        key = new_pair()
        if said.get("public_key") == "k" and said["name"] != "short":
            said = {**said, "public_key": key.public.decode()}
        heard = lock.raw("frontend", pair_of(token)).ask("ENROL", said)
        assert (heard.command, heard.code) == ("DISCONNECTERROR", code), said
        assert enrol(lock.raw("frontend", pair_of(token)), unique("after"), key).command == "ENROLLED"


def test_the_key_of_another_cannot_be_enrolled_under_a_second_name(lock: Lock) -> None:
    name = unique("victim")
    victim = lock.new("frontend", name)
    refused = enrol(lock.raw("frontend", pair_of(token_for(lock, "frontend"))), "a-thief", victim)
    assert refused.code == 409
    assert lock.raw("frontend", victim).check(name).command == "CONFIG"


@pytest.mark.parametrize("role", ROLES)
def test_a_key_that_has_another_use_is_refused_and_the_token_is_not_spent(lock: Lock, role: str) -> None:
    others = [lock.new(each, unique("other")).public for each in ROLES]
    token = token_for(lock, role)
    for public in (lock.server_key, *others):
        refused = enrol(lock.raw(role, pair_of(token)), unique("thief"), Pair(public, b""))
        assert (refused.command, refused.code) == ("DISCONNECTERROR", 409)
    assert enrol(lock.raw(role, pair_of(token)), unique("after"), new_pair()).command == "ENROLLED"


def test_a_peer_cannot_be_called_like_the_broker_itself(lock: Lock) -> None:
    raw = lock.raw("peer", pair_of(token_for(lock, "peer")))
    assert enrol(raw, "broker-1", new_pair()).code == 409


def test_a_token_for_one_name_is_for_no_other(lock: Lock) -> None:
    name = unique("named")
    token = token_for(lock, "backend", name)
    refused = enrol(lock.raw("backend", pair_of(token)), unique("else"), new_pair())
    assert refused.code == 403
    assert enrol(lock.raw("backend", pair_of(token)), name, new_pair()).command == "ENROLLED"


def test_whoever_has_a_key_cannot_enrol(lock: Lock) -> None:
    for role in ROLES:
        raw = lock.raw(role, lock.new(role, unique("settled")))
        assert enrol(raw, unique("more"), new_pair()).code == 403


def test_a_token_is_read_strictly() -> None:
    token = JoinToken("peer", new_pair().public.decode(), new_pair().secret.decode(), 2**40)
    assert read_join_token(token.text()) == token
    assert token.secret not in repr(token)
    for text in (
        "",
        "s0join.",
        token.text()[:-1],
        token.text() + "A",
        token.text().replace("s0join", "s0_"),
        "x" * 105,
    ):
        assert read_join_token(text) is None


def test_a_token_on_disk_is_its_public_half_alone(lock: Lock) -> None:
    token = token_for(lock, "frontend")
    kept = [path.read_text() for path in (lock.folder / "tokens").iterdir()]
    assert not any(token.secret in text for text in kept)
    assert any(zmq.curve_public(token.secret.encode()).decode() in text for text in kept)
    assert json.dumps(token.secret) not in "".join(kept)
