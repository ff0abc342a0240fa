"""Whatever arrives: one error or a drop, bounded memory, and an honest pair that notices nothing (PROTOCOL 1 and 5)."""

from __future__ import annotations

import time

import msgspec
import psutil
import pytest
import zmq

from tests.fakes.messages import MAGIC, decode
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.honest import batch_of, honest_pair, packed
from tests.wire.scale0.raw import unique

pytestmark = pytest.mark.processes

MIB = 1 << 20


def request(options: bytes) -> list[bytes]:
    return [MAGIC, b"REQUEST", options]


SILENT = {
    "an empty frame": [b""],
    "two empty frames": [b"", b""],
    "an unknown protocol": [b"HTTP/1.1", b"GET"],
    "another version": [b"SCALE0/2", b"REQUEST", b"{}"],
    "the protocol in small letters": [b"scale0/1", b"REQUEST", b"{}"],
    "two delimiters": [b"", b"", MAGIC, b"REQUEST", b"{}"],
    "many empty frames": [b""] * 500,
    "bytes": [bytes(range(256))],
}

REFUSED = {
    "no command": ([MAGIC], 400),
    "no options": ([MAGIC, b"REQUEST"], 400),
    "options that are no JSON": (request(b"service=a"), 400),
    "options that are a list": (request(b"[]"), 400),
    "options that are null": (request(b"null"), 400),
    "options of another type": (request(b'{"service":1,"id":1}'), 400),
    "options without what is needed": (request(b'{"service":"a"}'), 400),
    "two objects": (request(b'{"service":"a","id":1}{}'), 400),
    "NaN": (request(b'{"service":"a","id":1,"timeout":NaN}'), 400),
    "Infinity": (request(b'{"service":"a","id":1,"timeout":Infinity}'), 400),
    "a number out of range": (request(b'{"service":"a","id":1,"timeout":1e400}'), 400),
    "a number of 60,000 digits": (request(b'{"service":"a","id":' + b"9" * 60_000 + b"}"), 400),
    "a lone surrogate": (request(b'{"service":"\\ud800","id":1}'), 400),
    "a lone surrogate as id": (request(b'{"service":"scale0.ping","id":"\\udfff"}'), 400),
    "broken UTF-8": (request(b'{"service":"\xff","id":1}'), 400),
    "UTF-8 of a surrogate": (request(b'{"service":"\xed\xa0\x80","id":1}'), 400),
    "UTF-16": (request('{"service":"a","id":1}'.encode("utf-16")), 400),
    "JSON 30,000 deep": (request(b'{"service":"a","id":1,"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}"), 400),
    "JSON 60,000 deep and open": (request(b"[" * 60_000), 400),
    "options over 64 KiB": (request(b'{"service":"a","id":1,"x":"' + b"x" * 65_536 + b'"}'), 413),
    "a batch of five frames": ([*batch_of(), b""], 400),
    "a batch of three frames": ([MAGIC, b"BATCH", b""], 400),
    "an empty batch frame": (packed(b""), 400),
    "a batch that is no array": (packed(msgspec.msgpack.encode({"a": 1})), 400),
    "a batch cut short": (packed(batch_of(["REQUEST", {"service": "a", "id": 1}])[3][:-1]), 400),
    "a batch with a tail": (packed(b"\x90\x90"), 400),
    "a batch of nil": (packed(b"\x91\xc0"), 400),
    "a batch of empty messages": (packed(b"\x91\x90"), 400),
    "a batch of numbers": (batch_of(1), 400),
    "a batch of maps": (batch_of({"command": "REQUEST"}), 400),
    "a batch that claims four billion": (packed(b"\xdd\xff\xff\xff\xff"), 413),
    "a batch of 10,001": (batch_of(*[["HEARTBEAT", {}]] * 10_001), 413),
    "a batch in a batch": (batch_of(["BATCH", {}, msgspec.msgpack.encode([])]), 403),
    "MessagePack of another type": (batch_of(["REQUEST", {"service": 1, "id": 1}]), 400),
    "MessagePack extensions": (packed(b"\x91\x92\xa7REQUEST\xd4\x05\x00"), 400),
    "a MessagePack timestamp as options": (packed(b"\x91\x92\xa7REQUEST\xd6\xff\x00\x00\x00\x00"), 400),
    "an extension as an id": (packed(b"\x91\x92\xa7REQUEST\x82\xa7service\xa1a\xa2id\xd4\x05\x00"), 400),
    "a body that is text": (batch_of(["REQUEST", {"service": "a", "id": 1}, "text"]), 400),
    "a body that is a map": (batch_of(["REQUEST", {"service": "a", "id": 1}, {}]), 400),
    "options that are JSON in a batch": (batch_of(["REQUEST", b'{"service":"a","id":1}']), 400),
    "MessagePack 100,000 deep": (packed(b"\x91" * 100_000 + b"\x90"), 400),
    "options 100,000 deep": (packed(b"\x91\x92\xa7REQUEST" + b"\x91" * 100_000 + b"\x90"), 400),
    "an unhashable key": (packed(b"\x91\x92\xadMANAGEMENTREQ\x82\xa7command\xa1x\xa6config\x81\x80\x01"), 400),
    "broken UTF-8 in a batch": (packed(b"\x91\x92\xa7REQUEST\x82\xa7service\xa1\xff\xa2id\x01"), 400),
    "a byte that MessagePack never uses": (packed(b"\xc1"), 400),
    "an unknown command in a batch": (batch_of(["NONSENSE", {}]), 501),
    "a command that is a number": (batch_of([1, {}]), 400),
    "options over 64 KiB in a batch": (batch_of(["CHECKCONFIG", {"x": "y" * 65_536}]), 413),
    "1,001 parts of an unknown command": ([MAGIC, b"HELO", b"", *[b""] * 1_001], 413),
    "10,000 parts": ([MAGIC, b"HEARTBEAT", b"", *[b"x"] * 10_000], 413),
}


@pytest.mark.parametrize("frames", SILENT.values(), ids=SILENT.keys())
@pytest.mark.parametrize("socket", ["frontend", "backend", "peer"])
def test_what_speaks_no_protocol_is_dropped(net, frames, socket):
    raw = net(socket)
    raw.frames(*frames)
    assert raw.silent(0.05)


# Promise: WIRE-4
@pytest.mark.parametrize(("frames", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_malformed_is_refused_once_and_its_sender_may_go_on(caller, frames, code):
    caller.frames(*frames)
    heard = caller.hear()
    assert (heard.command, heard.code) == ("DISCONNECTERROR", code)
    assert caller.request("scale0.ping").command == "REPLY"
    assert caller.silent(0)


@pytest.mark.parametrize("socket", ["backend", "peer"])
@pytest.mark.parametrize("frames", [packed(b"\x91\xc0"), packed(b"\x92\xc0\xc0"), batch_of(1), batch_of(["X", {}])])
def test_no_batch_of_nothings_passes_for_messages(net, socket, frames):
    raw = net(socket)
    raw.frames(*frames)
    assert raw.hear().code in (400, 501)


def test_of_two_keys_with_one_name_the_last_one_wins(caller):
    caller.frames(MAGIC, b"REQUEST", b'{"service":"x","id":1,"service":"scale0.ping","id":2}')
    assert caller.hear().options["id"] == 2


# Promise: WIRE-2
def test_one_bad_message_in_a_batch_does_not_cost_the_good_ones(caller):
    caller.frames(
        *batch_of(
            ["REQUEST", {"service": "scale0.ping", "id": 1}],
            ["REQUEST", {"service": 7}],
            ["REQUEST", {"service": "scale0.ping", "id": 2}, b"a", b"b"],
            None,
            ["REQUEST", {"service": "scale0.ping", "id": 3}, *[b"x"] * 500],
            [],
            ["REQUEST", {"service": "scale0.ping", "id": 4}],
        )
    )
    heard = [caller.hear() for _ in range(7)]
    assert [h.options.get("id", h.code) for h in heard] == [1, 400, 2, 400, 3, 400, 4]


def test_a_batch_of_10_000_is_answered_in_full(caller):
    caller.check(batch=True)
    caller.batch(*(["REQUEST", {"service": "scale0.ping", "id": n}] for n in range(10_000)))
    assert [caller.hear().options["id"] for _ in range(10_000)] == list(range(10_000))


def test_a_message_in_a_batch_may_have_as_many_bodies_as_alone(net):
    service, bodies = unique("many"), [b"%d" % n for n in range(900)]
    backend, caller = net("backend"), net.frontend()
    backend.batch(
        ["CHECKCONFIG", {"batch": True}],
        ["READY", {"services": [service], "config_version": 1, "slots": 3}],
    )
    caller.batch(*(["REQUEST", {"service": service, "id": n}, *bodies] for n in range(3)))
    for number in range(3):
        asked = backend.hear_until("REQUEST")
        assert asked.bodies == bodies
        backend.batch(["REPLY", {"id": asked.options["id"]}, *bodies], ["HEARTBEAT", {}])
        answered = caller.hear()
        assert (answered.options["id"], answered.bodies) == (number, bodies)


# Promise: WIRE-5
@pytest.mark.parametrize("size", [8 * MIB - 64, 8 * MIB, 12 * MIB])
def test_a_message_over_8_mib_is_413_with_the_id_of_its_request(net, size):
    service = unique("big")
    backend, caller = net.backend(service), net.frontend()
    caller.say("REQUEST", {"service": service, "id": "big"}, b"x" * size)
    if size < 8 * MIB:
        assert len(backend.hear_until("REQUEST").bodies[0]) == size
    else:
        heard = caller.hear()
        assert (heard.command, heard.code, heard.options["id"]) == ("ERROR", 413, "big")
        assert caller.request("scale0.ping").command == "REPLY"


def test_a_reply_over_8_mib_is_413_for_the_one_who_asked(net):
    service = unique("big")
    backend, caller = net.backend(service), net.frontend()
    caller.say("REQUEST", {"service": service, "id": "big"})
    backend.say("REPLY", {"id": backend.hear().options["id"]}, b"x" * 9 * MIB)
    heard = caller.hear()
    assert (heard.command, heard.code, heard.options["id"]) == ("ERROR", 413, "big")
    caller.say("REQUEST", {"service": service, "id": "next"})
    backend.answer()
    assert caller.hear().command == "REPLY"


def test_parts_too_big_to_join_are_413_for_a_req_socket(net):
    service = unique("big")
    backend, caller = net.backend(service), net("frontend", zmq.REQ)
    caller.say("REQUEST", {"service": service, "id": "big"})
    id_ = backend.hear().options["id"]
    for _ in range(3):
        backend.say("PARTIAL", {"id": id_}, b"x" * 3 * MIB)
    assert caller.hear().code == 413


# Promise: WIRE-5
def test_too_many_parts_to_join_are_413_and_cost_nobody_time(net):
    service = unique("crumbs")
    backend, caller = net.backend(service), net("frontend", zmq.REQ)
    caller.say("REQUEST", {"service": service, "id": "crumbs"})
    id_ = backend.hear().options["id"]
    with honest_pair(net.endpoints) as times:
        for _ in range(5):
            backend.batch(*(["PARTIAL", {"id": id_}, b"x"] for _ in range(10_000)))
        assert caller.hear().code == 413
        assert backend.ask("HEARTBEAT").command == "HEARTBEAT"
    assert max(times) < 1.0


def test_a_request_of_too_many_parts_is_413_with_its_id(net):
    heard = net.frontend().ask("REQUEST", {"service": "scale0.ping", "id": "parts"}, *[b""] * 1_000)
    assert (heard.command, heard.code, heard.options["id"]) == ("ERROR", 413, "parts")


def test_a_batch_over_8_mib_is_413(caller):
    caller.batch(*(["REQUEST", {"service": "scale0.ping", "id": n}, b"x" * MIB] for n in range(9)))
    heard = caller.hear()
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 413)


def test_answers_to_a_client_that_takes_batches_never_exceed_the_size_of_a_message(net):
    service = unique("big")
    backend, caller = net.backend(service, slots=9), net.frontend()
    caller.check(batch=True)
    caller.batch(*(["REQUEST", {"service": service, "id": n}] for n in range(9)))
    for number in range(9):
        backend.say("REPLY", {"id": backend.hear().options["id"]}, b"%d" % number + b"x" * 2 * MIB)
    left = set(range(9))
    while left:
        frames = caller.receive() or []
        assert sum(map(len, frames)) <= 8 * MIB
        left -= {heard.options["id"] for heard in decode(frames)}


def test_a_frame_that_libzmq_itself_refuses_costs_only_its_connection(net):
    with honest_pair(net.endpoints):
        raw = net.frontend()
        raw.say("REQUEST", {"service": "x", "id": 1}, b"x" * 17 * MIB)
        assert raw.silent(0.2)


# Promise: WIRE-4
def test_more_than_ten_bad_messages_make_an_error_client_that_can_be_forgiven(net, local):
    bad, other = net.frontend(), net.frontend()
    for _ in range(11):
        assert bad.ask("NONSENSE").code == 501
    bad.say("REQUEST", {"service": "scale0.ping", "id": 1})
    assert bad.silent()
    rows = other.manage("list_error_clients", local).body["items"]
    mine = [row for row in rows if row["bad"] == 11 and row["socket"] == "frontend"][-1]
    assert 200 < mine["ends_in"] <= 300
    assert other.manage("forgive", local, client=mine["client"]).body == {"forgiven": 1}
    assert other.manage("forgive", local, client=mine["client"]).code == 404
    assert bad.request("scale0.ping").command == "REPLY"


# Promise: WIRE-4
def test_an_error_client_is_free_after_its_ban(tmp_path):
    with own_broker(tmp_path, error_client_ban=0.5) as (_, net):
        bad = net.frontend()
        for _ in range(11):
            bad.ask("NONSENSE")
        start = time.monotonic()
        bad.say("REQUEST", {"service": "scale0.ping", "id": 0})
        assert bad.silent(0.1)
        number = 1
        while bad.hear_or_none(0.05) is None:
            bad.say("REQUEST", {"service": "scale0.ping", "id": number})
            number += 1
            assert time.monotonic() - start < 5
        assert time.monotonic() - start >= 0.4


def test_ten_bad_messages_are_forgotten_after_the_window(tmp_path):
    with own_broker(tmp_path, error_client_window=0.3) as (_, net):
        bad = net.frontend()
        for _ in range(3):
            for _ in range(10):
                assert bad.ask("NONSENSE").code == 501
            net.frontend().silent(0.35)
        assert bad.request("scale0.ping").command == "REPLY"


def test_leaving_in_order_does_not_wipe_out_what_was_counted(net):
    bad = net("backend")
    for _ in range(11):
        bad.say("NONSENSE")
        bad.say("DISCONNECT")
    bad.check()
    assert [bad.hear().code for _ in range(10)] == [501] * 10
    assert bad.silent()


def test_garbage_without_a_protocol_makes_an_error_client_too(net):
    bad = net.frontend()
    for _ in range(11):
        bad.frames(b"garbage")
    bad.say("REQUEST", {"service": "scale0.ping", "id": 1})
    assert bad.silent()


# Promise: WIRE-4
def test_an_error_clients_ban_does_not_touch_its_neighbours(net):
    with honest_pair(net.endpoints):
        for _ in range(5):
            bad = net.frontend()
            for _ in range(20):
                bad.say("NONSENSE")


HOSTILE = {
    "eight million empty arrays": lambda: packed(b"\xdd" + (8_000_000).to_bytes(4, "big") + b"\x90" * 8_000_000),
    "10,000 messages of 800 parts": lambda: packed(
        b"\xdd" + (10_000).to_bytes(4, "big") + (b"\xdc\x03\x20" + b"\xc0" * 800) * 10_000
    ),
    "one message of eight million parts": lambda: packed(
        b"\x91\xdd" + (8_000_000).to_bytes(4, "big") + b"\x90" * 8_000_000
    ),
    "options of eight million arrays": lambda: packed(
        b"\x91\x92\xa7REQUEST\x81\xa1x\xdd" + (8_000_000).to_bytes(4, "big") + b"\x90" * 8_000_000
    ),
    "eight million small maps as configuration": lambda: packed(
        b"\x91\x92\xadMANAGEMENTREQ\x82\xa7command\xa1x\xa6config\xdd"
        + (8_000_000).to_bytes(4, "big")
        + b"\x80" * 8_000_000
    ),
    "eight MiB of brackets": lambda: [MAGIC, b"REQUEST", b'{"service":"scale0.services","id":1}', b"[" * 8_000_000],
}


# Promise: WIRE-5
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_messages_cost_little_memory_and_disturb_nobody(broker, net, make):
    frames = make()
    process = psutil.Process(broker.pid)
    raw = net.frontend()
    raw.request("scale0.ping")
    before = process.memory_info().rss
    peak = before
    with honest_pair(net.endpoints):
        for _ in range(4):
            raw.frames(*frames)
            while raw.hear_or_none(0.01) is None:
                peak = max(peak, process.memory_info().rss)
    assert peak - before < 100 * MIB
