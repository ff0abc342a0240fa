"""Leases: what a backend or a node has in hand stays with it until it ends it, its time is over, or it is lost."""

# Promise: TASK-10
# Promise: TASK-13
from __future__ import annotations

from typing import Any

import pytest

from scale0.broker.core.broker import LATE_SECONDS
from scale0.storage.task_queries import FindTasks
from tests.unit.tasks.harness import CLIENT, Refused, TaskBroker

BAD_NODE = -32030
TOO_BIG = 413


def ids(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def quick(broker: TaskBroker, count: int, returns: bool = False, **options: Any) -> tuple[str, list[str]]:
    """A backend of one slot that has shown to be quick, and what it has in hand: the first one holds the slot."""
    worker = broker.worker("w", "m", slots=1, prefetch=count, returns=returns)
    for number in range(count + 3):
        broker.submit(f"t{number}", **options)
    for number in range(3):
        broker.pass_time(0.001)
        broker.done(worker, f"t{number}")
    handed = broker.handed(worker)[3:]
    assert len(handed) == count
    return worker, handed


# Requests and tasks.


def test_a_request_that_waits_gets_the_slot_that_a_task_frees(broker):
    worker = broker.worker("w", "m")
    broker.submit("task")
    broker.running(worker, "task")
    broker.request("m")
    broker.submit("next")
    broker.done(worker, "task")
    handed, request = broker.received(worker, "REQUEST", "TASKS")
    assert (handed.command, request.command) == ("TASKS", "REQUEST")
    broker.send(worker, "REPLY", {"id": request.options["id"]})
    assert [one.command for one in broker.received("frontend-f")] == ["REPLY"]
    assert broker.handed(worker) == ["next"]


# Time.


def test_a_task_that_was_handed_out_in_advance_is_timed_once_it_holds_the_slot(broker):
    worker, handed = quick(broker, 5, timeout=2.0)
    broker.run(3.0)  # it lives, and says nothing of them
    assert broker.recalled(worker)[0] == handed[0]


def test_the_deadline_of_an_attempt_does_not_end_the_next_one(broker):
    worker = broker.worker("w", "m", slots=1, prefetch=5)
    broker.submit("tried", timeout=3.0, max_attempts=2)
    begun = broker.mono
    broker.pass_time(0.01)
    broker.fail(worker, "tried", retry=True, after=2.0)
    broker.run(1.9)
    broker.submit("quick")
    broker.pass_time(0.001)
    broker.done(worker, "quick")
    broker.submit("long")
    broker.running(worker, "long")
    broker.run(begun + 2.5 - broker.mono)
    assert broker.handed(worker) == ["tried", "quick", "long", "tried"]  # in advance: the slot is taken
    broker.run(begun + 3.5 - broker.mono)
    assert broker.recalled(worker) == []
    assert broker.call("client_task_status", CLIENT, "tried")["attempt"] == 2
    assert broker.status("tried") == "assigned"


@pytest.mark.parametrize("who", ["worker", "node"])
def test_an_error_says_how_long_to_wait_before_the_next_attempt(broker, who):
    error: dict[str, Any] = {"code": 1, "message": "later", "retry": True, "after": 5.0}
    if who == "worker":
        connection = broker.worker("w", "m")
        broker.submit("later")
        broker.fail(connection, "later", **error)
        assert broker.handed(connection) == ["later"]
    else:
        connection = broker.node("n", "m")
        broker.submit("later")
        assert broker.pull(connection) == ["later"]
        assert broker.call("node_task_failed", "n", "later", error, connection=connection) is True
    broker.run(4.9)
    assert broker.status("later") == "scheduled"
    assert (broker.handed(connection) if who == "worker" else broker.pull(connection)) == []
    broker.run(0.2)
    assert (broker.handed(connection) if who == "worker" else broker.pull(connection)) == ["later"]
    assert broker.call("client_task_status", CLIENT, "later")["attempt"] == 2


# What is taken back, and what is not.


def test_a_backend_that_drains_gives_back_what_it_has_not_begun(broker):
    worker, handed = quick(broker, 3)
    broker.running(worker, handed[0])
    broker.ready(worker, slots=1, prefetch=3)
    assert sorted(broker.recalled(worker)) == handed[1:]
    other = broker.worker("other", "m", slots=5)
    assert broker.handed(other) == handed[1:]
    broker.done(worker, handed[0])
    assert [each for each in broker.acknowledged(worker) if each[0] == handed[0]] == [[handed[0], 1, 200]]
    broker.submit("more")
    assert (broker.handed(worker), broker.handed(other)) == ([], ["more"])


def test_a_pulled_task_that_outlasts_its_time_costs_its_node_no_other(broker):
    node = broker.node("n", "m")
    broker.submit("slow", timeout=1.0)
    broker.submit("good", max_attempts=1)
    assert broker.pull(node) == ["slow", "good"]
    broker.run(2.0)
    assert (broker.status("slow"), broker.status("good")) == ("queued", "assigned")
    assert broker.call("node_task_finished", "n", "good", 42, 1, connection=node) is True
    assert broker.result("good") == 42
    assert broker.pull(node) == ["slow"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_node_without_methods_that_connects_again_keeps_what_it_has(broker, restart):
    node = broker.node("n")
    broker.submit("kept")
    assert broker.fetch(node, "kept")["attempt"] == 1
    if restart:
        broker.restart()
    node = broker.node("n")
    assert broker.status("kept") == "assigned"
    assert broker.call("node_task_finished", "n", "kept", 1, connection=node) is True


def test_a_result_that_waits_in_the_socket_of_a_suspended_broker_is_no_timeout(broker):
    """Promise: LIVE-3, TASK-7. The deadline was judged before the socket was read."""
    worker = broker.worker("a", "m")
    broker.submit("kept", timeout=5, max_attempts=1)
    broker.submit("lost", timeout=5, max_attempts=1)
    other = broker.worker("b", "m")
    broker.running(worker, "kept")
    broker.running(other, "lost")
    broker.sleep(10.0)
    broker.beat()
    broker.done(worker, "kept", result="ok")
    assert (broker.status("kept"), broker.result("kept")) == ("finished", "ok")
    assert broker.status("lost") == "running"
    broker.run(2 * LATE_SECONDS)
    assert broker.status("lost") == "failed"


def test_a_turn_that_is_late_again_and_again_ends_attempts_all_the_same(broker):
    """Promise: TASK-7."""
    worker = broker.worker("a", "m")
    broker.submit("t", timeout=5, max_attempts=1)
    broker.running(worker, "t")
    for _ in range(20):
        broker.sleep(1.0)
        broker.beat()
    assert broker.status("t") == "failed"


@pytest.mark.own_store
def test_a_broker_that_was_suspended_after_its_start_waits_again_for_the_holders_of_its_leases(broker):
    """Promise: TASK-11. Their READY may wait in its sockets: it gave up the leases before it read them, and work ran
    again although its worker lived."""
    worker = broker.worker("a", "m")
    broker.submit("kept")
    broker.running(worker, "kept")
    broker.run(1.0)
    broker.restart()
    broker.mono += 20.0
    broker.pass_time(0.1)
    worker = broker.worker("a", "m", holds=[["kept", 1]])
    assert broker.status("kept") == "running"
    broker.restart()
    broker.run(30.0)
    assert broker.status("kept") == "queued", "nobody came back"


@pytest.mark.parametrize("method", ["node_heartbeat", "node_connect"])
def test_a_call_by_the_name_of_a_backend_does_not_take_its_place(broker, method):
    worker = broker.worker("w", "m", slots=3, heartbeat_interval=10)
    broker.pass_time(2.0)  # its interval is longer: it may be silent
    told = broker.call(method, "w", connection="backend-stranger")
    assert isinstance(told, Refused)
    assert told.code == BAD_NODE
    for id_ in ids(3):
        broker.submit(id_)
    assert broker.handed(worker) == ids(3)
    broker.done(worker, *ids(3))
    assert [code for _, _, code in broker.acknowledged(worker)] == [200] * 3


def test_results_that_wait_over_a_restart_do_not_ban_their_backend(broker):
    worker = broker.worker("w", "m", slots=20)
    for id_ in ids(20):
        broker.submit(id_)
    broker.running(worker, *ids(20))
    broker.run(1.5)
    broker.restart()
    for id_ in ids(12):  # each was said in a message of its own, while the broker was away
        broker.done(worker, id_)
    assert {one.command for one in broker.received(worker)} == {"FORCENEGOTIATE"}
    broker.worker("w", "m", slots=20, holds=[[id_, 1] for id_ in ids(20)])
    broker.done(worker, *ids(20))
    assert [code for _, _, code in broker.acknowledged(worker)] == [200] * 20
    assert broker.open == set()


def test_slots_that_tasks_hold_over_a_restart_are_not_given_to_others(broker):
    worker = broker.worker("w", "m", slots=2)
    broker.submit("one")
    broker.submit("two")
    broker.submit("three")
    broker.restart()
    broker.worker("w", "m", slots=2, holds=[["one", 1], ["two", 1]])
    assert broker.handed(worker) == []
    broker.done(worker, "one")
    assert broker.handed(worker) == ["three"]


# What a backend may say.


def test_more_results_than_a_message_may_hold_are_refused_as_a_whole():
    broker = TaskBroker(max_batch_messages=3)
    worker = broker.worker("w", "m", slots=4)
    for id_ in ids(4):
        broker.submit(id_)
    broker.done(worker, *ids(4))
    assert [one.options["code"] for one in broker.received(worker, "DISCONNECTERROR")] == [TOO_BIG]
    assert broker.acknowledged(worker) == []
    assert {broker.status(id_) for id_ in ids(4)} <= {"assigned", "queued"}


def test_as_many_results_as_a_message_may_hold_are_taken():
    broker = TaskBroker(max_batch_messages=3)
    worker = broker.worker("w", "m", slots=3)
    for id_ in ids(3):
        broker.submit(id_)
    broker.done(worker, *ids(3))
    assert [code for _, _, code in broker.acknowledged(worker)] == [200] * 3


def test_results_that_nobody_waits_for_are_looked_up_at_once(broker):
    worker = broker.worker("w", "m")
    broker.hold()
    broker.done(worker, *ids(50))
    broker.hold_at(FindTasks)
    flight = broker.host.in_flight
    assert flight is not None
    assert [len(question.ask.ids) for question in flight.asks] == [50]
    broker.let_go()
    assert broker.acknowledged(worker) == [[id_, 1, 404] for id_ in ids(50)]


def test_a_result_with_an_error_that_is_null_is_a_result(broker):
    worker = broker.worker("w", "m")
    broker.submit("fine")
    broker.send(worker, "TASKSDONE", {}, [{"id": "fine", "attempt": 1, "result": 5, "error": None}])
    assert broker.result("fine") == 5


def test_a_request_that_waits_does_not_get_the_slot_of_a_task_that_is_held_over_a_restart(broker):
    worker = broker.worker("w", "m")
    broker.submit("held")
    broker.running(worker, "held")
    broker.run(2.0)
    broker.restart()
    broker.request("m")
    broker.worker("w", "m", holds=[["held", 1]])
    assert broker.received(worker, "REQUEST") == []
    broker.done(worker, "held")
    assert len(broker.received(worker, "REQUEST")) == 1


# Promise: TASK-17
def test_what_is_recalled_is_done_elsewhere_once_it_is_given_back_and_not_before(broker):
    worker, handed = quick(broker, 4, returns=True)
    other = broker.worker("other", "m", slots=5)
    broker.run(0.6)  # the first one holds its slot, and the others wait for it
    asked = broker.received(worker, "TASKSCANCEL")
    assert [each.options for each in asked] == [{"recall": True}]  # once, however long it takes
    assert sorted(id_ for id_, _ in asked[0].body) == handed[1:]
    assert broker.handed(other) == []
    broker.running(worker, handed[1])  # it had begun, and we had not heard of it
    broker.send(worker, "TASKSTATUS", {}, [{"id": id_, "attempt": 1, "status": "returned"} for id_ in handed[1:3]])
    assert broker.handed(other) == [handed[2]]
    broker.done(worker, handed[3])  # and this one has ended meanwhile
    broker.done(worker, handed[1])
    assert [handed[3], 1, 200] in (told := broker.acknowledged(worker))
    assert [handed[1], 1, 200] in told
    assert broker.status(handed[2]) == "assigned"


# Promise: TASK-17
def test_what_was_not_asked_for_cannot_be_given_back(broker):
    worker, handed = quick(broker, 2, returns=True)
    broker.send(worker, "TASKSTATUS", {}, [{"id": id_, "attempt": 1, "status": "returned"} for id_ in handed])
    assert [broker.status(id_) for id_ in handed] == ["assigned", "assigned"]
    assert broker.handed(worker) == []


# Promise: TASK-21
def test_a_lease_that_is_not_stored_keeps_no_slot_from_requests(broker):
    worker = broker.worker("w", "m", slots=2)
    broker.submit_many(ids(5))
    first = broker.handed(worker)
    broker.hold()
    broker.done(worker, *first)
    broker.run(0.5)
    (backend,) = broker.machine.scheduler.backends
    assert len(backend.tasks) == 2, "it was given two more, which are not stored"
    for number in range(5):
        broker.request("m", id_=f"r{number}", timeout=20)
        broker.run(2.5)
        (asked,) = broker.received(worker, "REQUEST")
        broker.send(worker, "REPLY", {"id": asked.options["id"]}, "hello")
    assert broker.handed(worker) == []
    broker.let_go()
    assert (backend.busy, backend.slotted, len(backend.tasks)) == (2, 2, 2)
    assert sorted([*first, *broker.finish_all(worker)]) == ids(5)
    assert (backend.busy, backend.slotted) == (0, 0)
