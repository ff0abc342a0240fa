"""What the naive queue and the held disk once found in the broker, each as a story of its own."""

# Promise: TASK-13
from __future__ import annotations

from typing import Any

import pytest

from scale0.history.events.tasks import TaskRefused
from tests.unit.tasks.world import WALL, World

FRONT = "frontend-ann"


def world() -> World:
    """A broker with one client."""
    made = World(default_heartbeat_interval=1.0, heartbeat_liveness=3)
    meet(made)
    return made


def meet(made: World, line: str = FRONT, name: str = "ann") -> None:
    made.ask(line, "client_connect", name)
    made.heard.clear()


def submit(made: World, method: str = "m", line: str = FRONT, name: str = "ann", **options: Any) -> str:
    return str(answer(made, made.ask(line, "client_new_task", name, method, [], None, options))["result"])


def answer(made: World, number: int) -> dict[str, Any]:
    """What was said to a request."""
    (found,) = [heard.body for heard in made.heard if heard.command == "rpc" and heard.body.get("id") == number]
    return dict(found)


def ready(made: World, line: str, name: str, slots: int = 1, **options: Any) -> None:
    made.say(line, "CHECKCONFIG", {"identity": name})
    said = {"services": ["m"], "slots": slots, "config_version": 1, "time": made.wall}
    made.say(line, "READY", {**said, **options})


def handed(made: World, line: str) -> list[tuple[str, int]]:
    """What this backend was handed since the last look."""
    rows = [row for heard in made.heard if (heard.who, heard.command) == (line, "TASKS") for row in heard.body]
    made.heard.clear()
    return [(row["id"], row["attempt"]) for row in rows]


def code(made: World, id_: str) -> int:
    return int(answer(made, made.ask(FRONT, "client_task_status", "ann", id_))["result"]["code"])


def test_a_clock_that_is_set_back_over_a_restart_tells_nobody_of_the_tasks_of_others():
    made = world()
    submit(made, "other", line="frontend-eve", notify=True)
    task = submit(made, notify=True)
    made.crash(wall=WALL - 3_600)
    meet(made, "frontend-bob", "bob")
    other = submit(made, line="frontend-bob", name="bob", notify=True)
    ready(made, "backend-w", "w", slots=2)
    assert sorted(handed(made, "backend-w")) == sorted([(task, 1), (other, 1)])
    made.say("backend-w", "TASKSDONE", {}, [{"id": id_, "attempt": 1, "result": id_} for id_ in (task, other)])
    told = [heard.body["params"]["task_id"] for heard in made.heard if heard.who == "frontend-bob"]
    assert told == [other]


@pytest.mark.parametrize("started", [True, False])
def test_a_late_result_of_a_task_that_was_given_up_is_refused_and_recorded(started):
    made = world()
    task = submit(made, max_attempts=1)
    ready(made, "backend-w1", "w")
    assert handed(made, "backend-w1") == [(task, 1)]
    made.say("backend-w1", "TASKSTATUS", {}, [{"id": task, "attempt": 1, "status": "running"}])
    if started:
        for _ in made.pass_time(5.0):
            pass
    else:
        made.say("backend-w1", "DISCONNECT")
    assert code(made, task) == 9000
    ready(made, "backend-w2", "w")
    made.events.clear()
    made.say("backend-w2", "TASKSDONE", {}, [{"id": task, "attempt": 1, "result": "late"}])
    (oks,) = [heard.body for heard in made.heard if heard.command == "TASKSOK"]
    assert oks == [[task, 1, 409]], "200 means stored, and it is not"
    assert [event.task_id for event in made.events if isinstance(event, TaskRefused)] == [task]


def test_a_late_result_of_a_node_whose_task_was_given_up_is_refused_and_recorded():
    made = world()
    task = submit(made, max_attempts=1)
    made.ask("backend-n1", "node_connect", "n", ["m"])
    made.ask("backend-n1", "node_tasks_request", "n", 1)
    made.ask("backend-n1", "node_disconnect", "n")
    assert code(made, task) == 9000
    made.ask("backend-n2", "node_connect", "n", ["m"])
    made.events.clear()
    number = made.ask("backend-n2", "node_task_finished", "n", task, "late", 1)
    assert answer(made, number)["error"]["code"] == -32021
    assert [event.task_id for event in made.events if isinstance(event, TaskRefused)] == [task]


def test_a_backend_that_is_back_after_a_restart_gets_no_more_than_its_slots():
    made = world()
    first, second = submit(made), submit(made)
    ready(made, "backend-w1", "w", slots=2)
    assert len(handed(made, "backend-w1")) == 2
    made.crash()
    ready(made, "backend-w2", "w", slots=1, holds=[[first, 1]])
    assert handed(made, "backend-w2") == [], "its one slot is taken"
    made.say("backend-w2", "TASKSDONE", {}, [{"id": first, "attempt": 1, "result": 1}])
    assert handed(made, "backend-w2") == [(second, 2)]


def test_a_lease_that_its_worker_lost_over_a_restart_is_not_handed_out_before_older_tasks():
    made = world()
    older = submit(made, priority=8)
    ready(made, "backend-w1", "w")
    (lease,) = handed(made, "backend-w1")
    assert lease == (older, 1)
    made.say("backend-w1", "TASKSDONE", {}, [{"id": older, "attempt": 1, "result": 1}])
    lost = submit(made, priority=1)
    assert handed(made, "backend-w1") == [(lost, 1)]
    urgent = submit(made, priority=8)
    made.crash()
    meet(made)
    ready(made, "backend-w2", "w", holds=[])
    assert handed(made, "backend-w2") == [(urgent, 1)]


def test_a_pull_in_the_same_breath_as_node_connect_gets_what_waits():
    made = world()
    task = submit(made)
    made.crash()
    calls = [("node_connect", ["n", ["m"]], 1), ("node_tasks_request", ["n", 5], 2)]
    said = [
        b'{"jsonrpc":"2.0","method":"zerotask.broker.%b","params":%b,"id":%d}'
        % (name.encode(), str(params).replace("'", '"').encode(), number)
        for name, params, number in calls
    ]
    made.frames("backend-n", [b"[%b]" % b",".join(said)])
    answers = {heard.body["id"]: heard.body.get("result") for heard in made.heard if heard.command == "rpc"}
    assert [row["id"] for row in answers[2]] == [task]


@pytest.mark.own_store
def test_a_chain_that_grows_while_its_head_ends_is_not_forgotten():
    made = world()
    head = submit(made)
    middle = submit(made, after=[head])
    ready(made, "backend-w", "w")
    assert handed(made, "backend-w") == [(head, 1)]
    made.hold()
    number = made.ask(FRONT, "client_new_task", "ann", "m", [], None, {"after": [middle]})
    made.say("backend-w", "TASKSDONE", {}, [{"id": head, "attempt": 1, "result": 1}])
    made.let_go()
    last = answer(made, number)["result"]
    assert handed(made, "backend-w") == [(middle, 1)]
    made.say("backend-w", "TASKSDONE", {}, [{"id": middle, "attempt": 1, "result": 1}])
    assert handed(made, "backend-w") == [(last, 1)]


def test_a_delayed_task_that_is_followed_while_it_is_read_is_not_forgotten():
    made = world()
    delayed = submit(made, delay=2.0)
    made.disk.held = False
    made.crash()
    ready(made, "backend-w", "w")
    made.hold()
    made.ask(FRONT, "client_new_task", "ann", "m", [], None, {"after": [delayed]})
    made.let_go()
    made.heard.clear()
    for _ in made.pass_time(3.0):
        made.say("backend-w", "HEARTBEAT", {"time": made.wall, "config_version": 1})
    assert handed(made, "backend-w") == [(delayed, 1)]


def test_tasks_are_counted_once_though_they_come_while_a_broker_starts():
    made = world()
    for _ in range(3):
        submit(made)
    store = made.store.crash()
    # The first commit of the new broker takes its time, and clients are quick.
    fresh = World(default_heartbeat_interval=1.0, store=store, held=True)
    for _ in range(2):
        fresh.ask(FRONT, "client_new_task", "ann", "m", [])
    fresh.let_go()
    assert len(fresh.store.snapshot().tasks.open) == 5
    assert fresh.broker.tasks.queue.open == 5
