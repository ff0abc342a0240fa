"""Durable tasks through a real broker: submitted, done, followed, cancelled, and still there whoever is killed."""

# Promise: TASK-11
from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scale0
from scale0.client.task_context import progress
from scale0.errors import (
    AfterFailed,
    KeyConflict,
    NoAnswer,
    NoSuchTask,
    NotAllSubmitted,
    TaskCancelled,
    TaskFailed,
    TaskIdTaken,
    Unknown,
    Unreachable,
)
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import until
from tests.processes.client import handlers
from tests.processes.client.net import Together, client_of, programs, raises, started

pytestmark = pytest.mark.processes

gates: dict[str, threading.Event] = {}


def echo(value: Any = None, **more: Any) -> Any:
    return [value, more] if more else value


def waits(name: str) -> str:
    progress(0.25, "begun")
    gates[name].wait(20)
    return name


def breaks(words: str) -> None:
    raise RuntimeError(words)


@pytest.fixture(scope="module", autouse=True)
def at_work(broker: BrokerProcess) -> Iterator[None]:
    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("echo", echo, slots=8)
    worker.add("waits", waits, slots=8)
    worker.add("breaks", breaks)
    with started(worker):
        yield


@pytest.fixture
def gate() -> Iterator[str]:
    name = f"gate-{len(gates)}"
    gates[name] = threading.Event()
    yield name
    gates[name].set()


def test_a_task_is_taken_done_and_its_result_read_any_number_of_times(net: scale0.Client) -> None:
    task = net.submit("echo", {"a": [1, None, "ü"]})
    assert task.result(10) == {"a": [1, None, "ü"]}
    assert task.result() == task.result()
    assert task.wait(0)
    assert task.done()
    status = task.status()
    assert (status.task_id, status.status, status.code, status.attempt) == (task.id, "finished", 7_000, 1)
    assert status.submitted is not None
    assert status.finished is not None
    assert status.submitted <= status.finished


def test_all_keyword_arguments_are_the_handlers_own(net: scale0.Client) -> None:
    task = net.submit("echo", 1, timeout=2, priority=3, service="x", key="y")
    assert task.result(10) == [1, {"timeout": 2, "priority": 3, "service": "x", "key": "y"}]
    assert net.submit("echo").result(10) is None


def test_a_result_that_is_late_can_be_asked_for_again(net: scale0.Client, gate: str) -> None:
    task = net.submit("waits", gate)
    with pytest.raises(NoAnswer, match=task.id):
        task.result(timeout=0.1)
    assert not task.wait(0.05)
    assert not task.done()
    gates[gate].set()
    assert task.result(10) == gate


def test_a_task_whose_end_is_not_pushed_is_asked_for(net: scale0.Client, gate: str) -> None:
    task = net.task(notify=False).submit("waits", gate)
    threading.Timer(0.1, gates[gate].set).start()
    assert task.result(10) == gate


# Promise: TASK-18
def test_results_that_are_larger_than_a_message_together_are_all_read(broker: BrokerProcess) -> None:
    """A client that did not submit them asks for all at once: no answer holds them together."""
    with client_of(broker, identity="large-results") as first:
        ids = [first.task(notify=False).submit("echo", "x" * 1_000_000, n=number).id for number in range(20)]
        assert until(lambda: all(first.task_of(id_).status().ended for id_ in ids))
    found: dict[int, Any] = {}
    with client_of(broker, identity="large-results") as net:
        threads = Together()
        for number, id_ in enumerate(ids):
            threads.start(lambda number, id_: found.update({number: net.task_of(id_).result(30)[1]}), number, id_)
        threads.join()
    assert found == {number: {"n": number} for number in range(20)}


def test_progress_is_what_the_worker_said(net: scale0.Client, gate: str) -> None:
    task = net.submit("waits", gate)
    assert until(lambda: task.progress() == (0.25, "begun"))
    assert task.status().status == "running"


def test_a_failed_task_raises_what_its_handler_said(net: scale0.Client) -> None:
    task = net.task(max_attempts=2).submit("breaks", "too hot")
    with pytest.raises(TaskFailed, match="too hot") as caught:
        task.result(20)
    assert caught.value.task_id == task.id
    assert isinstance(task.error(), TaskFailed)
    assert task.status().attempt == 2
    with pytest.raises(AfterFailed):
        net.task(after=[task]).submit("echo", 1).result(10)


def test_a_key_gives_the_first_task_back(net: scale0.Client, gate: str) -> None:
    first = net.task(key=gate).submit("waits", gate)
    second = net.task(key=gate).submit("waits", gate)
    assert second.id == first.id
    with pytest.raises(KeyConflict, match=f"the key '{gate}' belongs to the task {first.id}") as caught:
        net.task(key=gate).submit("waits", "another")
    assert (caught.value.key, caught.value.existing, caught.value.differs) == (gate, first.id, ["params"])
    gates[gate].set()
    assert [second.result(10), first.result(10)] == [gate, gate]
    assert net.task(key=gate).submit("waits", gate).result(10) == gate
    with pytest.raises(KeyConflict):
        net.task(key=gate).submit("echo", gate)


def test_a_task_follows_those_that_it_names(net: scale0.Client, gate: str) -> None:
    first = net.submit("waits", gate)
    second = net.task(after=[first]).submit("echo", 2)
    third = net.task(after=[second.id]).submit("echo", 3)
    assert third.status().status == "scheduled"
    gates[gate].set()
    assert third.result(10) == 3
    assert second.done()


def test_a_cancelled_task_ends_as_cancelled(net: scale0.Client, gate: str) -> None:
    running, waiting = net.submit("waits", gate), net.task(delay=600).submit("echo", 1)
    until(lambda: running.status().status == "running")
    for task in (running, waiting):
        assert task.cancel()
        with pytest.raises(TaskCancelled):
            task.result(10)
        assert task.status().status == "cancelled"


def test_an_id_of_ones_own_is_taken_once(net: scale0.Client, gate: str) -> None:
    assert net.task(id=f"mine.{gate}.{net.task_client}").submit("echo", 1).id == f"mine.{gate}.{net.task_client}"
    with pytest.raises(TaskIdTaken):
        net.task(id=f"mine.{gate}.{net.task_client}").submit("echo", 1)


def test_another_client_with_the_same_identity_finds_the_task_again(broker: BrokerProcess, gate: str) -> None:
    with client_of(broker, identity="somebody", timeout=10) as first:
        id_ = first.submit("waits", gate).id
    with client_of(broker, identity="somebody", timeout=10) as second:
        task = second.task_of(id_)
        assert not task.done()
        threading.Timer(0.2, gates[gate].set).start()
        assert task.result(10) == gate
        assert second.task_of(id_).done()
        with pytest.raises(NoSuchTask):
            second.task_of("nobody").result(10)
        with pytest.raises(NoSuchTask):
            second.task_of("nobody").status()
    with client_of(broker, identity="somebody.else", timeout=10) as third, pytest.raises(NoSuchTask):
        third.task_of(id_).result(10)


def test_many_tasks_are_submitted_in_windows_and_keep_their_order(net: scale0.Client) -> None:
    tasks = net.task(window=100).submit_many("echo", range(1_050))
    assert [task.result(30) for task in tasks] == list(range(1_050))
    starred = net.submit_many("echo", [(1,), (2,)], star=True)
    assert [task.result(10) for task in starred] == [1, 2]
    assert net.submit_many("echo", []) == []


def test_a_bad_item_says_how_many_were_taken_before_it(net: scale0.Client) -> None:
    with pytest.raises(TypeError) as caught:
        net.task(window=2).submit_many("echo", [1, 2, object()])
    assert caught.value.__notes__ == ["2 tasks were submitted before this"]


def test_a_map_yields_results_as_they_come_and_never_has_more_under_way(net: scale0.Client) -> None:
    assert sorted(net.task().map("echo", range(2_500), in_flight=200)) == list(range(2_500))
    assert list(net.task().map("echo", [])) == []
    found = list(net.task(max_attempts=1).map("breaks", ["a", "b"], errors="yield"))
    assert all(isinstance(one, TaskFailed) for one in found)
    with pytest.raises(TaskFailed):
        list(net.task(max_attempts=1).map("breaks", ["a", "b"]))
    tasks = list(net.task().map("echo", [5], what="tasks"))
    assert [task.result() for task in tasks] == [5]


def test_a_map_that_is_left_leaves_nothing_behind(net: scale0.Client) -> None:
    results = net.task().map("echo", range(1_000), in_flight=10)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert net._core.tasks._subscriptions.waited_for == {}
    assert net.submit("echo", 1).result(10) == 1


def test_without_waiting_a_task_is_taken_all_the_same(broker: BrokerProcess) -> None:
    with client_of(broker, timeout=10, identity="hasty") as net:
        tasks = [net.task(wait=False, window=50).submit("echo", number) for number in range(200)]
        assert tasks[0].confirm(10) is tasks[0]
        assert [task.result(10) for task in tasks] == list(range(200))
        left = net.task(wait=False).submit("echo", "left").id
    with client_of(broker, timeout=10, identity="hasty") as net:
        assert net.task_of(left).result(10) == "left"


def test_eight_threads_submit_with_one_client_and_no_task_is_lost(net: scale0.Client) -> None:
    got: list[list[Any]] = [[] for _ in range(8)]

    def submit_on(thread: int) -> None:
        for number in range(100):
            value = thread * 100 + number
            got[thread].append(net.submit("echo", value).result(30) == value)
        got[thread].append(sorted(net.task().map("echo", range(200))) == list(range(200)))
        got[thread].append(net.call("echo", thread) == thread)

    together = Together()
    for thread in range(8):
        together.start(submit_on, thread)
    together.join(60)
    assert got == [[True] * 102] * 8


def test_several_threads_wait_for_one_task(net: scale0.Client, gate: str) -> None:
    task = net.submit("waits", gate)
    found: list[Any] = []
    together = Together()
    for _ in range(5):
        together.start(lambda: found.append(task.result(20)))
    hasty: list[str] = []

    def give_up() -> None:
        raises(NoAnswer, lambda: task.result(0.1))
        hasty.append("gave up")

    together.start(give_up)
    until(lambda: hasty and net._waiters, "one gave up, and somebody follows")
    gates[gate].set()
    together.join()
    assert found == [gate] * 5


async def test_coroutines_submit_await_and_map(broker: BrokerProcess, gate: str) -> None:
    async with scale0.AsyncClient(broker.endpoints["frontend"], timeout=10) as net:
        tasks = await asyncio.gather(*(net.submit("echo", number) for number in range(300)))
        assert await asyncio.gather(*tasks) == list(range(300))
        assert sorted([one async for one in net.task().map("echo", range(1_000), in_flight=100)]) == list(range(1_000))
        many = await net.submit_many("echo", range(50))
        assert [await task for task in many] == list(range(50))
        slow = await net.submit("waits", gate)
        with pytest.raises(NoAnswer):
            await slow.result(timeout=0.1)
        assert not await slow.done()
        await until_begun(slow)
        waiters = [asyncio.create_task(slow.result(10)) for _ in range(3)]
        await asyncio.sleep(0)
        gates[gate].set()
        assert await asyncio.gather(*waiters) == [gate] * 3
        again = net.task_of(slow.id)
        assert (await again.wait(10), await again) == (True, gate)
        hasty = await net.task(wait=False).submit("echo", 5)
        assert await (await hasty.confirm(10)) == 5
        cancelled = await net.task(delay=600).submit("echo", 1)
        assert await cancelled.cancel()
        with pytest.raises(TaskCancelled):
            await cancelled
        with pytest.raises(NoSuchTask):
            await net.task_of("nobody").status()
        with pytest.raises(TaskFailed):
            async for _ in net.task(max_attempts=1).map("breaks", ["x"]):
                pass


async def until_begun(task: scale0.AsyncTask) -> None:
    async with asyncio.timeout(20):
        while await task.progress() != (0.25, "begun"):
            pass


def test_closing_ends_waits_and_leaves_the_task_alone(broker: BrokerProcess, gate: str) -> None:
    net = client_of(broker, identity="leaver", timeout=10)
    task = net.submit("waits", gate)
    together = Together()
    together.start(raises, scale0.CallError, lambda: task.result(20))
    until(lambda: net._leader, "it waits")
    net.close()
    together.join()
    gates[gate].set()
    with client_of(broker, identity="leaver", timeout=10) as again:
        assert again.task_of(task.id).result(10) == gate


def has_noticed(net: scale0.Client) -> bool:
    net._core.socket.pump()
    return net._core.session.connection.state == "down"


def test_without_a_broker_a_submission_ends_in_time_and_says_what_is_known(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker, client_of(broker, timeout=1) as net:
        assert net.submit("nobody.yet", 1).status().status == "queued"
        broker.kill9()
        until(lambda: has_noticed(net), "the connection is gone")
        with pytest.raises((Unknown, Unreachable)):
            net.submit("echo", 1)
        with pytest.raises(NotAllSubmitted) as caught:
            net.submit_many("echo", [1, 2])
        assert len(caught.value.tasks) == len(caught.value.refused) == 2


def test_tasks_survive_kill9_of_the_broker_between_submit_and_result(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", default_heartbeat_interval=0.5) as broker:
        with client_of(broker, timeout=30) as net:
            early = net.submit_many("once", range(100))
            held = net.submit("begin_and_wait", "held")
            broker.kill9()
            late: list[Any] = []
            together = Together()
            together.start(lambda: late.extend(net.submit_many("once", range(100, 200))))
            together.start(lambda: held.wait(60))
            broker.restart()
            (tmp_path / "go.held").touch()
            with programs(broker.endpoints["backend"], tmp_path, "worker"):
                together.join(60)
                assert [task.result(60) for task in early + late] == list(range(200))
                assert held.result(60) == "held"
        runs = Counter(line.split()[0] for line in handlers.notes(tmp_path, "done"))
        assert runs == Counter(map(str, range(200)))


def test_tasks_survive_kill9_of_the_broker_while_they_run(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "broker", default_heartbeat_interval=0.5) as broker,
        client_of(broker) as net,
        programs(broker.endpoints["backend"], tmp_path, "worker"),
    ):
        tasks = [net.submit("begin_and_wait", name) for name in ("one", "two")]
        until(lambda: len(handlers.notes(tmp_path, "begun")) == 2, "both run")
        waiting = Together()
        waiting.start(lambda: tasks[1].wait(60))
        broker.kill9()
        (tmp_path / "go.one").touch()
        broker.restart()
        (tmp_path / "go.two").touch()
        assert [task.result(60) for task in tasks] == ["one", "two"]
        waiting.join(60)
        assert len(handlers.notes(tmp_path, "begun")) == 2, "what was done is not done again"


def test_tasks_of_a_killed_worker_are_done_by_another(tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker", default_heartbeat_interval=0.5) as broker, client_of(broker) as net:
        with programs(broker.endpoints["backend"], tmp_path, "first"):
            task = net.submit("begin_and_wait", "it")
            until(lambda: handlers.notes(tmp_path, "begun"), "it runs")
        with programs(broker.endpoints["backend"], tmp_path, "second"):
            until(lambda: len(handlers.notes(tmp_path, "begun")) == 2, "it runs again")
            (tmp_path / "go.it").touch()
            assert task.result(30) == "it"
            assert task.status().attempt == 2
            assert task.status().node_id == "second"
