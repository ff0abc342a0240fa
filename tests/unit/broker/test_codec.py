"""Frames to messages and back, and long batches in chunks: what one side packs, the other reads, in order.

Promise: CURVE-18
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.edge.inbox import Inbox
from scale0.kernel.edge.runner import TURN_MESSAGES
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits
from scale0.transport.core import codec as wire
from scale0.transport.core import messages as options
from scale0.transport.core.codec import CHUNK_BYTES, CHUNK_MESSAGES, batch_splitter
from scale0.transport.core.command_table import COMMANDS, RULES, TO_CLIENTS, TO_CLIENTS_HOT
from scale0.transport.core.request_batches import batch_length
from scale0.transport.core.sockets import PEER_SOCKETS
from tests.fakes.examples import examples

LIMITS = Limits()
HEARD = wire.Codec(
    {rule.command: rule.schema for rule in RULES if not set(rule.sockets) <= set(PEER_SOCKETS)},
    {rule.command for rule in RULES if rule.hot},
    COMMANDS,
    LIMITS,
)
CLIENT = wire.Codec(TO_CLIENTS, TO_CLIENTS_HOT, COMMANDS, LIMITS)

ids = st.text(max_size=128) | st.integers(-(2**63), 2**63 - 1)
bodies = st.lists(st.binary(max_size=50), max_size=5)
seconds = st.floats(allow_nan=False, allow_infinity=False)
versions = st.none() | st.integers(0, 2**63 - 1)
said = st.one_of(
    st.tuples(st.just("REQUEST"), st.builds(options.Request, service=st.text(), id=ids, timeout=st.none() | seconds)),
    st.tuples(st.just("REPLY"), st.builds(options.Answer, id=ids)),
    st.tuples(st.just("HEARTBEAT"), st.builds(options.Heartbeat, time=seconds, config_version=versions)),
    st.tuples(st.just("ERROR"), st.builds(options.Error, id=ids, code=st.integers(-(2**31), 2**31 - 1))),
)
messages = st.lists(st.tuples(said, bodies).map(lambda m: (*m[0], *m[1])), min_size=1, max_size=8)


@given(messages)
@examples(300)
def test_what_is_packed_one_by_one_is_read_back(sent):
    for message in sent:
        (read,) = HEARD.decode(wire.encode(message))
        assert read == (message[0], message[1], list(message[2:]))


# Promise: WIRE-2
@given(messages, st.integers(1, 8), st.integers(1, 400))
@examples(300)
def test_what_is_packed_in_batches_is_read_back_in_order(sent, most, size):
    frames = wire.encode_batch(sent, most, size)
    read = [one for wired in frames for one in HEARD.decode(wired)]
    assert [(r[0], r[1], list(r[2])) for r in read if not isinstance(r, Refusal)] == [
        (m[0], m[1], list(m[2:])) for m in sent
    ]
    for wired in frames:
        if wired[1] == wire.BATCH:
            assert len(wired[3]) <= size
            assert batch_length(wired[3]) <= most


# Promise: WIRE-3
@given(st.lists(st.binary(max_size=80), max_size=6))
@examples(500)
def test_no_frames_raise(frames):
    for codec in (HEARD, CLIENT):
        for read in codec.decode([wire.MAGIC, *frames]):
            assert isinstance(read, Refusal) or read[0] in COMMANDS


# Promise: WIRE-3
@given(st.binary(max_size=200))
@examples(500)
def test_no_batch_raises(packed):
    for read in HEARD.decode([wire.MAGIC, wire.BATCH, b"", packed]):
        assert isinstance(read, Refusal) or read[0] in COMMANDS


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_the_length_of_a_batch_is_read_from_its_head(count):
    assert batch_length(msgspec.msgpack.encode([0] * count)) == count


@pytest.mark.parametrize("packed", [b"", b"\xc0", b"\x80", b"\xdc", b"\xdd\x00"])
def test_what_is_no_array_has_no_length(packed):
    assert batch_length(packed) == 0


@given(st.recursive(st.none() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=20))
def test_depth_is_what_it_is(value):
    def depth(thing: object) -> int:
        return 1 + max(map(depth, thing), default=0) if isinstance(thing, list) else 0

    text = msgspec.json.encode(value)
    deep = depth(value)
    assert wire.depth_within(text, deep)
    if deep:
        assert not wire.depth_within(text, deep - 1)


# Promise: WIRE-5
@pytest.mark.parametrize("levels", [0, 1, 62, 63, 400])
@pytest.mark.parametrize("name", ["config", "set", "args"])
def test_options_nest_at_most_as_deep_in_a_batch_as_alone(levels, name):
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    given = value if name == "config" else {"x": value}
    sent = ("MANAGEMENTREQ", {"command": "get_config", name: given}, b"")
    alone, batched = (
        next(HEARD.decode(frames))
        for frames in (wire.encode(sent), [wire.MAGIC, wire.BATCH, b"", msgspec.msgpack.encode([sent])])
    )
    too_deep = levels + (name != "config") > LIMITS.max_json_depth - 1
    assert [isinstance(read, Refusal) for read in (alone, batched)] == [too_deep, too_deep]


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 63, 64])
@pytest.mark.parametrize("ends", [(b"[", b"]"), (b'{"]":', b"}"), (b'[{"\\"[":', b"}]")], ids=["lists", "maps", "both"])
@pytest.mark.parametrize("width", [1, 70])
def test_the_limit_itself_is_within_and_one_more_is_not(depth, ends, width):
    opens, closes = ends
    one = opens * depth + b"1" + closes * depth
    deep = 1 + depth * (2 if ends[1] == b"}]" else 1)
    text = b"[" + b",".join([one] * width) + b"]"
    assert msgspec.json.decode(text)
    assert wire.depth_within(text, deep)
    assert not wire.depth_within(text, deep - 1)


def test_brackets_in_strings_are_not_depth():
    assert wire.depth_within(b'{"a":"' + b"[{" * 1_000 + b'\\"["}', 1)


@pytest.mark.parametrize("codec", [HEARD, CLIENT, wire.Codec({}, (), COMMANDS, LIMITS)])
def test_nil_is_no_message(codec):
    (read,) = codec.decode([wire.MAGIC, wire.BATCH, b"", b"\x91\xc0"])
    assert isinstance(read, Refusal)


LIMIT = 10_000
IGNORED = b"ignored"
cut = partial(batch_splitter(Limits(max_batch_messages=LIMIT), lambda _socket, who: who == IGNORED), "frontend")
pack = msgspec.msgpack.encode


def batch(*messages: object, who: bytes = b"one") -> list[bytes]:
    return [who, b"SCALE0/1", b"BATCH", b"", pack(messages)]


def requests(count: int, who: bytes = b"one") -> list[bytes]:
    return batch(*(["REQUEST", {"service": "s", "id": str(n)}, b"x" * (n % 3)] for n in range(count)), who=who)


@given(st.integers(0, 3 * CHUNK_MESSAGES + 1))
def test_portions_mean_the_same_in_the_same_order(count: int) -> None:
    message = requests(count)
    found = cut(message)
    assert all(portion[:4] == message[:4] for portion in found)
    messages = [msgspec.msgpack.decode(portion[4]) for portion in found]
    assert all(len(some) <= CHUNK_MESSAGES for some in messages)
    assert list(chain(*messages)) == msgspec.msgpack.decode(message[4])
    assert len(found) == max(1, -(-count // CHUNK_MESSAGES))


@given(st.lists(st.sampled_from([0, CHUNK_BYTES // 100, CHUNK_BYTES // 3, 2 * CHUNK_BYTES]), max_size=20))
@examples(50)
def test_a_portion_is_short_in_bytes_or_one_message(sizes: list[int]) -> None:
    bodies = {size: b"x" * size for size in sizes}
    message = batch(*(["TASKSDONE", {}, bodies[size]] for size in sizes))
    found = cut(message)
    assert all(portion[:4] == message[:4] for portion in found)
    messages = [msgspec.msgpack.decode(portion[4]) for portion in found]
    assert list(chain(*messages)) == msgspec.msgpack.decode(message[4])
    assert all(len(some) == 1 or sum(len(one[2]) for one in some) <= CHUNK_BYTES for some in messages[:-1])
    assert len(found) <= 1 + 2 * sum(sizes) / CHUNK_BYTES


@pytest.mark.parametrize(
    "message",
    [
        requests(LIMIT + 1),
        batch(*([["REQUEST", {}, b"x" * 80_000]] * 110)),
        [b"one", b"SCALE0/1", b"BATCH", b"", requests(500)[4][:-1]],
        [b"one", b"SCALE0/1", b"BATCH", b"", b"\xdc\x01\xf4" + b"\x91" * 500],
        [b"one", b"SCALE0/1", b"BATCH", b"", b""],
        [b"one", b"SCALE0/1", b"BATCH", requests(500)[4]],
        [b"one", b"SCALE0/1", b"REQUEST", b"{}", requests(500)[4]],
        [b"one", b"MDPC01", b"BATCH", b"", requests(500)[4]],
        [b"one"],
        requests(500, who=IGNORED),
    ],
    ids=[
        "too many",
        "too long",
        "cut off",
        "nested",
        "empty",
        "frames",
        "another command",
        "another protocol",
        "nothing",
        "ignored",
    ],
)
def test_whatever_is_no_good_batch_stays_as_it_is(message: list[bytes]) -> None:
    assert list(cut(message)) == [message]


class Queue:
    """A door where messages wait."""

    name = "frontend"

    def __init__(self, *messages: list[bytes]) -> None:
        self.messages = list(messages)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        for _ in range(min(most, len(self.messages))):
            yield self.messages.pop(0)


@given(st.lists(st.integers(0, 350), max_size=6), st.integers(1, 5))
def test_turns_that_end_early_lose_nothing_and_change_no_order(sizes: list[int], portions_in_a_turn: int) -> None:
    sent = [requests(size, who=b"%d" % number) for number, size in enumerate(sizes)]
    intake = Inbox(Queue(*sent), lambda _socket, message: cut(message))
    heard: list[list[bytes]] = []
    while turn := list(islice(intake.take(TURN_MESSAGES), portions_in_a_turn)):
        heard += turn
    assert heard == list(chain(*map(cut, sent)))


def test_nothing_more_is_read_before_a_long_message_has_been_handed_out() -> None:
    queue = Queue(requests(5 * CHUNK_MESSAGES), requests(1, b"two"))
    intake = Inbox(queue, lambda _socket, message: cut(message))
    next(intake.take(TURN_MESSAGES))
    assert len(list(islice(intake.take(TURN_MESSAGES), 3))) == 3
    assert len(queue.messages) == 1, "what is not read makes its sender wait"
    assert [message[0] for message in intake.take(TURN_MESSAGES)] == [b"one", b"two"]


# Promise: WIRE-5
def test_options_with_many_slow_numbers_are_refused_before_they_are_decoded():
    few, many = (b",".join([b"3e-310"] * count) for count in (10, 20))
    (read,) = HEARD.messages([wire.MAGIC, b"MANAGEMENTREQ", b'{"command":"status","config":[%b]}' % few])
    assert read[1].config == [3e-310] * 10
    (refusal,) = HEARD.decode([wire.MAGIC, b"MANAGEMENTREQ", b'{"command":"status","config":[1e999,%b]}' % many])
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.message) == (400, "options have more than 100 numbers with an exponent")


def test_options_in_messagepack_have_any_numbers():
    options_ = {"command": "status", "config": [3e-310] * 5_000}
    packed = msgspec.msgpack.encode([["MANAGEMENTREQ", options_], ["MANAGEMENTREQ", options_]])
    first, second = HEARD.messages([wire.MAGIC, wire.BATCH, b"", packed])
    assert first[1].config == second[1].config == [3e-310] * 5_000


pieces = st.recursive(
    st.text('[]{}"\\ab') | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{}"\\'), inner, max_size=3),
    max_leaves=40,
)


def depth(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth, value), default=0)
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
    return 0


@given(pieces)
@examples(1_000)
def test_only_brackets_outside_strings_count_as_depth(value):
    text = json.dumps(value).encode()
    assert wire.depth_within(text, depth(value))
    assert not depth(value) or not wire.depth_within(text, depth(value) - 1)


# Promise: WIRE-5
@pytest.mark.parametrize("unit", [b"[]", b'{"a":{}}', b'{"a\\"":[]}', b'"[","]"'])
def test_finding_the_depth_takes_little_memory(unit):
    text = b"[" + b",".join([unit] * 50_000) + b"]"
    tracemalloc.start()
    try:
        assert wire.depth_within(text, 3)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()
