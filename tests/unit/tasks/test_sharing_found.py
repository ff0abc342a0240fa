"""Brokers that share a store: what a review found, each as a small story.

Promise: TASK-15, TASK-16.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from scale0.config import ServicePolicy
from tests.unit.tasks.group import Group
from tests.unit.tasks.harness import ADMIN_LINE, CLIENT, FRONT, TOKEN, Scene


@pytest.fixture
def pair() -> Group:
    return Group("ann", "bob")


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


def join(scene: Scene, name: str, *services: str, **options: object) -> str:
    """A worker joins while the disk is held: what it is answered is not waited for."""
    line = f"backend-{name}"
    scene.world.say(line, "CHECKCONFIG", {"identity": name})
    scene.world.say(line, "READY", {"services": services, "config_version": scene.version, **options})
    scene.workers[line] = name
    return line


def test_an_orphan_that_two_claim_in_one_turn_goes_to_its_own_worker(pair):
    bob = pair["bob"]
    orphan(pair, "t")
    bob.world.hold()
    bob.world.ask(FRONT, "client_connect", CLIENT)  # so that both claims are in one commit, behind this
    join(bob, "liar", "n", holds=[["t", 1]])
    line = join(bob, "w", "m", holds=[["t", 1]])
    bob.world.let_go()
    pair.run(1.0)
    assert bob.recalled("backend-liar") == ["t"]
    bob.done(line, "t", result="kept")
    pair.run(1.0)
    assert bob.result("t") == "kept"


def test_an_orphan_that_was_taken_by_a_claim_that_is_asked_again_is_not_forgotten(pair):
    bob = pair["bob"]
    other = bob.worker("v", "n")
    bob.submit("x", "n")
    assert bob.handed(other) == ["x"]
    orphan(pair, "y")
    bob.world.hold()
    bob.world.ask(FRONT, "client_connect", CLIENT)
    line = join(bob, "w", "m", holds=[["x", 7]])  # it does not have `y` any more
    bob.world.disk.end_one()
    bob.done(other, "x")
    bob.world.let_go()
    pair.run(3.0)
    assert bob.handed(line) == ["y"]


def test_a_broker_that_hands_nothing_out_takes_nothing_from_the_shelf(pair):
    ann, bob = pair["ann"], pair["bob"]
    bob.submit("t")
    ann.world.broker.state.full = True
    ann.worker("idle", "m")
    pair.run(2.0)
    worker = bob.worker("w", "m")
    pair.run(1.0)
    assert bob.handed(worker) == ["t"]


def test_a_broker_at_the_limit_of_a_method_leaves_its_tasks_to_others(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.world.broker.state.policies = {"m": ServicePolicy(name="m", concurrency=1)}
    busy = ann.worker("w", "m", slots=5)
    ann.submit_many(["t.1", "t.2"])
    assert ann.handed(busy) == ["t.1"]
    pair.run(2.0)
    idle = bob.worker("v", "m")
    pair.run(3.0)
    assert bob.handed(idle) == ["t.2"]


def test_a_task_that_comes_to_the_broker_that_wants_it_cancelled_is_cancelled(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.worker("w", "m")
    ann.submit("first")
    ann.submit("t")
    number = bob.world.ask(FRONT, "client_task_cancel", CLIENT, "t")
    pair.kill("ann")
    bob.worker("v", "m")
    pair.run(7.0)
    assert bob.answer(number) is True
    assert bob.status("t") == "cancelled"


def test_whoever_waits_here_is_told_of_a_follower_that_ended_elsewhere(pair):
    ann, bob = pair["ann"], pair["bob"]
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
    told = [one.body for one in ann.hear(FRONT) if one.body.get("method") == "zerotask.client.task_complete"]
    assert [one["params"]["task_id"] for one in told] == ["b"]


def test_a_stored_request_is_not_kept_by_a_broker_whose_backends_are_busy(pair):
    ann, bob = pair["ann"], pair["bob"]
    busy = ann.worker("w", "echo")
    ann.request("echo")
    assert ann.hear(busy, "REQUEST")
    ann.world.gone.add("frontend-m")  # nobody here reads what it is told
    ann.world.frames("frontend-m", [b"", b"MDPC01", b"titanic.request", b"echo", b"hello"])
    pair.run(2.0)
    idle = bob.worker("v", "echo")
    pair.run(3.0)
    assert bob.hear(idle, "REQUEST")


def test_a_stored_request_of_a_broker_that_died_is_done_by_another(pair):
    ann, bob = pair["ann"], pair["bob"]
    ann.world.gone.add("frontend-m")
    ann.world.frames("frontend-m", [b"", b"MDPC01", b"titanic.request", b"echo", b"hello"])
    pair.kill("ann")
    idle = bob.worker("v", "echo")
    pair.run(10.0)
    assert bob.hear(idle, "REQUEST")


def test_what_waits_for_a_lease_is_forgotten_with_its_connection(pair):
    ann, bob = pair["ann"], pair["bob"]
    worker = ann.worker("w", "m")
    ann.submit("t")
    assert ann.handed(worker) == ["t"]
    ann.world.hold()  # it cannot let go of it
    line = bob.worker("w", "m", holds=[["t", 1]])
    bob.done(line, "t", result=1)
    native = bob.world.broker.tasks.native
    assert native._early
    bob.world.say(line, "DISCONNECT", {})
    del bob.workers[line]
    pair.run(1.0)
    assert not native._early


def test_nobody_looks_for_ends_that_only_a_closed_connection_wanted(pair):
    ann = pair["ann"]
    assert ann.call("client_connect", "other", line="frontend-o") == "other"
    ann.call("client_new_task", "other", "m", [], "t", {"notify": True}, line="frontend-o")
    completion_waits = ann.world.broker.tasks.completion_waits
    assert completion_waits._away
    (line,) = completion_waits._lines.values()
    ann.world.broker.tasks.forget(line)
    pair.run(0.5)
    assert not completion_waits._away


def test_nodes_that_are_gone_are_forgotten(pair):
    ann = pair["ann"]
    for number in range(5):
        line = ann.node(f"n.{number}", "m")
        assert ann.call("node_disconnect", f"n.{number}", line=line) is True
        del ann.nodes[line]
    pair.run(2.0)
    assert not ann.world.broker.tasks.shared_store._silent


def test_the_list_of_a_shared_store_has_a_second_page(pair):
    ann = pair["ann"]
    ann.submit_many(["t.1", "t.2"])

    def page(**said: object) -> Any:
        ann.world.say(ADMIN_LINE, "MANAGEMENTREQ", {"command": "list_tasks", "id": "m", "auth_token": TOKEN, **said})
        told = ann.hear(ADMIN_LINE, "MANAGEMENTREP")[-1]
        assert told.options["code"] == 200, told
        return json.loads(told.body[0])

    first = page(limit=1)
    second = page(limit=1, after=first["next"])
    assert [one["task_id"] for one in (*first["items"], *second["items"])] == ["t.2", "t.1"]
    assert page(limit=1, after="9" * 19)["items"] == first["items"]
