"""Leases: what a backend or a node has in hand stays with it until it ends it, its time is over, or it is lost."""

# Promise: TASK-10
# Promise: TASK-13
from __future__ import annotations

from typing import Any

import pytest

from scale0.storage.task_queries import FindTasks
from tests.unit.tasks.harness import CLIENT, Refused, Scene

BAD_NODE = -32030
TOO_BIG = 413


def ids(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def quick(scene: Scene, count: int, returns: bool = False, **options: Any) -> tuple[str, list[str]]:
    """A backend of one slot that has shown to be quick, and what it has in hand: the first one holds the slot."""
    worker = scene.worker("w", "m", slots=1, prefetch=count, returns=returns)
    for number in range(count + 3):
        scene.submit(f"t{number}", **options)
    for number in range(3):
        scene.wait(0.001)
        scene.done(worker, f"t{number}")
    handed = scene.handed(worker)[3:]
    assert len(handed) == count
    return worker, handed


# Requests and tasks.


def test_a_request_that_waits_gets_the_slot_that_a_task_frees():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("task")
    scene.running(worker, "task")
    scene.request("m")
    scene.submit("next")
    scene.done(worker, "task")
    handed, request = scene.hear(worker, "REQUEST", "TASKS")
    assert (handed.command, request.command) == ("TASKS", "REQUEST")
    scene.world.say(worker, "REPLY", {"id": request.options["id"]})
    assert [one.command for one in scene.hear("frontend-f")] == ["REPLY"]
    assert scene.handed(worker) == ["next"]


# Time.


def test_a_task_that_was_handed_out_in_advance_is_timed_once_it_holds_the_slot():
    scene = Scene()
    worker, handed = quick(scene, 5, timeout=2.0)
    scene.run(3.0)  # it lives, and says nothing of them
    assert scene.recalled(worker)[0] == handed[0]


def test_the_deadline_of_an_attempt_does_not_end_the_next_one():
    scene = Scene()
    worker = scene.worker("w", "m", slots=1, prefetch=5)
    scene.submit("tried", timeout=3.0, max_attempts=2)
    begun = scene.world.mono
    scene.wait(0.01)
    scene.fail(worker, "tried", retry=True, after=2.0)
    scene.run(1.9)
    scene.submit("quick")
    scene.wait(0.001)
    scene.done(worker, "quick")
    scene.submit("long")
    scene.running(worker, "long")
    scene.run(begun + 2.5 - scene.world.mono)
    assert scene.handed(worker) == ["tried", "quick", "long", "tried"]  # in advance: the slot is taken
    scene.run(begun + 3.5 - scene.world.mono)
    assert scene.recalled(worker) == []
    assert scene.call("client_task_status", CLIENT, "tried")["attempt"] == 2
    assert scene.status("tried") == "assigned"


@pytest.mark.parametrize("who", ["worker", "node"])
def test_an_error_says_how_long_to_wait_before_the_next_attempt(who):
    scene = Scene()
    error: dict[str, Any] = {"code": 1, "message": "later", "retry": True, "after": 5.0}
    if who == "worker":
        line = scene.worker("w", "m")
        scene.submit("later")
        scene.fail(line, "later", **error)
        assert scene.handed(line) == ["later"]
    else:
        line = scene.node("n", "m")
        scene.submit("later")
        assert scene.pull(line) == ["later"]
        assert scene.call("node_task_failed", "n", "later", error, line=line) is True
    scene.run(4.9)
    assert scene.status("later") == "scheduled"
    assert (scene.handed(line) if who == "worker" else scene.pull(line)) == []
    scene.run(0.2)
    assert (scene.handed(line) if who == "worker" else scene.pull(line)) == ["later"]
    assert scene.call("client_task_status", CLIENT, "later")["attempt"] == 2


# What is taken back, and what is not.


def test_a_backend_that_drains_gives_back_what_it_has_not_begun():
    scene = Scene()
    worker, handed = quick(scene, 3)
    scene.running(worker, handed[0])
    scene.ready(worker, slots=1, prefetch=3)
    assert sorted(scene.recalled(worker)) == handed[1:]
    other = scene.worker("other", "m", slots=5)
    assert scene.handed(other) == handed[1:]
    scene.done(worker, handed[0])
    assert [each for each in scene.told(worker) if each[0] == handed[0]] == [[handed[0], 1, 200]]
    scene.submit("more")
    assert (scene.handed(worker), scene.handed(other)) == ([], ["more"])


def test_a_pulled_task_that_outlasts_its_time_costs_its_node_no_other():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("slow", timeout=1.0)
    scene.submit("good", max_attempts=1)
    assert scene.pull(node) == ["slow", "good"]
    scene.run(2.0)
    assert (scene.status("slow"), scene.status("good")) == ("queued", "assigned")
    assert scene.call("node_task_finished", "n", "good", 42, 1, line=node) is True
    assert scene.result("good") == 42
    assert scene.pull(node) == ["slow"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_node_without_methods_that_connects_again_keeps_what_it_has(restart):
    scene = Scene()
    node = scene.node("n")
    scene.submit("kept")
    assert scene.fetch(node, "kept")["attempt"] == 1
    if restart:
        scene.restart()
    node = scene.node("n")
    assert scene.status("kept") == "assigned"
    assert scene.call("node_task_finished", "n", "kept", 1, line=node) is True


@pytest.mark.parametrize("method", ["node_heartbeat", "node_connect"])
def test_a_call_by_the_name_of_a_backend_does_not_take_its_place(method):
    scene = Scene()
    worker = scene.worker("w", "m", slots=3, heartbeat_interval=10)
    scene.wait(2.0)  # its interval is longer: it may be silent
    told = scene.call(method, "w", line="backend-stranger")
    assert isinstance(told, Refused)
    assert told.code == BAD_NODE
    for id_ in ids(3):
        scene.submit(id_)
    assert scene.handed(worker) == ids(3)
    scene.done(worker, *ids(3))
    assert [code for _, _, code in scene.told(worker)] == [200] * 3


def test_results_that_wait_over_a_restart_do_not_ban_their_backend():
    scene = Scene()
    worker = scene.worker("w", "m", slots=20)
    for id_ in ids(20):
        scene.submit(id_)
    scene.running(worker, *ids(20))
    scene.run(1.5)
    scene.restart()
    for id_ in ids(12):  # each was said in a message of its own, while the broker was away
        scene.done(worker, id_)
    assert {one.command for one in scene.hear(worker)} == {"FORCENEGOTIATE"}
    scene.worker("w", "m", slots=20, holds=[[id_, 1] for id_ in ids(20)])
    scene.done(worker, *ids(20))
    assert [code for _, _, code in scene.told(worker)] == [200] * 20
    assert scene.open == set()


def test_slots_that_tasks_hold_over_a_restart_are_not_given_to_others():
    scene = Scene()
    worker = scene.worker("w", "m", slots=2)
    scene.submit("one")
    scene.submit("two")
    scene.submit("three")
    scene.restart()
    scene.worker("w", "m", slots=2, holds=[["one", 1], ["two", 1]])
    assert scene.handed(worker) == []
    scene.done(worker, "one")
    assert scene.handed(worker) == ["three"]


# What a backend may say.


def test_more_results_than_a_message_may_hold_are_refused_as_a_whole():
    scene = Scene(max_batch_messages=3)
    worker = scene.worker("w", "m", slots=4)
    for id_ in ids(4):
        scene.submit(id_)
    scene.done(worker, *ids(4))
    assert [one.options["code"] for one in scene.hear(worker, "DISCONNECTERROR")] == [TOO_BIG]
    assert scene.told(worker) == []
    assert {scene.status(id_) for id_ in ids(4)} <= {"assigned", "queued"}


def test_as_many_results_as_a_message_may_hold_are_taken():
    scene = Scene(max_batch_messages=3)
    worker = scene.worker("w", "m", slots=3)
    for id_ in ids(3):
        scene.submit(id_)
    scene.done(worker, *ids(3))
    assert [code for _, _, code in scene.told(worker)] == [200] * 3


def test_results_that_nobody_waits_for_are_looked_up_at_once():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.world.hold()
    scene.done(worker, *ids(50))
    scene.hold_at(FindTasks)
    flight = scene.world.disk.in_flight
    assert flight is not None
    assert [len(question.ask.ids) for question in flight.questions] == [50]
    scene.world.let_go()
    assert scene.told(worker) == [[id_, 1, 404] for id_ in ids(50)]


def test_a_result_with_an_error_that_is_null_is_a_result():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("fine")
    scene.world.say(worker, "TASKSDONE", {}, [{"id": "fine", "attempt": 1, "result": 5, "error": None}])
    assert scene.result("fine") == 5


def test_a_request_that_waits_does_not_get_the_slot_of_a_task_that_is_held_over_a_restart():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("held")
    scene.running(worker, "held")
    scene.run(2.0)
    scene.restart()
    scene.request("m")
    scene.worker("w", "m", holds=[["held", 1]])
    assert scene.hear(worker, "REQUEST") == []
    scene.done(worker, "held")
    assert len(scene.hear(worker, "REQUEST")) == 1


# Promise: TASK-17
def test_what_is_recalled_is_done_elsewhere_once_it_is_given_back_and_not_before():
    scene = Scene()
    worker, handed = quick(scene, 4, returns=True)
    other = scene.worker("other", "m", slots=5)
    scene.run(0.6)  # the first one holds its slot, and the others wait for it
    asked = scene.hear(worker, "TASKSCANCEL")
    assert [each.options for each in asked] == [{"recall": True}]  # once, however long it takes
    assert sorted(id_ for id_, _ in asked[0].body) == handed[1:]
    assert scene.handed(other) == []
    scene.running(worker, handed[1])  # it had begun, and we had not heard of it
    scene.world.say(worker, "TASKSTATUS", {}, [{"id": id_, "attempt": 1, "status": "returned"} for id_ in handed[1:3]])
    assert scene.handed(other) == [handed[2]]
    scene.done(worker, handed[3])  # and this one has ended meanwhile
    scene.done(worker, handed[1])
    assert [handed[3], 1, 200] in (told := scene.told(worker))
    assert [handed[1], 1, 200] in told
    assert scene.status(handed[2]) == "assigned"


# Promise: TASK-17
def test_what_was_not_asked_for_cannot_be_given_back():
    scene = Scene()
    worker, handed = quick(scene, 2, returns=True)
    scene.world.say(worker, "TASKSTATUS", {}, [{"id": id_, "attempt": 1, "status": "returned"} for id_ in handed])
    assert [scene.status(id_) for id_ in handed] == ["assigned", "assigned"]
    assert scene.handed(worker) == []
