"""Numbers that are slow to decode, and many values, cost the broker nothing: they are compared or refused as they
are. Where a limit refuses, the text would also fail when it is decoded, with another message."""

# Promise: WIRE-5
from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.kernel.json_text import LONG_EXPONENT, MAX_BODY_EXPONENTS, MAX_OPTION_EXPONENTS
from scale0.tasks.core.node_reports import MAX_STATUS_BYTES, MAX_STATUS_TEXT_BYTES
from scale0.tasks.jsonrpc import messages
from scale0.tasks.jsonrpc.arguments import MAX_SECONDS
from scale0.tasks.jsonrpc.messages import MAX_COMPARED_EXPONENTS, MAX_COMPARED_VALUES
from tests.fakes.broker import METHODS
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, TaskBroker

INVALID_PARAMS = -32602
KEY_CONFLICT = -32022
UNDECODABLE = b"1e999"


def called(broker: TaskBroker, connection: str, method: str, params: bytes) -> Any:
    broker.send_frames(
        connection, [b'{"jsonrpc":"2.0","id":"x","method":"%b","params":%b}' % ((METHODS + method).encode(), params)]
    )
    return broker.answer("x")


def submitted(broker: TaskBroker, params: bytes, options: bytes = b'{"key":"k"}') -> Any:
    return called(broker, FRONT, "client_new_task", b'["%b","m",%b,null,%b]' % (CLIENT.encode(), params, options))


def refused(answer: Any, message: str) -> bool:
    return isinstance(answer, Refused) and answer.code == INVALID_PARAMS and message in answer.message


# Promise: TASK-4
@pytest.mark.parametrize(
    ("value", "most"),
    [(b"1", MAX_COMPARED_VALUES - 2), (b"1e5", MAX_COMPARED_EXPONENTS), (b"3e-310", MAX_COMPARED_EXPONENTS // 10)],
)
def test_params_up_to_the_limits_are_compared_by_value_and_larger_ones_by_their_bytes(broker, value, most):
    assert LONG_EXPONENT == 10
    for restart, count in enumerate((most, most + 1)):
        values = b"[" + b",".join([value] * count) + b"]"
        first = submitted(broker, b'{"a":%b,"b":1}' % values, b'{"key":"%d"}' % count)
        assert isinstance(first, str)
        if restart:
            broker.restart()
        assert submitted(broker, b'{"a":%b,"b":1}' % values, b'{"key":"%d"}' % count) == first
        other = submitted(broker, b'{"b": 1, "a":%b}' % values, b'{"key":"%d"}' % count)
        assert other == first if count == most else other.code == KEY_CONFLICT


def test_what_is_too_large_to_compare_is_not_decoded():
    for text in (b"[[],[] , %b]" % b",".join([b"[]"] * MAX_COMPARED_VALUES), b"[%b ]" % b",".join([b"3e-310"] * 200)):
        assert messages.canonical(text) is text
    assert messages.canonical(b"[ 1]") == b"[1]"


def test_options_are_refused_by_their_size_before_they_are_decoded(broker):
    delays = b",".join([b'"delay":1'] * 8_000)
    assert refused(submitted(broker, b"[]", b'{"delay":%b,%b}' % (UNDECODABLE, delays)), "options are over 65536 bytes")


def test_options_with_many_slow_numbers_are_refused_before_they_are_decoded(broker):
    delays = b",".join([b'"delay":3e-310'] * (MAX_OPTION_EXPONENTS // LONG_EXPONENT))
    assert isinstance(submitted(broker, b"[1]", b'{"key":"k",%b}' % delays), str)
    message = "more than 100 numbers with an exponent"
    assert refused(submitted(broker, b"[1]", b'{"delay":1e999,%b}' % delays), message)
    waits = b",".join([b'"timeout":3e-310'] * 11)
    wait = called(broker, FRONT, "client_task_wait", b'{"client_id":"c","task_ids":[],"timeout":1e999,%b}' % waits)
    assert refused(wait, message)


def test_params_have_any_numbers(broker):
    worker = broker.worker("w", "m")
    params = b"[%b]" % b",".join([b"3e-310"] * 50_000)
    assert isinstance(submitted(broker, params), str)
    (tasks,) = broker.received(worker, "TASKS")
    assert len(tasks.body[0]["params"]) == 50_000


@pytest.mark.parametrize("named", [False, True])
def test_a_nodes_status_is_refused_by_its_size_before_it_is_decoded(broker, named):
    node = broker.node("n", "m")

    def reported(status: bytes) -> Any:
        params = b'{"node_id":"n","status":%b}' if named else b'["n",%b]'
        return called(broker, node, "node_status", params % status)

    assert reported(b'["a", 1.5]') is True
    assert reported(b"null") is True
    assert refused(reported(UNDECODABLE), "out of range")
    spaces = b" " * MAX_STATUS_TEXT_BYTES
    assert refused(reported(b"[%b%b]" % (UNDECODABLE, spaces)), f"at most {MAX_STATUS_BYTES} bytes")
    numbers = b",".join([b"3e-310"] * 100)
    assert refused(reported(b"[%b,%b]" % (UNDECODABLE, numbers)), "numbers with an exponent")


def test_a_tasks_status_is_refused_by_its_size_before_it_is_decoded(broker):
    node = broker.node("n", "m")
    broker.submit("t")
    assert broker.pull(node) == ["t"]
    for more, message in (
        (b" " * MAX_STATUS_TEXT_BYTES, f"at most {MAX_STATUS_BYTES} bytes"),
        (b"," + b",".join([b"3e-310"] * 100), "numbers with an exponent"),
    ):
        status = called(broker, node, "task_status", b'["n","t","busy",{"a":[%b%b]}]' % (UNDECODABLE, more))
        assert refused(status, message)
    assert called(broker, node, "task_status", b'["n","t","busy",{"a":[3e-310]}]') is True
    assert broker.call("client_task_status", CLIENT, "t")["info"] == {"status": "busy", "a": [3e-310]}


@pytest.mark.parametrize(
    "more",
    [b'"' + b"x" * MAX_STATUS_TEXT_BYTES + b'"', b"[%b]" % b",".join([b"3e-310"] * (MAX_BODY_EXPONENTS // 10 + 1))],
)
def test_a_workers_status_counts_without_what_is_large_or_slow(broker, more):
    worker = broker.worker("w", "m")
    broker.submit("t")
    assert broker.handed(worker) == ["t"]
    entry = b'[{"id":"t","attempt":1,"status":"running","note":%b}]'
    for given, info in ((more, {}), (b'"short"', {"note": "short"})):
        broker.send_frames(worker, [b"SCALE0/1", b"TASKSTATUS", b"", entry % given])
        status = broker.call("client_task_status", CLIENT, "t")
        assert status["status"] == "running"
        assert status["info"] == info


def test_the_delay_of_a_failure_is_decoded_once(broker):
    node = broker.node("n", "m")
    broker.submit("t", max_attempts=5)
    for attempt, (after, expected) in enumerate(((b"-1", "after: "), (b"%d" % (MAX_SECONDS + 1), "after: "))):
        if not attempt:
            assert broker.pull(node) == ["t"]
        error = b'{"code":1,"message":"no","retry":true,"after":%b}' % after
        assert refused(called(broker, node, "node_task_failed", b'["n","t",%b]' % error), expected)
    afters = b",".join([b'"after":%b' % UNDECODABLE] * 3)
    error = b'{"code":1,"message":"no","retry":true,%b,"after":20}' % afters
    assert called(broker, node, "node_task_failed", b'["n","t",%b]' % error) is True
    broker.run(15)
    assert broker.pull(node) == []
    broker.run(10)
    assert broker.pull(node) == ["t"]


def test_the_id_of_a_malformed_call_is_not_decoded(broker):
    ids = b",".join([b'"id":%b' % UNDECODABLE] * 3)
    for last, told in ((b"7", 7), (b'"a"', "a"), (b"[1]", None), (b"null", None)):
        broker.send_frames(FRONT, [b'{"jsonrpc":"2.0",%b,"id":%b,"method":7}' % (ids, last)])
        (answer,) = [one.body for one in broker.received(FRONT) if "error" in one.body]
        assert answer["id"] == told
        assert json.dumps(answer["error"])
