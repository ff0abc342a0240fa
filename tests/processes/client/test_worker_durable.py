"""Tasks from a client over a real broker to a real worker: progress, attempts, time, cancelling, brokers that die."""

# Promise: TASK-11
# Promise: TASK-14
from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import until
from tests.processes.client import handlers
from tests.processes.client.net import client_of, started, working

pytestmark = pytest.mark.processes

ran: Counter[str] = Counter()


def seen(name: str) -> int:
    """How often it ran, this time included."""
    ran[name] += 1
    return ran[name]


@pytest.fixture(scope="module")
def worker(broker: BrokerProcess) -> Iterator[scale0.Worker]:
    made = scale0.Worker(broker.endpoints["backend"], identity="durable")
    for name in ("segfault", "leave", "hog", "hangs"):
        made.add(name, getattr(handlers, name), mode="process", slots=2)

    @made.service("flaky", retry_on=(ConnectionError,))
    def flaky(name: str, succeeds_at: int) -> int:
        if seen(name) < succeeds_at:
            raise ConnectionResetError("once more")
        return scale0.attempt()

    @made.service("wrong", retry_on=(ConnectionError,), give_up_on=(ValueError,))
    def wrong(name: str) -> None:
        seen(name)
        raise ValueError("never")

    @made.service("typed")
    def typed(number: int) -> int:
        return number

    with started(made):
        yield made


def outcome(task: scale0.Task) -> scale0.TaskFailed:
    with pytest.raises(scale0.TaskFailed) as caught:
        task.result(timeout=20)
    return caught.value


def test_progress_is_seen_while_it_runs(broker: BrokerProcess, net: scale0.Client) -> None:
    release = threading.Event()

    def tells() -> str:
        scale0.progress(0.4, note="nearly half")
        assert release.wait(20)
        scale0.progress(0.9)
        return "done"

    with working(broker, tells):
        task = net.submit("tells")
        until(lambda: task.progress() == (0.4, "nearly half"))
        release.set()
        assert task.result(timeout=10) == "done"
        assert task.progress()[0] == 0.9


@pytest.mark.usefixtures("worker")
def test_what_is_to_be_retried_is_tried_again_and_nothing_else(net: scale0.Client) -> None:
    assert net.submit("flaky", "a", 3).result(timeout=20) == 3
    assert ran["a"] == 3
    lost = outcome(net.submit("flaky", "b", 4))
    assert "once more" in str(lost)
    assert ran["b"] == 3
    failed = outcome(net.submit("wrong", "c"))
    assert (failed.code, ran["c"]) == (-32000, 1)
    assert outcome(net.submit("typed", "x")).code == -32602


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [("segfault", [], "SIGSEGV"), ("leave", [3], "exit status 3"), ("hog", [64 * 1024 * 1024], "")],
)
def test_a_death_of_its_process_costs_an_attempt_and_not_the_worker(
    net: scale0.Client, method: str, arguments: list[Any], words: str
) -> None:
    task = net.task(max_attempts=2).submit(method, *arguments)
    assert words in str(outcome(task))
    assert task.status().attempt == 2
    assert net.submit("typed", 1).result(timeout=10) == 1


@pytest.mark.usefixtures("worker")
def test_a_task_that_outlasts_its_time_is_ended_in_every_attempt(net: scale0.Client, tmp_path: Path) -> None:
    task = net.task(timeout=0.5, max_attempts=2).submit("hangs", str(tmp_path / "pids"))
    outcome(task)
    assert task.status().attempt == 2


@pytest.mark.usefixtures("worker")
def test_a_cancelled_task_is_stopped(broker: BrokerProcess, net: scale0.Client, tmp_path: Path) -> None:
    ended = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def looks() -> None:
        until(scale0.cancelled)
        looked.set()

    looked = threading.Event()
    file = tmp_path / "pids"
    with working(broker, waits, looks):
        tasks = [net.submit("waits"), net.submit("looks"), net.submit("hangs", str(file))]
        for task in tasks:
            until(lambda: task.status().code == 5_000)  # noqa: B023  # it is called at once
            assert task.cancel()
            with pytest.raises(scale0.TaskCancelled):
                task.result(timeout=10)
        assert ended.wait(10)
        assert looked.wait(10)
    assert net.submit("typed", 1).result(timeout=10) == 1


def test_a_task_outlives_its_broker_and_is_not_run_twice(tmp_path: Path) -> None:
    release = threading.Event()
    began: list[int] = []

    def holds(number: int) -> int:
        began.append(number)
        assert release.wait(30)
        return number

    with (
        broker_process(tmp_path) as broker,
        working(broker, holds, slots=2, identity="holder"),
        client_of(broker, identity="owner", timeout=30) as net,
    ):
        tasks = [net.submit("holds", number) for number in range(4)]
        until(lambda: len(began) == 2)
        broker.kill9()
        release.set()
        broker.restart()
        assert [task.result(timeout=30) for task in tasks] == list(range(4))
    assert sorted(began) == list(range(4))


def test_results_that_a_dead_broker_did_not_take_are_taken_by_the_next(tmp_path: Path) -> None:
    """It ends while there is no broker at all."""
    release, ended = threading.Event(), threading.Event()
    began: list[int] = []

    def holds(number: int) -> int:
        began.append(number)
        assert release.wait(30)
        ended.set()
        return number

    with (
        broker_process(tmp_path) as broker,
        working(broker, holds, identity="holder"),
        client_of(broker, identity="owner", timeout=30) as net,
    ):
        task = net.submit("holds", 7)
        until(lambda: began)
        broker.kill9()
        release.set()
        assert ended.wait(10)
        broker.restart()
        assert task.result(timeout=30) == 7
        assert task.status().attempt == 1
    assert began == [7]
