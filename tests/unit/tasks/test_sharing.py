"""Brokers that share a store: whoever is left goes on with what another one held.

Promise: TASK-15, TASK-16.
"""

from __future__ import annotations

import pytest

from scale0.storage.interface import StoreFenced
from tests.unit.tasks.group import Group
from tests.unit.tasks.harness import CLIENT, FRONT, Refused


@pytest.fixture
def pair() -> Group:
    return Group("ann", "bob")


def status(pair: Group, name: str, id_: str) -> str:
    return pair[name].status(id_)


def test_a_task_that_one_broker_took_is_done_by_the_worker_of_another(pair):
    assert pair["ann"].submit("t") == "t"
    worker = pair["bob"].worker("w", "m")
    pair.run(1.0)
    assert pair["bob"].handed(worker) == ["t"]
    assert status(pair, "ann", "t") == "assigned"
    pair["bob"].done(worker, "t", result=7)
    assert pair["bob"].told(worker) == [["t", 1, 200]]
    assert pair["ann"].result("t") == pair["bob"].result("t") == 7


def test_whoever_waits_here_is_told_of_an_end_elsewhere(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.submit("t", notify=True)
    worker = bob.worker("w", "m")
    wait = ann.world.ask(FRONT, "client_task_wait", CLIENT, ["t"], 30)
    pair.run(1.0)
    bob.done(worker, "t", result=7)
    pair.run(0.5)
    assert ann.answer(wait) == [{"task_id": "t", "status": "finished", "result": 7}]
    told = [one.body for one in ann.hear(FRONT) if one.body.get("method") == "zerotask.client.task_complete"]
    assert [one["params"]["task_id"] for one in told] == ["t"]


def test_a_running_task_is_finished_at_the_broker_that_is_left_and_runs_once(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    assert ann.handed(worker) == ["t"]
    ann.running(worker, "t")
    pair.run(1.5)
    pair.kill("ann")
    pair.run(1.0)
    line = bob.worker("w", "m", holds=[["t", 1]])
    other = bob.worker("other", "m")
    bob.done(line, "t", result="kept")
    pair.run(10.0)
    bob.done(line, "t", result="kept")
    pair.run(1.0)
    assert [each for each in bob.told(line) if each[0] == "t"][:1] == [["t", 1, 200]]
    assert bob.result("t") == "kept"
    assert bob.handed(other) == []
    assert bob.recalled(line) == []


def test_a_task_whose_broker_and_worker_both_died_is_done_again(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    ann.running(worker, "t")
    pair.run(1.5)
    pair.kill("ann")
    other = bob.worker("other", "m")
    pair.run(3.0)
    assert bob.handed(other) == []
    pair.run(10.0)
    assert bob.handed(other) == ["t"]
    bob.done(other, "t", attempt=2, result=1)
    assert bob.result("t") == 1


def test_what_waits_at_a_broker_that_dies_is_handed_out_by_another(pair):
    ann, bob = pair["ann"], pair["bob"]
    busy = ann.worker("w", "m")
    ann.submit_many([f"t.{number}" for number in range(6)])
    assert len(ann.handed(busy)) == 1
    pair.kill("ann")
    other = bob.worker("other", "m", slots=6)
    pair.run(6.0)
    assert len(bob.handed(other)) == 5


def test_one_id_is_taken_once_by_whoever_is_asked(pair):
    assert pair["ann"].submit("same") == "same"
    told = pair["bob"].submit("same")
    assert isinstance(told, Refused)
    assert told.code == -32020


def test_one_key_is_one_task_at_every_broker(pair):
    first = pair["ann"].submit(None, key="k")
    assert pair["bob"].submit(None, key="k") == first
    assert pair["bob"].submit(None, key="other") != first


def test_an_id_that_another_broker_is_just_taking_waits_for_the_outcome(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.world.hold()
    first = ann.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "same", {})
    ann.world.disk.end_one()  # reserved, and not put yet
    second = bob.world.ask(FRONT, "client_new_task", CLIENT, "m", [], "same", {})
    pair.run(0.2)
    ann.world.let_go()
    pair.run(0.2)
    assert ann.answer(first) == "same"
    assert isinstance(bob.answer(second), Refused)


def test_a_refused_submission_leaves_its_id_to_others(pair):
    ann, bob = pair["ann"], pair["bob"]
    assert ann.manage("drain") == 200
    assert isinstance(ann.submit("t", key="k"), Refused)
    assert bob.submit("t", key="k") == "t"


@pytest.mark.parametrize("where", ["shelf", "window", "worker"])
def test_a_task_is_cancelled_wherever_it_is(pair, where):
    ann, bob = pair["ann"], pair["bob"]
    worker = "" if where == "shelf" else ann.worker("w", "m")
    if where == "window":
        ann.submit("first")
    ann.submit("t")
    number = bob.world.ask(FRONT, "client_task_cancel", CLIENT, "t")
    pair.run(1.0)
    assert bob.answer(number) is True
    assert status(pair, "ann", "t") == status(pair, "bob", "t") == "cancelled"
    if where == "worker":
        assert ann.recalled(worker) == ["t"]


def test_an_administrator_cancels_what_another_broker_holds(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    bob.world.say(
        "frontend-admin",
        "MANAGEMENTREQ",
        {"command": "cancel_task", "id": "m", "auth_token": "s0_scene", "task_id": "t"},
    )
    pair.run(1.0)
    assert bob.hear("frontend-admin", "MANAGEMENTREP")[-1].options["code"] == 200
    assert ann.recalled(worker) == ["t"]


def test_what_waits_for_a_task_of_another_broker_is_released_by_its_end(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.submit("first")
    bob.submit("second", after=["first"])
    worker = ann.worker("w", "m")
    pair.run(1.0)
    ann.done(worker, "first")
    pair.run(2.5)
    assert ann.handed(worker) == ["first", "second"]


def test_a_task_with_two_before_it_at_two_brokers_is_released_once(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.submit("a", "m")
    bob.submit("b", "n")
    ann.submit("c", after=["a", "b"])
    first, second = ann.worker("w", "m"), bob.worker("v", "n")
    pair.run(1.0)
    ann.done(first, "a")
    pair.run(3.0)
    assert ann.handed(first) == ["a"]
    bob.done(second, "b")
    pair.run(3.0)
    assert ann.handed(first) == ["c"]


def test_a_scheduled_task_comes_at_its_time_though_its_broker_is_gone(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.submit("t", delay=5.0)
    pair.kill("ann")
    worker = bob.worker("w", "m")
    pair.run(4.0)
    assert bob.handed(worker) == []
    pair.run(2.5)
    assert bob.handed(worker) == ["t"]


def test_a_busy_broker_keeps_little_for_itself_while_another_is_idle(pair):
    ann, bob = pair["ann"], pair["bob"]
    slow = ann.worker("slow", "m")
    quick = bob.worker("quick", "m", slots=10)
    ann.submit_many([f"t.{number}" for number in range(40)])
    did = 0
    for _ in range(40):
        ids = bob.handed(quick)
        did += len(ids)
        bob.done(quick, *ids)
        pair.run(0.25)
    assert len(ann.handed(slow)) == 1
    assert did == 39


def test_a_node_that_asks_gets_what_others_took(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.submit_many(["t.1", "t.2", "t.3"])
    node = bob.node("n", "m")
    assert sorted(bob.pull(node)) == ["t.1", "t.2", "t.3"]
    ann.submit("t.4")
    assert bob.fetch(node, "t.4")["id"] == "t.4"
    other = ann.node("o", "m")
    assert ann.fetch(other, "t.4") == {}


def test_a_node_brings_its_result_to_another_broker_when_its_own_is_gone(pair):
    ann, bob = pair["ann"], pair["bob"]
    node = ann.node("n", "m")
    ann.submit("t")
    assert ann.pull(node) == ["t"]
    pair.kill("ann")
    line = bob.node("n", "m")
    number = bob.world.ask(line, "node_task_finished", "n", "t", "kept", 1)
    pair.run(8.0)
    assert bob.answer(number) is True
    assert bob.result("t") == "kept"


def test_a_broker_that_slept_too_long_is_fenced_and_its_late_words_change_nothing(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    pair.kill("ann")  # it sleeps
    other = bob.worker("other", "m")
    pair.run(12.0)
    assert bob.handed(other) == ["t"]
    with pytest.raises(StoreFenced):
        ann.done(worker, "t", result="late")
    bob.done(other, "t", attempt=2, result="right")
    assert bob.result("t") == "right"
    pair.start("ann")
    assert ann.result("t") == "right"


def test_a_lease_follows_its_node_to_another_broker_that_is_alive(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    assert ann.handed(worker) == ["t"]
    del ann.workers[worker]  # it hears and says nothing there any more
    line = bob.worker("w", "m", holds=[["t", 1]])
    pair.run(1.5)
    bob.done(line, "t", result=1)
    pair.run(0.5)
    assert bob.told(line) == [["t", 1, 200]]
    assert ann.result("t") == 1


def test_a_database_that_was_away_for_all_is_nobodys_death(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    for name in ("ann", "bob"):
        pair.cut(name)
    pair.run(20.0)
    pair.cut("bob", on=False)
    pair.run(4.0)  # ann needs longer to find it again
    pair.cut("ann", on=False)
    pair.run(2.0)
    ann.done(worker, "t", result=1)
    pair.run(0.5)
    assert ann.told(worker) == [["t", 1, 200]]
    assert bob.result("t") == 1


def test_a_broker_that_cannot_reach_the_database_is_dead_for_the_others_and_fenced(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.submit("t")
    other = bob.worker("other", "m")
    pair.run(1.0)
    pair.cut("ann")
    pair.run(10.0)
    pair.cut("ann", on=False)
    with pytest.raises(StoreFenced):
        pair.run(10.0)
    assert bob.handed(other) == ["t"]
