"""Tasks that wait for others: they begin when those have finished, whatever else happens to them meanwhile."""

# Promise: TASK-3
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.storage.task_queries import ReadDependents
from scale0.tasks.core import dependencies
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, TaskBroker

AFTER_FAILED = -32091
PAGE = 3


@pytest.mark.own_store
def test_a_task_that_is_waited_for_in_the_moment_of_its_release_is_still_released(broker):
    node = broker.node("n", "m")
    broker.submit("first")
    assert broker.fetch(node, "first")["id"] == "first"
    broker.submit("second", after=["first"])

    broker.hold()
    # The store is asked about `second` for the third one, then for the followers of the first: both are under way.
    third = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "third", {"after": ["second"]})
    broker.ask(node, "node_task_finished", "n", "first", 1)
    broker.let_go()

    assert broker.answer(third) == "third"
    assert broker.pull(node) == ["second"]
    assert broker.call("node_task_finished", "n", "second", 2, connection=node) is True
    assert broker.pull(node) == ["third"]


@pytest.fixture(name="tried_again")
def _tried_again() -> tuple[TaskBroker, str]:
    """A follower that was cancelled and runs now, because an administrator wants it, before both that it waited for."""
    broker = TaskBroker()
    worker = broker.worker("w", "m", slots=4)
    broker.submit("first")
    broker.submit("second")
    broker.submit("follower", after=["first", "second"])
    broker.cancel("follower")
    assert broker.manage("retry_task", task_id="follower").code == 200
    assert broker.handed(worker) == ["first", "second", "follower"]
    broker.running(worker, "follower")
    return broker, worker


def test_the_ends_of_what_it_waited_for_do_not_touch_a_task_that_is_tried_again(tried_again):
    broker, worker = tried_again
    broker.done(worker, "first")
    broker.done(worker, "second")
    broker.run(2.0)
    assert broker.handed(worker) == []
    assert broker.status("follower") == "running"
    broker.done(worker, "follower", result=5)
    assert broker.acknowledged(worker) == [["first", 1, 200], ["second", 1, 200], ["follower", 1, 200]]
    assert broker.result("follower") == 5


def test_the_failure_of_what_it_waited_for_does_not_fail_a_task_that_is_tried_again(tried_again):
    broker, worker = tried_again
    broker.fail(worker, "second")
    assert broker.status("follower") == "running"
    broker.done(worker, "follower", result=5)
    assert broker.result("follower") == 5


def pages(monkeypatch: pytest.MonkeyPatch) -> tuple[TaskBroker, str]:
    """More followers of the first than one page; the last one waits for both."""
    monkeypatch.setattr(dependencies, "PAGE_TASKS", PAGE)
    broker = TaskBroker()
    worker = broker.worker("w", "m", slots=2 * PAGE + 3)
    broker.submit("first")
    broker.submit("second")
    broker.submit_many([f"t.{number:012x}" for number in range(2 * PAGE)], after=["first"])
    broker.submit("last", after=["first", "second"])
    assert broker.handed(worker) == ["first", "second"]
    return broker, worker


@pytest.mark.own_store
def test_a_follower_that_is_cancelled_between_two_pages_stays_cancelled(monkeypatch):
    broker, worker = pages(monkeypatch)
    broker.hold()
    broker.done(worker, "first", "second")  # one round: two pages of the first and more, and one of the second
    broker.hold_at(ReadDependents)
    broker.host.end_one()  # `last` has heard of the second
    broker.hold_at(ReadDependents)
    cancel = broker.ask(FRONT, "client_task_cancel", CLIENT, "last")
    broker.let_go()
    assert broker.answer(cancel) is True
    assert broker.status("last") == "cancelled"
    assert len(broker.handed(worker)) == 2 * PAGE
    broker.run(1.5)
    assert broker.handed(worker) == []


def test_a_follower_of_two_pages_begins_once_and_after_both(monkeypatch):
    broker, worker = pages(monkeypatch)
    broker.done(worker, "first")
    assert broker.status("last") == "scheduled"
    assert "last" not in broker.handed(worker)
    broker.done(worker, "second")
    assert broker.handed(worker) == ["last"]


@pytest.mark.own_store
def test_a_failure_fails_all_that_wait_for_it_and_those_behind_them(monkeypatch):
    broker, worker = pages(monkeypatch)
    broker.submit("behind", after=["last"])
    broker.fail(worker, "first")
    for id_ in ("t.000000000000", "last", "behind"):
        told = broker.result(id_)
        assert isinstance(told, Refused)
        assert told.code == AFTER_FAILED
    assert broker.open == {"second"}


def test_followers_that_a_dead_broker_did_not_tell_are_told_by_the_next(monkeypatch):
    broker, worker = pages(monkeypatch)
    broker.hold()
    broker.done(worker, "first", "second")
    broker.hold_at(ReadDependents)  # both ends are stored, and nobody was told
    broker.workers.clear()
    broker.crash()
    worker = broker.worker("w", "m", slots=2 * PAGE + 3)
    assert sorted(broker.handed(worker)) == ["last", *(f"t.{number:012x}" for number in range(2 * PAGE))]
