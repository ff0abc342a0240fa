"""Each example does what it says, against a real broker."""

# Promise: CLI-3
from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scale0.config import BrokerConfig
from scale0.config.edge.files import read_config
from tests.docs.pages import table_rows, words
from tests.fakes.broker_process import ANY_PORTS, BrokerProcess, broker_process
from tests.fakes.helen_process import helen_process
from tests.fakes.processes import Background, background
from tests.fakes.shell import EXAMPLES, Shell, shell_of
from tests.fakes.waiting import until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def shell(broker: BrokerProcess, tmp_path: Path) -> Shell:
    return shell_of(broker, tmp_path)


@contextmanager
def example_worker(shell: Shell, name: str) -> Iterator[Background]:
    with shell.background("worker", f"{EXAMPLES / name}:worker") as worker:
        worker.wait_for("ready ")
        yield worker
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.output


def run(shell: Shell, name: str, *words: str) -> str:
    """What an example prints; it must end well."""
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=shell.environment, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hello(shell, broker):
    with example_worker(shell, "hello_worker.py"):
        assert shell.run("call", "hello").stdout == "Hello, world!\n"
        output = run(shell, "hello_client.py", broker.endpoints["frontend"]).splitlines()
        assert output[:3] == ["Hello, Ada!", "Hello, Grace!", "Hello, Edsger!"]
        assert output[-1].startswith("BadArguments: hello: name: Expected `str`")


def test_calls_from_coroutines(shell, broker):
    with example_worker(shell, "hello_worker.py"):
        output = run(shell, "async_client.py", broker.endpoints["frontend"]).splitlines()
        assert output == [f"Hello, number {i}!" for i in range(10)]


def test_tasks(shell, broker):
    output = run(shell, "tasks.py", broker.endpoints["frontend"], broker.endpoints["backend"]).splitlines()
    assert output == [
        "square: 49",
        "one task: True",
        "report: 3 pages, at attempt 1 then 9",
        "sum of squares: 332833500",
        "fragile: done at the third attempt",
        "status: finished (1.0, 'page 3')",
    ]


def test_streaming(shell, broker):
    with example_worker(shell, "streaming.py"):
        assert run(shell, "streaming.py", broker.endpoints["frontend"]) == "5\n4\n3\n2\n1\nlift-off\n"
        assert shell.run("call", "count.down", "2", "pause=0").stdout == "2\n1\n"


def test_a_crash_of_a_process_costs_one_call(shell):
    with example_worker(shell, "processes.py"):
        assert shell.run("call", "primes.count", "1000").stdout == "168\n"
        assert "SIGABRT" in shell.refuses("call", "crash")
        assert shell.run("call", "primes.count", "10").stdout == "4\n"


def test_both_ends_without_scale0(shell, broker):
    words = [sys.executable, str(EXAMPLES / "raw_backend.py"), broker.endpoints["backend"]]
    with background(words, shell.folder, shell.environment) as worker:
        worker.wait_for("ready raw-backend")
        assert run(shell, "raw_frontend.py", broker.endpoints["frontend"], "quiet") == "QUIET\n"
        assert shell.run("call", "upper", "native").stdout == "NATIVE\n"
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_worker_without_scale0_survives_the_broker(tmp_path):
    with broker_process(tmp_path / "broker") as broker:
        shell = shell_of(broker, tmp_path)
        words = [sys.executable, str(EXAMPLES / "raw_backend.py"), broker.endpoints["backend"]]
        with background(words, tmp_path, shell.environment) as worker:
            worker.wait_for("ready raw-backend")
            broker.kill9()
            broker.restart()
            worker.wait_until(lambda: worker.output.count("ready raw-backend") >= 2)
            assert shell.run("call", "upper", "again").stdout == "AGAIN\n"


def test_tasks_without_scale0(shell, broker):
    program, ends = str(EXAMPLES / "raw_zerotask.py"), broker.endpoints
    with background(
        [sys.executable, program, "node", ends["backend"], ends["task_pub"]], shell.folder, shell.environment
    ) as node:
        node.wait_for("ready ")
        printed = run(shell, "raw_zerotask.py", "client", ends["frontend"], "to be or not to be", "", "word")
        assert printed.splitlines() == ["'to be or not to be': 6", "'': failed: there is nothing to count", "'word': 1"]
        node.signal(signal.SIGTERM)
        assert node.wait() == 0, node.output
        assert node.output.count("done ") == 3


@pytest.mark.parametrize("name", ["raw_backend.py", "raw_frontend.py", "raw_zerotask.py"])
def test_the_raw_ones_import_nothing_of_ours(name):
    tree = ast.parse((EXAMPLES / name).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names <= {"json", "signal", "sys", "time", "zmq"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


def test_a_file_is_the_same_in_all_three_forms():
    documents = [read_config(EXAMPLES / f"broker.{form}", BrokerConfig) for form in ("zpl", "json", "xml")]
    assert documents[0] == documents[1] == documents[2]


@pytest.mark.parametrize("form", ["zpl", "json", "xml"])
def test_a_broker_starts_from_each(tmp_path, form):
    with Shell(tmp_path).background("broker", "--config", str(EXAMPLES / f"broker.{form}"), *ANY_PORTS) as running:
        running.wait_for("ready east-1 ")
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def test_tests_with_the_stub(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "testing_with_stub.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_every_example_is_tested():
    tested = Path(__file__).read_text()
    files = {path.name for path in EXAMPLES.glob("*.py")} - {"local_network.py"}  # what scripts of folders use
    assert [name for name in sorted(files) if name not in tested] == []


def test_the_page_has_every_example():
    rows = [words(cells[0]) for cells in table_rows((EXAMPLES / "README.md").read_text())]
    named = {name.rstrip("/") for names in rows for name in names}
    there = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith((".", "__"))}
    assert named == there - {"README.md"}


def test_raw_agent(shell, broker, tmp_path):
    with helen_process(tmp_path / "helen", broker) as helen:
        certificate, key = helen.certificate("by-hand")
        place = ("127.0.0.1", str(helen.port))
        words = [sys.executable, str(EXAMPLES / "raw_agent.py"), *place, str(certificate), str(key)]
        with background([*words, str(helen.files / "ca.pem")], tmp_path, shell.environment) as agent:
            agent.wait_for("ready")
            until(lambda: [row["state"] for row in shell.json("agents")] == ["connected"])
            done = shell.run("check", "run", "by-hand", "age")
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("ok: age: up for ")
            assert helen.end() == 0
            assert agent.wait() == 0, agent.output
