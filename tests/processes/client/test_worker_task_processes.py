"""A worker's tasks in processes of their own: whatever happens to the process costs one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scale0
from tests.fakes.gone import gone
from tests.fakes.waiting import until
from tests.processes.client import task_town as town
from tests.processes.client.task_desk import TaskDesk, at_work, task_desk

pytestmark = pytest.mark.processes

LIMIT = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def desk() -> Iterator[TaskDesk]:
    """One worker for all: what one test does to its children is not seen by the next."""
    with task_desk() as made:
        worker = scale0.Worker(made.endpoint, identity="w")
        for function in (town.add, town.pid, town.segfault, town.leave, town.hog, town.tells, town.counts, town.hangs):
            worker.add(function.__name__, function, mode="process")
        worker.add("raises", town.raises, mode="process", retry_on=(ConnectionError,))
        worker.add("never", town.segfault, mode="process", retry_on=())
        with at_work(worker):
            yield made


def outcome(desk: TaskDesk, method: str, params: Any = (), **more: Any) -> dict[str, Any]:
    task = desk.task(method, params, **more)
    desk.hand(task)
    return desk.done(task)


def test_a_process_runs_one_task_after_the_other(desk: TaskDesk) -> None:
    assert outcome(desk, "add", {"one": 2})["result"] == 3
    assert outcome(desk, "counts", [3])["result"] == [0, 1, 2]
    assert outcome(desk, "pid")["result"] == outcome(desk, "pid")["result"]
    assert outcome(desk, "add", ["x"])["error"]["code"] == -32602


@pytest.mark.parametrize(("method", "params", "words"), [("segfault", [], "SIGSEGV"), ("leave", [3], "exit status 3")])
def test_a_process_that_dies_costs_one_attempt(desk: TaskDesk, method: str, params: list[Any], words: str) -> None:
    for attempt in (1, 2):
        error = outcome(desk, method, params, attempt=attempt)["error"]
        assert (error["code"], error["retry"]) == (-32000, True)
        assert words in error["message"]
        assert error["data"]["type"] == "ProcessDied"
    assert outcome(desk, "add", [1])["result"] == 2, "the worker lives"


def test_who_wants_nothing_tried_again_gets_no_second_attempt_for_a_death(desk: TaskDesk) -> None:
    assert not outcome(desk, "never")["error"].get("retry", False)


def test_a_process_that_may_have_no_more_memory_costs_one_attempt(desk: TaskDesk) -> None:
    error = outcome(desk, "hog", [LIMIT])["error"]
    assert error["retry"]
    assert "MemoryError" in error["message"] or "died" in error["message"]
    assert outcome(desk, "add", [1])["result"] == 2


@pytest.mark.parametrize(("name", "again"), [("unsteady", True), ("value", False), ("retry", True), ("give_up", False)])
def test_the_type_of_a_childs_exception_decides_about_another_attempt(desk: TaskDesk, name: str, again: bool) -> None:
    error = outcome(desk, "raises", [name])["error"]
    assert error.get("retry", False) == again
    assert "in raises" in error["data"]["traceback"]


def test_progress_of_a_child_is_said_and_the_last_before_the_end(desk: TaskDesk) -> None:
    task = desk.task("tells", [20_000], attempt=2)
    desk.hand(task)
    assert desk.result(task) == 2
    said = desk.of(task, "TASKSTATUS")
    assert said[-1]["progress"] == 1.0
    assert said[-1]["note"] == "word 20000"
    assert len(said) < 100


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_child_that_is_cancelled_or_outlasts_its_time_is_killed_with_all_that_it_started(
    desk: TaskDesk, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "pids"
    task = desk.task("hangs", [str(file)], timeout=2.0 if how == "timeout" else 60)
    desk.hand(task)
    until(lambda: file.exists() and file.read_text())
    if how == "cancel":
        desk.cancel(task)
    else:
        error = desk.error(task)
        assert "took longer than 2 s: it was killed" in error["message"]
        assert error["retry"]
    for pid in map(int, file.read_text().split()):
        until(lambda: gone(pid))  # noqa: B023  # it is called at once
    assert outcome(desk, "add", [1])["result"] == 2
    if how == "cancel":
        assert desk.of(task, "TASKSDONE") == []
