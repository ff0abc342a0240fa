"""Brokers that share a store: whoever is left goes on with what another one held.

Promise: TASK-15, TASK-16.
"""

from __future__ import annotations

from typing import Any

import pytest

from scale0.config import ServicePolicy
from scale0.kernel.effects import Effects
from scale0.storage.interface import StoreFenced
from scale0.storage.task_queries import PeekQueues
from scale0.tasks.core import tasks
from tests.fakes.broker import TOKEN
from tests.unit.tasks.harness import ADMIN, CLIENT, FRONT, Group, Refused, TaskBroker


@pytest.fixture
def pair() -> Group:
    return Group("ann", "bob")


@pytest.fixture
def ann(pair: Group) -> TaskBroker:
    return pair["ann"]


@pytest.fixture
def bob(pair: Group) -> TaskBroker:
    return pair["bob"]


def test_a_task_that_one_broker_took_is_done_by_the_worker_of_another(pair, ann, bob):
    assert ann.submit("t") == "t"
    worker = bob.worker("w", "m")
    pair.run(1.0)
    assert bob.handed(worker) == ["t"]
    assert ann.status("t") == "assigned"
    bob.done(worker, "t", result=7)
    assert bob.acknowledged(worker) == [["t", 1, 200]]
    assert ann.result("t") == bob.result("t") == 7


def test_whoever_waits_here_is_told_of_an_end_elsewhere(pair, ann, bob):
    ann.submit("t", notify=True)
    worker = bob.worker("w", "m")
    wait = ann.ask(FRONT, "client_task_wait", CLIENT, ["t"], 30)
    pair.run(1.0)
    bob.done(worker, "t", result=7)
    pair.run(0.5)
    assert ann.answer(wait) == [{"task_id": "t", "status": "finished", "result": 7}]
    assert [one["task_id"] for one in ann.notified()] == ["t"]


def test_a_running_task_is_finished_at_the_broker_that_is_left_and_runs_once(pair, ann, bob):
    worker = ann.worker("w", "m")
    ann.submit("t")
    assert ann.handed(worker) == ["t"]
    ann.running(worker, "t")
    pair.run(1.5)
    pair.kill("ann")
    pair.run(1.0)
    connection = bob.worker("w", "m", holds=[["t", 1]])
    other = bob.worker("other", "m")
    bob.done(connection, "t", result="kept")
    pair.run(10.0)
    bob.done(connection, "t", result="kept")
    pair.run(1.0)
    assert [each for each in bob.acknowledged(connection) if each[0] == "t"][:1] == [["t", 1, 200]]
    assert bob.result("t") == "kept"
    assert bob.handed(other) == []
    assert bob.recalled(connection) == []


def test_a_task_whose_broker_and_worker_both_died_is_done_again(pair, ann, bob):
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


def test_what_waits_at_a_broker_that_dies_is_handed_out_by_another(pair, ann, bob):
    busy = ann.worker("w", "m")
    ann.submit_many([f"t.{number}" for number in range(6)])
    assert len(ann.handed(busy)) == 1
    pair.kill("ann")
    other = bob.worker("other", "m", slots=6)
    pair.run(6.0)
    assert len(bob.handed(other)) == 5


def test_one_id_is_taken_once_by_whoever_is_asked(ann, bob):
    assert ann.submit("same") == "same"
    told = bob.submit("same")
    assert isinstance(told, Refused)
    assert told.code == -32020


def test_one_key_is_one_task_at_every_broker(ann, bob):
    first = ann.submit(None, key="k")
    assert bob.submit(None, key="k") == first
    assert bob.submit(None, key="other") != first


def test_an_id_that_another_broker_is_just_taking_waits_for_the_outcome(pair, ann, bob):
    ann.hold()
    first = ann.ask(FRONT, "client_new_task", CLIENT, "m", [], "same", {})
    ann.host.end_one()  # reserved, and not put yet
    second = bob.ask(FRONT, "client_new_task", CLIENT, "m", [], "same", {})
    pair.run(0.2)
    ann.let_go()
    pair.run(0.2)
    assert ann.answer(first) == "same"
    assert isinstance(bob.answer(second), Refused)


def test_a_refused_submission_leaves_its_id_to_others(ann, bob):
    assert ann.manage("drain").code == 200
    assert isinstance(ann.submit("t", key="k"), Refused)
    assert bob.submit("t", key="k") == "t"


@pytest.mark.parametrize("where", ["shelf", "window", "worker"])
def test_a_task_is_cancelled_wherever_it_is(ann, bob, pair, where):
    worker = "" if where == "shelf" else ann.worker("w", "m")
    if where == "window":
        ann.submit("first")
    ann.submit("t")
    number = bob.ask(FRONT, "client_task_cancel", CLIENT, "t")
    pair.run(1.0)
    assert bob.answer(number) is True
    assert ann.status("t") == bob.status("t") == "cancelled"
    if where == "worker":
        assert ann.recalled(worker) == ["t"]


def test_an_administrator_cancels_what_another_broker_holds(pair, ann, bob):
    worker = ann.worker("w", "m")
    ann.submit("t")
    bob.send(ADMIN, "MANAGEMENTREQ", {"command": "cancel_task", "id": "m", "auth_token": TOKEN, "task_id": "t"})
    pair.run(1.0)
    assert bob.received(ADMIN, "MANAGEMENTREP")[-1].options["code"] == 200
    assert ann.recalled(worker) == ["t"]


def test_what_waits_for_a_task_of_another_broker_is_released_by_its_end(pair, ann, bob):
    ann.submit("first")
    bob.submit("second", after=["first"])
    worker = ann.worker("w", "m")
    pair.run(1.0)
    ann.done(worker, "first")
    pair.run(2.5)
    assert ann.handed(worker) == ["first", "second"]


def test_a_task_with_two_before_it_at_two_brokers_is_released_once(pair, ann, bob):
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


def test_a_scheduled_task_comes_at_its_time_though_its_broker_is_gone(pair, ann, bob):
    ann.submit("t", delay=5.0)
    pair.kill("ann")
    worker = bob.worker("w", "m")
    pair.run(4.0)
    assert bob.handed(worker) == []
    pair.run(2.5)
    assert bob.handed(worker) == ["t"]


def test_a_busy_broker_keeps_little_for_itself_while_another_is_idle(pair, ann, bob):
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


def test_a_node_that_asks_gets_what_others_took(ann, bob):
    ann.submit_many(["t.1", "t.2", "t.3"])
    node = bob.node("n", "m")
    assert sorted(bob.pull(node)) == ["t.1", "t.2", "t.3"]
    ann.submit("t.4")
    assert bob.fetch(node, "t.4")["id"] == "t.4"
    other = ann.node("o", "m")
    assert ann.fetch(other, "t.4") == {}


def test_a_node_brings_its_result_to_another_broker_when_its_own_is_gone(pair, ann, bob):
    node = ann.node("n", "m")
    ann.submit("t")
    assert ann.pull(node) == ["t"]
    pair.kill("ann")
    connection = bob.node("n", "m")
    number = bob.ask(connection, "node_task_finished", "n", "t", "kept", 1)
    pair.run(8.0)
    assert bob.answer(number) is True
    assert bob.result("t") == "kept"


def test_a_broker_that_slept_too_long_is_fenced_and_its_late_words_change_nothing(pair, ann, bob):
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


def test_a_lease_follows_its_node_to_another_broker_that_is_alive(pair, ann, bob):
    worker = ann.worker("w", "m")
    ann.submit("t")
    assert ann.handed(worker) == ["t"]
    del ann.workers[worker]  # it hears and says nothing there any more
    connection = bob.worker("w", "m", holds=[["t", 1]])
    pair.run(1.5)
    bob.done(connection, "t", result=1)
    pair.run(0.5)
    assert bob.acknowledged(connection) == [["t", 1, 200]]
    assert ann.result("t") == 1


def test_a_database_that_was_away_for_all_is_nobodys_death(pair, ann, bob):
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
    assert ann.acknowledged(worker) == [["t", 1, 200]]
    assert bob.result("t") == 1


def test_a_broker_that_cannot_reach_the_database_is_dead_for_the_others_and_fenced(pair, ann, bob):
    ann.submit("t")
    other = bob.worker("other", "m")
    pair.run(1.0)
    pair.cut("ann")
    pair.run(10.0)
    pair.cut("ann", on=False)
    with pytest.raises(StoreFenced):
        pair.run(10.0)
    assert bob.handed(other) == ["t"]


def orphan(pair: Group, *ids: str) -> None:
    """Tasks of the worker `w` at a broker that died, which nobody has asked for yet."""
    ann = pair["ann"]
    worker = ann.worker("w", "m", slots=len(ids))
    ann.submit_many(ids)
    assert sorted(ann.handed(worker)) == sorted(ids)
    ann.running(worker, *ids)
    pair.run(1.5)
    pair.kill("ann")
    pair.run(4.0)


def join(broker: TaskBroker, name: str, *services: str, **options: object) -> str:
    """A worker joins while the disk is held: what it is answered is not waited for."""
    connection = f"backend-{name}"
    broker.send(connection, "CHECKCONFIG", {"identity": name})
    broker.send(connection, "READY", {"services": services, "config_version": broker.version, **options})
    broker.workers[connection] = name
    return connection


def test_an_orphan_that_two_claim_in_one_turn_goes_to_its_own_worker(bob, pair):
    orphan(pair, "t")
    bob.hold()
    bob.ask(FRONT, "client_connect", CLIENT)  # so that both claims are in one commit, behind this
    join(bob, "liar", "n", holds=[["t", 1]])
    connection = join(bob, "w", "m", holds=[["t", 1]])
    bob.let_go()
    pair.run(1.0)
    assert bob.recalled("backend-liar") == ["t"]
    bob.done(connection, "t", result="kept")
    pair.run(1.0)
    assert bob.result("t") == "kept"


def test_an_orphan_that_was_taken_by_a_claim_that_is_asked_again_is_not_forgotten(bob, pair):
    other = bob.worker("v", "n")
    bob.submit("x", "n")
    assert bob.handed(other) == ["x"]
    orphan(pair, "y")
    bob.hold()
    bob.ask(FRONT, "client_connect", CLIENT)
    connection = join(bob, "w", "m", holds=[["x", 7]])  # it does not have `y` any more
    bob.host.end_one()
    bob.done(other, "x")
    bob.let_go()
    pair.run(3.0)
    assert bob.handed(connection) == ["y"]


def test_a_broker_that_hands_nothing_out_takes_nothing_from_the_shelf(pair, ann, bob):
    bob.submit("t")
    ann.machine.state.full = True
    ann.worker("idle", "m")
    pair.run(2.0)
    worker = bob.worker("w", "m")
    pair.run(1.0)
    assert bob.handed(worker) == ["t"]


def test_a_broker_at_the_limit_of_a_method_leaves_its_tasks_to_others(pair, ann, bob):
    ann.machine.state.policies = {"m": ServicePolicy(name="m", concurrency=1)}
    busy = ann.worker("w", "m", slots=5)
    ann.submit_many(["t.1", "t.2"])
    assert ann.handed(busy) == ["t.1"]
    pair.run(2.0)
    idle = bob.worker("v", "m")
    pair.run(3.0)
    assert bob.handed(idle) == ["t.2"]


def test_a_task_that_comes_to_the_broker_that_wants_it_cancelled_is_cancelled(pair, ann, bob):
    ann.worker("w", "m")
    ann.submit("first")
    ann.submit("t")
    number = bob.ask(FRONT, "client_task_cancel", CLIENT, "t")
    pair.kill("ann")
    bob.worker("v", "m")
    pair.run(7.0)
    assert bob.answer(number) is True
    assert bob.status("t") == "cancelled"


def test_whoever_waits_here_is_told_of_a_follower_that_ended_elsewhere(pair, ann, bob):
    ann.submit("a")
    ann.submit("b", after=["a"], notify=True)
    worker = bob.worker("w", "m")
    pair.run(1.0)
    pair.away.add("ann")  # it sleeps for a moment, so that the other one is first
    bob.done(worker, "a")
    pair.run(1.5)
    bob.done(worker, "b")
    pair.away.discard("ann")
    pair.run(1.0)
    assert bob.status("b") == "finished"
    assert [one["task_id"] for one in ann.notified()] == ["b"]


def test_a_stored_request_is_not_kept_by_a_broker_whose_backends_are_busy(pair, ann, bob):
    busy = ann.worker("w", "echo")
    ann.request("echo")
    assert ann.received(busy, "REQUEST")
    ann.disconnected.add("frontend-m")  # nobody here reads what it is told
    ann.send_frames("frontend-m", [b"", b"MDPC01", b"titanic.request", b"echo", b"hello"])
    pair.run(2.0)
    idle = bob.worker("v", "echo")
    pair.run(3.0)
    assert bob.received(idle, "REQUEST")


def test_a_stored_request_of_a_broker_that_died_is_done_by_another(pair, ann, bob):
    ann.disconnected.add("frontend-m")
    ann.send_frames("frontend-m", [b"", b"MDPC01", b"titanic.request", b"echo", b"hello"])
    pair.kill("ann")
    idle = bob.worker("v", "echo")
    pair.run(10.0)
    assert bob.received(idle, "REQUEST")


def test_what_waits_for_a_lease_is_forgotten_with_its_connection(pair, ann, bob):
    worker = ann.worker("w", "m")
    ann.submit("t")
    assert ann.handed(worker) == ["t"]
    ann.hold()  # it cannot let go of it
    connection = bob.worker("w", "m", holds=[["t", 1]])
    bob.done(connection, "t", result=1)
    native = bob.machine.tasks.native
    assert native._early
    bob.send(connection, "DISCONNECT", {})
    del bob.workers[connection]
    pair.run(1.0)
    assert not native._early


def test_nobody_looks_for_ends_that_only_a_closed_connection_wanted(ann, pair):
    assert ann.call("client_connect", "other", connection="frontend-o") == "other"
    ann.call("client_new_task", "other", "m", [], "t", {"notify": True}, connection="frontend-o")
    completion_waits = ann.machine.tasks.completion_waits
    assert completion_waits._away
    (connection,) = completion_waits._connections.values()
    ann.machine.tasks.forget(connection)
    pair.run(0.5)
    assert not completion_waits._away


def test_nodes_that_are_gone_are_forgotten(ann, pair):
    for number in range(5):
        connection = ann.node(f"n.{number}", "m")
        assert ann.call("node_disconnect", f"n.{number}", connection=connection) is True
        del ann.nodes[connection]
    pair.run(2.0)
    assert not ann.machine.tasks.shared_store._silent


def test_the_list_of_a_shared_store_has_a_second_page(ann):
    ann.submit_many(["t.1", "t.2"])

    def page(**options: object) -> Any:
        answer = ann.manage("list_tasks", **options)
        assert answer.code == 200, answer
        return answer.body

    first = page(limit=1)
    second = page(limit=1, after=first["next"])
    assert [one["task_id"] for one in (*first["items"], *second["items"])] == ["t.2", "t.1"]
    assert page(limit=1, after="9" * 19)["items"] == first["items"]


# Promise: QUOTA-7
def test_unclaimed_tasks_of_all_subscribed_methods_are_looked_up_with_one_query(monkeypatch):
    monkeypatch.setattr(tasks, "ANNOUNCED_METHODS", 8)
    group = Group("a")
    broker = group["a"]
    for number in range(20):
        broker.submit(f"t{number:02}", f"m{number:02}")
        effects = Effects()
        broker.machine.receive_subscription([b"\x01task.m%02d" % number], broker.now, effects)
        for ask in effects.asks:
            broker.host.ask(ask)
    group.run(1.0)
    read, asked = broker.store.read, list[Any]()
    published: list[str] = []

    def noted(ask: Any) -> Any:
        asked.append(ask)
        return read(ask)

    monkeypatch.setattr(broker.store, "read", noted)
    publisher = broker.machine.tasks.publisher
    monkeypatch.setattr(publisher, "_announce", lambda method, *_: published.append(method))
    group.run(broker.machine.state.interval * 3 + 0.5)
    peeks = [ask for ask in asked if type(ask) is PeekQueues]
    assert 3 <= len(peeks) <= 4, "one for each interval, and not one for each method"
    assert max(len(ask.methods) for ask in peeks) == 8
    assert set(published) >= {f"m{number:02}" for number in range(20)}
