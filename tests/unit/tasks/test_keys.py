"""A key is one task: the same submission returns it, another one is refused."""

# Promise: TASK-4
from __future__ import annotations

from typing import Any

import pytest

from scale0.storage.task_queries import LookUpSubmission
from scale0.storage.task_rows import PutTask
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, TaskBroker

KEY_CONFLICT = -32022


def submit(broker: TaskBroker, method: str, params: Any, id_: str | None = None, **options: Any) -> Any:
    return broker.call("client_new_task", CLIENT, method, params, id_, {"key": "k", **options})


def end(broker: TaskBroker, how: str, id_: str) -> None:
    if how == "cancelled":
        broker.cancel(id_)
    elif how != "open":
        worker = broker.worker("w", "m")
        if how == "finished":
            broker.done(worker, id_, result=1)
        else:
            broker.fail(worker, id_)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("how", ["open", "finished", "failed", "cancelled"])
def test_a_key_with_another_method_or_other_params_is_refused(broker, how, restart):
    first = submit(broker, "m", {"a": 1, "b": [2]})
    end(broker, how, first)
    if restart:
        broker.restart()
    assert submit(broker, "m", {"a": 1, "b": [2]}) == first
    assert submit(broker, "m", {"b": [2], "a": 1}, "other-id", priority=9) == first, "the order of names means nothing"
    for method, params, differs in (
        ("m2", {"a": 1, "b": [2]}, ["method"]),
        ("m", {"a": 1, "b": [3]}, ["params"]),
        ("m2", [], ["method", "params"]),
    ):
        broker.received(FRONT)
        number = broker.ask(FRONT, "client_new_task", CLIENT, method, params, None, {"key": "k"})
        (answer,) = [one.body for one in broker.received(FRONT) if one.body["id"] == number]
        assert answer["error"]["code"] == KEY_CONFLICT
        assert answer["error"]["data"] == {"task_id": first, "key": "k", "differs": differs}
        assert "'k'" in answer["error"]["message"]
        assert first in answer["error"]["message"]
    assert isinstance(submit(broker, "m2", [], "wanted"), Refused)
    assert submit(broker, "m2", [], "wanted", key="another") == "wanted", "a refused submission leaves its id free"


def test_two_different_submissions_of_one_key_in_one_turn_make_one_task(broker):
    told = broker.together(
        FRONT, *(("client_new_task", CLIENT, "m", [number], f"t{number}", {"key": "k"}) for number in (1, 2, 1))
    )
    assert told[0] == told[2] == "t1"
    assert isinstance(told[1], Refused)
    assert told[1].code == KEY_CONFLICT


def test_a_task_that_was_stored_without_a_digest_is_returned_as_before():
    broker = TaskBroker()
    old = PutTask(
        900, "old", CLIENT, "m", b"[1]", 4, 500, 0, 0, "", 1, 2**60, 0, 0, False, False, "k", b"", b"", b""
    )  # as a version without digests stores it
    broker.store.read(LookUpSubmission(CLIENT, ("old",), "k", None, "old"))  # a shared store wants a reservation
    broker.store.commit([old])
    assert submit(broker, "m2", [2]) == "old"


def test_an_integer_and_the_same_number_with_a_fraction_are_different_values(broker):
    first = submit(broker, "m", [1.50])
    assert submit(broker, "m", [1.5]) == first
    for other in ([1.5, 1], [1]):
        assert isinstance(submit(broker, "m", other), Refused)
    broker.restart()
    one = submit(broker, "m", [1], key="one")
    answer = submit(broker, "m", [1.0], key="one")
    assert isinstance(answer, Refused)
    assert answer.code == KEY_CONFLICT
    assert submit(broker, "m", [1], key="one") == one


def test_numbers_that_json_cannot_decode_are_compared_as_they_are(broker):
    huge, other = (
        b'{"jsonrpc":"2.0","method":"zerotask.broker.client_new_task","id":"h%d","params":["c","m",%b,null,'
        b'{"key":"k"}]}' % (number, params)
        for number, params in enumerate((b"[1e400]", b"[2e400]"))
    )
    broker.send_frames(FRONT, [huge])
    first = broker.answer("h0")
    broker.send_frames(FRONT, [other])
    assert broker.answer("h1").code == KEY_CONFLICT
    broker.send_frames(FRONT, [huge])
    assert broker.answer("h0") == first
