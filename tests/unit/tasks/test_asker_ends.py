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
from tests.unit.tasks.asker_desk import GRAIN_SECONDS, Desk, one, states


def test_after_a_reconnect_what_is_watched_is_asked_for_until_it_ends() -> None:
    adapter = Desk()
    held = adapter.submit(b"[]", b"[]", b"[]").tickets
    adapter.serve()
    watch = adapter.watch(*held)
    adapter.lose()
    adapter.broker.end(held[0].id, result=0)
    adapter.back()
    adapter.serve()
    assert list(watch.completed) == [held[0]], "it ended while nobody could tell"
    adapter.pass_time(0.1)
    adapter.serve()
    assert [ids for _, ids in adapter.broker.waits] == [[held[1].id, held[2].id]]
    adapter.broker.end(held[1].id, result=1)
    for answer in adapter.broker.answer_waits():
        adapter.tell(answer)
    assert list(watch.completed) == held[:2]
    adapter.pass_time(0.1)
    adapter.serve()
    assert [ids for _, ids in adapter.broker.waits] == [[held[2].id]]


def test_a_wait_travels_alone_and_behind_the_array_that_says_who_we_are() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    adapter.watch(ticket)
    adapter.lose()
    adapter.hush()
    adapter.reopen()
    first, second = (json.loads(frame) for frame in adapter.frames())
    assert [call["method"] for call in first] == ["zerotask.broker.client_connect"]
    assert second["method"] == "zerotask.broker.client_task_wait"
    assert second["params"] == ["me", [ticket.id], WAIT_SECONDS]


def test_a_wait_that_is_over_is_asked_again_and_many_tasks_are_several_waits() -> None:
    adapter = Desk()
    held = adapter.submit(*[b"[]"] * (MAX_WAIT_IDS + 1)).tickets
    adapter.serve()
    adapter.watch(*held)
    adapter.lose()
    adapter.back()
    adapter.serve()
    assert sorted(len(ids) for _, ids in adapter.broker.waits) == [1, MAX_WAIT_IDS]
    for id_, _ in adapter.broker.waits:
        adapter.tell(json.dumps({"jsonrpc": "2.0", "id": id_, "result": []}).encode())
    adapter.broker.waits.clear()
    adapter.pass_time(0.1)
    adapter.serve()
    assert sum(len(ids) for _, ids in adapter.broker.waits) == MAX_WAIT_IDS + 1


def test_a_lost_notification_costs_seconds_and_not_for_ever() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    watch = adapter.watch(ticket)
    adapter.broker.end(ticket.id, result=1)
    for _ in range(100):
        adapter.hear("HEARTBEAT")
        adapter.pass_time(0.5)
        adapter.serve()
        if watch.ended:
            break
    assert ticket.status == FINISHED
    assert adapter.mono <= 100 + 2 * POLL_SECONDS + 1


def test_what_nobody_watches_is_not_asked_for() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    watch = adapter.watch(ticket)
    adapter.ride(lambda now: adapter.asker.remove_wait(watch, (ticket,)))
    assert not adapter.frontend.waiting
    adapter.lose()
    adapter.back()
    assert adapter.frames() == []
    assert adapter.asker.deadline(live=True) is None


def test_a_task_of_another_time_is_asked_for_and_one_that_is_not_there_is_missing() -> None:
    adapter = Desk()
    adapter.broker.tasks["old"] = {"task_id": "old", "status": "queued"}
    old, none = adapter.asker.future_of("old"), adapter.asker.future_of("none")
    assert adapter.asker.future_of("old") is old
    watch = adapter.watch(old, none)
    adapter.serve()
    assert [ticket.status for ticket in watch.completed] == [futures.MISSING]
    assert none.ended
    adapter.pass_time(0.1)
    adapter.serve()
    adapter.broker.end("old", result="done")
    for answer in adapter.broker.answer_waits():
        adapter.tell(answer)
    assert (old.status, old.value) == (FINISHED, b'"done"')


def test_a_key_gives_the_first_task_back_to_whoever_holds_it() -> None:
    adapter = Desk()
    first = one(adapter.submit(b"[]", key="k"))
    watch = FutureWait("w")
    second = one(adapter.submit(b"[]", key="k", watch=watch))
    adapter.serve()
    assert second.original is first
    adapter.tell(adapter.broker.told(adapter.broker.end(first.id, result=1)))
    assert list(watch.completed) == [first]
    third = one(adapter.submit(b"[]", key="k"))
    adapter.serve()
    assert (third.id, third.original) == (first.id, None)
    later = adapter.watch(third)
    adapter.serve()
    assert list(later.completed) == [third], "it ended before: nobody would tell"


def test_questions_are_answered_refused_or_given_up() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    status, cancel = adapter.ask(futures.STATUS, ticket.id), adapter.ask(futures.CANCEL, ticket.id)
    wrong = adapter.ask(futures.STATUS, "none")
    adapter.serve()
    assert json.loads(status.answer)["status"] == "queued"
    assert cancel.answer == b"true"
    assert wrong.fault is not None
    assert wrong.fault.code == -32020
    assert adapter.told("q") == 3
    silent = adapter.ask(futures.STATUS, ticket.id, timeout=1)
    adapter.pass_time(1 + GRAIN_SECONDS)
    assert silent.fault is not None
    assert silent.fault.code == 504
    with pytest.raises(ValueError):
        adapter.ask("client_disconnect", "x")


def test_a_question_survives_a_reconnect() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    question = adapter.ask(futures.STATUS, ticket.id)
    adapter.lose()
    adapter.back()
    adapter.serve()
    assert question.ended
    assert question.fault is None


def test_closing_tells_whoever_waits() -> None:
    adapter = Desk()
    accepted = one(adapter.submit(b"[]"))
    adapter.serve()
    watch = adapter.watch(accepted)
    receipt, question = adapter.submit(b"[]"), adapter.ask(futures.STATUS, accepted.id)
    adapter.act("end")
    assert states(receipt) == [futures.UNKNOWN]
    assert question.fault is not None
    assert watch.fault is not None
    assert accepted.status == futures.ACCEPTED, "the task goes on"
    assert adapter.told("w") == 1
    late = adapter.submit(b"[]")
    assert states(late) == [futures.REFUSED]
    adapter.pass_time(1)
    assert adapter.session.deadline() is None


def test_without_patience_for_a_broker_that_is_gone_whoever_waits_is_told() -> None:
    adapter = Desk(patience=2.0)
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    watch = adapter.watch(ticket)
    adapter.lose()
    for _ in range(20):
        adapter.pass_time(0.2)
        if adapter.session.connection.state != DOWN:
            adapter.act("closed", "refused")
    assert watch.fault is not None
    assert watch.fault.code == 599
    assert ticket.status == futures.ACCEPTED


def test_tickets_that_nobody_holds_are_forgotten() -> None:
    adapter = Desk()
    for _ in range(10):
        adapter.submit(*[b"[]"] * SWEEP_FUTURES)
        adapter.serve()
        adapter.news.clear()
    gc.collect()
    adapter.submit(b"[]")
    assert len(adapter.asker._subscriptions.known) <= 3 * SWEEP_FUTURES
    assert adapter.asker.unanswered <= 1


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
    adapter = Desk()
    receipt = adapter.submit(b"[]")
    adapter.tell(frame)
    assert not adapter.take(FutureChanged)
    adapter.serve()
    assert states(receipt) == [futures.ACCEPTED]


def test_one_element_that_cannot_be_read_costs_only_itself() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    good = json.loads(adapter.broker.told(adapter.broker.end(ticket.id, result=1)))
    adapter.tell(json.dumps([7, {"id": []}, *good]).encode())
    assert ticket.status == FINISHED


def test_deadlines_pass_whatever_state_the_line_is_in() -> None:
    """No deadline lies in the past for good: that would be a busy loop."""
    adapter = Desk()
    watch = FutureWait("w")
    adapter.submit(b"[]", watch=watch, timeout=5)
    for effects in range(12):
        adapter.pass_time(3)
        if effects % 3 == 1:
            adapter.lose()
        if effects % 4 == 2:
            adapter.serve()
    assert watch.ended
