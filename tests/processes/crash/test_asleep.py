"""Processes that are stopped for a while, and a second broker on the same folder."""

# Promise: TASK-5
# Promise: TASK-7
# Promise: STORE-2
from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from typing import Any

import pytest

from tests.fakes.processes import background
from tests.processes.crash import stopped_worker
from tests.processes.crash.brokers import CrashingBroker, crashing_broker, journal
from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import Backend, client

pytestmark = pytest.mark.processes

INTERVAL = 0.3
LIVENESS = 3
DEAD = INTERVAL * (LIVENESS + 1) + 0.25
LIVELY: dict[str, Any] = {"default_heartbeat_interval": INTERVAL, "heartbeat_liveness": LIVENESS}


def beat(workers: list[Backend], seconds: float) -> None:
    """All of them go on saying that they live, and keep what comes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for worker in workers:
            worker.raw.say("HEARTBEAT", {"time": time.time(), "config_version": worker.version})
            worker.idle(INTERVAL / 3 / len(workers))


@pytest.mark.slow
def test_a_broker_that_slept_kills_nobody_who_kept_talking_and_judges_each_lease_once(tmp_path):
    with crashing_broker(tmp_path, **LIVELY) as broker, raws(broker.endpoints) as net:
        owner, workers = client(net), [Backend(net, "m", slots=2) for _ in range(4)]
        tasks = owner.submit_many([owner.new("m", [n], None, max_attempts=5) for n in range(8)])
        held = {worker.identity: worker.tasks(2) for worker in workers}
        for worker in workers:
            worker.running(*held[worker.identity])
        beat(workers, INTERVAL)
        dies, lives = workers[0], workers[1:]
        os.kill(broker.pid, signal.SIGSTOP)
        # One of them dies meanwhile; its connection stays, as that of a machine without power does.
        beat(lives, 10 * INTERVAL)
        os.kill(broker.pid, signal.SIGCONT)
        beat(lives, DEAD + 1)
        lost = {task["id"] for task in held[dies.identity]}
        assert {id_: owner.code(id_) for id_ in tasks} == {id_: 1000 if id_ in lost else 5000 for id_ in tasks}
        for worker in lives:
            worker.say("TASKSDONE", [done(task) for task in held[worker.identity]])
        beat(lives, INTERVAL)
        again = [task for worker in lives for task in worker.unread]
        assert {(task["id"], task["attempt"]) for task in again} == {(id_, 2) for id_ in lost}
        for worker in lives:
            worker.say("TASKSDONE", [done(task) for task in worker.unread])
        beat(lives, INTERVAL)
        assert [owner.code(id_) for id_ in tasks] == [7000] * 8
        assert broker.end() == 0
    kinds = Counter(event["kind"] for event in journal(tmp_path / "data"))
    assert kinds["client.lost"] == 1
    assert kinds["task.attempt_ended"] == 2
    assert kinds["task.refused"] == 0


def done(task: dict[str, Any]) -> dict[str, Any]:
    return {"id": task["id"], "attempt": task["attempt"], "result": task["attempt"]}


def test_a_worker_that_slept_too_long_loses_its_task_and_its_late_result_is_refused_and_recorded(tmp_path):
    go = tmp_path / "go"
    with crashing_broker(tmp_path, **LIVELY) as broker, raws(broker.endpoints) as net:
        owner = client(net)
        id_ = owner.submit("m")
        command = [sys.executable, stopped_worker.__file__, broker.endpoints["backend"], "m", str(go), str(INTERVAL)]
        with background(command, tmp_path) as sleeper:
            sleeper.wait_for(f"running {id_} 1\n")
            owner.until_code(id_, 5000)
            sleeper.signal(signal.SIGSTOP)
            start = time.monotonic()
            other = Backend(net, "m", heartbeat_interval=30)
            moved = other.tasks()[0]
            assert time.monotonic() - start <= DEAD + 0.5, "it moves within three heartbeats, and one to notice"
            assert (moved["id"], moved["attempt"]) == (id_, 2)
            go.touch()
            sleeper.signal(signal.SIGCONT)
            sleeper.wait_for("told 409\n")
            assert other.codes(moved, result="in time") == [200]
            assert owner.result(id_) == "in time"
        assert broker.end() == 0
    refused = [event for event in journal(tmp_path / "data") if event["kind"] == "task.refused"]
    assert {(event["ref"], event["identity"], event["attempt"]) for event in refused} == {(id_, "stopped", 1)}


def test_a_second_broker_on_the_same_folder_is_refused_and_disturbs_nothing(tmp_path):
    with crashing_broker(tmp_path / "first", data_dir=str(tmp_path / "data")) as broker, raws(broker.endpoints) as net:
        owner, worker = client(net), Backend(net, "m")
        task, waiting = owner.submit("m", ["held"]), owner.submit("m", ["waits"])
        held = worker.tasks()[0]
        second = CrashingBroker(tmp_path / "second", data_dir=str(tmp_path / "data"))
        with pytest.raises(AssertionError, match=f"in use by process {broker.pid}"):
            second.start()
        assert second.wait() == 1
        second.close()
        assert "Traceback" not in second.log_text()
        assert worker.codes(held, result="mine") == [200]
        assert owner.result(task) == "mine"
        assert worker.tasks()[0]["id"] == waiting
        assert broker.end() == 0
