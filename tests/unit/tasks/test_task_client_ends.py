"""A task client's session without sockets: every end is told or asked for, over reconnects, lost words and rubbish."""

from __future__ import annotations

import gc
import json

import pytest

from scale0.storage.task_rows import FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureChanged, FutureWait
from scale0.tasks.client.subscriptions import MAX_WAIT_IDS, POLL_SECONDS, SWEEP_FUTURES
from scale0.tasks.client.task_client import WAIT_SECONDS
from scale0.transport.core.session import DOWN
from tests.unit.tasks.task_client_harness import GRAIN_SECONDS, TaskClientHarness, one, states


def test_after_a_reconnect_what_is_watched_is_asked_for_until_it_ends() -> None:
    harness = TaskClientHarness()
    held = harness.submit(b"[]", b"[]", b"[]").futures
    harness.serve()
    watch = harness.watch(*held)
    harness.lose()
    harness.broker.end(held[0].id, result=0)
    harness.back()
    harness.serve()
    assert list(watch.completed) == [held[0]], "it ended while nobody could tell"
    harness.pass_time(0.1)
    harness.serve()
    assert [ids for _, ids in harness.broker.waits] == [[held[1].id, held[2].id]]
    harness.broker.end(held[1].id, result=1)
    for answer in harness.broker.answer_waits():
        harness.tell(answer)
    assert list(watch.completed) == held[:2]
    harness.pass_time(0.1)
    harness.serve()
    assert [ids for _, ids in harness.broker.waits] == [[held[2].id]]


def test_a_wait_travels_alone_and_behind_the_array_that_says_who_we_are() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    harness.watch(future)
    harness.lose()
    harness.hush()
    harness.reopen()
    first, second = (json.loads(frame) for frame in harness.frames())
    assert [call["method"] for call in first] == ["zerotask.broker.client_connect"]
    assert second["method"] == "zerotask.broker.client_task_wait"
    assert second["params"] == ["me", [future.id], WAIT_SECONDS]


def test_a_wait_that_is_over_is_asked_again_and_many_tasks_are_several_waits() -> None:
    harness = TaskClientHarness()
    held = harness.submit(*[b"[]"] * (MAX_WAIT_IDS + 1)).futures
    harness.serve()
    harness.watch(*held)
    harness.lose()
    harness.back()
    harness.serve()
    assert sorted(len(ids) for _, ids in harness.broker.waits) == [1, MAX_WAIT_IDS]
    for id_, _ in harness.broker.waits:
        harness.tell(json.dumps({"jsonrpc": "2.0", "id": id_, "result": []}).encode())
    harness.broker.waits.clear()
    harness.pass_time(0.1)
    harness.serve()
    assert sum(len(ids) for _, ids in harness.broker.waits) == MAX_WAIT_IDS + 1


def test_a_lost_notification_costs_seconds_and_not_for_ever() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    watch = harness.watch(future)
    harness.broker.end(future.id, result=1)
    for _ in range(100):
        harness.hear("HEARTBEAT")
        harness.pass_time(0.5)
        harness.serve()
        if watch.ended:
            break
    assert future.status == FINISHED
    assert harness.mono <= 100 + 2 * POLL_SECONDS + 1


def test_what_nobody_watches_is_not_asked_for() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    watch = harness.watch(future)
    harness.run_task_action(lambda now: harness.tasks.remove_wait(watch, (future,)))
    assert not harness.frontend.waiting
    harness.lose()
    harness.back()
    assert harness.frames() == []
    assert harness.tasks.deadline(live=True) is None


def test_a_task_of_another_time_is_asked_for_and_one_that_is_not_there_is_missing() -> None:
    harness = TaskClientHarness()
    harness.broker.tasks["old"] = {"task_id": "old", "status": "queued"}
    old, none = harness.tasks.future_of("old"), harness.tasks.future_of("none")
    assert harness.tasks.future_of("old") is old
    watch = harness.watch(old, none)
    harness.serve()
    assert [future.status for future in watch.completed] == [futures.MISSING]
    assert none.ended
    harness.pass_time(0.1)
    harness.serve()
    harness.broker.end("old", result="done")
    for answer in harness.broker.answer_waits():
        harness.tell(answer)
    assert (old.status, old.value) == (FINISHED, b'"done"')


def test_a_key_gives_the_first_task_back_to_whoever_holds_it() -> None:
    harness = TaskClientHarness()
    first = one(harness.submit(b"[]", key="k"))
    watch = FutureWait("w")
    second = one(harness.submit(b"[]", key="k", watch=watch))
    harness.serve()
    assert second.original is first
    harness.tell(harness.broker.told(harness.broker.end(first.id, result=1)))
    assert list(watch.completed) == [first]
    third = one(harness.submit(b"[]", key="k"))
    harness.serve()
    assert (third.id, third.original) == (first.id, None)
    later = harness.watch(third)
    harness.serve()
    assert list(later.completed) == [third], "it ended before: nobody would tell"


def test_questions_are_answered_refused_or_given_up() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    status, cancel = harness.ask(futures.STATUS, future.id), harness.ask(futures.CANCEL, future.id)
    wrong = harness.ask(futures.STATUS, "none")
    harness.serve()
    assert json.loads(status.answer)["status"] == "queued"
    assert cancel.answer == b"true"
    assert wrong.fault is not None
    assert wrong.fault.code == -32020
    assert harness.told("q") == 3
    silent = harness.ask(futures.STATUS, future.id, timeout=1)
    harness.pass_time(1 + GRAIN_SECONDS)
    assert silent.fault is not None
    assert silent.fault.code == 504
    with pytest.raises(ValueError):
        harness.ask("client_disconnect", "x")


def test_a_question_survives_a_reconnect() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    question = harness.ask(futures.STATUS, future.id)
    harness.lose()
    harness.back()
    harness.serve()
    assert question.ended
    assert question.fault is None


def test_closing_tells_whoever_waits() -> None:
    harness = TaskClientHarness()
    accepted = one(harness.submit(b"[]"))
    harness.serve()
    watch = harness.watch(accepted)
    receipt, question = harness.submit(b"[]"), harness.ask(futures.STATUS, accepted.id)
    harness.act("end")
    assert states(receipt) == [futures.UNKNOWN]
    assert question.fault is not None
    assert watch.fault is not None
    assert accepted.status == futures.ACCEPTED, "the task goes on"
    assert harness.told("w") == 1
    late = harness.submit(b"[]")
    assert states(late) == [futures.REFUSED]
    harness.pass_time(1)
    assert harness.session.deadline() is None


def test_without_patience_for_a_broker_that_is_gone_whoever_waits_is_told() -> None:
    harness = TaskClientHarness(patience=2.0)
    future = one(harness.submit(b"[]"))
    harness.serve()
    watch = harness.watch(future)
    harness.lose()
    for _ in range(20):
        harness.pass_time(0.2)
        if harness.session.connection.state != DOWN:
            harness.act("closed", "refused")
    assert watch.fault is not None
    assert watch.fault.code == 599
    assert future.status == futures.ACCEPTED


def test_tickets_that_nobody_holds_are_forgotten() -> None:
    harness = TaskClientHarness()
    for _ in range(10):
        harness.submit(*[b"[]"] * SWEEP_FUTURES)
        harness.serve()
        harness.news.clear()
    gc.collect()
    harness.submit(b"[]")
    assert len(harness.tasks._subscriptions.known) <= 3 * SWEEP_FUTURES
    assert harness.tasks.unanswered <= 1


@pytest.mark.parametrize(
    "frame",
    [
        b"[",
        b"{",
        b"[]",
        b"{}",
        b"[1, 2]",
        b'{"id": "x", "result": 1}',
        b'[{"id": 99, "result": 1}, 5]',
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "what?"}}',
        b'{"method": "zerotask.client.task_complete", "params": {"task_id": "x", "status": "odd"}}',
        b'{"method": "zerotask.client.task_complete", "params": [1]}',
        b'{"method": "other", "params": {"task_id": "x", "status": "finished"}}',
        b"[" * 10_000,
        b"\xff{",
    ],
)
def test_rubbish_is_not_heeded_and_spoils_nothing(frame: bytes) -> None:
    harness = TaskClientHarness()
    receipt = harness.submit(b"[]")
    harness.tell(frame)
    assert not harness.take(FutureChanged)
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]


def test_one_element_that_cannot_be_read_costs_only_itself() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    good = json.loads(harness.broker.told(harness.broker.end(future.id, result=1)))
    harness.tell(json.dumps([7, {"id": []}, *good]).encode())
    assert future.status == FINISHED


def test_deadlines_pass_whatever_state_the_line_is_in() -> None:
    """No deadline lies in the past for good: that would be a busy loop."""
    harness = TaskClientHarness()
    watch = FutureWait("w")
    harness.submit(b"[]", watch=watch, timeout=5)
    for step in range(12):
        harness.pass_time(3)
        if step % 3 == 1:
            harness.lose()
        if step % 4 == 2:
            harness.serve()
    assert watch.ended
