"""A task client's session without sockets: every submission ends in accepted, refused or unknown, once."""

from __future__ import annotations

import json
import random

import pytest

from scale0.kernel.limits import Limits
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.task_client import RETRY_SECONDS, TaskClientSession
from tests.unit.tasks.asker_desk import GRAIN_SECONDS, Desk, one, ready, states


def test_many_submissions_are_one_message_and_are_acknowledged_together() -> None:
    adapter = Desk()
    receipt = adapter.submit(*(b"[%d]" % number for number in range(500)))
    [frame] = ready(adapter.said)
    calls = json.loads(frame)
    assert [call["method"].rpartition(".")[2] for call in calls[:2]] == ["client_connect", "client_new_task"]
    assert len(calls) == 501
    assert calls[1]["params"][:3] == ["me", "s", [0]]
    assert calls[1]["params"][4] == {"notify": True}
    adapter.serve()
    assert receipt.ended
    assert adapter.told("r") == 1
    assert states(receipt) == [futures.ACCEPTED] * 500
    assert [task["params"] for task in adapter.broker.tasks.values()] == [[number] for number in range(500)]
    adapter.submit(b"[]")
    assert b"client_connect" not in adapter.frames()[0], "once a connection is enough"


def test_task_ids_grow_and_two_clients_never_make_the_same() -> None:
    adapter = Desk()
    ids = [ticket.id for ticket in adapter.submit(b"[]", b"[]").tickets + adapter.submit(b"[]").tickets]
    assert ids == sorted(set(ids))
    series, _, counter = ids[0].partition(".")
    assert len(counter) == 12
    assert TaskClientSession("me", random.Random(6))._series != series


def test_a_frame_holds_as_many_calls_and_bytes_as_a_broker_takes() -> None:
    adapter = Desk(limits=Limits(max_batch_messages=10, max_message_bytes=2_000))
    adapter.submit(*[b'["%b"]' % (b"x" * size) for size in [1] * 25 + [900] * 3 + [1_800]])
    frames = adapter.frames()
    sizes = [len(json.loads(frame)) for frame in frames]
    assert sum(sizes) == 30
    assert max(sizes) <= 10
    assert all(len(frame) <= 2_000 for frame, size in zip(frames, sizes, strict=True) if size > 1)


@pytest.mark.parametrize("single", [True, False])
def test_an_end_that_is_pushed_is_told_to_whoever_watches(single: bool) -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    watch = adapter.watch(ticket)
    assert not watch.ended
    adapter.tell(adapter.broker.told(adapter.broker.end(ticket.id, result={"n": 1}), single=single))
    assert adapter.told("w") == 1
    assert list(watch.completed) == [ticket]
    assert (ticket.status, ticket.ended, json.loads(ticket.value)) == (FINISHED, True, {"n": 1})
    adapter.pass_time(60)
    assert adapter.broker.heard == ["client_connect", "client_new_task"], "what was told is not asked for"


def test_failed_and_cancelled_tasks_end_with_their_errors() -> None:
    adapter = Desk()
    first, second = adapter.submit(b"[]", b"[]").tickets
    adapter.serve()
    error = {"code": -32090, "message": "lost", "data": {"attempts": [1]}}
    rows = (adapter.broker.end(first.id, "failed", error=error), adapter.broker.end(second.id, "cancelled"))
    adapter.tell(adapter.broker.told(*rows))
    assert first.fault is not None
    assert (first.status, first.fault.code, json.loads(first.fault.data)) == (FAILED, -32090, {"attempts": [1]})
    assert second.status == CANCELLED


def test_an_end_is_told_to_every_watch_and_a_late_one_has_it_at_once() -> None:
    adapter = Desk()
    ticket = one(adapter.submit(b"[]"))
    adapter.serve()
    early = [adapter.watch(ticket, tag=f"w{number}") for number in range(3)]
    adapter.ride(lambda now: adapter.asker.remove_wait(early[2], (ticket,)))
    adapter.tell(adapter.broker.told(adapter.broker.end(ticket.id, result=1)))
    assert [len(watch.completed) for watch in early] == [1, 1, 0]
    assert adapter.watch(ticket).ended


def test_what_was_not_answered_is_sent_again_on_the_next_connection() -> None:
    adapter = Desk()
    receipt = adapter.submit(b"[1]", b"[2]")
    adapter.hush()
    adapter.lose()
    later = adapter.submit(b"[3]")
    assert adapter.frames() == []
    adapter.back()
    adapter.serve()
    assert receipt.ended
    assert later.ended
    assert adapter.broker.heard == ["client_connect"] + ["client_new_task"] * 3
    assert [task["params"] for task in adapter.broker.tasks.values()] == [[1], [2], [3]]


def test_taken_by_our_own_earlier_try_means_stored() -> None:
    adapter = Desk()
    receipt = adapter.submit(b"[1]")
    [frame] = adapter.frames()
    adapter.broker.hear(frame)
    adapter.lose()
    adapter.back()
    adapter.serve()
    assert states(receipt) == [futures.ACCEPTED]
    assert len(adapter.broker.tasks) == 1
    assert receipt.ended


def test_taken_at_the_first_try_is_refused_and_so_is_a_second_try_that_was_never_stored() -> None:
    adapter = Desk()
    adapter.submit(b"[]", id="mine")
    adapter.serve()
    again = adapter.submit(b"[]", id="mine")
    adapter.serve()
    assert states(again) == [futures.REFUSED]
    lost = adapter.submit(b"[]", after=["nobody"])
    adapter.hush()
    adapter.lose()
    adapter.back()
    adapter.serve()
    assert states(lost) == [futures.REFUSED], "-32020 for another reason"
    assert one(lost).fault is not None


def test_the_first_ticket_of_an_id_still_hears_of_its_end_after_a_second_was_refused() -> None:
    adapter = Desk()
    first = one(adapter.submit(b"[]", id="mine"))
    adapter.submit(b"[]", id="mine")
    adapter.serve()
    watch = adapter.watch(first)
    adapter.tell(adapter.broker.told(adapter.broker.end("mine", result=1)))
    assert list(watch.completed) == [first]


def test_an_id_that_still_counts_as_taken_costs_a_moment_and_no_task() -> None:
    adapter = Desk()
    adapter.broker.taken = True
    receipt = adapter.submit(b"[]")
    adapter.serve()
    assert not receipt.ended
    adapter.pass_time(RETRY_SECONDS + GRAIN_SECONDS)
    adapter.serve()
    adapter.broker.taken = False
    adapter.pass_time(2 * RETRY_SECONDS + GRAIN_SECONDS)
    adapter.serve()
    assert states(receipt) == [futures.ACCEPTED]


def test_an_id_that_stays_taken_is_refused_when_the_time_is_over() -> None:
    adapter = Desk()
    adapter.broker.taken = True
    receipt = adapter.submit(b"[]", timeout=3.2)
    for _ in range(34):
        adapter.serve()
        adapter.pass_time(0.1)
    ticket = one(receipt)
    assert receipt.ended
    assert ticket.fault is not None
    assert (ticket.status, ticket.fault.code) == (futures.REFUSED, -32010)


def test_a_known_client_submits_though_its_id_counts_as_taken() -> None:
    adapter = Desk()
    adapter.submit(b"[]")
    adapter.serve()
    adapter.broker.taken = True
    adapter.lose()
    receipt = adapter.submit(b"[]")
    adapter.back()
    adapter.serve()
    assert states(receipt) == [futures.ACCEPTED]


@pytest.mark.parametrize("code", [-32060, -32070, -32071, -32602])
def test_what_the_broker_refuses_is_refused_and_costs_the_others_nothing(code: int) -> None:
    adapter = Desk()
    adapter.broker.refuse["bad"] = code
    bad, good = adapter.submit(b"[]", service="bad"), adapter.submit(b"[]")
    adapter.serve()
    assert (states(bad), states(good)) == ([futures.REFUSED], [futures.ACCEPTED])
    trouble = one(bad).fault
    assert trouble is not None
    assert trouble.code == code


def test_silence_ends_as_unknown_and_what_never_left_is_refused() -> None:
    adapter = Desk()
    silent = adapter.submit(b"[]", timeout=2)
    adapter.hear("HEARTBEAT")
    adapter.pass_time(2 + GRAIN_SECONDS)
    assert states(silent) == [futures.UNKNOWN]
    assert adapter.told("r") == 1
    adapter.lose()
    unsent = adapter.submit(b"[]", timeout=0.01)
    adapter.pass_time(0.01 + GRAIN_SECONDS)
    assert states(unsent) == [futures.REFUSED]
    trouble = one(unsent).fault
    assert trouble is not None
    assert trouble.code == 599
    adapter.pass_time(10)
    assert not adapter.frontend.waiting


def test_frames_that_never_left_count_as_not_sent() -> None:
    adapter = Desk()
    receipt = adapter.submit(b"[]", timeout=60)
    adapter.session.unsent([[frame] for frame in adapter.frames()])
    assert one(receipt).tries == 0
    adapter.session.never_connected()
    assert one(receipt).tries == 0, "it is kept back once"
    adapter.lose()
    adapter.back()
    adapter.serve()
    assert states(receipt) == [futures.ACCEPTED]
    again = adapter.submit(b"[]")
    adapter.session.never_connected()
    assert one(again).tries == 0


def test_an_unknown_task_that_ends_after_all_is_told() -> None:
    adapter = Desk()
    receipt = adapter.submit(b"[]", timeout=1)
    [frame] = adapter.frames()
    adapter.pass_time(1 + GRAIN_SECONDS)
    ticket = one(receipt)
    assert ticket.status == futures.UNKNOWN
    adapter.broker.hear(frame)
    adapter.tell(adapter.broker.told(adapter.broker.end(ticket.id, result=1)))
    assert ticket.status == FINISHED


def test_an_end_that_is_told_while_a_second_try_is_looked_into_stays_as_it_was_told() -> None:
    adapter = Desk()
    receipt = adapter.submit(b"[1]")
    [frame] = adapter.frames()
    adapter.broker.hear(frame)
    adapter.lose()
    adapter.back()
    [frame] = adapter.frames()
    for answer in adapter.broker.hear(frame):
        adapter.tell(answer)  # taken: so it is asked whether it is there
    ticket = one(receipt)
    [question] = adapter.frames()
    adapter.tell(adapter.broker.told(adapter.broker.end(ticket.id, result=7)))
    for answer in adapter.broker.hear(question):
        adapter.tell(answer)
    assert ticket.ended
    assert (ticket.status, ticket.value) == (FINISHED, b"7")
    assert receipt.ended
