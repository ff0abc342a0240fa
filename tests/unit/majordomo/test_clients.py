"""MDP/Client of RFC 7 and RFC 18, and the management services of RFC 8."""

from __future__ import annotations

import json

import pytest

from scale0.compat.majordomo.frames import CLIENT_DIALECT
from scale0.config import ServicePolicy
from tests.wire.majordomo.town import (
    C01,
    C02,
    CLIENT_FINAL_02,
    CLIENT_PARTIAL_02,
    CLIENT_REQUEST_02,
    EMPTY,
    FINAL_02,
    PARTIAL_02,
    READY,
    REPLY_01,
    REQUEST,
    W01,
    W02,
    Town,
)


class Client:
    """A client of one form, by the letter of its RFC (or the dialect's source)."""

    def __init__(self, form: str, request: list[bytes], partial: list[bytes] | None, final: list[bytes], named: bool):
        self.form = form
        self.request, self.partial, self.final, self.named = request, partial, final, named

    def __repr__(self) -> str:
        return self.form

    def ask(self, town: Town, who: str, service: bytes, *bodies: bytes) -> None:
        town.says(who, *self.request, service, *bodies)

    def reply(self, service: bytes, *bodies: bytes) -> list[bytes]:
        return [*self.final, *([service] if self.named else []), *bodies]

    def answer(self, service: bytes, *parts: bytes) -> list[list[bytes]]:
        """An answer of several parts, as it comes: in one message, or one by one."""
        if self.partial is None:
            return [self.reply(service, *parts)]
        name = [service] if self.named else []
        return [[*self.partial, *name, part] for part in parts[:-1]] + [self.reply(service, parts[-1])]


OLD = Client("0.1", [EMPTY, C01], None, [EMPTY, C01], named=True)
OLD_BARE = Client("0.1 without its empty frame", [C01], None, [C01], named=True)
NEW = Client("0.2", [C02, CLIENT_REQUEST_02], [C02, CLIENT_PARTIAL_02], [C02, CLIENT_FINAL_02], named=True)
NEW_REQ = Client("0.2 from a REQ socket", [EMPTY, C02, CLIENT_REQUEST_02], None, [EMPTY, C02, CLIENT_FINAL_02], True)
DIALECT = Client("dialect", [EMPTY, C02, b"\x02"], [EMPTY, C02, b"\x03"], [EMPTY, C02, b"\x04"], named=False)

every_form = pytest.mark.parametrize("form", [OLD, OLD_BARE, NEW, NEW_REQ, DIALECT], ids=repr)


def given(town: Town, who: str) -> bytes:
    """The address in the one request that a worker of 0.2 got."""
    (frames,) = town.hears(who)
    return frames[2]


# Promise: MDP-1
@every_form
def test_a_request_is_answered_in_the_framing_that_it_came_in(form):
    town = Town()
    town.says("w1", W02, READY, b"echo")
    form.ask(town, "client", b"echo", b"one", b"two")
    (request,) = town.hears("w1")
    assert request[3:] == [EMPTY, b"one", b"two"]
    town.says("w1", W02, FINAL_02, request[2], EMPTY, b"ONE", b"TWO")
    assert town.hears("client") == [form.reply(b"echo", b"ONE", b"TWO")]


@every_form
@pytest.mark.parametrize("turns", ["one turn", "several turns"])
def test_parts_come_one_by_one_or_joined_before_the_last(form, turns):
    town = Town()
    town.says("w1", W02, READY, b"echo")
    form.ask(town, "client", b"echo", b"x")
    client = given(town, "w1")
    said = [
        [W02, PARTIAL_02, client, EMPTY, b"a"],
        [W02, PARTIAL_02, client, EMPTY, b"b"],
        [W02, FINAL_02, client, EMPTY, b"c"],
    ]
    if turns == "one turn":
        town.together("w1", *said)
    else:
        for frames in said:
            town.says("w1", *frames)
    assert town.hears("client") == form.answer(b"echo", b"a", b"b", b"c")
    assert not town.connection("client").parts


@every_form
def test_an_answer_without_a_body_has_the_frames_that_the_standard_wants(form):
    town = Town()
    town.scale0_backend("w1", "echo")
    form.ask(town, "client", b"echo", b"x")
    (frames,) = town.hears("w1")
    town.says("w1", b"SCALE0/1", b"REPLY", frames[2])
    assert town.hears("client") == [form.reply(b"echo", *([EMPTY] if form.named else []))]


@every_form
def test_an_error_is_silence(form):
    town = Town()
    town.scale0_backend("w1", "echo")
    form.ask(town, "client", b"echo", b"x")
    (frames,) = town.hears("w1")
    town.says("w1", b"SCALE0/1", b"PARTIAL", frames[2], b"half")
    town.says("w1", b"SCALE0/1", b"ERROR", json.dumps({**json.loads(frames[2]), "code": 500}).encode())
    heard = town.hears("client")
    assert heard == ([] if form.partial is None else form.answer(b"echo", b"half", b"-")[:1])
    assert not town.connection("client").parts
    assert not town.connection("client").outstanding


@every_form
def test_a_request_waits_for_its_service_and_expires(form):
    town = Town(request_timeout=10.0)
    form.ask(town, "client", b"late", b"1")
    town.passes(5)
    town.says("w1", W02, READY, b"late")
    assert town.hears("w1")[0][4:] == [b"1"]
    form.ask(town, "client", b"never", b"2")
    town.passes(11)
    assert town.hears("client") == []
    assert not town.connection("client").outstanding


@every_form
def test_a_dead_workers_request_is_sent_to_another(form):
    town = Town()
    town.says("w1", W02, READY, b"echo")
    form.ask(town, "client", b"echo", b"x")
    given(town, "w1")
    town.says("w2", EMPTY, W01, READY, b"echo")
    town.says("w1", W02, b"\x06")
    (request,) = town.hears("w2")
    town.says("w2", EMPTY, W01, REPLY_01, request[3], EMPTY, b"from w2")
    assert town.hears("client") == [form.reply(b"echo", b"from w2")]


@every_form
def test_an_answer_goes_to_the_one_who_asked(form):
    town = Town()
    for who in ("w1", "w2"):
        town.says(who, W02, READY, b"echo")
    form.ask(town, "alice", b"echo", b"a")
    form.ask(town, "bob", b"echo", b"b")
    first, second = given(town, "w1"), given(town, "w2")
    town.says("w2", W02, FINAL_02, second, EMPTY, b"for bob")
    town.says("w1", W02, FINAL_02, first, EMPTY, b"for alice")
    assert town.hears("alice") == [form.reply(b"echo", b"for alice")]
    assert town.hears("bob") == [form.reply(b"echo", b"for bob")]


@every_form
def test_a_client_may_have_several_requests_under_way(form):
    town = Town()
    for who in ("w1", "w2"):
        town.says(who, W02, READY, b"echo")
    form.ask(town, "client", b"echo", b"a")
    form.ask(town, "client", b"echo", b"a")
    for who in ("w2", "w1"):
        town.says(who, W02, FINAL_02, given(town, who), EMPTY, who.encode())
    assert town.hears("client") == [form.reply(b"echo", b"w2"), form.reply(b"echo", b"w1")]


# Promise: CURVE-13
@every_form
def test_more_requests_in_a_second_than_one_may_make_are_silence(form):
    town = Town(max_requests_per_second=3)
    for number in range(5):
        form.ask(town, "client", b"mmi.service" if number < 2 else b"echo", b"echo")
    assert len(town.hears("client")) == 2
    town.says("w1", W02, READY, b"echo")
    town.says("w2", W02, READY, b"echo")
    assert [who for who in ("w1", "w2") if any(frames[1] == REQUEST for frames in town.hears(who))] == ["w1"]
    town.passes(1.5)
    form.ask(town, "client", b"mmi.service", b"echo")
    assert town.hears("client") == [form.reply(b"mmi.service", b"200")]


# Promise: MDP-2
@every_form
def test_mmi_service_knows_every_backend(form):
    town = Town()
    town.says("w1", EMPTY, W01, READY, b"old")
    town.says("w2", W02, READY, b"new")
    town.scale0_backend("w3", "own")
    asked = {b"old": b"200", b"new": b"200", b"own": b"200", b"none": b"404", b"": b"404", b"\xff": b"404"}
    for service, code in {**asked, b"mmi.service": b"404"}.items():
        form.ask(town, "client", b"mmi.service", service)
        assert town.hears("client") == [form.reply(b"mmi.service", code)]
    town.says("w1", EMPTY, W01, b"\x05")
    form.ask(town, "client", b"mmi.service", b"old")
    assert town.hears("client") == [form.reply(b"mmi.service", b"404")]


# Promise: MDP-2
@every_form
@pytest.mark.parametrize("service", [b"mmi.", b"mmi.services", b"mmi.service.x", b"mmi.broker"])
def test_other_management_services_are_not_implemented(form, service):
    town = Town()
    form.ask(town, "client", service, b"echo")
    assert town.hears("client") == [form.reply(service, b"501")]


@every_form
def test_discovery_answers_these_clients_too(form):
    town = Town()
    form.ask(town, "client", b"scale0.ping", b"")
    (frames,) = town.hears("client")
    assert frames[:-1] == form.reply(b"scale0.ping")
    assert json.loads(frames[-1])["broker"] == "broker-1"
    form.ask(town, "client", b"scale0.nothing", b"")
    assert town.hears("client") == []


MALFORMED = {
    "no service": [],
    "no body": [b"echo"],
    "empty service": [b"", b"x"],
    "service not printable": [b"a\x00b", b"x"],
    "service not text": [b"\xff", b"x"],
    "service too long": [256 * b"x", b"x"],
}


@every_form
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_requests_are_counted_and_dropped(form, case):
    town = Town()
    town.says("client", *form.request, *MALFORMED[case])
    assert town.hears("client") == []
    connection = town.connection("client")
    assert (connection.account.bad.used, len(connection.outstanding)) == (1, 0)


@pytest.mark.parametrize(
    "frames",
    [
        [C02],
        [C02, b""],
        [C02, b"\x02", b"echo", b"x"],  # the dialect's number without its empty frame: only a broker says that
        [C02, b"\x03", b"echo", b"x"],
        [C02, b"\x01\x01", b"echo", b"x"],
        [EMPTY, C02],
        [EMPTY, C02, b"\x03", b"echo", b"x"],
    ],
    ids=repr,
)
def test_a_client_of_02_says_nothing_but_request(frames):
    town = Town()
    town.scale0_backend("w1", "echo")
    town.says("client", *frames)
    assert (town.hears("client"), town.hears("w1")) == ([], [])
    assert town.connection("client").account.bad.used == 1


@every_form
@pytest.mark.parametrize("door", ["backend", "peer"])
def test_clients_are_refused_on_the_other_doors(form, door):
    town = Town()
    town.says("client", *form.request, b"mmi.service", b"echo", door=door)
    assert town.hears("client") == []
    found = town.broker.connections.find(door, b"client")
    assert found is not None
    assert found.account.bad.used == 1


@every_form
@pytest.mark.parametrize("state", ["joining", "disabled", "draining"])
def test_a_broker_that_does_not_serve_is_silent(form, state):
    if state == "draining":
        town = Town()
        town.broker.state.draining = True
    else:
        town = Town(state=state, peers=("tcp://127.0.0.1:1",))
        form.ask(town, "client", b"mmi.service", b"echo")
    form.ask(town, "client", b"echo", b"x")
    town.passes(31)
    assert town.hears("client") == []
    connection = town.broker.connections.find("frontend", b"client")
    assert connection is None or (connection.account.bad.used, len(connection.outstanding)) == (0, 0)


@every_form
def test_a_policy_of_the_network_sets_the_timeout(form):
    town = Town()
    town.broker.state.policies = {"slow": ServicePolicy(name="slow", timeout=100.0)}
    form.ask(town, "client", b"slow", b"x")
    town.passes(90)
    assert town.connection("client").outstanding


def test_a_client_of_02_hears_the_parts_of_a_scale0_backend():
    town = Town()
    town.scale0_backend("w1", "echo")
    NEW.ask(town, "client", b"echo", b"x")
    (frames,) = town.hears("w1")
    town.says("w1", b"SCALE0/1", b"PARTIAL", frames[2], b"a")
    town.says("w1", b"SCALE0/1", b"REPLY", frames[2], b"b")
    assert town.hears("client") == NEW.answer(b"echo", b"a", b"b")


@pytest.mark.parametrize("form", [OLD, OLD_BARE], ids=repr)
def test_parts_that_are_too_big_together_are_silence_and_little_is_kept(form):
    town = Town(max_message_bytes=1_000)
    town.says("w1", W02, READY, b"echo")
    form.ask(town, "client", b"echo", b"x")
    client = given(town, "w1")
    for _ in range(20):
        town.says("w1", W02, PARTIAL_02, client, EMPTY, 500 * b"x")
        kept = town.connection("client").parts or {}
        assert sum(len(part) for parts in kept.values() for part in parts) <= 2_000
    town.says("w1", W02, FINAL_02, client, EMPTY, b"end")
    assert town.hears("client") == []
    assert not town.connection("client").parts


def test_a_name_in_any_script_is_a_name():
    town = Town()
    service = "größe.δ".encode()
    town.says("w1", W02, READY, service)
    NEW.ask(town, "client", service, b"x")
    client = given(town, "w1")
    town.says("w1", W02, PARTIAL_02, client, EMPTY, b"1")
    town.says("w1", W02, FINAL_02, client, EMPTY, b"2")
    assert town.hears("client") == NEW.answer(service, b"1", b"2")


def test_a_name_with_spaces_is_a_name():
    town = Town()
    town.says("w1", W02, READY, b"two words here")
    NEW.ask(town, "client", b"two words here", b"x")
    town.says("w1", W02, PARTIAL_02, given(town, "w1"), EMPTY, b"1")
    assert town.hears("client") == NEW.answer(b"two words here", b"1", b"-")[:1]


# Promise: MDP-4
def test_the_dialect_is_told_apart_by_each_request():
    town = Town()
    for form in (DIALECT, NEW_REQ, NEW, DIALECT, OLD):
        form.ask(town, "client", b"mmi.service", b"echo")
        assert town.hears("client") == [form.reply(b"mmi.service", b"404")]
    # The number of its REQUEST is one that RFC 18 gives to a word of the broker: no client of the RFC says it.
    assert CLIENT_DIALECT.request == CLIENT_PARTIAL_02
