"""Who wants to hear of an end: each hears it once, is not forgotten meanwhile, and is forgotten afterwards."""

# Promise: TASK-8
# Promise: TASK-13
from __future__ import annotations

from typing import Any

import pytest

from scale0.tasks.core import completion_waits
from tests.unit.tasks.harness import CLIENT, FRONT, Refused, Scene

QUEUE_FULL = -32070
BAD_TASK = -32020
MOST = 3


@pytest.fixture(name="few")
def _few(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene in which one connection may wait three times at once."""
    monkeypatch.setattr(completion_waits, "MAX_LINE_WAITS", MOST)
    return Scene()


def wait(scene: Scene, *ids: str, seconds: float = 5.0, line: str = FRONT) -> int:
    return scene.world.ask(line, "client_task_wait", CLIENT, ids, seconds)


def notes(scene: Scene, line: str = FRONT) -> list[Any]:
    return [one.body["params"] for one in scene.hear(line, "rpc") if "method" in one.body]


def test_a_connection_waits_only_so_many_times_at_once(few):
    few.submit("open")
    waits = [wait(few, "open") for _ in range(MOST)]
    told = few.answer(wait(few, "open"))
    assert isinstance(told, Refused)
    assert told.code == QUEUE_FULL
    other = wait(few, "open", line="frontend-other")
    few.cancel("open")
    for number in (*waits, other):
        assert [row["task_id"] for row in few.answer(number)] == ["open"]
    assert few.world.broker.tasks.counts()["waits"] == 0


@pytest.mark.parametrize("ending", ["end", "timeout", "unknown"])
def test_a_wait_that_is_over_makes_room_for_another(few, ending):
    few.submit("open")
    for _ in range(MOST):
        if ending == "unknown":
            assert few.answer(wait(few, "open", "nobody-knows")).code == BAD_TASK
        else:
            wait(few, "open")
    if ending == "end":
        few.cancel("open")
    elif ending == "timeout":
        few.run(6.0)
    assert few.world.broker.tasks.counts()["waits"] == 0
    few.submit("next")
    number = wait(few, "next")
    few.cancel("next")
    assert [row["task_id"] for row in few.answer(number)] == ["next"]


def test_a_task_that_is_named_many_times_in_a_wait_is_told_once():
    scene = Scene()
    scene.submit("open")
    number = wait(scene, *["open"] * 100)
    scene.cancel("open")
    assert [row["task_id"] for row in scene.answer(number)] == ["open"]


def test_a_wait_is_over_at_its_time_and_costs_nothing_afterwards():
    scene = Scene()
    scene.submit("open")
    number = wait(scene, "open", seconds=2.0)
    scene.run(1.9)
    with pytest.raises(AssertionError, match="not answered"):
        scene.answer(number)
    scene.run(0.2)
    assert scene.answer(number) == []
    assert scene.world.broker.tasks.counts()["waits"] == 0


def test_a_task_that_ends_twice_is_told_twice_and_its_connection_is_forgotten():
    scene = Scene()
    node = scene.node("n", "m")
    scene.submit("twice", notify=True)
    line = scene.world.broker.connections.find("frontend", FRONT.encode())
    assert line is not None
    assert line.waits == 1
    for _ in range(2):
        assert scene.fetch(node, "twice")["id"] == "twice"
        scene.call("node_task_failed", "n", "twice", {"code": 1, "message": ""}, line=node)
        assert [note["status"] for note in notes(scene)] == ["failed"]
        assert line.waits == 0
        scene.manage("retry_task", task_id="twice")
    scene.run(120.0)
    assert scene.world.broker.connections.find("frontend", FRONT.encode()) is None


def test_a_connection_with_an_open_wait_is_not_forgotten():
    scene = Scene(frontend_idle=2.0)
    scene.submit("open")
    number = wait(scene, "open", seconds=20.0)
    scene.run(19.0)
    assert scene.world.broker.connections.find("frontend", FRONT.encode()) is not None
    scene.run(2.0)
    assert scene.answer(number) == []
    scene.run(10.0)
    assert scene.world.broker.connections.find("frontend", FRONT.encode()) is None


def test_a_disabled_broker_does_not_answer_a_wait():
    scene = Scene()
    scene.submit("open")
    number = wait(scene, "open", seconds=2.0)
    assert scene.manage("disable") == 200
    scene.run(3.0)
    with pytest.raises(AssertionError, match="not answered"):
        scene.answer(number)
    assert scene.world.broker.tasks.counts()["waits"] == 0


def test_nobody_hears_twice_of_one_end():
    scene = Scene()
    worker = scene.worker("w", "m")
    scene.submit("told", notify=True)
    number = wait(scene, "told")
    scene.done(worker, "told", result=7)
    scene.done(worker, "told", result=7)  # the same again: it has not heard that it is stored
    assert [code for _, _, code in scene.told(worker)] == [200, 200]
    assert scene.answer(number) == [{"task_id": "told", "status": "finished", "result": 7}]
    assert [note["task_id"] for note in notes(scene)] == ["told"]
