"""A long array of calls is handled in parts: the answer is the same, and others are served in between.

Promise: FAIR-1
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.limits import Limits
from scale0.tasks.jsonrpc.arrays import LONG_METHODS, PART_BYTES, PART_CALLS, ArrayPart, Split, array_splitter
from scale0.tasks.jsonrpc.messages import CALL_COMMAS, INVALID_REQUEST, PARSE_ERROR, has_more, read_calls
from tests.fakes.broker import METHODS
from tests.fakes.messages import RPC
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

LIMIT = 1_000


def otherwise(_socket: str, message: list[bytes]) -> list[list[bytes]]:
    return [message]


def splitter(**limits: int) -> Split:
    return array_splitter(Limits(**limits), lambda _socket, who: who == b"ignored", otherwise)


def new_task(number: int, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": METHODS + "client_new_task", "params": [CLIENT, "m", [], f"t{number}"], **more}


def element(kind: int, number: int) -> Any:
    """A call, a notification, or something that is not a call."""
    return (
        new_task(number, id=number),
        new_task(number),
        {"jsonrpc": "2.0", "method": "nothing", "id": f"n{number}"},
        {"jsonrpc": "1.0", "id": number},
        {"jsonrpc": "2.0", "method": METHODS + "client_task_status", "params": [CLIENT, "é"], "id": number},
    )[kind]


def answers(frames: list[list[bytes]], one_turn: bool) -> list[Any]:
    broker = TaskBroker(error_client_limit=1_000_000)
    broker.received(FRONT)
    if one_turn:
        broker.send_frames(FRONT, *frames)
    else:
        for some in frames:
            broker.send_frames(FRONT, some)
    return [message.body for message in broker.received(FRONT, RPC)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3 * PART_CALLS), st.booleans())
def test_parts_are_answered_as_the_array_is(kinds: list[int], one_turn: bool) -> None:
    frame = json.dumps([element(kind, number) for number, kind in enumerate(kinds)], ensure_ascii=False).encode()
    parts = splitter()("frontend", [b"one", frame])
    assert len(parts) == -(-len(kinds) // PART_CALLS)
    assert [element for part in parts for element in json.loads(part[1])] == json.loads(frame)
    assert answers([part[1:] for part in parts], one_turn) == answers([[frame]], True)


def test_the_answer_is_one_array_sent_with_the_last_part() -> None:
    broker = TaskBroker()
    broker.received(FRONT)
    frame = json.dumps([new_task(number, id=number) for number in range(2 * PART_CALLS)]).encode()
    first, last = splitter()("frontend", [b"one", b"", frame])
    broker.send_frames(FRONT, first[1:])
    assert not broker.received(FRONT)
    broker.send_frames(FRONT, last[1:])
    assert [message.body["id"] for message in broker.received(FRONT)] == list(range(2 * PART_CALLS))


@pytest.mark.parametrize("method", sorted(LONG_METHODS))
@pytest.mark.parametrize("escaped", [False, True])
def test_a_call_that_looks_at_all_methods_of_a_node_is_a_part_by_itself(method: str, escaped: bool) -> None:
    name = method.replace("n", "\\u006e") if escaped else method
    long = f'{{"jsonrpc":"2.0","id":1,"method":"{name}","params":["n",[]]}}'
    short = json.dumps({"jsonrpc": "2.0", "id": 2, "method": METHODS + "node_heartbeat", "params": ["n"]})
    calls = [short, short, long, long, short, "7"]
    parts = splitter()("backend", [b"node", f"[{','.join(calls)}]".encode()])
    assert [len(json.loads(part)) for _, part in parts] == [2, 1, 1, 2]


def test_calls_of_a_client_are_not_looked_at_again() -> None:
    calls = [json.dumps(new_task(number, id=number)) for number in range(2 * PART_CALLS)]
    parts = splitter()("frontend", [b"client", f"[{','.join(calls)}]".encode()])
    assert [len(json.loads(part)) for _, part in parts] == [PART_CALLS, PART_CALLS]


def test_long_calls_make_short_parts() -> None:
    ids = [f"{number:020}" for number in range(PART_BYTES // 50)]
    call = {"jsonrpc": "2.0", "method": METHODS + "client_task_wait", "params": [CLIENT, ids, 0], "id": 1}
    parts = splitter()("frontend", [b"one", json.dumps([call] * 10).encode()])
    assert [len(json.loads(part[1])) for part in parts] == [1] * 10 or len(parts) >= 5
    assert all(len(part[1]) <= PART_BYTES + 2 or len(json.loads(part[1])) == 1 for part in parts)


@pytest.mark.parametrize(
    "message",
    [
        [b"one", json.dumps([1] * (LIMIT + 1)).encode()],
        [b"one", json.dumps([1] * PART_CALLS).encode()],
        [b"one", json.dumps([1] * LIMIT).encode()[:-1]],
        [b"one", b'["\xff"' + b",1" * LIMIT + b"]"],
        [b"one", b"[" * 100_000],
        [b"one", b"[]"],
        [b"one", b""],
        [b"one", b"x", json.dumps([1] * LIMIT).encode()],
        [b"ignored", json.dumps([1] * LIMIT).encode()],
        [b"one", msgspec.json.encode(["x" * 1_000] * 200)],
    ],
    ids=["too many", "short", "open", "not UTF-8", "deep", "empty", "no frame", "two frames", "ignored", "too big"],
)
def test_what_cannot_be_cut_stays_whole(message: list[bytes]) -> None:
    split = splitter(max_batch_messages=LIMIT, max_message_bytes=100_000)
    assert list(split("frontend", message)) == [message]


def test_a_part_is_not_cut_again() -> None:
    split = splitter()
    parts = split("frontend", [b"one", json.dumps([1] * 3 * PART_CALLS).encode()])
    assert [type(part[1]) for part in parts] == [ArrayPart] * 3
    assert [list(split("frontend", part)) for part in parts] == [[part] for part in parts]


# Promise: WIRE-5
@pytest.mark.parametrize(
    "element",
    [b"1", b"{}", b"[]", b'""', b"null", b" 1.5 ", b'{"jsonrpc":"2.0","method":"a"}'],
    ids=["numbers", "objects", "arrays", "texts", "nulls", "spaces", "calls"],
)
def test_elements_beyond_the_limit_are_not_decoded(element: bytes) -> None:
    frame = b"[" + (element + b",") * 100_000 + element + b"]"
    split = splitter(max_batch_messages=LIMIT, max_message_bytes=len(frame))
    tracemalloc.start()
    try:
        whole = split("frontend", [b"one", frame])
        batch, calls = read_calls(frame, LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(whole) == [[b"one", frame]]
    assert not batch
    assert [(call.code, call.message) for call in calls] == [(INVALID_REQUEST, f"a batch holds at most {LIMIT} calls")]
    assert peak < 100_000


# Promise: WIRE-5
def test_arrays_with_too_many_elements_lead_to_the_ban() -> None:
    broker = TaskBroker(max_batch_messages=LIMIT, error_client_limit=3)
    broker.received(FRONT)
    frame = b"[" + b"1," * (CALL_COMMAS * LIMIT) + b"1]"
    for _ in range(9):
        broker.send_frames(FRONT, [frame])
    assert [message.body["error"]["code"] for message in broker.received(FRONT, RPC)] == [INVALID_REQUEST] * 4


# Promise: WIRE-5
@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some)
        )
    ),
    st.integers(1, 5),
    st.sampled_from([None, 1]),
)
def test_only_arrays_with_too_many_elements_are_not_decoded(elements: list[Any], most: int, indent: int | None) -> None:
    frame = json.dumps(elements, indent=indent, ensure_ascii=False).encode()
    commas = frame.count(b",")
    if has_more(frame, most):
        assert len(elements) > most
        assert commas >= CALL_COMMAS * most
    else:
        assert len(elements) <= (CALL_COMMAS + 1) * most
    _, calls = read_calls(frame, most)
    assert len(calls) == (len(elements) if 0 < len(elements) <= most else 1)


# Promise: WIRE-5
def test_commas_inside_of_calls_are_not_counted() -> None:
    call = {"jsonrpc": "2.0", "method": "a", "params": [[1, ","] * 50], "id": 1}
    batch, calls = read_calls(json.dumps([call] * 10).encode(), 10)
    assert batch
    assert [call.method for call in calls] == ["a"] * 10
    _, calls = read_calls(json.dumps([*[call] * 9, 1]).encode(), 10)
    assert [getattr(call, "code", 0) for call in calls] == [0] * 9 + [INVALID_REQUEST]


# Promise: WIRE-5
@pytest.mark.parametrize("end", [b"", b",", b",]", b"]]", b"}", b" 1]", b',"', b",tru]", b"," + b"[" * 100_000])
def test_a_long_array_that_is_no_json_is_answered_as_such(end: bytes) -> None:
    frame = b"[[" + b"1," * 1_000 + b"1]" + end
    assert not has_more(frame, 10)
    _, calls = read_calls(frame, 10)
    assert [call.code for call in calls] == [PARSE_ERROR]
