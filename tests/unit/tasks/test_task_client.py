"""A task client's session without sockets: every submission ends in accepted, refused or unknown, once."""

from __future__ import annotations

import json
import random

import pytest

from scale0.kernel.limits import Limits
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.task_client import RETRY_SECONDS, TaskClientSession
from tests.unit.tasks.task_client_harness import GRAIN_SECONDS, TaskClientHarness, one, ready, states


def test_many_submissions_are_one_message_and_are_acknowledged_together() -> None:
    harness = TaskClientHarness()
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


def test_task_ids_grow_and_two_clients_never_make_the_same() -> None:
    harness = TaskClientHarness()
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
def test_an_end_that_is_pushed_is_told_to_whoever_watches(single: bool) -> None:
    harness = TaskClientHarness()
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


def test_failed_and_cancelled_tasks_end_with_their_errors() -> None:
    harness = TaskClientHarness()
    first, second = harness.submit(b"[]", b"[]").futures
    harness.serve()
    error = {"code": -32090, "message": "lost", "data": {"attempts": [1]}}
    rows = (harness.broker.end(first.id, "failed", error=error), harness.broker.end(second.id, "cancelled"))
    harness.tell(harness.broker.told(*rows))
    assert first.fault is not None
    assert (first.status, first.fault.code, json.loads(first.fault.data)) == (FAILED, -32090, {"attempts": [1]})
    assert second.status == CANCELLED


def test_an_end_is_told_to_every_watch_and_a_late_one_has_it_at_once() -> None:
    harness = TaskClientHarness()
    future = one(harness.submit(b"[]"))
    harness.serve()
    early = [harness.watch(future, tag=f"w{number}") for number in range(3)]
    harness.run_task_action(lambda now: harness.tasks.remove_wait(early[2], (future,)))
    harness.tell(harness.broker.told(harness.broker.end(future.id, result=1)))
    assert [len(watch.completed) for watch in early] == [1, 1, 0]
    assert harness.watch(future).ended


def test_what_was_not_answered_is_sent_again_on_the_next_connection() -> None:
    harness = TaskClientHarness()
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


def test_taken_by_our_own_earlier_try_means_stored() -> None:
    harness = TaskClientHarness()
    receipt = harness.submit(b"[1]")
    [frame] = harness.frames()
    harness.broker.hear(frame)
    harness.lose()
    harness.back()
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]
    assert len(harness.broker.tasks) == 1
    assert receipt.ended


def test_taken_at_the_first_try_is_refused_and_so_is_a_second_try_that_was_never_stored() -> None:
    harness = TaskClientHarness()
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


def test_the_first_ticket_of_an_id_still_hears_of_its_end_after_a_second_was_refused() -> None:
    harness = TaskClientHarness()
    first = one(harness.submit(b"[]", id="mine"))
    harness.submit(b"[]", id="mine")
    harness.serve()
    watch = harness.watch(first)
    harness.tell(harness.broker.told(harness.broker.end("mine", result=1)))
    assert list(watch.completed) == [first]


def test_an_id_that_still_counts_as_taken_costs_a_moment_and_no_task() -> None:
    harness = TaskClientHarness()
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


def test_an_id_that_stays_taken_is_refused_when_the_time_is_over() -> None:
    harness = TaskClientHarness()
    harness.broker.taken = True
    receipt = harness.submit(b"[]", timeout=3.2)
    for _ in range(34):
        harness.serve()
        harness.pass_time(0.1)
    future = one(receipt)
    assert receipt.ended
    assert future.fault is not None
    assert (future.status, future.fault.code) == (futures.REFUSED, -32010)


def test_a_known_client_submits_though_its_id_counts_as_taken() -> None:
    harness = TaskClientHarness()
    harness.submit(b"[]")
    harness.serve()
    harness.broker.taken = True
    harness.lose()
    receipt = harness.submit(b"[]")
    harness.back()
    harness.serve()
    assert states(receipt) == [futures.ACCEPTED]


@pytest.mark.parametrize("code", [-32060, -32070, -32071, -32602])
def test_what_the_broker_refuses_is_refused_and_costs_the_others_nothing(code: int) -> None:
    harness = TaskClientHarness()
    harness.broker.refuse["bad"] = code
    bad, good = harness.submit(b"[]", service="bad"), harness.submit(b"[]")
    harness.serve()
    assert (states(bad), states(good)) == ([futures.REFUSED], [futures.ACCEPTED])
    trouble = one(bad).fault
    assert trouble is not None
    assert trouble.code == code


def test_silence_ends_as_unknown_and_what_never_left_is_refused() -> None:
    harness = TaskClientHarness()
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


def test_frames_that_never_left_count_as_not_sent() -> None:
    harness = TaskClientHarness()
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


def test_an_unknown_task_that_ends_after_all_is_told() -> None:
    harness = TaskClientHarness()
    receipt = harness.submit(b"[]", timeout=1)
    [frame] = harness.frames()
    harness.pass_time(1 + GRAIN_SECONDS)
    future = one(receipt)
    assert future.status == futures.UNKNOWN
    harness.broker.hear(frame)
    harness.tell(harness.broker.told(harness.broker.end(future.id, result=1)))
    assert future.status == FINISHED


def test_an_end_that_is_told_while_a_second_try_is_looked_into_stays_as_it_was_told() -> None:
    harness = TaskClientHarness()
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
