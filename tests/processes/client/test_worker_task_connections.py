"""A worker's tasks and its line: what is kept while brokers come and go, what does not begin, what a stop finishes."""

from __future__ import annotations

import threading
import time

import pytest

from scale0.client import batches
from scale0.tasks.node import assigned_tasks
from tests.fakes.waiting import until
from tests.processes.client.fake_broker import FakeBroker, worker_of
from tests.processes.client.net import started

pytestmark = pytest.mark.processes


def test_a_result_is_kept_over_restarts_until_it_is_taken_and_nothing_runs_twice(fake: FakeBroker) -> None:
    fake.acknowledges = False
    release, ran = threading.Event(), []

    def holds(number: int) -> int:
        ran.append(number)
        if number == 1:
            assert release.wait(20)
        return number

    with started(worker_of(fake, holds)):
        tasks = fake.assign_many("holds", range(3))
        fake.done(tasks[0])
        fake.runs(tasks[1])
        for restarts in (1, 2):
            fake.restart()
            until(lambda: len(fake.readies) > restarts)  # noqa: B023  # it is called at once
            held = sorted(map(tuple, fake.readies[-1]["holds"]))
            assert held == sorted((task["id"], 1) for task in tasks)
            until(lambda: len(fake.of(tasks[0], "TASKSDONE")) > restarts, "it is said again")  # noqa: B023
            until(lambda: len(fake.of(tasks[1], "TASKSTATUS")) > restarts, "and that the other runs")  # noqa: B023
        fake.acknowledge(tasks[0], code=409)
        release.set()
        assert fake.result(tasks[2]) == 2
        count = len(fake.of(tasks[0], "TASKSDONE"))
        fake.restart()
        until(lambda: len(fake.of(tasks[1], "TASKSDONE")) > 1)
        assert len(fake.of(tasks[0], "TASKSDONE")) == count, "forgotten"
        assert tasks[0]["id"] not in [id_ for id_, _ in fake.readies[-1]["holds"]]
        fake.acknowledge(*tasks[1:])
    assert ran == [0, 1, 2]


def test_without_a_connection_no_task_begins(fake: FakeBroker) -> None:
    ran: list[int] = []
    release = threading.Event()

    def notes(number: int) -> None:
        ran.append(number)
        if number == 0:
            assert release.wait(20)

    with started(worker_of(fake, notes)) as worker:
        tasks = fake.assign_many("notes", range(5))
        fake.runs(tasks[0])
        socket, session = worker._socket, worker._session
        assert socket is not None
        assert session is not None
        socket.act(lambda now, out: session.closed("a cut cable", now, out))
        socket.act(lambda _now, _out: setattr(session.connection, "_retry_at", time.monotonic() + 0.5))
        release.set()
        until(lambda: worker._executor is not None and worker._executor.is_idle())
        assert ran == [0]
        fake.done(tasks[4])
    assert ran == [0, 1, 2, 3, 4]


def test_beyond_the_bytes_that_may_be_kept_nothing_begins(fake: FakeBroker) -> None:
    fake.acknowledges = False

    def fills(number: int) -> str:
        return "x" * 3_000

    worker = worker_of(fake, fills)
    worker._tasks = assigned_tasks.AssignedTasks(10_000)
    with started(worker):
        tasks = fake.assign_many("fills", range(20))
        fake.done(tasks[3])
        threading.Event().wait(0.1)
        done = [task for task in tasks if fake.of(task, "TASKSDONE")]
        assert len(done) < 20
        for task in tasks:
            fake.done(task)
            fake.acknowledge(task)


def test_a_stop_finishes_what_runs_and_waits_until_it_is_taken(fake: FakeBroker) -> None:
    fake.acknowledges = False
    release = threading.Event()
    ran: list[int] = []

    def holds(number: int) -> int:
        ran.append(number)
        assert release.wait(20)
        return number

    worker = worker_of(fake, holds)
    worker.start()
    assert worker.wait_until_up(10)
    tasks = fake.assign_many("holds", range(3))
    fake.runs(tasks[0])
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: fake.readies[-1]["services"] == [])
    release.set()
    assert fake.result(tasks[0]) == 0
    stopping.join(0.1)
    assert stopping.is_alive(), "its result is not taken yet"
    fake.acknowledge(tasks[0])
    stopping.join(10)
    assert not stopping.is_alive()
    until(lambda: fake.messages["DISCONNECT"] == 1)
    assert ran == [0]


def test_the_word_of_a_third_attempt_has_time_to_leave(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SETTLE_SECONDS", 0.05)
    began: list[float] = []

    def when() -> None:
        began.append(time.monotonic())

    with started(worker_of(fake, when)):
        for attempt in (1, 3):
            task = fake.task("when", attempt=attempt)
            begin = time.monotonic()
            fake.assign(task)
            fake.done(task)
            assert (began[-1] - begin >= 0.05) == (attempt == 3)
