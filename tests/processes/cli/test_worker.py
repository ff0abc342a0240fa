"""`scale0 worker`: found, run, drained and stopped; and the error when it cannot be run."""

from __future__ import annotations

import signal
import threading

import pytest

import scale0
from tests.fakes.ports import free_port
from tests.fakes.waiting import until
from tests.processes.cli.conftest import WORKERS

pytestmark = pytest.mark.processes


def test_sigterm_lets_work_in_flight_be_finished_and_answered(broker, shell, tmp_path):
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    answers: list[str] = []
    with (
        shell.background("worker", WORKERS) as worker,
        scale0.Client(broker.endpoints["frontend"]) as net,
    ):
        worker.wait_for("ready ")
        calling = threading.Thread(target=lambda: answers.append(net.call("wait.for", str(gate), str(begun))))
        calling.start()
        until(begun.exists, "the work begins")
        worker.signal(signal.SIGTERM)
        until(lambda: not net.services(), "the worker offers nothing any more")
        assert worker.process.poll() is None
        gate.touch()
        assert worker.wait() == 0
        calling.join()
    assert answers == ["finished"]


@pytest.mark.slow
def test_no_call_is_lost_when_workers_take_turns(broker, shell):
    """Without retry: whatever a worker was given before it left, it answers."""
    with scale0.Client(broker.endpoints["frontend"]) as net, shell.background("worker", WORKERS) as last:
        last.wait_for("ready ")
        for _ in range(3):
            with shell.background("worker", WORKERS) as worker:
                worker.wait_for("ready ")
                pending = [net.start("say", str(i)) for i in range(50)]
                worker.signal(signal.SIGTERM)
                pending += [net.start("say", str(i)) for i in range(50, 200)]
                assert [one.result() for one in pending] == [str(i) for i in range(200)]
                assert worker.wait() == 0


@pytest.mark.slow
def test_kill_9_of_a_worker_costs_no_call_that_may_be_retried(broker, shell, tmp_path):
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with scale0.Client(broker.endpoints["frontend"]) as net:
        with shell.background("worker", WORKERS) as first:
            first.wait_for("ready ")
            net.ping()  # a client sends what was started once it is connected, and nobody waits here
            kept = net.start("wait.for", str(gate), str(begun), retry=True)
            lost = net.start("wait.for", str(gate), str(begun))
            until(begun.exists, "the work begins")
            first.signal(signal.SIGKILL)
            assert first.process.wait() == -9
        gate.touch()
        with shell.background("worker", WORKERS) as second:
            second.wait_for("ready ")
            assert kept.result() == "finished"
            with pytest.raises(scale0.CallError) as error:
                lost.result()
            assert error.value.code == 502


def test_a_worker_whose_identity_is_taken_says_so_and_exits_with_1(broker, shell):
    shell.environment["TEST_WORKER"] = "twin"
    with shell.background("worker", WORKERS) as first:
        first.wait_for("ready twin ")
        with shell.background("worker", WORKERS) as second:
            second.wait_for("ready twin ")
            assert first.wait() == 1
            assert "scale0: the broker disconnected twin: 409" in first.output
            assert "Traceback" not in first.output
            second.signal(signal.SIGINT)
            assert second.wait() == 0


@pytest.mark.slow
def test_a_worker_waits_for_its_broker_and_says_so(shell):
    with shell.background("worker", WORKERS, "--join", "127.0.0.1:9") as worker:
        worker.wait_for("no broker answers at tcp://127.0.0.1:9 yet")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_worker_with_two_brokers_works_for_whichever_is_there(broker, shell):
    """The first is down at the start; only the command names the second."""
    place = broker.address("backend")
    down = f"127.0.0.1:{free_port()}"
    with shell.background("worker", WORKERS, "--join", down, "--join", place) as worker:
        worker.wait_for("ready ")
        assert shell.run("call", "say", "hello").returncode == 0


def test_a_module_is_imported_from_the_current_folder(shell):
    (shell.folder / "shop.py").write_text(
        "import scale0\nstaff = scale0.Worker()\n@staff.service('open')\ndef is_open() -> bool:\n    return True\n"
    )
    with shell.background("worker", "shop:staff") as worker:
        worker.wait_for("ready ")
        assert shell.run("call", "open").stdout == "true\n"
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.parametrize(
    ("target", "content", "expected"),
    [
        ("missing.py:worker", None, "file not found"),
        ("no_such_module:worker", None, "module no_such_module not found"),
        ("mine.py:other", "import scale0\nbest = scale0.Worker()\n", "next: try mine.py:best"),
        ("mine.py:os", "import os\n", "os is not a scale0.Worker"),
        ("mine.py", "import scale0\nworker = scale0.Worker()\n", "offers no service"),
        ("mine.py", "def broken(:\n", "SyntaxError"),
        ("mine.py", "import no_such_package\n", "No module named 'no_such_package'"),
        ("mine.py", "1 / 0\n", "ZeroDivisionError: division by zero"),
        ("folder/json.py", "", "another module has the name json"),
    ],
)
def test_what_cannot_be_run_is_reported_without_a_traceback(shell, target, content, expected):
    if content is not None:
        file = shell.folder / target.partition(":")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    assert expected in shell.refuses("worker", target, status=2)


def test_join_and_endpoint_at_once_are_wrong_usage(shell):
    assert shell.run("worker", WORKERS, "--join", "a", "--endpoint", "tcp://b:1").returncode == 2
    assert shell.run("worker", WORKERS, "--join", "a:b:c").returncode == 2
    assert shell.run("worker", WORKERS, "--endpoint", "b").returncode == 2


@pytest.mark.parametrize("wrong", ["-1", "10001", "many"])
def test_a_prefetch_that_cannot_be_is_wrong_usage(shell, wrong):
    assert shell.run("worker", WORKERS, "--prefetch", wrong).returncode == 2


def test_the_command_line_and_the_worker_agree_about_prefetch():
    from scale0.cli.tasks import worker as command
    from scale0.client import worker

    assert command.MAX_PREFETCH == worker.MAX_PREFETCH
