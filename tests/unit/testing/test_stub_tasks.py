"""Code that submits tasks is tested without a broker: tasks run at once or on demand, fail and retry as they would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import scale0
from scale0.client.task import AsyncSubmission, AsyncTask, Submission
from scale0.client.task_context import attempt, progress
from scale0.errors import (
    AfterFailed,
    KeyConflict,
    NoAnswer,
    NoSuchTask,
    TaskCancelled,
    TaskFailed,
    TaskIdTaken,
    TaskLost,
)
from scale0.testing import AsyncStubSubmission, AsyncStubTask, StubNetwork, StubSubmission, StubTask

worker = scale0.Worker(identity="one")


@worker.service("double")
def double(number: int) -> int:
    return number * 2


@worker.service("later")
async def later(number: int) -> int:
    progress(0.5, "half")
    await asyncio.sleep(0)
    return number + 1


@worker.service("third.time")
def third_time() -> int:
    if attempt() < 3:
        raise RuntimeError("not yet")
    return attempt()


def test_a_task_runs_when_it_is_submitted() -> None:
    with StubNetwork(worker) as net:
        task = net.submit("double", 21)
        assert (task.result(), task.done(), task.wait(1), task.error()) == (42, True, True, None)
        assert task.status().status == "finished"
        assert [one.id for one in net.tasks] == [task.id]
        assert net.task_of(task.id).result() == 42


def test_on_demand_tasks_wait_for_the_test() -> None:
    with StubNetwork(worker, tasks="on demand") as net:
        low, high = net.submit("double", 1), net.task(priority=9).submit("double", 2)
        assert low.status().status == "queued"
        with pytest.raises(NoAnswer):
            low.result(timeout=60)
        assert net.run_tasks(1) == 1
        assert (high.done(), low.done()) == (True, False)
        assert low.cancel()
        assert net.run_tasks() == 0
        with pytest.raises(TaskCancelled):
            low.result()


def test_a_task_that_raises_is_tried_again_up_to_its_max_attempts() -> None:
    with StubNetwork(worker) as net:
        assert net.submit("third.time").result() == 3
        task = net.task(max_attempts=2).submit("third.time")
        with pytest.raises(TaskFailed, match="not yet"):
            task.result()
        assert task.status().attempt == 2


def test_arguments_that_do_not_fit_are_not_tried_again() -> None:
    with StubNetwork(worker) as net:
        task = net.submit("double", "two")
        assert isinstance(task.error(), TaskFailed)
        assert task.status().attempt == 1


def test_a_dead_worker_costs_an_attempt_and_all_of_them_the_task() -> None:
    with StubNetwork(worker) as net:
        net.fail("double", 502, times=2)
        assert net.submit("double", 1).result() == 2
        net.fail("double", 502)
        with pytest.raises(TaskLost) as caught:
            net.submit("double", 1).result()
        assert len(caught.value.history) == 3
        net.heal()
        net.slow("double", 100)
        assert net.submit("double", 1).result() == 2
        assert isinstance(net.task(timeout=10).submit("double", 1).error(), TaskLost)


def test_a_task_for_nobody_waits_until_somebody_comes() -> None:
    with StubNetwork() as net:
        task = net.submit("double", 1)
        assert not task.done()
        net.add(worker)
        net.run_tasks()
        assert task.result() == 2


def test_keys_ids_and_tasks_that_follow_others() -> None:
    with StubNetwork(worker) as net:
        first = net.task(key="k").submit("double", 1)
        assert net.task(key="k").submit("double", 1).id == first.id
        with pytest.raises(KeyConflict) as conflict:
            net.task(key="k").submit("double", 2)
        assert (conflict.value.key, conflict.value.existing, conflict.value.differs) == ("k", first.id, ["params"])
        net.task(id="mine").submit("double", 1)
        with pytest.raises(TaskIdTaken):
            net.task(id="mine").submit("double", 1)
        with pytest.raises(TaskIdTaken):
            net.task(after=["nobody"]).submit("double", 1)
        with pytest.raises(NoSuchTask):
            net.task_of("nobody")
        bad = net.submit("double", "x")
        with pytest.raises(AfterFailed):
            net.task(after=[bad]).submit("double", 1).result()
        good = net.submit("double", 2)
        assert net.task(after=[good, "mine"]).submit("double", 1).result() == 2


def test_many_tasks_and_maps() -> None:
    with StubNetwork(worker) as net:
        assert [task.result() for task in net.submit_many("double", [1, 2])] == [2, 4]
        assert list(net.task().map("double", [(1,), (2,)], star=True, in_flight=1)) == [2, 4]
        with pytest.raises(TaskFailed):
            list(net.task().map("double", ["x"]))
        [error] = net.task().map("double", ["x"], errors="yield")
        assert isinstance(error, TaskFailed)
        [task] = net.task().map("double", [5], what="tasks")
        assert task.result() == 10


def test_progress_is_seen() -> None:
    with StubNetwork(worker) as net:
        assert net.submit("later", 1).progress() == (0.5, "half")


def test_code_with_an_async_client_submits_too() -> None:
    async def under_test(net: Any) -> list[Any]:
        async with net:
            task = await net.submit("later", 1)
            mapped = [value async for value in net.task(priority=1).map("double", [1, 2])]
            [many] = await net.submit_many("double", [7])
            status = await net.task_of(task.id).status()
            return [await task, mapped, await many, status.status, await task.done(), await task.cancel()]

    assert asyncio.run(under_test(StubNetwork(worker).asynchronous)) == [2, [2, 4], 14, "finished", True, True]


@pytest.mark.parametrize(
    ("real", "stub"),
    [
        (scale0.Task, StubTask),
        (Submission, StubSubmission),
        (AsyncTask, AsyncStubTask),
        (AsyncSubmission, AsyncStubSubmission),
    ],
)
def test_the_stub_has_every_method_of_the_real_one(real: type, stub: type) -> None:
    wanted = {name for name in dir(real) if not name.startswith("_")}
    assert wanted - set(dir(stub)) == set()


def test_a_closed_stub_takes_no_tasks() -> None:
    net = StubNetwork(worker)
    net.close()
    with pytest.raises(RuntimeError, match="closed"):
        net.submit("double", 1)
