"""MDP/Client of RFC 7 and RFC 18, and the management services of RFC 8."""

from __future__ import annotations

import json

import pytest

from scale0.compat.majordomo.frames import CLIENT_DIALECT
from scale0.config import ServicePolicy
from tests.fakes.majordomo import (
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
    MajordomoBroker,
)


class Client:
    """A client of one form, by the letter of its RFC (or the dialect's source)."""

    def __init__(self, form: str, request: list[bytes], partial: list[bytes] | None, final: list[bytes], named: bool):
        self.form = form
        self.request, self.partial, self.final, self.named = request, partial, final, named

    def __repr__(self) -> str:
        return self.form

    def ask(self, broker: MajordomoBroker, who: str, service: bytes, *bodies: bytes) -> None:
        broker.say(who, *self.request, service, *bodies)

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


def given(broker: MajordomoBroker, who: str) -> bytes:
    """The address in the one request that a worker of 0.2 got."""
    (frames,) = broker.take(who)
    return frames[2]


# Promise: MDP-1
@every_form
def test_a_request_is_answered_in_the_framing_that_it_came_in(broker, form):
    broker.say("w1", W02, READY, b"echo")
    form.ask(broker, "client", b"echo", b"one", b"two")
    (request,) = broker.take("w1")
    assert request[3:] == [EMPTY, b"one", b"two"]
    broker.say("w1", W02, FINAL_02, request[2], EMPTY, b"ONE", b"TWO")
    assert broker.take("client") == [form.reply(b"echo", b"ONE", b"TWO")]


@every_form
@pytest.mark.parametrize("turns", ["one turn", "several turns"])
def test_parts_come_one_by_one_or_joined_before_the_last(broker, form, turns):
    broker.say("w1", W02, READY, b"echo")
    form.ask(broker, "client", b"echo", b"x")
    client = given(broker, "w1")
    said = [
        [W02, PARTIAL_02, client, EMPTY, b"a"],
        [W02, PARTIAL_02, client, EMPTY, b"b"],
        [W02, FINAL_02, client, EMPTY, b"c"],
    ]
    if turns == "one turn":
        broker.send_frames("w1", *said)
    else:
        for frames in said:
            broker.say("w1", *frames)
    assert broker.take("client") == form.answer(b"echo", b"a", b"b", b"c")
    assert broker.machine.requests.memory.used == 0


@every_form
def test_an_answer_without_a_body_has_the_frames_that_the_standard_wants(broker, form):
    broker.scale0_backend("w1", "echo")
    form.ask(broker, "client", b"echo", b"x")
    (frames,) = broker.take("w1")
    broker.say("w1", b"SCALE0/1", b"REPLY", frames[2])
    assert broker.take("client") == [form.reply(b"echo", *([EMPTY] if form.named else []))]


@every_form
def test_an_error_is_silence(broker, form):
    broker.scale0_backend("w1", "echo")
    form.ask(broker, "client", b"echo", b"x")
    (frames,) = broker.take("w1")
    broker.say("w1", b"SCALE0/1", b"PARTIAL", frames[2], b"half")
    broker.say("w1", b"SCALE0/1", b"ERROR", json.dumps({**json.loads(frames[2]), "code": 500}).encode())
    heard = broker.take("client")
    assert heard == ([] if form.partial is None else form.answer(b"echo", b"half", b"-")[:1])
    assert broker.machine.requests.memory.used == 0
    assert not broker.connection("client").outstanding


@every_form
def test_a_request_waits_for_its_service_and_expires(form):
    broker = MajordomoBroker(request_timeout=10.0)
    form.ask(broker, "client", b"late", b"1")
    broker.pass_time(5)
    broker.say("w1", W02, READY, b"late")
    assert broker.take("w1")[0][4:] == [b"1"]
    form.ask(broker, "client", b"never", b"2")
    broker.pass_time(11)
    assert broker.take("client") == []
    assert not broker.connection("client").outstanding


@every_form
def test_a_dead_workers_request_is_sent_to_another(broker, form):
    broker.say("w1", W02, READY, b"echo")
    form.ask(broker, "client", b"echo", b"x")
    given(broker, "w1")
    broker.say("w2", EMPTY, W01, READY, b"echo")
    broker.say("w1", W02, b"\x06")
    (request,) = broker.take("w2")
    broker.say("w2", EMPTY, W01, REPLY_01, request[3], EMPTY, b"from w2")
    assert broker.take("client") == [form.reply(b"echo", b"from w2")]


@every_form
def test_an_answer_goes_to_the_one_who_asked(broker, form):
    for who in ("w1", "w2"):
        broker.say(who, W02, READY, b"echo")
    form.ask(broker, "alice", b"echo", b"a")
    form.ask(broker, "bob", b"echo", b"b")
    first, second = given(broker, "w1"), given(broker, "w2")
    broker.say("w2", W02, FINAL_02, second, EMPTY, b"for bob")
    broker.say("w1", W02, FINAL_02, first, EMPTY, b"for alice")
    assert broker.take("alice") == [form.reply(b"echo", b"for alice")]
    assert broker.take("bob") == [form.reply(b"echo", b"for bob")]


@every_form
def test_a_client_may_have_several_requests_under_way(broker, form):
    for who in ("w1", "w2"):
        broker.say(who, W02, READY, b"echo")
    form.ask(broker, "client", b"echo", b"a")
    form.ask(broker, "client", b"echo", b"a")
    for who in ("w2", "w1"):
        broker.say(who, W02, FINAL_02, given(broker, who), EMPTY, who.encode())
    assert broker.take("client") == [form.reply(b"echo", b"w2"), form.reply(b"echo", b"w1")]


# Promise: CURVE-13
@every_form
def test_more_requests_in_a_second_than_one_may_make_are_silence(form):
    broker = MajordomoBroker(max_requests_per_second=3)
    for number in range(5):
        form.ask(broker, "client", b"mmi.service" if number < 2 else b"echo", b"echo")
    assert len(broker.take("client")) == 2
    broker.say("w1", W02, READY, b"echo")
    broker.say("w2", W02, READY, b"echo")
    assert [who for who in ("w1", "w2") if any(frames[1] == REQUEST for frames in broker.take(who))] == ["w1"]
    broker.pass_time(1.5)
    form.ask(broker, "client", b"mmi.service", b"echo")
    assert broker.take("client") == [form.reply(b"mmi.service", b"200")]


# Promise: MDP-2
@every_form
def test_mmi_service_knows_every_backend(broker, form):
    broker.say("w1", EMPTY, W01, READY, b"old")
    broker.say("w2", W02, READY, b"new")
    broker.scale0_backend("w3", "own")
    asked = {b"old": b"200", b"new": b"200", b"own": b"200", b"none": b"404", b"": b"404", b"\xff": b"404"}
    for service, code in {**asked, b"mmi.service": b"404"}.items():
        form.ask(broker, "client", b"mmi.service", service)
        assert broker.take("client") == [form.reply(b"mmi.service", code)]
    broker.say("w1", EMPTY, W01, b"\x05")
    form.ask(broker, "client", b"mmi.service", b"old")
    assert broker.take("client") == [form.reply(b"mmi.service", b"404")]


# Promise: MDP-2
@every_form
@pytest.mark.parametrize("service", [b"mmi.", b"mmi.services", b"mmi.service.x", b"mmi.broker"])
def test_other_management_services_are_not_implemented(broker, form, service):
    form.ask(broker, "client", service, b"echo")
    assert broker.take("client") == [form.reply(service, b"501")]


@every_form
def test_discovery_answers_these_clients_too(broker, form):
    form.ask(broker, "client", b"scale0.ping", b"")
    (frames,) = broker.take("client")
    assert frames[:-1] == form.reply(b"scale0.ping")
    assert json.loads(frames[-1])["broker"] == "broker-1"
    form.ask(broker, "client", b"scale0.nothing", b"")
    assert broker.take("client") == []


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
def test_malformed_requests_are_counted_and_dropped(broker, form, case):
    broker.say("client", *form.request, *MALFORMED[case])
    assert broker.take("client") == []
    connection = broker.connection("client")
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
def test_a_client_of_02_says_nothing_but_request(broker, frames):
    broker.scale0_backend("w1", "echo")
    broker.say("client", *frames)
    assert (broker.take("client"), broker.take("w1")) == ([], [])
    assert broker.connection("client").account.bad.used == 1


@every_form
@pytest.mark.parametrize("socket", ["backend", "peer"])
def test_clients_are_refused_on_the_other_doors(broker, form, socket):
    broker.say("client", *form.request, b"mmi.service", b"echo", socket=socket)
    assert broker.take("client") == []
    found = broker.machine.connections.find(socket, b"client")
    assert found is not None
    assert found.account.bad.used == 1


@every_form
@pytest.mark.parametrize("state", ["joining", "disabled", "draining"])
def test_a_broker_that_does_not_serve_is_silent(form, state):
    if state == "draining":
        broker = MajordomoBroker()
        broker.machine.state.draining = True
    else:
        broker = MajordomoBroker(state=state, peers=("tcp://127.0.0.1:1",))
        form.ask(broker, "client", b"mmi.service", b"echo")
    form.ask(broker, "client", b"echo", b"x")
    broker.pass_time(31)
    assert broker.take("client") == []
    connection = broker.machine.connections.find("frontend", b"client")
    assert connection is None or (connection.account.bad.used, len(connection.outstanding)) == (0, 0)


@every_form
def test_a_policy_of_the_network_sets_the_timeout(broker, form):
    broker.machine.state.policies = {"slow": ServicePolicy(name="slow", timeout=100.0)}
    form.ask(broker, "client", b"slow", b"x")
    broker.pass_time(90)
    assert broker.connection("client").outstanding


def test_a_client_of_02_hears_the_parts_of_a_scale0_backend(broker):
    broker.scale0_backend("w1", "echo")
    NEW.ask(broker, "client", b"echo", b"x")
    (frames,) = broker.take("w1")
    broker.say("w1", b"SCALE0/1", b"PARTIAL", frames[2], b"a")
    broker.say("w1", b"SCALE0/1", b"REPLY", frames[2], b"b")
    assert broker.take("client") == NEW.answer(b"echo", b"a", b"b")


@pytest.mark.parametrize("form", [OLD, OLD_BARE], ids=repr)
def test_parts_that_are_too_big_together_are_silence_and_little_is_kept(form):
    broker = MajordomoBroker(max_message_bytes=1_000)
    broker.say("w1", W02, READY, b"echo")
    form.ask(broker, "client", b"echo", b"x")
    client = given(broker, "w1")
    for _ in range(20):
        broker.say("w1", W02, PARTIAL_02, client, EMPTY, 500 * b"x")
        assert broker.machine.requests.memory.used <= 2_000
    broker.say("w1", W02, FINAL_02, client, EMPTY, b"end")
    assert broker.take("client") == []
    assert broker.machine.requests.memory.used == 0


def test_a_name_in_any_script_is_a_name(broker):
    service = "größe.δ".encode()
    broker.say("w1", W02, READY, service)
    NEW.ask(broker, "client", service, b"x")
    client = given(broker, "w1")
    broker.say("w1", W02, PARTIAL_02, client, EMPTY, b"1")
    broker.say("w1", W02, FINAL_02, client, EMPTY, b"2")
    assert broker.take("client") == NEW.answer(service, b"1", b"2")


def test_a_name_with_spaces_is_a_name(broker):
    broker.say("w1", W02, READY, b"two words here")
    NEW.ask(broker, "client", b"two words here", b"x")
    broker.say("w1", W02, PARTIAL_02, given(broker, "w1"), EMPTY, b"1")
    assert broker.take("client") == NEW.answer(b"two words here", b"1", b"-")[:1]


# Promise: MDP-4
def test_the_dialect_is_told_apart_by_each_request(broker):
    for form in (DIALECT, NEW_REQ, NEW, DIALECT, OLD):
        form.ask(broker, "client", b"mmi.service", b"echo")
        assert broker.take("client") == [form.reply(b"mmi.service", b"404")]
    # The number of its REQUEST is one that RFC 18 gives to a word of the broker: no client of the RFC says it.
    assert CLIENT_DIALECT.request == CLIENT_PARTIAL_02
