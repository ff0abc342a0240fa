"""Answers that are on their way: what was decided meanwhile is not decided a second time, nor forgotten."""

# Promise: TASK-13
# Promise: TASK-10
from __future__ import annotations

import random

import pytest

from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import Endpoints
from scale0.kernel.effects import Effects
from scale0.storage.memory.store import MemoryStore
from scale0.storage.task_queries import LookUpSubmission, ReadExpiry
from tests.unit.tasks.harness import ADMIN_LINE, CLIENT, FRONT, TOKEN, Refused, Scene

BAD_TASK = -32020
AFTER_FAILED = -32091
CANCELLED = -32092
UNKNOWN = 404


def code_of(told: object) -> int:
    assert isinstance(told, Refused), told
    return told.code


@pytest.mark.parametrize("options", [{"key": "k"}, {"after": ["a.000000000001"]}])
def test_an_id_that_is_being_looked_up_is_not_taken_a_second_time(options):
    scene = Scene()
    scene.submit("a.000000000001")  # its series is known: larger counters are new, and nobody looks
    scene.world.hold()
    first = scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "a.000000000009", options)
    scene.hold_at(LookUpSubmission)
    second = scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "a.000000000009", {})
    scene.world.let_go()
    assert scene.answer(first) == "a.000000000009"
    assert code_of(scene.answer(second)) == BAD_TASK


@pytest.mark.parametrize("other", ["a.b.000000000001", "a.x"])
def test_the_counters_of_a_series_are_not_taken_from_another_name(other):
    scene = Scene()
    scene.submit("a.000000000005")
    scene.submit(other)
    scene.restart()
    assert scene.submit("a.000000000002") == "a.000000000002"
    assert code_of(scene.submit("a.000000000005")) == BAD_TASK


def test_a_task_whose_time_is_over_is_not_tried_again():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("old", result_ttl=2)
    scene.fetch(node, "old")
    scene.call("node_task_failed", "n", "old", {"code": 1, "message": ""}, line=node)
    scene.run(2.5)
    assert code_of(scene.result("old")) == BAD_TASK
    assert scene.manage("retry_task", task_id="old") == UNKNOWN
    scene.run(10.0)
    assert not scene.world.store.snapshot().tasks.ended


def test_a_task_that_is_swept_while_it_is_looked_up_is_not_tried_again():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("old", result_ttl=2)
    scene.fetch(node, "old")
    scene.call("node_task_failed", "n", "old", {"code": 1, "message": ""}, line=node)
    scene.run(1.9)
    retry = {"command": "retry_task", "id": "m", "auth_token": TOKEN, "task_id": "old"}
    for _ in range(200):
        scene.world.hold()
        scene.wait(0.05)
        flight = scene.world.disk.in_flight
        if flight is not None and any(type(question.ask) is ReadExpiry for question in flight.questions):
            # Behind the look for what is old the task itself is looked up: its row is still there.
            scene.world.say(ADMIN_LINE, "MANAGEMENTREQ", retry)
        scene.world.let_go()
    told = scene.hear(ADMIN_LINE, "MANAGEMENTREP")
    assert told
    assert {one.options["code"] for one in told} == {UNKNOWN}
    assert not scene.world.store.snapshot().tasks.ended


def test_a_new_broker_knows_how_many_tasks_are_open_before_it_has_asked():
    scene = Scene()
    scene.submit("one")
    scene.submit("two")
    world = scene.world
    opened = MemoryStore(world.store.snapshot()).open()
    broker = compose_broker(world.config, Endpoints(), opened, 2**52, random.Random(1), None)
    start_broker(broker, opened, world.now, Effects())
    assert broker.tasks.counts()["open"] == 2


def test_a_connection_that_is_gone_before_its_task_is_taken_leaves_nothing_behind():
    scene = Scene()
    world = scene.world
    world.hold()
    world.ask("frontend-z", "client_new_task", CLIENT, "m", [], "told-to-nobody", {"notify": True})
    scene.hold_at(LookUpSubmission)
    line = world.broker.connections.find("frontend", b"frontend-z")
    assert line is not None
    world.broker.undelivered(line, (), world.now, Effects())
    world.let_go()
    assert scene.status("told-to-nobody") == "queued"
    assert (line.number, line.waits) == (0, 0)


def test_a_task_that_is_cancelled_in_the_turn_in_which_it_is_taken_was_taken():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("s.000000000001", "other")  # the next one of this series needs no look: all is one turn
    told = scene.together(
        FRONT,
        ("client_new_task", CLIENT, "m", [], "s.000000000002", {"notify": True}),
        ("client_task_cancel", CLIENT, "s.000000000002"),
    )
    assert told == ["s.000000000002", True]
    assert scene.status("s.000000000002") == "cancelled"
    assert code_of(scene.result("s.000000000002")) == CANCELLED
    assert scene.pull(node) == []
    assert scene.world.broker.tasks.counts()["open"] == len(scene.open) == 1


def test_a_task_that_is_handed_out_and_cancelled_in_the_turn_in_which_it_is_taken_is_called_back():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("s.000000000001", "other")
    scene.world.hold()  # the hand-out is decided, and its commit is under way
    new = scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "s.000000000002", {})
    cancel = scene.world.ask(FRONT, "client_task_cancel", CLIENT, "s.000000000002")
    scene.world.let_go()
    assert (scene.answer(new), scene.answer(cancel)) == ("s.000000000002", True)
    assert scene.handed(worker) == scene.recalled(worker) == ["s.000000000002"]
    scene.submit("next")
    assert scene.handed(worker) == ["next"]


def test_a_task_that_fails_in_the_turn_in_which_it_is_taken_is_told():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("first")
    scene.fetch(node, "first")
    scene.call("node_task_failed", "n", "first", {"code": 1, "message": ""}, line=node)
    assert scene.submit("second", after=["first"], notify=True) == "second"
    assert code_of(scene.result("second")) == AFTER_FAILED
    told = [one.body["params"] for one in scene.hear(FRONT, "rpc") if "method" in one.body]
    assert [(one["task_id"], one["error"]["code"]) for one in told] == [("second", AFTER_FAILED)]
    assert scene.open == set()


def test_a_broker_that_dies_in_the_turn_of_a_task_has_promised_nothing():
    scene = Scene()
    scene.world.hold()
    number = scene.world.ask(FRONT, "client_new_task", CLIENT, "m", [], None, {})
    with pytest.raises(AssertionError, match="not answered"):
        scene.answer(number)
    scene.world.crash()
    assert scene.open == set()
    assert scene.world.broker.tasks.counts()["open"] == 0
