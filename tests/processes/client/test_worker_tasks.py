"""A worker's tasks, with the broker's part played by the test: threads, coroutines, errors, progress, cancelling."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import msgspec
import pytest

import scale0
from scale0.kernel.errors import Refusal
from tests.fakes.waiting import until
from tests.processes.client.fake_broker import FakeBroker, fake_broker, worker_of
from tests.processes.client.handlers import add
from tests.processes.client.net import Concurrency, started

pytestmark = pytest.mark.processes


async def add_later(one: int, other: int = 1) -> int:
    await asyncio.sleep(0)
    return one + other


# Arguments and results


@pytest.mark.parametrize("function", [add, add_later])
@pytest.mark.parametrize("params", [[2], [2, 1], {"one": 2}, {"*": [2], "other": 1}, {"other": 1, "one": 2}])
def test_one_function_serves_calls_and_tasks(fake: FakeBroker, function: Callable[..., Any], params: Any) -> None:
    with started(worker_of(fake, function)):
        [task] = fake.assign(fake.task(function.__name__, params))
        assert fake.result(task) == 3
        fake.request(function.__name__, msgspec.json.encode(params))
        until(lambda: fake.replies == [b"3"])
    assert fake.of(task, "TASKSTATUS") == [{"id": task["id"], "attempt": 1, "status": "running"}]


def test_ready_says_prefetch_and_slots(fake: FakeBroker) -> None:
    with started(worker_of(fake, add, slots=3)):
        assert (fake.readies[0]["prefetch"], fake.readies[0]["slots"]) == (4_000, 3)
    with fake_broker() as other, started(scale0.Worker(other.endpoint, prefetch=0)):
        assert other.readies[0]["prefetch"] == 0
    for wrong in (-1, 10_001):
        with pytest.raises(ValueError, match="prefetch"):
            scale0.Worker(prefetch=wrong)


def test_the_values_of_a_generator_become_a_list(fake: FakeBroker) -> None:
    def counts(most: int) -> Generator[int, None, Any]:
        yield from range(most)
        return {"most": most}

    def none() -> Iterator[int]:
        yield from ()

    async def later(most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number
            await asyncio.sleep(0)

    with started(worker_of(fake, counts, none, later)):
        tasks = [fake.task("counts", [2]), fake.task("none"), fake.task("later", [3])]
        fake.assign(*tasks)
        assert [fake.result(task) for task in tasks] == [[0, 1, {"most": 2}], [], [0, 1, 2]]


def test_a_raw_handler_gets_and_returns_json(fake: FakeBroker) -> None:
    def raw(params: bytes) -> bytes:
        return b'{"got":%b}' % params

    def says(params: bytes) -> Any:
        return {1: b"{", 2: b'"\xff"', 3: b"NaN", 4: "text", 5: None, 6: b"1 2", 7: b"[" * 70 + b"]" * 70}[
            params[1] - 48
        ]

    worker = worker_of(fake, raw, says, raw=True)
    with started(worker):
        task, bad = fake.task("raw", {"a": [1]}), [fake.task("says", [number]) for number in range(1, 8)]
        fake.assign(task, *bad)
        assert fake.result(task) == {"got": {"a": [1]}}
        assert fake.result(bad[4]) is None
        for one in bad[:4] + bad[5:]:
            assert fake.error(one)["data"]["type"] in ("ValueError", "TypeError")


def test_one_bad_result_does_not_cost_the_others(fake: FakeBroker) -> None:
    def result(number: int) -> Any:
        deep: Any = []
        for _ in range(100):
            deep = [deep]
        return {3: object(), 4: msgspec.Raw(b'{"half":'), 5: "\ud800", 6: deep, 7: "x" * 9_000_000}.get(number, number)

    with started(worker_of(fake, result)):
        tasks = fake.assign_many("result", range(10))
        for number, task in enumerate(tasks):
            if 3 <= number <= 7:
                assert fake.error(task)["code"] == (-32071 if number == 7 else -32000)
            else:
                assert fake.result(task) == number


# Errors


def test_an_error_says_what_was_raised_and_where(fake: FakeBroker) -> None:
    def breaks() -> None:
        raise ValueError("x" * 10_000 + "é\udc80")

    with started(worker_of(fake, breaks)):
        [task] = fake.assign(fake.task("breaks"))
        error = fake.error(task)
    assert set(error) == {"code", "message", "data", "retry"}
    assert (error["code"], error["retry"], error["data"]["type"]) == (-32000, True, "ValueError")
    assert error["message"] == "ValueError: " + "x" * 1_988
    assert len(error["data"]["traceback"].encode()) <= 4_096
    assert error["data"]["traceback"].endswith("\\udc80\n")


class Unsteady(ConnectionError):
    """Nearer than its parents."""


KINDS: dict[str, Callable[[], BaseException]] = {
    "value": lambda: ValueError("no"),
    "connection": lambda: ConnectionResetError("no"),
    "unsteady": lambda: Unsteady("no"),
    "exit": lambda: SystemExit(3),
    "retry": lambda: scale0.Retry("soon", after=2.5),
    "give_up": lambda: scale0.GiveUp("no"),
    "refusal": lambda: Refusal(429, "not now"),
}


@pytest.mark.parametrize(
    ("how", "again"),
    [
        ({}, {"value", "connection", "unsteady", "exit", "retry", "refusal"}),
        ({"retry_on": ()}, {"retry"}),
        ({"retry_on": (ConnectionError, TimeoutError)}, {"connection", "unsteady", "retry"}),
        ({"give_up_on": (ValueError,)}, {"connection", "unsteady", "exit", "retry", "refusal"}),
        ({"retry_on": (OSError,), "give_up_on": (Unsteady,)}, {"connection", "retry"}),
        ({"retry_on": (Unsteady,), "give_up_on": (OSError,)}, {"unsteady", "retry"}),
    ],
)
@pytest.mark.parametrize("mode", ["thread", "coroutine"])
def test_the_type_of_an_exception_decides_about_another_attempt(
    fake: FakeBroker, how: dict[str, Any], again: set[str], mode: str
) -> None:
    def plain(kind: str) -> None:
        raise KINDS[kind]()

    async def coroutine(kind: str) -> None:
        raise KINDS[kind]()

    worker = scale0.Worker(fake.endpoint, identity="w")
    worker.service("m", **how)(plain if mode == "thread" else coroutine)
    with started(worker):
        tasks = {kind: fake.task("m", [kind]) for kind in KINDS}
        fake.assign(*tasks.values())
        errors = {kind: fake.error(task) for kind, task in tasks.items()}
    assert {kind for kind, error in errors.items() if error.get("retry", False)} == again
    assert errors["retry"]["after"] == 2.5
    assert "after" not in errors["value"]


def test_arguments_that_do_not_fit_are_final(fake: FakeBroker) -> None:
    with started(worker_of(fake, add, add_later)):
        tasks = [
            fake.task(name, params) for name in ("add", "add_later") for params in ([], ["x"], [1, 2, 3], 5, {"a": 1})
        ]
        fake.assign(*tasks)
        for task in tasks:
            error = fake.error(task)
            assert (error["code"], error.get("retry", False)) == (-32602, False)


def test_a_method_that_is_not_offered_is_for_somebody_else(fake: FakeBroker) -> None:
    with started(worker_of(fake, add)):
        [task] = fake.assign(fake.task("nothing"))
        error = fake.error(task)
    assert (error["code"], error["retry"]) == (-32601, True)


# Announcing


def test_quick_tasks_are_announced_and_handed_in_together(fake: FakeBroker) -> None:
    with started(worker_of(fake, add)):
        for _ in range(4):
            tasks = fake.assign_many("add", range(1_000))
            assert fake.result(tasks[-1]) == 1_000
    for command in ("TASKSTATUS", "TASKSDONE"):
        sizes = [size for how, size in fake.sizes if how == command]
        assert sum(sizes) == 4_000
        assert max(sizes) > 20
        assert len(sizes) < 1_000
    order = [(how, told["id"]) for how, told in fake.received]
    assert all(order.index(("TASKSTATUS", task["id"])) < order.index(("TASKSDONE", task["id"])) for task in tasks[::50])


def test_slow_tasks_and_later_attempts_are_announced_alone(fake: FakeBroker) -> None:
    def slow() -> None:
        threading.Event().wait(0.005)

    with started(worker_of(fake, add, slow)):
        tasks = fake.assign(*(fake.task("slow") for _ in range(10)))
        fake.done(tasks[-1])
        assert {size for how, size in fake.sizes if how == "TASKSTATUS"} == {1}
        first = fake.assign_many("add", range(200))
        fake.done(first[-1])
        before = len(fake.sizes)
        later = fake.assign(*(fake.task("add", [number], attempt=1 + number % 5) for number in range(50)))
        for task in later:
            fake.done(task)
        sizes = [size for how, size in fake.sizes[before:] if how == "TASKSTATUS"]
        assert sizes.count(1) >= 40


def test_no_more_tasks_run_at_once_than_there_are_slots(fake: FakeBroker) -> None:
    inside, waiting = Concurrency(), Concurrency()

    def slow() -> None:
        with inside:
            threading.Event().wait(0.02)

    async def waits() -> None:
        with waiting:
            await asyncio.sleep(0.02)

    worker = scale0.Worker(fake.endpoint, identity="w")
    worker.add("slow", slow, slots=4)
    worker.add("waits", waits, slots=5)
    with started(worker):
        tasks = fake.assign(*(fake.task(name) for _ in range(40) for name in ("slow", "waits")))
        for task in tasks:
            fake.done(task)
    assert (inside.most, waiting.most) == (4, 5)


def test_a_slow_one_among_quick_tasks_holds_up_none_but_its_own_slot(fake: FakeBroker) -> None:
    release = threading.Event()

    def mostly_quick(slow: bool) -> bool:
        if slow:
            release.wait(20)
        return slow

    with started(worker_of(fake, mostly_quick, slots=2)):
        warm = fake.assign(*(fake.task("mostly_quick", [False]) for _ in range(500)))
        fake.done(warm[-1])
        tasks = fake.assign(*(fake.task("mostly_quick", [number == 3]) for number in range(200)))
        for number, task in enumerate(tasks):
            if number != 3:
                assert fake.result(task) is False
        assert fake.of(tasks[3], "TASKSDONE") == []
        release.set()
        assert fake.result(tasks[3]) is True


def test_requests_come_before_tasks_that_have_not_begun(fake: FakeBroker) -> None:
    def naps() -> None:
        threading.Event().wait(0.01)

    with started(worker_of(fake, naps)):
        tasks = fake.assign(*(fake.task("naps") for _ in range(100)))
        fake.runs(tasks[0])
        fake.request("naps")
        until(lambda: fake.replies)
        assert not fake.of(tasks[50], "TASKSDONE")


# Progress


def test_progress_is_sent_seldom_the_latest_wins_and_the_last_comes_before_the_end(fake: FakeBroker) -> None:
    def tells(seconds: float) -> int:
        end = time.monotonic() + seconds
        told = 0
        while time.monotonic() < end:
            told += 1
            scale0.progress(min(1.0, told / 1e9), f"{told}")
            threading.Event().wait(0.001)
        scale0.progress(5, "the last")
        return scale0.attempt()

    with started(worker_of(fake, tells)):
        [task] = fake.assign(fake.task("tells", [0.55], attempt=2))
        assert fake.result(task) == 2
        statuses = fake.of(task, "TASKSTATUS")
    assert statuses[0] == {"id": task["id"], "attempt": 2, "status": "running"}
    assert 4 <= len(statuses) <= 9
    assert statuses[-1] == {**statuses[0], "progress": 1.0, "note": "the last"}
    numbers = [int(one["note"]) for one in statuses[1:-1]]
    assert numbers == sorted(numbers)


def test_progress_from_coroutines_and_threads_of_their_own(fake: FakeBroker) -> None:
    async def tells() -> int:
        def aside() -> int:
            scale0.progress(0.25, "aside")
            return scale0.attempt()

        return await asyncio.to_thread(aside)

    def elsewhere() -> int:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(scale0.progress, 0.5))
        thread.start()
        thread.join()
        return scale0.attempt()

    with started(worker_of(fake, tells, elsewhere)):
        tasks = [fake.task("tells", attempt=2), fake.task("elsewhere")]
        fake.assign(*tasks)
        assert [fake.result(task) for task in tasks] == [2, 1]
        assert fake.of(tasks[0], "TASKSTATUS")[-1]["note"] == "aside"
        assert fake.of(tasks[1], "TASKSTATUS")[-1]["progress"] == 0.5


def test_outside_of_a_task_nothing_is_sent(fake: FakeBroker) -> None:
    def tells() -> list[Any]:
        scale0.progress(float("nan"), "ignored")
        return [scale0.attempt(), scale0.cancelled()]

    assert tells() == [0, False]
    with started(worker_of(fake, tells, add)):
        [task] = fake.assign(fake.task("add", [1]))
        fake.done(task)
        fake.request("tells")
        until(lambda: fake.replies == [b"[0,false]"])
        nan = fake.task("tells")
        fake.assign(nan)
        assert "NaN" in fake.error(nan)["message"]


# Cancelling and time


def test_a_thread_sees_that_it_was_cancelled_and_says_nothing(fake: FakeBroker) -> None:
    ended = threading.Event()

    def looks() -> str:
        until(scale0.cancelled)
        ended.set()
        return "in vain"

    with started(worker_of(fake, looks, add)):
        task, never = fake.task("looks"), fake.task("looks")
        fake.assign(task, never)
        fake.runs(task)
        fake.cancel(task, never)
        assert ended.wait(10)
        fake.outcome("add", [1])
        assert fake.of(task, "TASKSDONE") == []
        assert fake.of(never, "TASKSTATUS") == []


def test_a_coroutine_that_is_cancelled_ends_at_once(fake: FakeBroker) -> None:
    ended = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with started(worker_of(fake, waits, add_later, slots=1)):
        [task] = fake.assign(fake.task("waits"))
        fake.runs(task)
        fake.cancel(task)
        assert ended.wait(10)
        again, sign = fake.task("waits", timeout=0.05), fake.task("add_later", [1])
        fake.assign(again, sign)
        fake.done(sign)
        fake.done(again)
        assert fake.of(task, "TASKSDONE") == [], "and its slot is free"


def test_a_task_that_outlasts_its_time_has_failed(fake: FakeBroker) -> None:
    def looks() -> str:
        until(scale0.cancelled)
        return "too late"

    async def waits() -> None:
        await asyncio.sleep(60)

    async def stubborn() -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                pass
        return "too late"

    with started(worker_of(fake, looks, waits, stubborn)):
        tasks = fake.assign(*(fake.task(name, timeout=0.05) for name in ("looks", "waits", "stubborn")))
        for task in tasks:
            error = fake.error(task)
            assert "took longer than 0.05 s" in error["message"]
            assert error["retry"]
