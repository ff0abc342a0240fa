"""A worker's tasks in processes of their own: whatever happens to the process costs one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scale0
from tests.fakes.processes import gone
from tests.fakes.waiting import until
from tests.processes.client import handlers
from tests.processes.client.fake_broker import FakeBroker, fake_broker
from tests.processes.client.net import started

pytestmark = pytest.mark.processes

LIMIT = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeBroker]:
    """One worker for all: what one test does to its children is not seen by the next."""
    with fake_broker() as made:
        worker = scale0.Worker(made.endpoint, identity="w")
        for name in ("add", "pid", "segfault", "leave", "hog", "tells", "parts", "hangs"):
            worker.add(name, getattr(handlers, name), mode="process")
        worker.add("raises", handlers.raises, mode="process", retry_on=(ConnectionError,))
        worker.add("never", handlers.segfault, mode="process", retry_on=())
        with started(worker):
            yield made


def test_a_process_runs_one_task_after_the_other(fake: FakeBroker) -> None:
    assert fake.outcome("add", {"one": 2})["result"] == 3
    assert fake.outcome("parts", [3])["result"] == [0, 1, 2]
    assert fake.outcome("pid")["result"] == fake.outcome("pid")["result"]
    assert fake.outcome("add", ["x"])["error"]["code"] == -32602


@pytest.mark.parametrize(("method", "params", "words"), [("segfault", [], "SIGSEGV"), ("leave", [3], "exit status 3")])
def test_a_process_that_dies_costs_one_attempt(fake: FakeBroker, method: str, params: list[Any], words: str) -> None:
    for attempt in (1, 2):
        error = fake.outcome(method, params, attempt=attempt)["error"]
        assert (error["code"], error["retry"]) == (-32000, True)
        assert words in error["message"]
        assert error["data"]["type"] == "ProcessDied"
    assert fake.outcome("add", [1])["result"] == 2, "the worker lives"


def test_who_wants_nothing_tried_again_gets_no_second_attempt_for_a_death(fake: FakeBroker) -> None:
    assert not fake.outcome("never")["error"].get("retry", False)


def test_a_process_that_may_have_no_more_memory_costs_one_attempt(fake: FakeBroker) -> None:
    error = fake.outcome("hog", [LIMIT])["error"]
    assert error["retry"]
    assert "MemoryError" in error["message"] or "died" in error["message"]
    assert fake.outcome("add", [1])["result"] == 2


@pytest.mark.parametrize(("name", "again"), [("unsteady", True), ("value", False), ("retry", True), ("give_up", False)])
def test_the_type_of_a_childs_exception_decides_about_another_attempt(fake: FakeBroker, name: str, again: bool) -> None:
    error = fake.outcome("raises", [name])["error"]
    assert error.get("retry", False) == again
    assert "in raises" in error["data"]["traceback"]


def test_progress_of_a_child_is_sent_and_the_last_before_the_end(fake: FakeBroker) -> None:
    [task] = fake.assign(fake.task("tells", [20_000], attempt=2))
    assert fake.result(task) == 2
    statuses = fake.of(task, "TASKSTATUS")
    assert statuses[-1]["progress"] == 1.0
    assert statuses[-1]["note"] == "word 20000"
    assert len(statuses) < 100


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_child_that_is_cancelled_or_outlasts_its_time_is_killed_with_all_that_it_started(
    fake: FakeBroker, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "pids"
    [task] = fake.assign(fake.task("hangs", [str(file)], timeout=2.0 if how == "timeout" else 60))
    until(lambda: file.exists() and file.read_text())
    if how == "cancel":
        fake.cancel(task)
    else:
        error = fake.error(task)
        assert "took longer than 2 s: it was killed" in error["message"]
        assert error["retry"]
    for pid in map(int, file.read_text().split()):
        until(lambda: gone(pid))  # noqa: B023  # it is called at once
    assert fake.outcome("add", [1])["result"] == 2
    if how == "cancel":
        assert fake.of(task, "TASKSDONE") == []
