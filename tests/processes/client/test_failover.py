"""Real brokers that are killed, and programs that have the address of one of them.

Promise: NEGO-5, TASK-14
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import scale0
from tests.fakes.waiting import until
from tests.processes.client.handlers import paint
from tests.processes.client.net import Together, brokers, client_of, is_there, started, working

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

SERVED_SECONDS = 5.0
"""From a broker's death until its clients are served again, at a heartbeat of one second."""
KILLS = 10


def test_whoever_dies_everybody_is_served_within_five_seconds_and_comes_home(tmp_path: Path) -> None:
    taken: list[float] = []
    with brokers(tmp_path, "a", "b", "c") as group:
        home = group["a"]
        with working(home, paint, identity="painter"), client_of(home, timeout=20) as net:
            for number in range(KILLS):
                assert net.call("paint", "red") == "it is red"
                until(lambda: net.ping()["broker"] == "a", "the client comes home")
                until(
                    lambda: net.ping() and net._core.session.connection.addresses.has_others,
                    "it is told of the other brokers",
                )
                home.kill9()
                died = time.monotonic()
                assert net.call("paint", str(number), retry=True) == f"it is {number}"
                taken.append(time.monotonic() - died)
                home.restart()
                until(lambda: is_there(home, "painter"), "the worker comes home")
    assert max(taken) <= SERVED_SECONDS, sorted(taken)


def test_a_task_runs_once_though_its_broker_died_and_its_node_worked_elsewhere(tmp_path: Path) -> None:
    release, ran = threading.Event(), []

    def build(what: str) -> str:
        ran.append((what, scale0.attempt()))
        assert release.wait(60)
        return f"{what} is built"

    with (
        brokers(tmp_path, "a", "b", heartbeat_liveness=6) as group,
        working(group["a"], build, identity="builder", slots=2),
        client_of(group["a"], timeout=30) as net,
    ):
        task = net.submit("build", "a ship")
        until(lambda: ran)
        group["a"].kill9()
        until(lambda: is_there(group["b"], "builder"), "the node works for another broker")
        release.set()
        with client_of(group["b"], timeout=30) as other:
            assert other.call("build", "a shed") == "a shed is built"
        group["a"].restart()
        assert task.result(timeout=60) == "a ship is built"
    assert [row for row in ran if row[0] == "a ship"] == [("a ship", 1)]


def test_a_broker_is_taken_out_of_service_and_nobody_notices(tmp_path: Path) -> None:
    """Calls without `retry`, one after the other, while the broker drains, stops and comes back."""
    with brokers(tmp_path, "a", "b") as group:
        home = group["a"]
        worker = scale0.Worker(home.endpoints["backend"], identity="painter")
        worker.add("paint", paint, slots=4)
        stop, done = threading.Event(), [0]
        with started(worker), client_of(home, timeout=20) as net, client_of(home, timeout=20) as admin:
            together = Together()

            def call_on_and_on() -> None:
                while not stop.is_set():
                    assert net.call("paint", "red") == "it is red"
                    done[0] += 1

            together.start(call_on_and_on)
            until(lambda: done[0] > 10)
            admin.manage("drain", auth_token=home.token)
            until(lambda: together.faults or is_there(group["b"], "painter"), "the worker goes")
            before = done[0]
            until(lambda: together.faults or done[0] > before + 10)
            admin.close()
            home.terminate()
            home.restart()
            until(lambda: together.faults or is_there(home, "painter"), "the worker comes home")
            stop.set()
            together.join(20)
