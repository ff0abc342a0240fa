"""Calls that are answered later: what a broker keeps of each is small, counted, and independent of the size of its
frame."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from scale0.tasks.core import fair_reads
from scale0.tasks.core.completion_waits import WAIT_BYTES, WAIT_ID_BYTES
from scale0.tasks.jsonrpc.messages import MAX_ID_BYTES, RATE_LIMITED
from tests.fakes.broker import METHODS
from tests.fakes.messages import RPC
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

INVALID_REQUEST = -32600
PADDING = b" " * 100_000
"""Spaces in a frame, which no argument needs."""
CLIENT_CALLS = [
    ("client_new_task", CLIENT, "m", [1], None, {"key": "a"}),
    ("client_new_task", CLIENT, "m", [1], None, {"after": ["open"]}),
    ("client_task_status", CLIENT, "ended"),
    ("client_task_result", CLIENT, "ended"),
    ("client_task_wait", CLIENT, ["open"], 60),
    ("client_task_wait", CLIENT, ["ended"], 60),
    ("client_task_cancel", CLIENT, "ended"),
]
NODE_CALLS = [
    ("node_task_request", "node", "ended"),
    ("node_task_finished", "node", "ended", 2, 1),
    ("node_task_failed", "node", "ended", {"code": 1, "message": "no"}, 1),
]


def with_tasks(broker: TaskBroker) -> str:
    """Tasks, of which one has ended; the connection of the node that ended it."""
    node = broker.node("node", "done")
    broker.submit("ended", "done")
    assert broker.pull(node) == ["ended"]
    assert broker.call("node_task_finished", "node", "ended", 1, 1, connection=node) is True
    broker.submit("open")
    return node


def frame_of(method: str, params: Any, id_: bytes = b'"x"', around: bytes = b"%b") -> bytes:
    call = b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":%b}'
    return around % (call % (id_, (METHODS + method).encode(), PADDING + json.dumps(params).encode()))


def answers(broker: TaskBroker, connection: str) -> list[Any]:
    return [one.body for one in broker.received(connection, RPC)]


# Promise: QUOTA-6
@pytest.mark.parametrize("around", [b"%b", b"[%b]"], ids=["alone", "array"])
@pytest.mark.parametrize("call", [*CLIENT_CALLS, *NODE_CALLS], ids=lambda call: "-".join(map(str, call)))
def test_a_call_that_waits_does_not_keep_its_frame(broker, call, around):
    node = with_tasks(broker)
    connection = node if call in NODE_CALLS else FRONT
    frame = frame_of(call[0], list(call[1:]), around=around)
    answers(broker, connection)
    broker.hold()
    broker.beat()
    before = sys.getrefcount(frame)
    broker.send_frames(connection, [frame])
    assert not [each for each in answers(broker, connection) if "x" in str(each)], "it is still to be answered"
    assert sys.getrefcount(frame) == before
    broker.let_go()
    broker.run(61.0)
    assert len([each for each in answers(broker, connection) if "'x'" in str(each)]) == 1


# Promise: WIRE-5
@pytest.mark.parametrize("fill", [b"x", b"1"], ids=["text", "number"])
def test_an_id_has_a_limit_of_length(broker, fill):
    quote = b'"' if fill == b"x" else b""
    most = quote + fill * (MAX_ID_BYTES - 2 * len(quote)) + quote
    for id_ in (most, most.replace(fill, 2 * fill, 1)):
        broker.send_frames(FRONT, [frame_of("client_connect", [CLIENT], id_)])
    first, second = answers(broker, FRONT)
    assert first["result"] == CLIENT
    assert len(json.dumps(first["id"])) >= MAX_ID_BYTES // 2
    assert (second["id"], second["error"]["code"]) == (None, INVALID_REQUEST)
    assert f"{MAX_ID_BYTES} bytes" in second["error"]["message"]


# Promise: WIRE-5
def test_a_long_id_in_an_array_affects_only_its_call(broker):
    long = b'"%b"' % (b"x" * MAX_ID_BYTES)
    calls = [frame_of("client_connect", [CLIENT], id_) for id_ in (b"1", long, b"2")]
    calls.append(b'{"jsonrpc":"2.0","id":%b,"method":7}' % long)
    broker.send_frames(FRONT, [b"[%b]" % b",".join(calls)])
    array = answers(broker, FRONT)
    assert [each["id"] for each in array] == [1, None, 2, None]
    assert [each["error"]["code"] for each in (array[1], array[3])] == [INVALID_REQUEST] * 2


# Promise: QUOTA-6
def test_a_wait_counts_its_call_and_the_id_of_it(broker):
    broker.submit("open")
    waits = broker.machine.tasks.completion_waits
    id_ = b'"%b"' % (b"x" * 500)
    broker.send_frames(FRONT, [frame_of("client_task_wait", [CLIENT, ["open"], 5], id_)])
    assert waits.bytes == WAIT_BYTES + len(id_) + WAIT_ID_BYTES + len("open")
    broker.run(6.0)
    assert waits.bytes == 0


# Promise: FAIR-11
def test_params_of_a_submission_that_is_looked_up_count_until_it_is_decided(broker, monkeypatch):
    monkeypatch.setattr(fair_reads, "MAX_WAITING_ROWS", 50)
    params = ["x" * 20_000]
    broker.hold()
    broker.beat()
    asked = [broker.ask(FRONT, "client_new_task", CLIENT, "m", params, f"t{n}", {"key": "k"}) for n in range(4)]
    broker.let_go()
    broker.run(1.0)
    told = [broker.answer(number) for number in asked]
    assert told[:2] == ["t0", "t0"]
    assert [each.code for each in told[2:]] == [RATE_LIMITED] * 2
    assert broker.call("client_new_task", CLIENT, "m", params, "t5", {"key": "k"}) == "t0"
    assert broker.machine.tasks.native._reads._waiting == {}


# Promise: FAIR-11
def test_results_that_are_compared_count_until_they_are_acknowledged(broker, monkeypatch):
    result = "x" * 20_000
    worker = broker.worker("w", "m")
    broker.submit("t")
    assert broker.handed(worker) == ["t"]
    broker.done(worker, "t", result=result)
    assert broker.acknowledged(worker) == [["t", 1, 200]]
    reads = broker.machine.tasks.native._reads
    broker.hold()
    broker.done(worker, "t", "t", result=result)
    most = 0
    while broker.host.in_flight is not None:
        most = max(most, *reads._waiting.values(), 0)
        broker.host.end_one()
        if reads._waiting:
            assert sum(reads._waiting.values()) >= 2 * len(result) // fair_reads.ROW_BYTES
    assert most
    assert broker.acknowledged(worker) == [["t", 1, 200]] * 2
    assert reads._waiting == {}
