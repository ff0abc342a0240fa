"""Notifications without a broker: Helen delivers them herself, as durably as the queue, and never beside the queue."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from scale0.config import CheckDefinition, NotificationHandler
from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.monitoring.helen.core.notifications import DIRECT_AFTER_SECONDS, GIVE_UP_SECONDS, MAX_DELIVERIES
from scale0.storage.check_rows import ReadNotices
from tests.fakes.simulated_helen import SimulatedHelen, configured_helen

PAGER = NotificationHandler(name="pager", type="webhook", url="http://h/", max_attempts=3, backoff=20.0)
DISK = CheckDefinition(name="disk", max_attempts=1, handlers=("pager",))
BUSY = Refusal(codes.FAILED, "http://h answered 500")
FINAL = Refusal(codes.MALFORMED, "the URL is neither http nor https")


@pytest.fixture
def helen() -> SimulatedHelen:
    """A Helen without a broker."""
    helen = configured_helen(checks=(DISK,), handlers=(PAGER,))
    helen.queue.is_up = False
    return helen


def notices(helen: SimulatedHelen) -> Any:
    return helen.store.read(ReadNotices("", 9))


# Promise: CHECK-18
def test_without_a_broker_a_notification_is_delivered_directly(helen: SimulatedHelen):
    helen.result("critical", message="it is full")
    helen.pass_time(DIRECT_AFTER_SECONDS - 1.0)
    assert helen.deliveries == []
    helen.pass_time(2.0)
    (delivery,) = helen.deliveries
    assert (delivery.handler, delivery.notice["message"]) == (PAGER, "it is full")
    (sent,) = helen.recorded("notice.sent")
    assert sent["data"] == {"handler": "pager", "via": "direct"}
    assert notices(helen) == ()
    helen.queue.is_up = True
    helen.pass_time(3_600.0)
    assert (helen.queue.tasks, len(helen.deliveries)) == ([], 1)


# Promise: CHECK-18
def test_a_notification_of_the_queue_says_so(helen: SimulatedHelen):
    helen.queue.is_up = True
    helen.result("critical")
    (sent,) = helen.recorded("notice.sent")
    assert sent["data"] == {"handler": "pager", "task": "t-0", "via": "queue"}


# Promise: CHECK-18
def test_a_queue_that_returns_in_time_gets_the_notification(helen: SimulatedHelen):
    helen.result("critical")
    helen.pass_time(DIRECT_AFTER_SECONDS / 2)
    helen.queue.is_up = True
    helen.pass_time(3_600.0)
    assert (helen.queue.sent(), helen.deliveries) == ([("pager", "critical")], [])


# Promise: CHECK-18
def test_a_failed_delivery_is_repeated_with_the_handlers_backoff_and_attempts(helen: SimulatedHelen):
    helen.outcomes = [BUSY, BUSY, BUSY]
    helen.result("critical")
    times: list[float] = []
    for _ in range(200):
        helen.pass_time(1.0)
        times += [helen.mono] * (len(helen.deliveries) - len(times))
    assert [round(later - sooner) for sooner, later in itertools.pairwise(times)] == [20, 40]
    (dropped,) = helen.recorded("notice.dropped")
    assert dropped["data"] == {"handler": "pager", "reason": "all 3 direct deliveries failed"}
    assert notices(helen) == ()


# Promise: CHECK-18
def test_a_delivery_that_can_never_succeed_is_not_repeated(helen: SimulatedHelen):
    helen.outcomes = [FINAL]
    helen.result("critical")
    helen.pass_time(3_600.0)
    assert len(helen.deliveries) == 1
    assert len(helen.recorded("notice.dropped")) == 1


# Promise: CHECK-18
def test_the_first_delivery_begins_only_after_it_is_stored_that_it_is_direct(helen: SimulatedHelen):
    helen.result("critical")
    helen.pass_time(DIRECT_AFTER_SECONDS - 1.0)
    helen.holds_commits = True
    helen.pass_time(2.0)
    assert helen.deliveries == []
    helen.commit_all()
    assert len(helen.deliveries) == 1


# Promise: CHECK-18
def test_a_kill_repeats_only_the_delivery_that_was_running(helen: SimulatedHelen):
    helen.outcomes = [BUSY, None]
    helen.result("critical")
    helen.pass_time(DIRECT_AFTER_SECONDS + 25.0)
    assert len(helen.deliveries) == 2  # one failed, one is running
    helen.queue.is_up = True
    helen.restart()
    helen.pass_time(3_600.0)
    # It is direct for good, although the queue is back.
    assert (len(helen.deliveries), helen.queue.tasks) == (3, [])
    helen.restart()
    helen.pass_time(3_600.0)
    assert (len(helen.deliveries), len(helen.recorded("notice.sent"))) == (3, 1)


# Promise: CHECK-18
def test_failed_deliveries_count_over_restarts(helen: SimulatedHelen):
    helen.outcomes = [BUSY, BUSY, BUSY]
    helen.result("critical")
    for _ in range(6):
        helen.pass_time(100.0)
        helen.restart()
    assert len(helen.deliveries) == 3
    assert len(helen.recorded("notice.dropped")) == 1


# Promise: CHECK-18
@pytest.mark.parametrize("answer", [Refusal(codes.NO_ANSWER, "no answer"), Refusal(codes.FAILED, "a bug")])
def test_a_submission_without_a_known_answer_is_left_to_the_queue(helen: SimulatedHelen, answer: Refusal):
    helen.queue.answer_instead = answer
    helen.result("critical")
    helen.queue.answer_instead = None
    helen.pass_time(3_600.0)
    assert helen.deliveries == []
    helen.restart()
    helen.pass_time(3_600.0)
    assert helen.deliveries == []
    helen.queue.is_up = True
    helen.pass_time(120.0)
    assert (helen.queue.sent(), helen.deliveries) == ([("pager", "critical")], [])


def lose_the_answer(helen: SimulatedHelen, owner: str) -> None:
    """The queue of this owner has the task, and Helen does not know it."""
    helen.queue.is_up, helen.queue.owner = True, owner
    helen.queue.answers = False
    helen.result("critical")
    assert helen.queue.sent() == [("pager", "critical")]
    helen.queue.answers = True
    (ask,) = helen.queue.submits
    helen.queue.submits.clear()
    helen.answer(ask, Refusal(codes.NO_ANSWER, "no answer"))


# Promise: CHECK-12
@pytest.mark.parametrize("restarts", [False, True])
def test_a_submission_without_an_answer_is_repeated_only_at_the_same_queue(helen: SimulatedHelen, restarts: bool):
    lose_the_answer(helen, "a")
    helen.queue.owner = "b"  # Helen fails over to a broker that cannot know the key
    if restarts:
        helen.restart()
    helen.pass_time(3_600.0)
    assert (helen.queue.submits, helen.deliveries) == ([], [])
    helen.queue.owner = "a"
    helen.pass_time(120.0)
    assert [ask.owner for ask in helen.queue.submits] == ["a"]
    assert (len(helen.queue.tasks), helen.deliveries, notices(helen)) == (1, [], ())


# Promise: CHECK-12
def test_a_queue_that_certainly_has_it_not_is_left_for_another(helen: SimulatedHelen):
    helen.queue.is_up, helen.queue.owner = True, "a"
    helen.result("critical", check="disk", agent="web-0")
    helen.queue.owner = "b"
    helen.result("critical", agent="web-1")
    assert [ask.owner for ask in helen.queue.submits] == ["a", "b"]
    assert helen.deliveries == []


# Promise: CHECK-12
def test_a_queue_is_stored_before_anything_is_submitted_to_it(helen: SimulatedHelen):
    helen.queue.is_up = True
    helen.holds_commits = True
    helen.result("critical")
    while helen._pending:
        before = len(helen.queue.submits)
        helen._commit_next()
        for ask in helen.queue.submits[before:]:
            (row,) = notices(helen)
            assert msgspec.msgpack.decode(row.body)["owner"] == ask.owner == "a"
    assert len(helen.queue.submits) == 1


# Promise: CHECK-12
def test_if_that_queue_never_returns_the_notification_is_delivered_directly_and_marked(helen: SimulatedHelen):
    lose_the_answer(helen, "a")
    helen.queue.owner = "b"
    helen.pass_time(GIVE_UP_SECONDS - 120.0)
    assert helen.deliveries == []
    helen.pass_time(240.0)
    (delivery,) = helen.deliveries
    assert delivery.notice["possibly_repeated"] is True
    assert (helen.queue.submits, notices(helen)) == ([], ())


# Promise: CHECK-12
def test_a_repair_that_may_be_on_a_lost_queue_is_dropped_after_a_day():
    heal = NotificationHandler(name="heal", type="task", method="restart")
    check = CheckDefinition(name="disk", max_attempts=1, handlers=("heal",))
    helen = configured_helen(checks=(check,), handlers=(heal,))
    helen.queue.answers = False
    helen.result("critical")
    helen.queue.answers = True
    helen.queue.owner = "b"
    helen.restart()
    helen.pass_time(GIVE_UP_SECONDS + 120.0)
    (dropped,) = helen.recorded("notice.dropped")
    assert "the queue of a" in dropped["data"]["reason"]
    assert [ask.owner for ask in helen.queue.submits] == ["a"]


# Promise: CHECK-12
def test_a_recheck_goes_to_the_queue_that_has_the_task_it_follows():
    heal = NotificationHandler(name="heal", type="task", method="restart")
    check = CheckDefinition(name="disk", max_attempts=1, handlers=("heal",))
    helen = configured_helen(checks=(check,), handlers=(heal,))
    helen.queue.answers = False
    helen.result("critical")
    helen.queue.answers = True
    (ask,) = helen.queue.submits
    helen.queue.owner = "b"
    helen.answer(ask, "t-0")
    helen.pass_time(600.0)
    assert [task.method for task in helen.queue.tasks] == ["restart"]
    helen.queue.owner = "a"
    helen.pass_time(120.0)
    assert [task.method for task in helen.queue.tasks] == ["restart", "helen.recheck"]


# Promise: CHECK-18
def test_a_submission_that_a_kill_interrupted_is_left_to_the_queue(helen: SimulatedHelen):
    helen.queue.answers = False
    helen.result("critical")
    helen.queue.answers = True
    helen.restart()
    helen.pass_time(3_600.0)
    assert helen.deliveries == []
    helen.queue.is_up = True
    helen.pass_time(120.0)
    assert helen.queue.sent() == [("pager", "critical")]


# Promise: CHECK-18
def test_a_refused_notification_is_delivered_directly_after_a_restart_without_a_broker(helen: SimulatedHelen):
    helen.result("critical")
    helen.restart()
    helen.pass_time(DIRECT_AFTER_SECONDS + 1.0)
    assert len(helen.deliveries) == 1


# Promise: CHECK-18
def test_a_task_needs_the_queue_and_waits_for_it():
    heal = NotificationHandler(name="heal", type="task", method="restart")
    check = CheckDefinition(name="disk", max_attempts=1, handlers=("heal",))
    helen = configured_helen(checks=(check,), handlers=(heal,))
    helen.queue.is_up = False
    helen.result("critical")
    helen.pass_time(GIVE_UP_SECONDS / 2)
    assert (helen.deliveries, len(notices(helen))) == ([], 1)
    helen.queue.is_up = True
    helen.pass_time(120.0)
    assert [task.method for task in helen.queue.tasks] == ["restart", "helen.recheck"]


def test_a_summary_is_delivered_directly_too():
    few = NotificationHandler(name="pager", type="webhook", url="http://h/", limit=1, period=600.0)
    helen = configured_helen(checks=(DISK,), handlers=(few,))
    helen.queue.is_up = False
    for number in range(3):
        helen.result("critical", agent=f"web-{number}")
    helen.pass_time(700.0)
    assert [delivery.notice["kind"] for delivery in helen.deliveries] == ["problem", "summary"]
    (dropped,) = helen.recorded("notice.dropped")
    assert (dropped["code"], dropped["data"]["reason"]) == (2, "limit")


# Promise: CHECK-13
def test_direct_deliveries_at_once_are_bounded(helen: SimulatedHelen):
    helen.outcomes = [None] * 100
    for number in range(3 * MAX_DELIVERIES):
        helen.result("critical", agent=f"web-{number}")
    helen.pass_time(DIRECT_AFTER_SECONDS + 5.0)
    assert len(helen.deliveries) == MAX_DELIVERIES
    helen.outcomes = []
    for delivery in list(helen.deliveries):
        helen.answer(delivery, "204")
    helen.pass_time(5.0)
    assert len(helen.deliveries) == 3 * MAX_DELIVERIES
