"""What JSON-RPC itself asks for: singles, notifications, batches, and all that is wrong (PROTOCOL 1, 5, 6)."""

# Promise: TASK-2
from __future__ import annotations

import json
from typing import Any

import pytest
import zmq

from tests.fakes.messages import MAGIC
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import unique
from tests.wire.scale0.rpc import Refused, Rpc, asked, client, node, told

pytestmark = pytest.mark.processes

CONNECT = "zerotask.broker.client_connect"
MAX_BATCH = 10_000
MAX_MESSAGE = 8 * 1024 * 1024


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


UNPARSABLE = {
    "an open object": b'{"jsonrpc":"2.0"',
    "an open array": b"[",
    "a brace alone": b"{",
    "a tail": b'{"jsonrpc":"2.0","method":"%s","id":1}{}' % CONNECT.encode(),
    "single quotes": b"{'jsonrpc':'2.0'}",
    "NaN": b'{"jsonrpc":"2.0","method":"%s","params":["a",NaN],"id":1}' % CONNECT.encode(),
    "Infinity": b'{"jsonrpc":"2.0","method":"%s","params":["a",-Infinity],"id":1}' % CONNECT.encode(),
    "broken UTF-8": b'{"jsonrpc":"2.0","method":"%s","params":["\xff"],"id":1}' % CONNECT.encode(),
    "UTF-8 of a surrogate": b'{"jsonrpc":"2.0","method":"%s","params":["\xed\xa0\x80"],"id":1}' % CONNECT.encode(),
    "a control character": b'{"jsonrpc":"2.0","method":"%s","params":["a\x01"],"id":1}' % CONNECT.encode(),
    "a batch cut short": json.dumps([asked("client_connect")] * 2).encode()[:-1],
}

INVALID = {
    "an empty object": {},
    "no version": {"method": CONNECT, "id": 1},
    "another version": {"jsonrpc": "1.0", "method": CONNECT, "id": 1},
    "a version that is a number": {"jsonrpc": 2.0, "method": CONNECT, "id": 1},
    "no method": {"jsonrpc": "2.0", "id": 1},
    "a method that is a number": {"jsonrpc": "2.0", "method": 1, "id": 1},
    "a method that is null": {"jsonrpc": "2.0", "method": None, "id": 1},
    "an id that is an object": {"jsonrpc": "2.0", "method": CONNECT, "id": {}},
    "an id that is a list": {"jsonrpc": "2.0", "method": CONNECT, "id": [1]},
    "an id that is a boolean": {"jsonrpc": "2.0", "method": CONNECT, "id": True},
    "an empty batch": [],
}


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
@pytest.mark.parametrize("text", UNPARSABLE.values(), ids=UNPARSABLE.keys())
def test_what_cannot_be_parsed_is_32700_and_its_sender_may_go_on(net, kind, text):
    rpc = Rpc(net("frontend", kind))
    answer = rpc.reply(text)
    assert (answer["id"], answer["error"]["code"], answer["jsonrpc"]) == (None, -32700, "2.0")
    assert rpc.call("client_connect")


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
@pytest.mark.parametrize("document", INVALID.values(), ids=INVALID.keys())
def test_what_is_no_request_is_32600(net, kind, document):
    rpc = Rpc(net("frontend", kind))
    answer = rpc.reply(document)
    assert answer["error"]["code"] == -32600
    assert answer["id"] in (None, 1)
    assert rpc.call("client_connect")


@pytest.mark.parametrize("params", ["text", 1, True])
def test_params_are_a_list_or_an_object(net, params):
    answer = Rpc(net.frontend()).reply({"jsonrpc": "2.0", "method": CONNECT, "params": params, "id": "x"})
    assert answer["error"]["code"] in (-32600, -32602)


@pytest.mark.parametrize("id_", [0, -1, 2**53, "", "text", "é", "x" * 128])
def test_an_id_comes_back_as_it_was(net, id_):
    answer = Rpc(net.frontend()).reply({"jsonrpc": "2.0", "method": CONNECT, "id": id_})
    assert answer["id"] == id_
    assert type(answer["id"]) is type(id_)
    assert answer["result"]


WRONG_PARAMS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "too few": ("client_new_task", ("somebody",), {}),
    "too many": ("client_new_task", ("somebody", "m", [], "t", {}, 1), {}),
    "an unknown name": ("client_connect", (), {"client_idd": "a"}),
    "a missing name": ("client_task_status", (), {"client_id": "a"}),
    "ids that are no list": ("client_task_wait", ("somebody", "t"), {}),
    "a timeout that is text": ("client_task_wait", ("somebody", ["t"], "long"), {}),
    "a negative timeout": ("client_task_wait", ("somebody", ["t"], -1), {}),
    "a method that is a number": ("client_new_task", ("somebody", 5, []), {}),
    "an empty method": ("client_new_task", ("somebody", "", []), {}),
    "a method of 256 bytes": ("client_new_task", ("somebody", "m" * 256, []), {}),
    "options that are a list": ("client_new_task", ("somebody", "m", [], "t", [1]), {}),
}


@pytest.mark.parametrize("wrong", WRONG_PARAMS.values(), ids=WRONG_PARAMS.keys())
def test_wrong_params_are_32602(net, wrong):
    method, by_position, by_name = wrong
    owner = client(net)
    placed = tuple(owner.id if value == "somebody" else value for value in by_position)
    assert owner.rpc.code(method, *placed, **by_name) == -32602


WRONG_OPTIONS = [
    {"priority": 10},
    {"priority": -1},
    {"priority": "high"},
    {"priority": 1.5},
    {"max_attempts": 0},
    {"max_attempts": "3"},
    {"timeout": 0},
    {"timeout": -1},
    {"timeout": "soon"},
    {"delay": -1},
    {"delay": "soon"},
    {"at": "tomorrow"},
    {"backoff": -1},
    {"result_ttl": -1},
    {"key": 5},
    {"after": "task"},
    {"after": [5]},
    {"notify": "yes"},
]


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=json.dumps)
def test_wrong_options_are_32602_and_store_nothing(net, options):
    owner, mine = client(net), unique("task")
    with pytest.raises(Refused) as refused:
        owner.submit("m", [], mine, **options)
    assert refused.value.code == -32602
    assert owner.rpc.code("client_task_status", owner.id, mine) == -32020


def test_unknown_options_are_refused_and_nothing_is_stored(owner):
    with pytest.raises(Refused) as refused:
        owner.submit("m", task_id="odd", colour="red", shape={"a": [1]})
    assert refused.value.code == -32602
    with pytest.raises(Refused) as unknown:
        owner.code("odd")
    assert unknown.value.code == -32020


@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_wrong_params_are_refused_on_both_sockets(net, socket):
    method = {"frontend": "client_task_status", "backend": "node_task_finished"}[socket]
    rpc = Rpc(net(socket))
    assert rpc.code(method) == -32602
    assert rpc.code(method, 1, 2, 3, 4, 5, 6) == -32602


def test_of_two_keys_with_one_name_the_last_one_wins(net):
    rpc, name = Rpc(net.frontend()), unique("last")
    text = '{"jsonrpc":"2.0","method":"x","id":1,"method":"%s","params":{"client_id":"a","client_id":"%s"},"id":2}'
    assert rpc.reply((text % (CONNECT, name)).encode()) == {"jsonrpc": "2.0", "id": 2, "result": name}


def test_params_are_at_most_64_deep(owner):
    assert owner.code(owner.submit("m", nested(60))) == 1000
    answer = owner.rpc.reply(asked("client_new_task", owner.id, "m", nested(65)))
    assert answer["error"]["code"] in (-32700, -32600, -32602)
    assert owner.rpc.call("client_connect", owner.id) == owner.id


def test_a_result_is_at_most_64_deep(net):
    method = unique("deep")
    owner, worker = client(net), node(net, method)
    task = owner.submit(method)
    worker.take(task)
    answer = worker.rpc.reply(asked("node_task_finished", task, nested(65)))
    assert answer["error"]["code"] in (-32700, -32600, -32602)
    assert owner.code(task) == 3000
    assert worker.rpc.call("node_task_finished", task, nested(60)) is True


# Promise: WIRE-3
@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 5_000 + b"]" * 5_000])
def test_what_is_absurdly_deep_is_one_error(net, text):
    rpc = Rpc(net.frontend())
    assert rpc.reply(text)["error"]["code"] in (-32700, -32600)
    assert rpc.call("client_connect")


# Promise: WIRE-5
def test_a_message_of_almost_8_mib_is_taken_and_one_over_it_is_not(owner):

    def of_size(size: int, task: str) -> bytes:
        request = asked("client_new_task", owner.id, "m", [""], task)
        request["params"][2] = ["x" * (size - len(json.dumps(request)))]
        text = json.dumps(request).encode()
        assert len(text) == size
        return text

    fits, over = unique("fits"), unique("over")
    # A task must fit into a message on its way to a node too: the last few KiB may be refused.
    assert owner.rpc.reply(of_size(MAX_MESSAGE - 10_000, fits))["result"] == fits
    refused = owner.rpc.reply(of_size(MAX_MESSAGE + 1, over))
    assert refused["error"]["code"] == -32071
    assert owner.code(fits) == 1000
    assert owner.rpc.code("client_task_status", owner.id, over) == -32020


# Promise: WIRE-5
def test_a_small_configured_limit_counts_for_tasks_too(tmp_path):
    with own_broker(tmp_path, max_message_bytes=20_000, default_heartbeat_interval=60) as (_, net):
        owner = client(net)
        answer = owner.rpc.reply(asked("client_new_task", owner.id, "m", ["x" * 20_000]))
        assert answer["error"]["code"] == -32071
        assert owner.submit("m", ["x" * 10_000])


def test_a_notification_gets_no_answer_on_a_dealer(net):
    rpc, name = Rpc(net.frontend()), unique("quiet")
    rpc.send(told("client_connect", name))
    rpc.send(told("no_such_method"))
    rpc.send(told("client_connect", 1, 2, 3))
    assert rpc.silent()
    assert Rpc(net.frontend()).code("client_connect", name) == -32010, "it was done all the same"


# Promise: WIRE-1
@pytest.mark.parametrize(("kind", "delimiter"), [(zmq.REQ, False), (zmq.DEALER, True)])
def test_a_notification_gets_null_where_a_delimiter_was_sent(net, kind, delimiter):
    rpc = Rpc(net("frontend", kind, delimiter))
    for quiet in (told("client_connect", unique("a")), told("no_such_method"), [told("no_such_method")] * 2):
        rpc.send(quiet)
        assert rpc.hear_bytes() == b"null"
    assert rpc.call("client_connect")


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
def test_a_batch_is_answered_in_its_order_without_its_notifications(net, kind):
    rpc, names = Rpc(net("frontend", kind)), [unique("c") for _ in range(3)]
    batch: list[Any] = [
        asked("client_connect", names[0]),
        told("client_connect", names[0]),
        asked("no_such_method"),
        1,
        asked("client_new_task", names[0], "m", []),
        asked("client_task_status", names[0], "unknown"),
        {},
        told("no_such_method"),
        asked("client_connect", client_id=names[0]),
    ]
    answers = rpc.reply(batch)
    ids = [part.get("id") if isinstance(part, dict) else None for part in batch]
    assert [answer["id"] for answer in answers] == [ids[n] for n in (0, 2, 3, 4, 5, 6, 8)]
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == [None, -32601, -32600, None, -32020, -32600, None]


def test_a_batch_of_notifications_gets_no_answer_on_a_dealer(net):
    rpc = Rpc(net.frontend())
    rpc.send([told("client_connect", unique("a"))] * 3)
    assert rpc.silent()


def test_a_batch_of_one_is_answered_by_a_batch(net):
    answers = Rpc(net.frontend()).reply([asked("client_connect")])
    assert isinstance(answers, list)
    assert len(answers) == 1


def test_who_connects_first_in_a_batch_may_go_on_in_it(net):
    method, rpc, worker = unique("m"), Rpc(net.frontend()), Rpc(net("backend"))
    me, it, task = unique("client"), unique("node"), unique("task")
    answers = rpc.reply([asked("client_connect", me), asked("client_new_task", me, method, [], task)])
    assert [answer["result"] for answer in answers] == [me, task]
    answers = worker.reply([asked("node_connect", it, [method]), asked("node_task_request", it, task)])
    assert answers[1]["result"] == {"method": method, "params": [], "id": task, "attempt": 1}
    answers = worker.reply([asked("node_task_finished", it, task, n, 1) for n in (1, 1)])
    assert [answer["result"] for answer in answers] == [True, True]
    answers = rpc.reply([asked("client_task_result", me, task), asked("client_task_cancel", me, task)])
    assert [answer["result"] for answer in answers] == [1, True]


# Promise: WIRE-5
def test_a_batch_of_10_000_is_answered_and_one_more_is_one_error(owner):
    task = owner.submit("m")
    look = {"jsonrpc": "2.0", "method": "zerotask.broker.client_task_status", "params": [owner.id, task]}
    answers = owner.rpc.reply([{**look, "id": n} for n in range(MAX_BATCH)], 30)
    assert [answer["id"] for answer in answers] == list(range(MAX_BATCH))
    assert all(answer["result"]["code"] == 1000 for answer in answers)
    refused = owner.rpc.reply([{**look, "id": n} for n in range(MAX_BATCH + 1)], 30)
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)


# Promise: WIRE-4
@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_unknown_methods_make_an_error_client(net, socket):
    rpc = Rpc(net(socket))
    for _ in range(10):
        assert rpc.code("no_such_method") == -32601
    rpc.ask("no_such_method")
    rpc.hear_bytes(0.2)
    rpc.ask("client_connect" if socket == "frontend" else "node_connect")
    assert rpc.silent()


# Promise: WIRE-4
@pytest.mark.parametrize("text", [b"{", b"{}", b"[]"])
def test_malformed_documents_make_an_error_client(net, text):
    rpc = Rpc(net.frontend())
    for _ in range(11):
        rpc.send(text)
    rpc.ask("client_connect")
    heard = [rpc.hear_bytes(0.3) for _ in range(13)]
    assert all(b"error" in answer for answer in heard if answer is not None)
    assert heard[11] is None


# Promise: WIRE-4
def test_unknown_ids_are_no_offence(net):
    owner, worker = client(net), node(net, "m")
    for _ in range(30):
        assert owner.rpc.code("client_task_status", owner.id, "unknown") == -32020
        assert worker.rpc.code("node_task_request", worker.id, "unknown") == -32020
    assert owner.submit("m")
    assert worker.rpc.call("node_heartbeat", worker.id) is True


# Promise: WIRE-3
@pytest.mark.parametrize("frames", [[b"{}", b""], [b"[]", b"{}"], [b" {}"], [b"null"], [b"{", MAGIC], [b'"text"']])
def test_what_is_not_exactly_one_frame_of_json_is_refused_or_dropped(caller, frames):
    caller.frames(*frames)
    heard = caller.receive(0.1)
    assert heard is None or b"error" in heard[0] or heard[1] == b"DISCONNECTERROR"
    assert Rpc(caller).call("client_connect")
