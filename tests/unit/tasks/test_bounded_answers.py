"""The answer of one call, and of one array, is at most a message; the rest comes with the next call."""

# Promise: TASK-18
from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.storage.task_queries import ReadQueue
from tests.fakes.broker import METHODS
from tests.fakes.messages import RPC
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, TaskBroker

MESSAGE = 64 * 1024
LARGE = "x" * (MESSAGE // 4)
"""Three of these fit into one answer."""
NO_ROOM = -32072


@pytest.fixture(name="small")
def _small() -> TaskBroker:
    return TaskBroker(max_message_bytes=MESSAGE)


def ended(broker: TaskBroker, count: int, result: Any = LARGE) -> list[str]:
    """Tasks that have ended with a large result each, so that only the store has them."""
    ids = [f"t{number:03}" for number in range(count)]
    worker = broker.worker("w", "m", slots=count)
    for id_ in ids:
        broker.submit(id_)
        broker.done(worker, id_, result=result)
    broker.received(worker, "TASKS")
    return ids


def answered(broker: TaskBroker, *calls: tuple[Any, ...]) -> tuple[int, list[dict[str, Any]]]:
    """The size of the answer to one frame, and its elements."""
    parts = [
        {"jsonrpc": "2.0", "method": METHODS + method, "params": params, "id": place}
        for place, (method, *params) in enumerate(calls)
    ]
    broker.received(FRONT, RPC)
    broker.send_frames(FRONT, [json.dumps(parts if len(parts) > 1 else parts[0]).encode()])
    bodies = [one.body for one in broker.received(FRONT, RPC)]
    return len(json.dumps(bodies)), bodies


def test_a_wait_returns_what_fits_and_the_rest_with_the_next_calls(small):
    ids = ended(small, 20)
    left, rounds = list(ids), 0
    while left:
        size, (answer,) = answered(small, ("client_task_wait", CLIENT, left, 0))
        assert size < MESSAGE + 1_000
        got = [row["task_id"] for row in answer["result"]]
        assert got, "a wait for ended tasks must return at least one"
        assert answer.get("more", False) is (len(got) < len(left))
        assert all(row["result"] == LARGE for row in answer["result"])
        left = [id_ for id_ in left if id_ not in got]
        rounds += 1
    assert rounds == 7


def test_a_wait_for_tasks_that_end_while_the_store_is_read_returns_what_fits(small):
    (old,) = ended(small, 1)
    ids = [f"n{number}" for number in range(6)]
    worker = small.worker("w2", "m2", slots=6)
    small.submit_many(ids, "m2")
    small.hold()
    number = small.ask(FRONT, "client_task_wait", CLIENT, [old, *ids], 30)
    for id_ in ids:
        small.done(worker, id_, result=LARGE)
    small.let_go()
    assert [row["task_id"] for row in small.answer(number)] == [old, "n0", "n1"]


def test_a_result_as_large_as_a_message_is_returned_alone(small):
    huge = "y" * (MESSAGE - 200)
    ids = ended(small, 2, huge)
    (row,) = small.call("client_task_wait", CLIENT, ids, 0)
    assert row["result"] == huge
    assert small.result(ids[1]) == huge


def test_calls_of_an_array_whose_answers_do_not_fit_are_refused_and_can_be_repeated(small):
    ids = ended(small, 20)
    left, rounds = list(ids), 0
    while left:
        size, answers = answered(
            small, *(("client_task_result", CLIENT, id_) for id_ in left), ("client_task_status", CLIENT, "nobody")
        )
        assert size < MESSAGE + 500 * (len(left) + 1)
        refused = [id_ for id_, answer in zip(left, answers, strict=False) if "error" in answer]
        assert all(answer["error"]["code"] == NO_ROOM for answer in answers[:-1] if "error" in answer)
        assert len(refused) < len(left), "every array must return at least one result"
        left = refused
        rounds += 1
    assert rounds == 7


def test_waits_in_an_array_share_its_answer(small):
    ids = ended(small, 12)
    size, answers = answered(small, *(("client_task_wait", CLIENT, [id_], 0) for id_ in ids))
    assert size < MESSAGE + 500 * len(ids)
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [NO_ROOM] * 9


def test_reading_results_takes_no_more_than_a_message_at_a_time(small):
    ids = ended(small, 20)
    sizes = [0]
    read = small.store.read

    def measured(ask: Any) -> Any:
        answer = read(ask)
        sizes[-1] += large_bytes(answer)
        return answer

    small.store.read = measured
    small.hold()
    numbers = [small.ask(FRONT, "client_task_result", CLIENT, id_) for id_ in ids]
    numbers.append(small.ask(FRONT, "client_task_wait", CLIENT, ids, 0))
    while small.host.in_flight is not None:
        sizes.append(0)
        small.host.end_one()
    assert all(small.answer(number) for number in numbers)
    assert 0 < max(sizes) <= MESSAGE


def large_bytes(answer: Any) -> int:
    """The bytes of params and results in what a store answered, however it is nested."""
    if isinstance(answer, bytes):
        return len(answer) if len(answer) > 1_000 else 0
    if isinstance(answer, tuple | list):
        return sum(map(large_bytes, answer))
    return sum(large_bytes(getattr(answer, name)) for name in getattr(answer, "__struct_fields__", ()))


def test_many_waits_for_one_large_result_are_not_all_answered_with_it_at_once(small):
    worker = small.worker("w", "m")
    small.submit("t")
    numbers = [small.ask(FRONT, "client_task_wait", CLIENT, ["t"], 30) for _ in range(900)]
    small.done(worker, "t", result="z" * (MESSAGE - 200))
    answers = [small.answer(number) for number in numbers]
    full = [answer for answer in answers if answer]
    assert 1 <= len(full) * MESSAGE <= small.machine.state.limits.max_client_bytes + 2 * MESSAGE
    assert small.call("client_task_wait", CLIENT, ["t"], 0)


def test_a_hand_out_in_an_array_leases_only_what_its_answer_holds(small):
    node = small.node("n", "m")
    for number in range(8):
        assert small.call("client_new_task", CLIENT, "m", [LARGE], f"p{number}") == f"p{number}"
    answers = small.together(node, *(("node_tasks_request", "n", 1) for _ in range(4)))
    assert [len(answer) for answer in answers[:3]] == [1, 1, 1]
    assert isinstance(answers[3], Refused)
    assert answers[3].code == NO_ROOM
    assert small.status("p3") == "queued"
    assert small.pull(node) == ["p3", "p4", "p5"]


# Promise: PERM-5
def test_an_array_that_takes_tasks_by_id_reads_no_more_params_than_its_answer_holds(small):
    ids = [f"p{number}" for number in range(20)]
    for id_ in ids:
        assert small.call("client_new_task", CLIENT, "m", [LARGE], id_) == id_
    small.restart()
    node, read, total = small.node("n", "other"), small.store.read, 0

    def measured(ask: Any) -> Any:
        nonlocal total
        answer = read(ask)
        if not isinstance(ask, ReadQueue):  # the queue is loaded afterwards, within a limit of its own
            total += large_bytes(answer)
        return answer

    small.store.read = measured
    answers = small.together(node, *(("node_task_request", "n", id_) for id_ in ids))
    taken = [answer["id"] for answer in answers if not isinstance(answer, Refused)]
    assert taken == ["p0", "p1", "p2"]
    assert {answer.code for answer in answers if isinstance(answer, Refused)} == {NO_ROOM}
    assert total <= MESSAGE
    assert small.fetch(node, "p3")["attempt"] == 1, "the call can be repeated"
