"""A session of the task client without sockets: every submission ends once, and every end of a task is received."""

from __future__ import annotations

import gc
import json
import random

import pytest

from scale0.kernel.limits import Limits
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureChanged, FutureWait
from scale0.tasks.client.subscriptions import MAX_WAIT_IDS, POLL_SECONDS, SWEEP_FUTURES
from scale0.tasks.client.task_client import RETRY_SECONDS, WAIT_SECONDS, TaskClientSession
from scale0.transport.core.session import DOWN, SessionEffects
from tests.unit.tasks.task_client_harness import GRAIN_SECONDS, TaskClientHarness, one, ready, states


def test_many_submissions_are_one_message_and_are_acknowledged_together(harness: TaskClientHarness) -> None:
    receipt = harness.submit(*(b"[%d]" % number for number in range(500)))
    [frame] = ready(harness.said)
    calls = json.loads(frame)
    assert [call["method"].rpartition(".")[2] for call in calls[:2]] == ["client_connect", "client_new_task"]
    assert len(calls) == 501
    assert calls[1]["params"][:3] == ["me", "s", [0]]
    assert calls[1]["params"][4] == {"notify": True}
    harness.serve()
    assert receipt.ended
    assert harness.told("r") == 1
    assert states(receipt) == [futures.ACCEPTED] * 500
    assert [task["params"] for task in harness.broker.tasks.values()] == [[number] for number in range(500)]
    harness.submit(b"[]")
    assert b"client_connect" not in harness.frames()[0], "once a connection is enough"


def test_task_ids_grow_and_two_clients_never_make_the_same(harness: TaskClientHarness) -> None:
    ids = [future.id for future in harness.submit(b"[]", b"[]").futures + harness.submit(b"[]").futures]
    assert ids == sorted(set(ids))
    series, _, counter = ids[0].partition(".")
    assert len(counter) == 12
    assert TaskClientSession("me", random.Random(6))._series != series


def test_a_frame_holds_as_many_calls_and_bytes_as_a_broker_takes() -> None:
    harness = TaskClientHarness(limits=Limits(max_batch_messages=10, max_message_bytes=2_000))
    harness.submit(*[b'["%b"]' % (b"x" * size) for size in [1] * 25 + [900] * 3 + [1_800]])
    frames = harness.frames()
    sizes = [len(json.loads(frame)) for frame in frames]
    assert sum(sizes) == 30
    assert max(sizes) <= 10
    assert all(len(frame) <= 2_000 for frame, size in zip(frames, sizes, strict=True) if size > 1)


@pytest.mark.parametrize("single", [True, False])
def test_an_end_that_is_pushed_is_told_to_whoever_watches(harness: TaskClientHarness, single: bool) -> None:
    future = one(harness.submit(b"[]"))
    harness.serve()
    watch = harness.watch(future)
    assert not watch.ended
    harness.tell(harness.broker.told(harness.broker.end(future.id, result={"n": 1}), single=single))
    assert harness.told("w") == 1
    assert list(watch.completed) == [future]
    assert (future.status, future.ended, json.loads(future.value)) == (FINISHED, True, {"n": 1})
    harness.pass_time(60)
    assert harness.broker.heard == ["client_connect", "client_new_task"], "what was told is not asked for"


def test_failed_and_cancelled_tasks_end_with_their_errors(harness: TaskClientHarness) -> None:
    first, second = harness.submit(b"[]", b"[]").futures
    harness.serve()
    error = {"code": -32090, "message": "lost", "data": {"attempts": [1]}}
    rows = (harness.broker.end(first.id, "failed", error=error), harness.broker.end(second.id, "cancelled"))
    harness.tell(harness.broker.told(*rows))
    assert first.fault is not None
    assert (first.status, first.fault.code, json.loads(first.fault.data)) == (FAILED, -32090, {"attempts": [1]})
    assert second.status == CANCELLED


def test_an_end_is_told_to_every_watch_and_a_late_one_has_it_at_once(harness: TaskClientHarness) -> None:
    future = one(harness.submit(b"[]"))
    harness.serve()
    early = [harness.watch(future, tag=f"w{number}") for number in range(3)]
    harness.run_task_action(lambda now: harness.tasks.remove_wait(early[2], (future,)))
    harness.tell(harness.broker.told(harness.broker.end(future.id, result=1)))
    assert [len(watch.completed) for watch in early] == [1, 1, 0]
    assert harness.watch(future).ended


def test_what_was_not_answered_is_sent_again_on_the_next_connection(harness: TaskClientHarness) -> None:
    receipt = harness.submit(b"[1]", b"[2]")
    harness.hush()
    harness.lose()
    later = harness.submit(b"[3]")
    assert harness.frames() == []
    harness.back()
    harness.serve()
    assert receipt.ended
    assert later.ended
    assert harness.broker.heard == ["client_connect"] + ["client_new_task"] * 3
    assert [task["params"] for task in harness.broker.tasks.values()] == [[1], [2], [3]]


def test_taken_by_our_own_earlier_try_means_stored(harness: TaskClientHarness) -> None:
    receipt = harness.submit(b"[1]")
    [frame] = harness.frames()
    harness.broker.hear(frame)
    harness.lose()
    harness.back()
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]
    assert len(harness.broker.tasks) == 1
    assert receipt.ended


@pytest.mark.parametrize("stored", [True, False])
def test_a_second_try_that_an_outage_refuses_is_settled_by_whether_the_first_was_stored(
    harness: TaskClientHarness, stored: bool
) -> None:
    receipt = harness.submit(b"[1]")
    [frame] = harness.frames()
    if stored:
        harness.broker.hear(frame)
    harness.lose()
    harness.back()
    harness.broker.unavailable = True
    for _ in range(4):
        harness.serve()
        harness.pass_time(1)
        assert states(receipt) == [futures.NEW]
    harness.broker.unavailable = False
    harness.pass_time(1)
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED if stored else futures.REFUSED]
    trouble = one(receipt).fault
    assert stored or (trouble is not None and trouble.code == -32060)


def test_a_wait_goes_on_after_an_outage(harness: TaskClientHarness) -> None:
    receipt = harness.submit(b"[1]", notify=False)
    harness.serve()
    watch = harness.watch(one(receipt))
    harness.broker.unavailable = True
    for _ in range(4):
        harness.pass_time(1)
        harness.serve()
    harness.broker.unavailable = False
    harness.broker.end(one(receipt).id, result=7)
    harness.pass_time(1)
    harness.serve()
    assert list(watch.completed) == [one(receipt)]


def test_taken_at_the_first_try_is_refused_and_so_is_a_second_try_that_was_never_stored(
    harness: TaskClientHarness,
) -> None:
    harness.submit(b"[]", id="mine")
    harness.serve()
    again = harness.submit(b"[]", id="mine")
    harness.serve()
    assert states(again) == [futures.REFUSED]
    lost = harness.submit(b"[]", after=["nobody"])
    harness.hush()
    harness.lose()
    harness.back()
    harness.serve()
    assert states(lost) == [futures.REFUSED], "-32020 for another reason"
    assert one(lost).fault is not None


def test_the_first_ticket_of_an_id_still_hears_of_its_end_after_a_second_was_refused(
    harness: TaskClientHarness,
) -> None:
    first = one(harness.submit(b"[]", id="mine"))
    harness.submit(b"[]", id="mine")
    harness.serve()
    watch = harness.watch(first)
    harness.tell(harness.broker.told(harness.broker.end("mine", result=1)))
    assert list(watch.completed) == [first]


def test_an_id_that_still_counts_as_taken_costs_a_moment_and_no_task(harness: TaskClientHarness) -> None:
    harness.broker.taken = True
    receipt = harness.submit(b"[]")
    harness.serve()
    assert not receipt.ended
    harness.pass_time(RETRY_SECONDS + GRAIN_SECONDS)
    harness.serve()
    harness.broker.taken = False
    harness.pass_time(2 * RETRY_SECONDS + GRAIN_SECONDS)
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]


def test_an_id_that_stays_taken_is_refused_when_the_time_is_over(harness: TaskClientHarness) -> None:
    harness.broker.taken = True
    receipt = harness.submit(b"[]", timeout=3.2)
    for _ in range(34):
        harness.serve()
        harness.pass_time(0.1)
    future = one(receipt)
    assert receipt.ended
    assert future.fault is not None
    assert (future.status, future.fault.code) == (futures.REFUSED, -32010)


def test_a_known_client_submits_though_its_id_counts_as_taken(harness: TaskClientHarness) -> None:
    harness.submit(b"[]")
    harness.serve()
    harness.broker.taken = True
    harness.lose()
    receipt = harness.submit(b"[]")
    harness.back()
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]


@pytest.mark.parametrize("code", [-32060, -32070, -32071, -32602])
def test_what_the_broker_refuses_is_refused_and_costs_the_others_nothing(harness: TaskClientHarness, code: int) -> None:
    harness.broker.refuse["bad"] = code
    bad, good = harness.submit(b"[]", service="bad"), harness.submit(b"[]")
    harness.serve()
    assert (states(bad), states(good)) == ([futures.REFUSED], [futures.ACCEPTED])
    trouble = one(bad).fault
    assert trouble is not None
    assert trouble.code == code


def test_silence_ends_as_unknown_and_what_never_left_is_refused(harness: TaskClientHarness) -> None:
    silent = harness.submit(b"[]", timeout=2)
    harness.hear("HEARTBEAT")
    harness.pass_time(2 + GRAIN_SECONDS)
    assert states(silent) == [futures.UNKNOWN]
    assert harness.told("r") == 1
    harness.lose()
    unsent = harness.submit(b"[]", timeout=0.01)
    harness.pass_time(0.01 + GRAIN_SECONDS)
    assert states(unsent) == [futures.REFUSED]
    trouble = one(unsent).fault
    assert trouble is not None
    assert trouble.code == 599
    harness.pass_time(10)
    assert not harness.frontend.waiting


def test_frames_that_never_left_count_as_not_sent(harness: TaskClientHarness) -> None:
    receipt = harness.submit(b"[]", timeout=60)
    harness.session.unsent([[frame] for frame in harness.frames()])
    assert one(receipt).tries == 0
    harness.session.never_connected()
    assert one(receipt).tries == 0, "it is kept back once"
    harness.lose()
    harness.back()
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]
    again = harness.submit(b"[]")
    harness.session.never_connected()
    assert one(again).tries == 0


# Promise: CHECK-12
def test_a_bound_submission_that_never_left_goes_to_no_other_broker(harness: TaskClientHarness) -> None:
    harness.run_task_action(lambda now: harness.tasks.set_owner("a", False))
    receipt = harness.submit(b"[]", timeout=60)
    one(receipt).bind("a")
    harness.session.unsent([[frame] for frame in harness.frames()])
    for broker in ("b", "a"):
        effects = SessionEffects()
        harness.tasks.resume(broker, harness.now, effects)
        said = b"".join(frame for [frame] in effects.sends)
        assert (b"client_new_task" in said) is (broker == "a")


def test_an_unknown_task_that_ends_after_all_is_told(harness: TaskClientHarness) -> None:
    receipt = harness.submit(b"[]", timeout=1)
    [frame] = harness.frames()
    harness.pass_time(1 + GRAIN_SECONDS)
    future = one(receipt)
    assert future.status == futures.UNKNOWN
    harness.broker.hear(frame)
    harness.tell(harness.broker.told(harness.broker.end(future.id, result=1)))
    assert future.status == FINISHED


def test_an_end_that_is_told_while_a_second_try_is_looked_into_stays_as_it_was_told(harness: TaskClientHarness) -> None:
    receipt = harness.submit(b"[1]")
    [frame] = harness.frames()
    harness.broker.hear(frame)
    harness.lose()
    harness.back()
    [frame] = harness.frames()
    for answer in harness.broker.hear(frame):
        harness.tell(answer)  # taken: so it is asked whether it is there
    future = one(receipt)
    [question] = harness.frames()
    harness.tell(harness.broker.told(harness.broker.end(future.id, result=7)))
    for answer in harness.broker.hear(question):
        harness.tell(answer)
    assert future.ended
    assert (future.status, future.value) == (FINISHED, b"7")
    assert receipt.ended


def test_after_a_reconnect_what_is_watched_is_asked_for_until_it_ends(harness: TaskClientHarness) -> None:
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


def test_a_wait_travels_alone_and_behind_the_array_that_says_who_we_are(harness: TaskClientHarness) -> None:
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


def test_a_wait_that_is_over_is_asked_again_and_many_tasks_are_several_waits(harness: TaskClientHarness) -> None:
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


# Promise: TASK-18
def test_results_that_were_left_out_of_a_wait_are_asked_for_at_once(harness: TaskClientHarness) -> None:
    first, second, third = harness.submit(b"[]", b"[]", b"[]").futures
    harness.serve()
    watch = harness.watch(first, second, third)
    harness.lose()
    harness.back()
    harness.serve()
    ((id_, ids),) = harness.broker.waits
    row = harness.broker.end(ids[0], result=1)
    harness.broker.end(ids[1], result=2)
    harness.broker.waits.clear()
    harness.tell(json.dumps({"jsonrpc": "2.0", "id": id_, "result": [row], "more": True}).encode())
    harness.serve()  # without a pause
    assert harness.broker.heard[-1] == "client_task_wait"
    assert [future.ended for future in (first, second, third)] == [True, True, False]
    assert list(watch.completed) == [first, second]


# Promise: TASK-18
def test_a_call_without_room_in_the_answer_of_its_array_is_sent_again(harness: TaskClientHarness) -> None:
    future = one(harness.submit(b"[]"))
    harness.serve()
    query = harness.ask("client_task_status", future.id)
    (frame,) = harness.frames()
    number = json.loads(frame)[0]["id"]
    harness.tell(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32072, "message": "no"}}).encode())
    assert not query.ended
    harness.pass_time(1.0)
    harness.serve()
    assert query.ended
    assert query.fault is None


def test_a_lost_notification_costs_seconds_and_not_for_ever(harness: TaskClientHarness) -> None:
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


def test_what_nobody_watches_is_not_asked_for(harness: TaskClientHarness) -> None:
    future = one(harness.submit(b"[]"))
    harness.serve()
    watch = harness.watch(future)
    harness.run_task_action(lambda now: harness.tasks.remove_wait(watch, (future,)))
    assert not harness.frontend.waiting
    harness.lose()
    harness.back()
    assert harness.frames() == []
    assert harness.tasks.deadline(live=True) is None


def test_a_task_of_another_time_is_asked_for_and_one_that_is_not_there_is_missing(harness: TaskClientHarness) -> None:
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


def test_a_key_gives_the_first_task_back_to_whoever_holds_it(harness: TaskClientHarness) -> None:
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


# Promise: TASK-4
def test_an_acknowledgement_that_was_lost_counts_when_another_submission_of_the_key_is_answered(harness) -> None:
    lost = harness.submit(b"[]", key="k", timeout=5)
    for frame in harness.frames():
        harness.broker.hear(frame)  # the answers are lost
    watch = FutureWait("w")
    second = one(harness.submit(b"[]", key="k", watch=watch))
    harness.serve()
    assert second.original is one(lost)
    harness.pass_time(6.0)
    harness.serve()
    assert states(lost) == [futures.ACCEPTED]
    assert (lost.ended, list(watch.completed)) == (True, [])
    harness.broker.end(one(lost).id, result=1)
    for answer in harness.broker.answer_waits():
        harness.tell(answer)
    assert list(watch.completed) == [one(lost)]
    assert one(lost).status == FINISHED


def test_questions_are_answered_refused_or_given_up(harness: TaskClientHarness) -> None:
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


def test_a_question_survives_a_reconnect(harness: TaskClientHarness) -> None:
    future = one(harness.submit(b"[]"))
    harness.serve()
    question = harness.ask(futures.STATUS, future.id)
    harness.lose()
    harness.back()
    harness.serve()
    assert question.ended
    assert question.fault is None


def test_closing_tells_whoever_waits(harness: TaskClientHarness) -> None:
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


def test_tickets_that_nobody_holds_are_forgotten(harness: TaskClientHarness) -> None:
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
def test_rubbish_is_not_heeded_and_spoils_nothing(harness: TaskClientHarness, frame: bytes) -> None:
    receipt = harness.submit(b"[]")
    harness.tell(frame)
    assert not harness.take(FutureChanged)
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]


def test_one_element_that_cannot_be_read_costs_only_itself(harness: TaskClientHarness) -> None:
    future = one(harness.submit(b"[]"))
    harness.serve()
    good = json.loads(harness.broker.told(harness.broker.end(future.id, result=1)))
    harness.tell(json.dumps([7, {"id": []}, *good]).encode())
    assert future.status == FINISHED


def test_deadlines_pass_whatever_state_the_line_is_in(harness: TaskClientHarness) -> None:
    """No deadline lies in the past for good: that would be a busy loop."""
    watch = FutureWait("w")
    harness.submit(b"[]", watch=watch, timeout=5)
    for step in range(12):
        harness.pass_time(3)
        if step % 3 == 1:
            harness.lose()
        if step % 4 == 2:
            harness.serve()
    assert watch.ended
