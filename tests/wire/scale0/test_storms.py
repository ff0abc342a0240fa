"""Storms: random conversations, damaged frames and floods, beside an honest pair that notices nothing (PROTOCOL 5)."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.messages import MAGIC, decode
from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.honest import batch_of, honest_pair, packed
from tests.wire.scale0.raw import Raw, Raws
from tests.wire.scale0.rpc import Client, Rpc, asked

pytestmark = pytest.mark.processes

COMMANDS = b"CHECKCONFIG READY HEARTBEAT REQUEST REPLY PARTIAL ERROR DISCONNECT BATCH NEEDBROKER MANAGEMENTREQ \xff"
KEYS = """
service id timeout retry services identity config_version time slots prefetch holds command config set remove limit
after auth_id auth_password auth_token config_type batch heartbeat_interval code message version client x
"""

words = st.sampled_from([*COMMANDS.split(), b""])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
keys = st.sampled_from(KEYS.split())
said = st.dictionaries(keys, values, max_size=6)


def as_options(options: dict[str, Any]) -> bytes:
    return json.dumps(options).encode()  # NaN, surrogates and all


frames_of = st.one_of(
    st.tuples(st.just(MAGIC), words, said.map(as_options), st.binary(max_size=20)).map(list),
    st.tuples(st.just(MAGIC), words, st.binary(max_size=40)).map(list),
    st.lists(st.binary(max_size=20), min_size=1, max_size=5),
    st.lists(st.tuples(words.map(lambda w: w.decode("latin-1")), said), max_size=5).map(lambda m: batch_of(*m)),
    st.binary(max_size=60).map(packed),
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """A broker that never tires of nonsense, and an honest client of it."""
    with own_broker(tmp_path_factory.mktemp("fuzzed"), error_client_limit=10**9) as (broker, net):
        yield broker, {"frontend": net.frontend(), "backend": net("backend"), "peer": net("peer")}


# Promise: WIRE-3
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    socket=st.sampled_from(["frontend", "backend", "peer"]), conversation=st.lists(frames_of, min_size=1, max_size=6)
)
def test_no_conversation_ends_the_broker(fuzzed, socket, conversation):
    broker, speakers = fuzzed
    for frames in conversation:
        speakers[socket].frames(*frames)
    # Whoever was disconnected may lose what waited for it; the broker itself must go on answering.
    assert any(last_word(speakers[socket], f"the end {turn}") for turn in range(5))
    assert broker.running


def last_word(speaker: Raw, word: str) -> bool:
    """True if the broker answers this word."""
    speaker.say("MANAGEMENTREQ", {"command": "none", "id": word})
    while answer := speaker.receive(1.0):
        if word.encode() in b"".join(answer[2:]):
            return True
    return False


# Promise: WIRE-3
def test_a_seeded_storm_of_damaged_frames_disturbs_nobody(tmp_path):
    dice = random.Random(20_261_115)
    good = [
        [MAGIC, b"CHECKCONFIG", b'{"config_type":"json","identity":"x","batch":true}'],
        [MAGIC, b"READY", b'{"services":["a","b"],"config_version":1,"slots":2,"time":1.5}'],
        [MAGIC, b"REQUEST", b'{"service":"a","id":"q","timeout":0.1,"retry":true}', b"body"],
        [MAGIC, b"MANAGEMENTREQ", b'{"command":"status","id":1,"auth_id":"admin","auth_token":"t"}'],
        batch_of(["REQUEST", {"service": "scale0.services", "id": 1}, b"{}"], ["HEARTBEAT", {"time": 1.0}]),
        batch_of(["READY", {"services": ["a"], "config_version": 1}], ["REPLY", {"id": "1"}, b"x"]),
    ]
    with own_broker(tmp_path, default_heartbeat_interval=1) as (broker, net), honest_pair(net.endpoints) as times:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            raw = net(dice.choice(["frontend", "backend", "peer"]), delimiter=dice.random() < 0.3)
            for _ in range(30):
                raw.frames(*damaged(dice, dice.choice(good)))
            raw.receive(0.005)
            raw.close()
        assert broker.running
        assert net.frontend().manage("status", token_of(broker)).code == 200
    assert max(times) < 1.0


def damaged(dice: random.Random, frames: list[bytes]) -> list[bytes]:
    out = [bytearray(frame) for frame in frames]
    for _ in range(dice.randrange(3)):
        frame = dice.choice(out)
        match dice.randrange(5):
            case 0 if frame:
                frame[dice.randrange(len(frame))] = dice.randrange(256)
            case 1 if frame:
                del frame[dice.randrange(len(frame)) :]
            case 2:
                frame += dice.randbytes(dice.randrange(200))
            case 3:
                out.insert(dice.randrange(len(out) + 1), bytearray(dice.randbytes(dice.randrange(4))))
            case _ if len(out) > 1:
                out.remove(frame)
    return [bytes(frame) for frame in out]


def flood(net: Raws, message: tuple[str, dict[str, object]], crowd: int, each: int) -> list[Raw]:
    command, options = message
    clients = [net("backend") for _ in range(crowd)]
    for client in clients:
        for _ in range(each):
            client.say(command, options)
    return clients


# Promise: WIRE-3
@pytest.mark.parametrize(
    "message",
    [
        ("CHECKCONFIG", {"config_type": "xml"}),
        ("READY", {"services": ["a"], "config_version": 1}),
        ("HEARTBEAT", {"time": 1.0}),
        ("REPLY", {"id": "nothing"}),
    ],
    ids=lambda message: message[0],
)
def test_a_flood_does_not_stop_the_honest(net, message):
    with honest_pair(net.endpoints) as times:
        flood(net, message, 20, 200)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            net.frontend().silent(0.1)
    assert max(times) < 2.0


# Promise: CURVE-18
def test_a_long_batch_is_answered_in_several_turns(net):
    """Between two turns others are heard and answered: the worker at the other door, whoever waits there."""
    flood = net.frontend()
    flood.check(batch=True)
    count = 10_000
    flood.batch(*(["REQUEST", {"service": "scale0.ping", "id": str(n)}, b""] for n in range(count)))
    ids: list[str] = []
    turns = 0
    while len(ids) < count:
        frames = flood.receive()
        assert frames is not None, len(ids)
        ids += [heard.options["id"] for heard in decode(frames) if heard.command == "REPLY"]
        turns += 1
    assert ids == [str(n) for n in range(count)]
    assert turns > 4


# Promise: FAIR-1
def test_others_are_answered_while_a_long_array_is_worked_off(tmp_path):
    with own_broker(tmp_path) as (broker, net):
        flood, honest, token = Client(Rpc(net.frontend())), net.frontend(), token_of(broker)
        count = 10_000
        calls = [asked("client_new_task", **flood.new("m")) for _ in range(count)]
        flood.rpc.send(calls)
        accepted = 0
        seen = set()
        while accepted < count:
            accepted = honest.manage("status", token).body["tasks"]["open"]
            seen.add(accepted)
        assert [one["id"] for one in flood.rpc.hear()] == [call["id"] for call in calls]
        assert seen - {0, count}, "an array that is one unit is seen whole or not at all"


# Promise: CURVE-13
def test_more_requests_in_a_second_than_one_may_make_are_refused_one_by_one(tmp_path):
    limit, count = 50, 130
    with own_broker(tmp_path, max_requests_per_second=limit) as (broker, net):
        flood = net.frontend()
        flood.check(batch=True)
        flood.batch(*(["REQUEST", {"service": "scale0.ping", "id": n}, b""] for n in range(count)))
        heard = [flood.hear_until("REPLY", "ERROR") for _ in range(count)]
        assert [one.options["id"] for one in heard] == list(range(count))
        assert [one.command for one in heard] == ["REPLY"] * limit + ["ERROR"] * (count - limit)
        assert {one.options["code"] for one in heard[limit:]} == {429}
        assert net.frontend().request("scale0.ping").command == "REPLY", "another one is not held to it"
        status = net.frontend().manage("status", token_of(broker)).body
        assert status["counters"]["requests_flooded"] == count - limit
