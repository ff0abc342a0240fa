"""CHECKCONFIG, READY, HEARTBEAT, NEEDBROKER, DISCONNECT, typed by hand in every framing (PROTOCOL 1 and 2.1)."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
import zmq

from scale0.config import ClientConfig, parse
from tests.fakes.messages import MAGIC
from tests.wire.scale0.raw import Raws, unique

pytestmark = pytest.mark.processes

FRAMINGS = pytest.mark.parametrize(
    ("kind", "delimiter"),
    [(zmq.REQ, True), (zmq.DEALER, False), (zmq.DEALER, True)],
    ids=["REQ", "DEALER", "DEALER with delimiter"],
)
SOCKETS = pytest.mark.parametrize("socket", ["frontend", "backend"])


# Promise: WIRE-1
@FRAMINGS
@SOCKETS
def test_every_framing_is_answered_in_kind(net, socket, kind, delimiter):
    heard = net(socket, kind, delimiter).check(unique("me"))
    assert heard.command == "CONFIG"
    assert heard.options["config_version"] == 1


# Promise: WIRE-1
@SOCKETS
def test_an_answer_has_a_delimiter_only_if_the_question_had_one(net, socket):
    plain, marked = net(socket), net(socket, delimiter=True)
    plain.say("CHECKCONFIG")
    assert (plain.receive() or [])[0] == MAGIC
    marked.say("CHECKCONFIG")
    assert (marked.receive() or [])[:2] == [b"", MAGIC]


# Promise: NEGO-1
@pytest.mark.parametrize("config_type", ["json", "JSON", "xml", "Xml", "zpl", "ZPL", "zfl", "ZfL"])
def test_the_configuration_comes_in_the_form_that_was_asked_for_and_parses_back(net, config_type):
    me = unique("me")
    heard = net.frontend().check(me, config_type=config_type)
    form = config_type.lower().replace("zfl", "zpl")
    assert heard.options["config_type"] == form
    part = parse(heard.bodies[0], form, ClientConfig)
    assert (part.identity, part.config_version, part.heartbeat_interval) == (me, 1, 60.0)
    assert part.preferred_broker == "broker-1"
    assert part.group_config[0].brokers[0].endpoints.frontend == net.endpoints["frontend"]


@pytest.mark.parametrize("config_type", ["yaml", "", "jsonx", "ＪＳＯＮ"])
def test_an_unknown_form_is_refused_with_415(net, config_type):
    heard = net.frontend().check(config_type=config_type)
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 415)


def test_a_client_without_an_identity_gets_one_that_it_can_use_again(net):
    made = net.frontend().check().options["identity"]
    assert net.frontend().check(made).options["identity"] == made


@pytest.mark.parametrize("identity", ["", "a b", "ä", "x" * 129, "a/b", "٣", "a\n"])
def test_an_identity_outside_the_rule_is_refused(net, identity):
    assert net.frontend().check(identity).code == 400


def test_an_identity_of_128_characters_is_accepted(net):
    assert net.frontend().check("x" * 128).command == "CONFIG"


# Promise: NEGO-1
@pytest.mark.parametrize("spelling", ["config_version", "configversion"])
def test_the_current_version_is_acknowledged_in_both_spellings(net, spelling):
    heard = net.frontend().check(**{spelling: 1})
    assert (heard.command, heard.bodies) == ("CONFIGACK", [])
    assert heard.options["config_version"] == 1
    assert len(heard.options["config_hash"]) == 64


# Promise: NEGO-1
@pytest.mark.parametrize("version", [None, 0])
def test_no_version_and_an_older_one_get_the_configuration(net, version):
    assert net.frontend().check(config_version=version).command == "CONFIG"


# Promise: NEGO-1
def test_the_same_version_is_acknowledged_only_with_the_same_hash(net):
    hash_ = net.frontend().check().options["config_hash"]
    assert net.frontend().check(config_version=1, config_hash=hash_).command == "CONFIGACK"
    other = net.frontend().check(config_version=1, config_hash="0" * 64)
    assert (other.command, other.options["config_hash"]) == ("CONFIG", hash_)


# Promise: CONF-3
def test_a_newer_version_is_acknowledged_as_it_is_and_never_downgraded(net):
    heard = net.frontend().check(config_version=99, config_hash="f" * 64)
    assert (heard.command, heard.options["config_version"]) == ("CONFIGACK", 99)


# Promise: NEGO-1
def test_the_hash_is_over_the_network_document_and_the_same_for_every_form(net, local):
    hashes = {net.frontend().check(config_type=form).options["config_hash"] for form in ("json", "xml", "zpl")}
    current = net.frontend().manage("get_config", local)
    assert hashes == {current.body["hash"]}
    raw = current.bodies[0]
    document = raw[raw.index(b'"config":') + len(b'"config":') : -1]
    assert hashlib.sha256(document).hexdigest() == current.body["hash"]


def test_options_that_nobody_knows_are_ignored_and_empty_ones_mean_none(net):
    assert net.frontend().check(colour="green").command == "CONFIG"
    assert net.frontend().ask("CHECKCONFIG", b"").command == "CONFIG"


def test_ready_is_answered_with_the_interval_to_use(net):
    backend = net("backend")
    heard = backend.ready(unique("echo"), identity=unique("worker"))
    assert heard.options["heartbeat_interval"] == 60
    assert abs(heard.options["time"] - time.time()) < 5
    assert heard.options["config_version"] == 1


@pytest.mark.parametrize(("asked", "given"), [(120.5, 120.5), (0.01, 60), (60, 60)])
def test_a_longer_interval_is_granted_and_a_shorter_one_is_not(net, asked, given):
    assert net("backend").ready(unique("echo"), heartbeat_interval=asked).options["heartbeat_interval"] == given


@pytest.mark.parametrize(
    "wrong",
    [
        *({"heartbeat_interval": n} for n in (0, -1, 1e9)),
        *({"slots": n} for n in (0, -1, 10**9, 1.5, "1")),
        *({"prefetch": n} for n in (-1, 10**9)),
        *({"holds": h} for h in ([["a"]], [[1, 1]], {"a": 1})),
    ],
    ids=str,
)
def test_numbers_outside_their_range_are_refused(net, wrong):
    backend = net("backend")
    backend.check()
    said = {"services": [], "config_version": 1, **wrong}
    assert backend.ask("READY", said).code == 400


# Promise: NEGO-2
def test_ready_without_a_configuration_or_with_another_one_must_negotiate_first(net):
    backend = net("backend")
    assert backend.ask("READY", {"services": [], "config_version": 1}).command == "FORCENEGOTIATE"
    backend.check()
    assert backend.ask("READY", {"services": []}).command == "FORCENEGOTIATE"
    assert backend.ask("READY", {"services": [], "config_version": 7}).command == "FORCENEGOTIATE"
    assert backend.ask("READY", {"services": [], "config_version": 1}).command == "READYOK"


# Promise: NEGO-2
@SOCKETS
def test_heartbeats_are_answered_and_strangers_must_negotiate(net, socket):
    client = net(socket)
    assert client.ask("HEARTBEAT", {"time": time.time()}).command == "FORCENEGOTIATE"
    client.check()
    for _ in range(3):
        heard = client.ask("HEARTBEAT", {"time": time.time(), "config_version": 1})
        assert heard.command == "HEARTBEAT"
        assert abs(heard.options["time"] - time.time()) < 5
        assert heard.options["config_version"] == 1


def test_an_old_version_in_a_heartbeat_gets_the_configuration_again(caller):
    caller.check()
    caller.say("HEARTBEAT", {"config_version": 0})
    assert {caller.hear().command, caller.hear().command} == {"HEARTBEAT", "CONFIG"}


def test_a_client_in_need_of_a_broker_is_told_of_this_one(net):
    heard = net.frontend().ask("NEEDBROKER", {"identity": unique("me"), "services": ["x"], "preferred_broker": "gone"})
    assert heard.command == "CHANGEBROKER"
    assert heard.options["broker"] == "broker-1"
    assert heard.options["endpoints"]["backend"] == net.endpoints["backend"]
    assert {"group", "preferred", "after"} <= heard.options.keys()


# Promise: WIRE-2
@FRAMINGS
def test_a_batch_means_the_same_as_its_messages_one_by_one(net, kind, delimiter):
    client = net("frontend", kind, delimiter)
    client.batch(["REQUEST", {"service": "scale0.ping", "id": "one"}])
    assert client.hear().options["id"] == "one"


# Promise: WIRE-2
def test_who_asks_for_batches_gets_them(caller):
    caller.check(batch=True)
    caller.batch(*(["REQUEST", {"service": "scale0.ping", "id": n}, b"x"] for n in range(50)))
    frames = caller.receive() or []
    assert frames[:3] == [MAGIC, b"BATCH", b""]


def test_who_does_not_ask_for_batches_gets_single_messages(caller):
    caller.check()
    caller.batch(["REQUEST", {"service": "scale0.ping", "id": 1}], ["REQUEST", {"service": "scale0.ping", "id": 2}])
    first, second = caller.receive() or [], caller.receive() or []
    assert [json.loads(frames[2])["id"] for frames in (first, second)] == [1, 2]
    assert first[1] == second[1] == b"REPLY"


# Promise: WIRE-2
def test_a_whole_negotiation_fits_in_one_batch(net):
    backend, service = net("backend"), unique("echo")
    backend.batch(
        ["CHECKCONFIG", {"config_type": "zpl", "batch": True}],
        ["READY", {"services": [service], "config_version": 1, "time": time.time()}],
        ["HEARTBEAT", {"time": time.time()}],
    )
    # CONFIG may come last: it waits until what it says is on disk, the others wait for nothing.
    assert sorted(backend.hear().command for _ in range(3)) == ["CONFIG", "HEARTBEAT", "READYOK"]
    caller = net.frontend()
    caller.say("REQUEST", {"service": service, "id": 1})
    backend.answer(b"yes")
    assert caller.hear().bodies == [b"yes"]


# Promise: WIRE-7
@pytest.mark.parametrize("command", ["READY", "REPLY", "PARTIAL", "ERROR", "CONFIG", "READYOK", "CONFIGACK"])
def test_what_is_not_for_frontends_is_refused_on_their_socket(net: Raws, command):
    heard = net.frontend().ask(command, {"id": "1", "services": []})
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 403)


# Promise: WIRE-7
@pytest.mark.parametrize("command", ["REQUEST", "CONFIG", "MANAGEMENTREP"])
def test_what_is_not_for_backends_is_refused_on_their_socket(net, command):
    heard = net("backend").ask(command, {"id": 1, "service": "x"})
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 403)


@pytest.mark.parametrize("socket", ["frontend", "backend", "peer"])
@pytest.mark.parametrize("command", ["HELO", "request", "", "REQUEST ", "\x00", "ＲＥＡＤＹ", "R" * 5000])
def test_an_unknown_command_is_refused_with_501(net, socket, command):
    heard = net(socket).ask(command)
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 501)
