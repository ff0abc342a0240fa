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
    desk = Desk()
    held = desk.submit(b"[]", b"[]", b"[]").tickets
    desk.serve()
    watch = desk.watch(*held)
    desk.lose()
    desk.broker.end(held[0].id, result=0)
    desk.back()
    desk.serve()
    assert list(watch.completed) == [held[0]], "it ended while nobody could tell"
    desk.pass_time(0.1)
    desk.serve()
    assert [ids for _, ids in desk.broker.waits] == [[held[1].id, held[2].id]]
    desk.broker.end(held[1].id, result=1)
    for answer in desk.broker.answer_waits():
        desk.tell(answer)
    assert list(watch.completed) == held[:2]
    desk.pass_time(0.1)
    desk.serve()
    assert [ids for _, ids in desk.broker.waits] == [[held[2].id]]


def test_a_wait_travels_alone_and_behind_the_array_that_says_who_we_are() -> None:
    desk = Desk()
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    desk.watch(ticket)
    desk.lose()
    desk.hush()
    desk.reopen()
    first, second = (json.loads(frame) for frame in desk.frames())
    assert [call["method"] for call in first] == ["zerotask.broker.client_connect"]
    assert second["method"] == "zerotask.broker.client_task_wait"
    assert second["params"] == ["me", [ticket.id], WAIT_SECONDS]


def test_a_wait_that_is_over_is_asked_again_and_many_tasks_are_several_waits() -> None:
    desk = Desk()
    held = desk.submit(*[b"[]"] * (MAX_WAIT_IDS + 1)).tickets
    desk.serve()
    desk.watch(*held)
    desk.lose()
    desk.back()
    desk.serve()
    assert sorted(len(ids) for _, ids in desk.broker.waits) == [1, MAX_WAIT_IDS]
    for id_, _ in desk.broker.waits:
        desk.tell(json.dumps({"jsonrpc": "2.0", "id": id_, "result": []}).encode())
    desk.broker.waits.clear()
    desk.pass_time(0.1)
    desk.serve()
    assert sum(len(ids) for _, ids in desk.broker.waits) == MAX_WAIT_IDS + 1


def test_a_lost_notification_costs_seconds_and_not_for_ever() -> None:
    desk = Desk()
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    watch = desk.watch(ticket)
    desk.broker.end(ticket.id, result=1)
    for _ in range(100):
        desk.hear("HEARTBEAT")
        desk.pass_time(0.5)
        desk.serve()
        if watch.ended:
            break
    assert ticket.status == FINISHED
    assert desk.mono <= 100 + 2 * POLL_SECONDS + 1


def test_what_nobody_watches_is_not_asked_for() -> None:
    desk = Desk()
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    watch = desk.watch(ticket)
    desk.ride(lambda now: desk.asker.remove_wait(watch, (ticket,)))
    assert not desk.frontend.waiting
    desk.lose()
    desk.back()
    assert desk.frames() == []
    assert desk.asker.deadline(live=True) is None


def test_a_task_of_another_time_is_asked_for_and_one_that_is_not_there_is_missing() -> None:
    desk = Desk()
    desk.broker.tasks["old"] = {"task_id": "old", "status": "queued"}
    old, none = desk.asker.future_of("old"), desk.asker.future_of("none")
    assert desk.asker.future_of("old") is old
    watch = desk.watch(old, none)
    desk.serve()
    assert [ticket.status for ticket in watch.completed] == [futures.MISSING]
    assert none.ended
    desk.pass_time(0.1)
    desk.serve()
    desk.broker.end("old", result="done")
    for answer in desk.broker.answer_waits():
        desk.tell(answer)
    assert (old.status, old.value) == (FINISHED, b'"done"')


def test_a_key_gives_the_first_task_back_to_whoever_holds_it() -> None:
    desk = Desk()
    first = one(desk.submit(b"[]", key="k"))
    watch = FutureWait("w")
    second = one(desk.submit(b"[]", key="k", watch=watch))
    desk.serve()
    assert second.original is first
    desk.tell(desk.broker.told(desk.broker.end(first.id, result=1)))
    assert list(watch.completed) == [first]
    third = one(desk.submit(b"[]", key="k"))
    desk.serve()
    assert (third.id, third.original) == (first.id, None)
    later = desk.watch(third)
    desk.serve()
    assert list(later.completed) == [third], "it ended before: nobody would tell"


def test_questions_are_answered_refused_or_given_up() -> None:
    desk = Desk()
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    status, cancel = desk.ask(futures.STATUS, ticket.id), desk.ask(futures.CANCEL, ticket.id)
    wrong = desk.ask(futures.STATUS, "none")
    desk.serve()
    assert json.loads(status.answer)["status"] == "queued"
    assert cancel.answer == b"true"
    assert wrong.fault is not None
    assert wrong.fault.code == -32020
    assert desk.told("q") == 3
    silent = desk.ask(futures.STATUS, ticket.id, timeout=1)
    desk.pass_time(1 + GRAIN_SECONDS)
    assert silent.fault is not None
    assert silent.fault.code == 504
    with pytest.raises(ValueError):
        desk.ask("client_disconnect", "x")


def test_a_question_survives_a_reconnect() -> None:
    desk = Desk()
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    question = desk.ask(futures.STATUS, ticket.id)
    desk.lose()
    desk.back()
    desk.serve()
    assert question.ended
    assert question.fault is None


def test_closing_tells_whoever_waits() -> None:
    desk = Desk()
    accepted = one(desk.submit(b"[]"))
    desk.serve()
    watch = desk.watch(accepted)
    receipt, question = desk.submit(b"[]"), desk.ask(futures.STATUS, accepted.id)
    desk.act("end")
    assert states(receipt) == [futures.UNKNOWN]
    assert question.fault is not None
    assert watch.fault is not None
    assert accepted.status == futures.ACCEPTED, "the task goes on"
    assert desk.told("w") == 1
    late = desk.submit(b"[]")
    assert states(late) == [futures.REFUSED]
    desk.pass_time(1)
    assert desk.session.deadline() is None


def test_without_patience_for_a_broker_that_is_gone_whoever_waits_is_told() -> None:
    desk = Desk(patience=2.0)
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    watch = desk.watch(ticket)
    desk.lose()
    for _ in range(20):
        desk.pass_time(0.2)
        if desk.session.connection.state != DOWN:
            desk.act("closed", "refused")
    assert watch.fault is not None
    assert watch.fault.code == 599
    assert ticket.status == futures.ACCEPTED


def test_tickets_that_nobody_holds_are_forgotten() -> None:
    desk = Desk()
    for _ in range(10):
        desk.submit(*[b"[]"] * SWEEP_FUTURES)
        desk.serve()
        desk.news.clear()
    gc.collect()
    desk.submit(b"[]")
    assert len(desk.asker._subscriptions.known) <= 3 * SWEEP_FUTURES
    assert desk.asker.unanswered <= 1


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
    desk = Desk()
    receipt = desk.submit(b"[]")
    desk.tell(frame)
    assert not desk.take(FutureChanged)
    desk.serve()
    assert states(receipt) == [futures.ACCEPTED]


def test_one_element_that_cannot_be_read_costs_only_itself() -> None:
    desk = Desk()
    ticket = one(desk.submit(b"[]"))
    desk.serve()
    good = json.loads(desk.broker.told(desk.broker.end(ticket.id, result=1)))
    desk.tell(json.dumps([7, {"id": []}, *good]).encode())
    assert ticket.status == FINISHED


def test_deadlines_pass_whatever_state_the_line_is_in() -> None:
    """No deadline lies in the past for good: that would be a busy loop."""
    desk = Desk()
    watch = FutureWait("w")
    desk.submit(b"[]", watch=watch, timeout=5)
    for step in range(12):
        desk.pass_time(3)
        if step % 3 == 1:
            desk.lose()
        if step % 4 == 2:
            desk.serve()
    assert watch.ended
