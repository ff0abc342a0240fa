"""Answers that are on their way: what was decided meanwhile is not decided a second time, nor forgotten."""

# Promise: TASK-13
# Promise: TASK-10
from __future__ import annotations

import random

import pytest

from scale0.broker.main.composition import compose_broker, start_broker
from scale0.config import Endpoints
from scale0.history.events.tasks import TaskRefused
from scale0.kernel.effects import Effects
from scale0.storage.memory.store import MemoryStore
from scale0.storage.task_queries import LookUpSubmission, ReadExpiry
from tests.fakes.broker import TOKEN, WALL, FakeBroker
from tests.unit.tasks.harness import ADMIN, CLIENT, FRONT, Refused, TaskBroker

BAD_TASK = -32020
AFTER_FAILED = -32091
CANCELLED = -32092
UNKNOWN = 404
NOT_YOURS = -32021


def code_of(told: object) -> int:
    assert isinstance(told, Refused), told
    return told.code


@pytest.mark.parametrize("options", [{"key": "k"}, {"after": ["a.000000000001"]}])
def test_an_id_that_is_being_looked_up_is_not_taken_a_second_time(broker, options):
    broker.submit("a.000000000001")  # its series is known: larger counters are new, and nobody looks
    broker.hold()
    first = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "a.000000000009", options)
    broker.hold_at(LookUpSubmission)
    second = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "a.000000000009", {})
    broker.let_go()
    assert broker.answer(first) == "a.000000000009"
    assert code_of(broker.answer(second)) == BAD_TASK


@pytest.mark.parametrize("other", ["a.b.000000000001", "a.x"])
def test_the_counters_of_a_series_are_not_taken_from_another_name(broker, other):
    broker.submit("a.000000000005")
    broker.submit(other)
    broker.restart()
    assert broker.submit("a.000000000002") == "a.000000000002"
    assert code_of(broker.submit("a.000000000005")) == BAD_TASK


def test_a_task_whose_time_is_over_is_not_tried_again(broker):
    node = broker.node("n", "m")
    broker.submit("old", result_ttl=2)
    broker.fetch(node, "old")
    broker.call("node_task_failed", "n", "old", {"code": 1, "message": ""}, connection=node)
    broker.run(2.5)
    assert code_of(broker.result("old")) == BAD_TASK
    assert broker.manage("retry_task", task_id="old").code == UNKNOWN
    broker.run(10.0)
    assert not broker.store.snapshot().tasks.ended


def test_a_task_that_is_swept_while_it_is_looked_up_is_not_tried_again(broker):
    node = broker.node("n", "m")
    broker.submit("old", result_ttl=2)
    broker.fetch(node, "old")
    broker.call("node_task_failed", "n", "old", {"code": 1, "message": ""}, connection=node)
    broker.run(1.9)
    retry = {"command": "retry_task", "id": "m", "auth_token": TOKEN, "task_id": "old"}
    for _ in range(200):
        broker.hold()
        broker.pass_time(0.05)
        flight = broker.host.in_flight
        if flight is not None and any(type(question.ask) is ReadExpiry for question in flight.asks):
            # Behind the look for what is old the task itself is looked up: its row is still there.
            broker.send(ADMIN, "MANAGEMENTREQ", retry)
        broker.let_go()
    told = broker.received(ADMIN, "MANAGEMENTREP")
    assert told
    assert {one.options["code"] for one in told} == {UNKNOWN}
    assert not broker.store.snapshot().tasks.ended


def test_a_new_broker_knows_how_many_tasks_are_open_before_it_has_asked(broker):
    broker.submit("one")
    broker.submit("two")
    opened = MemoryStore(broker.store.snapshot()).open()
    machine = compose_broker(broker.config, Endpoints(), opened, 2**52, random.Random(1), None)
    start_broker(machine, opened, broker.now, Effects())
    assert machine.tasks.counts()["open"] == 2


def test_a_connection_that_is_gone_before_its_task_is_taken_leaves_nothing_behind(broker):
    broker.hold()
    broker.ask("frontend-z", "client_new_task", CLIENT, "m", [], "told-to-nobody", {"notify": True})
    broker.hold_at(LookUpSubmission)
    connection = broker.connection("frontend-z")
    broker.break_connection("frontend-z")
    broker.let_go()
    assert broker.status("told-to-nobody") == "queued"
    assert (connection.number, connection.waits) == (0, 0)


def test_a_task_that_is_cancelled_in_the_turn_in_which_it_is_taken_was_taken(broker):
    node = broker.node("n", "m")
    broker.submit("s.000000000001", "other")  # the next one of this series needs no look: all is one turn
    told = broker.together(
        FRONT,
        ("client_new_task", CLIENT, "m", [], "s.000000000002", {"notify": True}),
        ("client_task_cancel", CLIENT, "s.000000000002"),
    )
    assert told == ["s.000000000002", True]
    assert broker.status("s.000000000002") == "cancelled"
    assert code_of(broker.result("s.000000000002")) == CANCELLED
    assert broker.pull(node) == []
    assert broker.machine.tasks.counts()["open"] == len(broker.open) == 1


def test_a_task_that_is_handed_out_and_cancelled_in_the_turn_in_which_it_is_taken_is_called_back(broker):
    worker = broker.worker("w", "m")
    broker.submit("s.000000000001", "other")
    broker.hold()  # the hand-out is decided, and its commit is under way
    new = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "s.000000000002", {})
    cancel = broker.ask(FRONT, "client_task_cancel", CLIENT, "s.000000000002")
    broker.let_go()
    assert (broker.answer(new), broker.answer(cancel)) == ("s.000000000002", True)
    assert broker.handed(worker) == broker.recalled(worker) == ["s.000000000002"]
    broker.submit("next")
    assert broker.handed(worker) == ["next"]


def test_a_task_that_fails_in_the_turn_in_which_it_is_taken_is_told(broker):
    node = broker.node("n", "m")
    broker.submit("first")
    broker.fetch(node, "first")
    broker.call("node_task_failed", "n", "first", {"code": 1, "message": ""}, connection=node)
    assert broker.submit("second", after=["first"], notify=True) == "second"
    assert code_of(broker.result("second")) == AFTER_FAILED
    assert [(one["task_id"], one["error"]["code"]) for one in broker.notified()] == [("second", AFTER_FAILED)]
    assert broker.open == set()


def test_a_broker_that_dies_in_the_turn_of_a_task_has_promised_nothing(broker):
    broker.hold()
    number = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], None, {})
    with pytest.raises(AssertionError, match="not answered"):
        broker.answer(number)
    broker.crash()
    assert broker.open == set()
    assert broker.machine.tasks.counts()["open"] == 0


# Found by the model of the queue and by commits that were held back.


def leases(broker: TaskBroker, worker: str) -> list[tuple[str, int]]:
    """Task and attempt of what this worker was handed."""
    return [(task["id"], task["attempt"]) for one in broker.received(worker, "TASKS") for task in one.body]


def refused(broker: TaskBroker) -> list[str]:
    return [event.task_id for event in broker.events if isinstance(event, TaskRefused)]


def test_a_clock_that_is_set_back_over_a_restart_notifies_nobody_of_the_tasks_of_others(broker):
    broker.call("client_new_task", CLIENT, "other", [], None, {"notify": True}, connection="frontend-eve")
    broker.submit("task", notify=True)
    broker.crash(wall=WALL - 3_600)
    broker.call("client_connect", "bob", connection="frontend-bob")
    broker.call("client_new_task", "bob", "m", [], "other", {"notify": True}, connection="frontend-bob")
    worker = broker.worker("w", "m", slots=2)
    assert sorted(leases(broker, worker)) == [("other", 1), ("task", 1)]
    broker.done(worker, "task", "other")
    assert [one.body["params"]["task_id"] for one in broker.received("frontend-bob")] == ["other"]


@pytest.mark.parametrize("silent", [True, False])
def test_a_late_result_of_a_task_that_was_given_up_is_refused_and_recorded(broker, silent):
    broker.submit("task", max_attempts=1)
    worker = broker.worker("w", "m", connection="backend-1")
    broker.running(worker, "task")
    if silent:
        broker.pass_time(5.0)
    else:
        broker.send(worker, "DISCONNECT")
    assert broker.status("task") == "failed"
    worker = broker.worker("w", "m", connection="backend-2")
    broker.events.clear()
    broker.done(worker, "task", result="late")
    assert broker.acknowledged(worker) == [["task", 1, 409]], "200 means stored, and it is not"
    assert refused(broker) == ["task"]


def test_a_late_result_of_a_node_whose_task_was_given_up_is_refused_and_recorded(broker):
    broker.submit("task", max_attempts=1)
    node = broker.node("n", "m", connection="backend-1")
    assert broker.pull(node) == ["task"]
    broker.call("node_disconnect", "n", connection=node)
    assert broker.status("task") == "failed"
    node = broker.node("n", "m", connection="backend-2")
    broker.events.clear()
    assert code_of(broker.call("node_task_finished", "n", "task", "late", 1, connection=node)) == NOT_YOURS
    assert refused(broker) == ["task"]


def test_a_backend_that_is_back_after_a_restart_gets_no_more_than_its_slots(broker):
    broker.submit_many(["first", "second"])
    assert len(leases(broker, broker.worker("w", "m", slots=2))) == 2
    broker.crash()
    worker = broker.worker("w", "m", connection="backend-2", holds=[["first", 1]])
    assert leases(broker, worker) == [], "its one slot is taken"
    broker.done(worker, "first")
    assert leases(broker, worker) == [("second", 2)]


def test_a_lease_that_its_worker_lost_over_a_restart_is_not_handed_out_before_older_tasks(broker):
    broker.submit("older", priority=8)
    worker = broker.worker("w", "m")
    assert leases(broker, worker) == [("older", 1)]
    broker.done(worker, "older")
    broker.submit("lost", priority=1)
    assert leases(broker, worker) == [("lost", 1)]
    broker.submit("urgent", priority=8)
    broker.crash()
    assert leases(broker, broker.worker("w", "m", connection="backend-2", holds=[])) == [("urgent", 1)]


def test_a_pull_in_the_same_message_as_node_connect_gets_what_waits_after_a_restart(broker):
    broker.submit("task")
    broker.crash()
    _, tasks = broker.together("backend-n", ("node_connect", "n", ["m"]), ("node_tasks_request", "n", 5))
    assert [task["id"] for task in tasks] == ["task"]


@pytest.mark.own_store
def test_a_chain_that_grows_while_its_head_ends_is_not_forgotten(broker):
    broker.submit("head")
    broker.submit("middle", after=["head"])
    worker = broker.worker("w", "m")
    assert leases(broker, worker) == [("head", 1)]
    broker.hold()
    broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "last", {"after": ["middle"]})
    broker.done(worker, "head")
    broker.let_go()
    assert leases(broker, worker) == [("middle", 1)]
    broker.done(worker, "middle")
    assert leases(broker, worker) == [("last", 1)]


def test_a_delayed_task_that_is_followed_while_it_is_read_is_not_forgotten(broker):
    broker.submit("delayed", delay=2.0)
    broker.crash()
    worker = broker.worker("w", "m")
    broker.hold()
    broker.ask(FRONT, "client_new_task", CLIENT, "m", [], None, {"after": ["delayed"]})
    broker.let_go()
    broker.run(3.0)
    assert leases(broker, worker) == [("delayed", 1)]


def test_tasks_are_counted_once_though_they_come_while_a_broker_starts(broker):
    broker.submit_many(["one", "two", "three"])
    # The first commit of the new broker takes its time, and clients are quick.
    fresh = FakeBroker(store=broker.store.crash(), blocked=True)
    for _ in range(2):
        fresh.ask(FRONT, "client_new_task", CLIENT, "m", [])
    fresh.let_go()
    assert len(fresh.store.snapshot().tasks.open) == 5
    assert fresh.machine.tasks.queue.open == 5
