"""A worker's tasks and its line: what is kept while brokers come and go, what does not begin, what a stop finishes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import scale0
from scale0.client import batches
from scale0.tasks.node import assigned_tasks
from tests.fakes.waiting import until
from tests.processes.client.task_desk import TaskDesk, at_work, task_desk

pytestmark = pytest.mark.processes


@pytest.fixture
def desk() -> Iterator[TaskDesk]:
    with task_desk() as made:
        yield made


def worker_of(desk: TaskDesk, *functions: Callable[..., Any]) -> scale0.Worker:
    worker = scale0.Worker(desk.endpoint, identity="w")
    for function in functions:
        worker.add(function.__name__, function)
    return worker


def test_a_result_is_kept_over_restarts_until_it_is_taken_and_nothing_runs_twice(desk: TaskDesk) -> None:
    desk.takes = False
    release, ran = threading.Event(), []

    def holds(number: int) -> int:
        ran.append(number)
        if number == 1:
            assert release.wait(20)
        return number

    with at_work(worker_of(desk, holds)):
        tasks = [desk.task("holds", [number]) for number in range(3)]
        desk.hand(*tasks)
        desk.done(tasks[0])
        desk.runs(tasks[1])
        for restarts in (1, 2):
            desk.restart()
            until(lambda: len(desk.readies) > restarts)  # noqa: B023  # it is called at once
            held = sorted(map(tuple, desk.readies[-1]["holds"]))
            assert held == sorted((task["id"], 1) for task in tasks)
            until(lambda: len(desk.of(tasks[0], "TASKSDONE")) > restarts, "it is said again")  # noqa: B023
            until(lambda: len(desk.of(tasks[1], "TASKSTATUS")) > restarts, "and that the other runs")  # noqa: B023
        desk.take(tasks[0], code=409)
        release.set()
        assert desk.result(tasks[2]) == 2
        count = len(desk.of(tasks[0], "TASKSDONE"))
        desk.restart()
        until(lambda: len(desk.of(tasks[1], "TASKSDONE")) > 1)
        assert len(desk.of(tasks[0], "TASKSDONE")) == count, "forgotten"
        assert tasks[0]["id"] not in [id_ for id_, _ in desk.readies[-1]["holds"]]
        desk.take(*tasks[1:])
    assert ran == [0, 1, 2]


def test_while_there_is_no_line_no_task_begins(desk: TaskDesk) -> None:
    ran: list[int] = []
    release = threading.Event()

    def notes(number: int) -> None:
        ran.append(number)
        if number == 0:
            assert release.wait(20)

    with at_work(worker_of(desk, notes)) as worker:
        tasks = [desk.task("notes", [number]) for number in range(5)]
        desk.hand(*tasks)
        desk.runs(tasks[0])
        link, session = worker._socket, worker._session
        assert link is not None
        assert session is not None
        link.act(lambda now, out: session.closed("a cut cable", now, out))
        link.act(lambda _now, _out: setattr(session.connection, "_retry_at", time.monotonic() + 0.5))
        release.set()
        until(lambda: worker._executor is not None and worker._executor.is_idle())
        assert ran == [0]
        desk.done(tasks[4])
    assert ran == [0, 1, 2, 3, 4]


def test_beyond_the_bytes_that_may_be_kept_nothing_begins(desk: TaskDesk) -> None:
    desk.takes = False

    def fills(number: int) -> str:
        return "x" * 3_000

    worker = worker_of(desk, fills)
    worker._tasks = assigned_tasks.AssignedTasks(10_000)
    with at_work(worker):
        tasks = [desk.task("fills", [number]) for number in range(20)]
        desk.hand(*tasks)
        desk.done(tasks[3])
        threading.Event().wait(0.1)
        done = [task for task in tasks if desk.of(task, "TASKSDONE")]
        assert len(done) < 20
        for task in tasks:
            desk.done(task)
            desk.take(task)


def test_a_stop_finishes_what_runs_and_waits_until_it_is_taken(desk: TaskDesk) -> None:
    desk.takes = False
    release = threading.Event()
    ran: list[int] = []

    def holds(number: int) -> int:
        ran.append(number)
        assert release.wait(20)
        return number

    worker = worker_of(desk, holds)
    worker.start()
    assert worker.wait_until_up(10)
    tasks = [desk.task("holds", [number]) for number in range(3)]
    desk.hand(*tasks)
    desk.runs(tasks[0])
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: desk.readies[-1]["services"] == [])
    release.set()
    assert desk.result(tasks[0]) == 0
    stopping.join(0.1)
    assert stopping.is_alive(), "its result is not taken yet"
    desk.take(tasks[0])
    stopping.join(10)
    assert not stopping.is_alive()
    until(lambda: desk.messages["DISCONNECT"] == 1)
    assert ran == [0]


def test_the_word_of_a_third_attempt_has_time_to_leave(desk: TaskDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SETTLE_SECONDS", 0.05)
    began: list[float] = []

    def when() -> None:
        began.append(time.monotonic())

    with at_work(worker_of(desk, when)):
        for attempt in (1, 3):
            task = desk.task("when", attempt=attempt)
            begin = time.monotonic()
            desk.hand(task)
            desk.done(task)
            assert (began[-1] - begin >= 0.05) == (attempt == 3)
