"""Handlers in processes of their own, and workers as programs: what dies, what survives, and what a stop finishes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import scale0
from scale0 import errors
from scale0.client import process_pool
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.processes import background, gone
from tests.fakes.waiting import until
from tests.processes.client import handlers
from tests.processes.client.net import WorkerProgram, client_of, offered, programs, started

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def worker(broker: BrokerProcess) -> Iterator[scale0.Worker]:
    """One worker in this process; its handlers run in others."""
    made = scale0.Worker(broker.endpoints["backend"], identity="parent")
    for name in ("pid", "kill_self", "segfault", "leave", "exits", "hangs", "drip"):
        made.add(name, getattr(handlers, name), mode="process")
    made.add("burn", handlers.burn, mode="process", slots=2)
    made.add("raw", handlers.raw, mode="process", raw=True)
    with started(made):
        yield made


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
    [("kill_self", 9, "SIGKILL"), ("kill_self", 6, "SIGABRT"), ("segfault", None, "SIGSEGV"), ("leave", 3, "status 3")],
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


@pytest.mark.usefixtures("worker")
def test_a_handler_that_outlasts_its_request_is_killed_with_all_that_it_started(
    net: scale0.Client, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    with pytest.raises(errors.NoAnswer):
        net.call("hangs", str(file), timeout=1.5)
    pids = [int(pid) for pid in file.read_text().split()]
    until(lambda: all(map(gone, pids)), "nothing survives it")
    assert net.call("pid") > 0
    # Parts that come in time do not lengthen it.
    begin = time.monotonic()
    with pytest.raises(errors.NoAnswer):
        list(net.stream("drip", 100, timeout=1.0))
    assert time.monotonic() - begin < 3
    assert list(net.stream("drip", 3)) == [0, 1, 2]


@pytest.mark.usefixtures("worker")
def test_raw_frames_reach_a_process(net: scale0.Client) -> None:
    assert net.request("raw", b"\0", b"x" * 3_000_000) == [b"\0", b"x" * 3_000_000, b"done"]


def test_a_process_handler_added_while_running_runs_in_a_process(net: scale0.Client, broker: BrokerProcess) -> None:
    made = scale0.Worker(broker.endpoints["backend"])
    made.add("here", os.getpid)
    with started(made):
        made.add("there", handlers.pid, mode="process")
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
    made.add("stop.pid", handlers.pid, mode="process")
    with client_of(broker) as net, started(made):
        child = net.call("stop.pid")
        assert not gone(child)
    until(lambda: gone(child))


def test_a_script_finds_its_own_handlers_and_nothing_survives_its_death(broker: BrokerProcess, tmp_path: Path) -> None:
    with programs(broker.endpoints["backend"], tmp_path, "script") as [script], client_of(broker) as net:
        assert net.call("main.pid") != script.process.pid
        net.start("main.hangs", str(tmp_path / "pids"))
        until((tmp_path / "pids").exists)
        family = script.descendants()
        assert len(family) == 3
        script.kill9()
        # One of them is busy, and would not look at its socket for a long time.
        until(lambda: all(gone(one.pid) for one in family), "the kernel ends them")


def test_a_script_without_a_guard_logs_the_reason(broker: BrokerProcess, tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text(
        "import sys, scale0\n"
        "worker = scale0.Worker(sys.argv[1] if len(sys.argv) == 3 else 'tcp://127.0.0.1:9', identity='careless')\n"
        "@worker.service('careless', mode='process')\n"
        "def careless(): return 1\n"
        "worker.run()\n"
    )
    command = [sys.executable, str(script), broker.endpoints["backend"], "careless"]
    with background(command, tmp_path) as program, client_of(broker) as net:
        until(lambda: "careless" in offered(net))
        with pytest.raises(errors.BackendDied):
            net.call("careless")
        program.wait_for("__main__")


# Promise: CLIENT-4
def test_a_stop_finishes_what_is_in_flight_and_takes_nothing_new(broker: BrokerProcess, tmp_path: Path) -> None:
    names = ("one", "two")
    with programs(broker.endpoints["backend"], tmp_path, "drains") as [program], client_of(broker, timeout=15) as net:
        in_flight = net.start("begin_and_wait", names[0])
        until(lambda: handlers.notes(tmp_path, "begun"))
        assert net.call("main.pid") > 0
        family = program.descendants()
        program.send_signal(signal.SIGTERM)
        until(lambda: "begin_and_wait" not in offered(net), "it is offered no longer")
        later = net.start("begin_and_wait", names[1], timeout=2)
        (tmp_path / f"go.{names[1]}").touch()
        (tmp_path / f"go.{names[0]}").touch()
        assert in_flight.result() == names[0]
        assert program.wait() == 0
        with pytest.raises(errors.NoSuchService):
            later.result()
        assert handlers.notes(tmp_path, "begun") == [names[0]]
        assert all(gone(one.pid) for one in family)
        assert "drains" not in {row["identity"] for row in net.clients()}


def test_a_program_whose_identity_is_taken_stops_and_says_so(broker: BrokerProcess, tmp_path: Path) -> None:
    with programs(broker.endpoints["backend"], tmp_path, "doppel") as [first]:
        second = WorkerProgram(broker.endpoints["backend"], "doppel", tmp_path)
        try:
            second.start()
            assert first.wait() == 1
            assert any(line.startswith("doppel 409") for line in handlers.notes(tmp_path, "left"))
            assert "409" in (tmp_path / "doppel.log").read_text()
            with client_of(broker) as net:
                assert net.call("main.pid") not in (first.process.pid, second.process.pid)
            assert second.end() == 0
        finally:
            second.close()


def test_sigint_stops_a_program_in_order(broker: BrokerProcess, tmp_path: Path) -> None:
    with programs(broker.endpoints["backend"], tmp_path, "interrupted") as [program]:
        assert program.end(signal.SIGINT) == 0
        assert handlers.notes(tmp_path, "left") == ["interrupted None"]
