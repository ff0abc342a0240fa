"""Tasks that wait for others: they begin when those have finished, whatever else happens to them meanwhile."""

# Promise: TASK-3
# Promise: TASK-13
from __future__ import annotations

import pytest

from scale0.storage.task_queries import ReadDependents
from scale0.tasks.core import dependencies
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, Scene

AFTER_FAILED = -32091
PAGE = 3


@pytest.mark.own_store
def test_a_task_that_is_waited_for_in_the_moment_of_its_release_is_still_released():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("first")
    assert scene.fetch(node, "first")["id"] == "first"
    scene.submit("second", after=["first"])

    scene.world.hold()
    # The store is asked about `second` for the third one, then for the followers of the first: both are under way.
    third = scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "third", {"after": ["second"]})
    scene.world.ask(node, "node_task_finished", "n", "first", 1)
    scene.world.let_go()

    assert scene.answer(third) == "third"
    assert scene.pull(node) == ["second"]
    assert scene.call("node_task_finished", "n", "second", 2, line=node) is True
    assert scene.pull(node) == ["third"]


@pytest.fixture(name="tried_again")
def _tried_again() -> tuple[Scene, str]:
    """A follower that was cancelled and runs now, because an administrator wants it, before both that it waited for."""
    scene = Scene()
    worker = scene.worker("w", "m", slots=4)
    scene.submit("first")
    scene.submit("second")
    scene.submit("follower", after=["first", "second"])
    scene.cancel("follower")
    assert scene.manage("retry_task", task_id="follower") == 200
    assert scene.handed(worker) == ["first", "second", "follower"]
    scene.running(worker, "follower")
    return scene, worker


def test_the_ends_of_what_it_waited_for_do_not_touch_a_task_that_is_tried_again(tried_again):
    scene, worker = tried_again
    scene.done(worker, "first")
    scene.done(worker, "second")
    scene.run(2.0)
    assert scene.handed(worker) == []
    assert scene.status("follower") == "running"
    scene.done(worker, "follower", result=5)
    assert scene.told(worker) == [["first", 1, 200], ["second", 1, 200], ["follower", 1, 200]]
    assert scene.result("follower") == 5


def test_the_failure_of_what_it_waited_for_does_not_fail_a_task_that_is_tried_again(tried_again):
    scene, worker = tried_again
    scene.fail(worker, "second")
    assert scene.status("follower") == "running"
    scene.done(worker, "follower", result=5)
    assert scene.result("follower") == 5


def pages(monkeypatch: pytest.MonkeyPatch) -> tuple[Scene, str]:
    """More followers of the first than one page; the last one waits for both."""
    monkeypatch.setattr(dependencies, "PAGE_TASKS", PAGE)
    scene = Scene()
    worker = scene.worker("w", "m", slots=2 * PAGE + 3)
    scene.submit("first")
    scene.submit("second")
    scene.submit_many([f"t.{number:012x}" for number in range(2 * PAGE)], after=["first"])
    scene.submit("last", after=["first", "second"])
    assert scene.handed(worker) == ["first", "second"]
    return scene, worker


@pytest.mark.own_store
def test_a_follower_that_is_cancelled_between_two_pages_stays_cancelled(monkeypatch):
    scene, worker = pages(monkeypatch)
    scene.world.hold()
    scene.done(worker, "first", "second")  # one round: two pages of the first and more, and one of the second
    scene.hold_at(ReadDependents)
    scene.world.disk.end_one()  # `last` has heard of the second
    scene.hold_at(ReadDependents)
    cancel = scene.world.ask(FRONT, "client_task_cancel", CLIENT, "last")
    scene.world.let_go()
    assert scene.answer(cancel) is True
    assert scene.status("last") == "cancelled"
    assert len(scene.handed(worker)) == 2 * PAGE
    scene.run(1.5)
    assert scene.handed(worker) == []


def test_a_follower_of_two_pages_begins_once_and_after_both(monkeypatch):
    scene, worker = pages(monkeypatch)
    scene.done(worker, "first")
    assert scene.status("last") == "scheduled"
    assert "last" not in scene.handed(worker)
    scene.done(worker, "second")
    assert scene.handed(worker) == ["last"]


@pytest.mark.own_store
def test_a_failure_fails_all_that_wait_for_it_and_those_behind_them(monkeypatch):
    scene, worker = pages(monkeypatch)
    scene.submit("behind", after=["last"])
    scene.fail(worker, "first")
    for id_ in ("t.000000000000", "last", "behind"):
        told = scene.result(id_)
        assert isinstance(told, Refused)
        assert told.code == AFTER_FAILED
    assert scene.open == {"second"}


def test_followers_that_a_dead_broker_did_not_tell_are_told_by_the_next(monkeypatch):
    scene, worker = pages(monkeypatch)
    scene.world.hold()
    scene.done(worker, "first", "second")
    scene.hold_at(ReadDependents)  # both ends are stored, and nobody was told
    scene.workers.clear()
    scene.world.crash()
    worker = scene.worker("w", "m", slots=2 * PAGE + 3)
    assert sorted(scene.handed(worker)) == ["last", *(f"t.{number:012x}" for number in range(2 * PAGE))]
