"""What others say of tasks: names, depths and protocols that do not fit are refused, and nobody else notices."""

# Promise: TASK-13
from __future__ import annotations

from typing import Any

import pytest

from scale0.kernel.effects import Effects
from tests.unit.tasks.harness import CLIENT, Refused, Scene

INVALID_PARAMS = -32602
BAD_NODE = -32030


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def code_of(told: object) -> int:
    assert isinstance(told, Refused), told
    return told.code


def subscribe(scene: Scene, frame: bytes) -> None:
    """What a subscriber says on the socket of announcements."""
    effects = Effects()
    scene.world.broker.hear_subscription([frame], scene.world.now, effects)
    for ask in effects.asks:
        scene.world.disk.ask(ask)


# Announcements.


@pytest.mark.parametrize("first", [b"X", b"\x02", b"0", b""])
def test_what_is_no_subscription_takes_nobody_elses_away(first):
    scene = Scene()
    subscribe(scene, b"\x01task.add")
    subscribe(scene, first + b"task.add")
    publisher = scene.world.broker.tasks.publisher
    assert publisher.is_wanted(b"task.add")
    subscribe(scene, b"\x00task.add")
    assert not publisher.is_wanted(b"task.add")


@pytest.mark.parametrize("method", ["scale0.x", "mmi.service", "\x01\x02", ""])
def test_a_method_that_nobody_could_offer_is_refused_although_somebody_listens(method):
    scene = Scene()
    assert code_of(scene.submit("before", method)) == INVALID_PARAMS
    subscribe(scene, b"\x01task." + method.encode())
    assert code_of(scene.submit("after", method)) == INVALID_PARAMS
    assert scene.open == set()


# Depth.


@pytest.mark.parametrize("depth", [70, 500, 900])
def test_an_error_that_nests_too_deep_is_refused(depth):
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("deep")
    scene.fetch(node, "deep")
    error = {"code": 1, "message": "", "data": nested(depth)}
    assert code_of(scene.call("node_task_failed", "n", "deep", error, line=node)) == INVALID_PARAMS
    assert scene.status("deep") == "assigned"


def test_an_error_of_a_backend_that_nests_too_deep_is_replaced():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("deep")
    scene.fail(worker, "deep", code=77, data=nested(500))
    assert scene.told(worker) == [["deep", 1, 200]]
    assert code_of(scene.result("deep")) == INVALID_PARAMS


def test_an_error_as_deep_as_allowed_is_kept():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("deep")
    scene.fail(worker, "deep", code=77, data=nested(60))
    assert code_of(scene.result("deep")) == 77


def test_a_status_that_nests_too_deep_is_refused():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("deep")
    scene.fetch(node, "deep")
    told = scene.call("task_status", "n", "deep", "half", {"more": nested(500)}, line=node)
    assert code_of(told) == INVALID_PARAMS
    assert scene.call("client_task_status", CLIENT, "deep")["info"] == {}


def test_a_status_of_a_backend_that_nests_too_deep_is_kept_without_it():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("deep")
    said = {"id": "deep", "attempt": 1, "status": "running", "more": nested(500)}
    scene.world.say(worker, "TASKSTATUS", {}, [said])
    told = scene.call("client_task_status", CLIENT, "deep")
    assert (told["status"], told["info"]) == ("running", {})


# Two protocols on one connection.


def test_a_majordomo_worker_cannot_be_a_node_too():
    scene = Scene()
    scene.world.frames("backend-d", [b"", b"MDPW01", b"\x01", b"echo"])
    assert code_of(scene.call("node_connect", "n", ["m"], line="backend-d")) == BAD_NODE
    scene.submit("task")
    assert scene.pull(scene.node("n", "m")) == ["task"]


def test_a_majordomo_client_may_submit_tasks_too():
    scene = Scene()
    scene.world.frames("frontend-d", [b"", b"MDPC01", b"echo", b"hello"])
    assert scene.call("client_connect", "other", line="frontend-d") == "other"
    assert scene.call("client_new_task", "other", "m", [], "theirs", {}, line="frontend-d") == "theirs"
