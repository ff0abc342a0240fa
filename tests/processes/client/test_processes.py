"""Handlers in processes of their own, and workers as programs: what dies, what survives, and what a stop finishes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import scale0
from scale0 import errors
from scale0.client import process_pool
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.gone import gone
from tests.fakes.waiting import until
from tests.processes.client import town
from tests.processes.client.net import client_of, offered, started
from tests.processes.client.programs import Program, programs

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("town")


@pytest.fixture(scope="module")
def worker(broker: BrokerProcess, folder: Path) -> Iterator[scale0.Worker]:
    """One worker in this process; its handlers run in others."""
    os.environ["TOWN_FOLDER"] = str(folder)
    made = scale0.Worker(broker.endpoints["backend"], identity="parent")
    for function in (town.pid, town.kill_self, town.crash, town.leave, town.exits, town.hang, town.family, town.drip):
        made.add(function.__name__, function, mode="process")
    made.add("burn", town.burn, mode="process", slots=2)
    made.add("raw", town.raw, mode="process", raw=True)
    with started(made):
        yield made
    del os.environ["TOWN_FOLDER"]


@pytest.mark.usefixtures("worker")
def test_cpu_bound_work_runs_in_other_processes_at_once(net: scale0.Client) -> None:
    calls = [net.start("burn", 0.2) for _ in range(2)]
    pids = {call.result() for call in calls}
    assert len(pids) == 2
    assert os.getpid() not in pids
    # They are used again: a process costs more than most requests.
    assert net.call("pid") == net.call("pid")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("service", "argument", "words"),
    [("kill_self", 9, "SIGKILL"), ("kill_self", 6, "SIGABRT"), ("crash", None, "SIGSEGV"), ("leave", 3, "status 3")],
)
def test_a_handler_that_ends_its_process_costs_that_one_request(
    net: scale0.Client, worker: scale0.Worker, service: str, argument: int | None, words: str
) -> None:
    before = net.call("pid")
    for _ in range(2):
        with pytest.raises(errors.BackendDied, match=words) as caught:
            net.call(service, *([] if argument is None else [argument]))
        assert caught.value.code == 502
    assert net.call("pid") == before
    assert worker.wait_until_up(0)


@pytest.mark.usefixtures("worker")
def test_sys_exit_is_an_error_and_no_end(net: scale0.Client) -> None:
    with pytest.raises(errors.ServiceFailed, match="SystemExit"):
        net.call("exits")


def test_a_handler_that_outlasts_its_request_is_killed(net: scale0.Client, worker: scale0.Worker, folder: Path) -> None:
    with pytest.raises(errors.NoAnswer):
        net.call("hang", timeout=1.5)
    hanging = int(until(lambda: town.notes(folder, "hanging"))[-1])
    until(lambda: gone(hanging), "its process is killed")
    assert net.call("pid") > 0
    # Parts that come in time do not lengthen it.
    begin = time.monotonic()
    with pytest.raises(errors.NoAnswer):
        list(net.stream("drip", 100, timeout=1.0))
    assert time.monotonic() - begin < 3
    assert list(net.stream("drip", 3)) == [0, 1, 2]


def test_what_a_killed_handler_started_is_killed_too(net: scale0.Client, worker: scale0.Worker, folder: Path) -> None:
    with pytest.raises(errors.NoAnswer):
        net.call("family", timeout=1.5)
    grandchild = int(until(lambda: town.notes(folder, "family"))[-1])
    until(lambda: gone(grandchild), "nothing survives it")


@pytest.mark.usefixtures("worker")
def test_raw_frames_reach_a_process(net: scale0.Client) -> None:
    assert net.request("raw", b"\0", b"x" * 3_000_000) == [b"\0", b"x" * 3_000_000, b"done"]


def test_a_process_handler_added_while_running_runs_in_a_process(net: scale0.Client, broker: BrokerProcess) -> None:
    made = scale0.Worker(broker.endpoints["backend"])
    made.add("here", os.getpid)
    with started(made):
        made.add("there", town.pid, mode="process")
        until(lambda: "there" in offered(net))
        assert net.call("here") == os.getpid()
        assert net.call("there") != os.getpid()
        made.add("nowhere", lambda: 1, mode="process")
        until(lambda: "nowhere" in offered(net))
        with pytest.raises(errors.ServiceFailed, match="function inside a function"):
            net.call("nowhere")


def test_nothing_pickled_ever_crosses_to_a_child() -> None:
    for module in ("process_pool", "handler_process"):
        source = Path(process_pool.__file__).with_name(f"{module}.py").read_text()
        assert "import pickle" not in source


def test_stopping_a_worker_ends_its_children(broker: BrokerProcess) -> None:
    made = scale0.Worker(broker.endpoints["backend"])
    made.add("stop.pid", town.pid, mode="process")
    with client_of(broker) as net, started(made):
        child = net.call("stop.pid")
        assert not gone(child)
    until(lambda: gone(child))


def test_a_script_finds_its_own_handlers_and_nothing_survives_its_death(broker: BrokerProcess, tmp_path: Path) -> None:
    with programs(broker.endpoints["backend"], tmp_path, "script") as [script], client_of(broker) as net:
        assert net.call("main.pid") != script.process.pid
        net.start("main.hang")
        until(lambda: town.notes(tmp_path, "hanging"))
        family = script.children()
        assert len(family) == 2
        script.kill9()
        # One of them is busy, and would not look at its socket for a long time.
        until(lambda: all(gone(one.pid) for one in family), "the kernel ends them")


def test_a_script_without_a_guard_is_told_so(broker: BrokerProcess, tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text(
        "import sys, scale0\n"
        "worker = scale0.Worker(sys.argv[1] if len(sys.argv) == 3 else 'tcp://127.0.0.1:9', identity='careless')\n"
        "@worker.service('careless', mode='process')\n"
        "def careless(): return 1\n"
        "worker.run()\n"
    )
    program = Program(broker.endpoints["backend"], "careless", tmp_path, str(script))
    try:
        with client_of(broker) as net:
            until(lambda: "careless" in offered(net))
            with pytest.raises(errors.BackendDied):
                net.call("careless")
        assert "__main__" in (tmp_path / "careless.log").read_text()
    finally:
        program.close()


# Promise: CLIENT-4
def test_a_stop_finishes_what_is_in_hand_and_takes_nothing_new(broker: BrokerProcess, tmp_path: Path) -> None:
    names = ("one", "two")
    with programs(broker.endpoints["backend"], tmp_path, "drains") as [program], client_of(broker, timeout=15) as net:
        in_hand = net.start("begin_and_wait", names[0])
        until(lambda: town.notes(tmp_path, "begun"))
        assert net.call("main.pid") > 0
        family = program.children()
        program.terminate()
        until(lambda: "begin_and_wait" not in offered(net), "it is offered no longer")
        later = net.start("begin_and_wait", names[1], timeout=2)
        (tmp_path / f"go.{names[1]}").touch()
        (tmp_path / f"go.{names[0]}").touch()
        assert in_hand.result() == names[0]
        assert program.wait() == 0
        with pytest.raises(errors.NoSuchService):
            later.result()
        assert town.notes(tmp_path, "begun") == [names[0]]
        assert all(gone(one.pid) for one in family)
        assert "drains" not in {row["identity"] for row in net.clients()}


def test_a_program_whose_identity_is_taken_stops_and_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    with programs(broker.endpoints["backend"], tmp_path, "doppel") as [first]:
        second = Program(broker.endpoints["backend"], "doppel", tmp_path)
        try:
            assert first.wait() == 1
            assert any(line.startswith("doppel 409") for line in town.notes(tmp_path, "left"))
            assert "409" in (tmp_path / "doppel.log").read_text()
            with client_of(broker) as net:
                assert net.call("main.pid") not in (first.process.pid, second.process.pid)
            second.terminate()
            assert second.wait() == 0
        finally:
            second.close()


def test_sigint_stops_a_program_in_order(broker: BrokerProcess, tmp_path: Path) -> None:
    with programs(broker.endpoints["backend"], tmp_path, "interrupted") as [program]:
        program.process.send_signal(signal.SIGINT)
        assert program.wait() == 0
        assert town.notes(tmp_path, "left") == ["interrupted None"]
