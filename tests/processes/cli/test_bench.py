"""`scale0 bench`: it measures, says what limits it, and leaves nothing behind."""

# Promise: CLI-1
# Promise: CLI-7
from __future__ import annotations

import json
import signal
import sqlite3
import threading
import time
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from scale0.cli.bench import output
from scale0.cli.bench.measurements import RESULT_TTL_SECONDS, Bounds, Figure, figure_of
from scale0.cli.bench.output import Bench, Effort, MachineFacts
from tests.fakes.ports import free_port
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

FIGURES = {*output.NAMES}
MACHINE = MachineFacts("0.1.0", "3.11.7", "Linux 6 x86_64", 2, 0.1, "/tmp", "ext4", 2e7)


def found(machine: MachineFacts = MACHINE, fsync_us: float = 100.0, own: bool = True, **efforts: Effort) -> Bench:
    figures = {name: Figure(1234567.0, 9999.4, 123456.0, 5) for name in output.NAMES}
    figures["fsync"] = Figure(1e6 / fsync_us, fsync_us, fsync_us)
    figures["tasks_single"] = Figure(500.0, 2000.0, 3000.0)
    return Bench("b", "tcp://127.0.0.1:5700", own, 12.0, machine, figures, efforts)


@pytest.mark.parametrize(
    ("bench", "text"),
    [
        (found(fsync_us=8000.0), "fsync 8,000 µs: tasks one by one are limited by your disk"),
        (found(), "not the disk: a task's 2 commits take 10% of its 2,000 µs"),
        (found(MACHINE._replace(filesystem="tmpfs")), "no disk: /tmp is tmpfs"),
        (found(MACHINE._replace(load=1.5)), "other processes: the load was 1.5 on 2 cores"),
        (found(own=False), "the number of requests was limited"),
        (found(requests_batched=Effort(0.9, 1.9)), "broker, worker and client used 1.9 of 2 cores"),
        (found(requests_batched=Effort(0.9, 1.2)), "the broker used 0.9 cores, and works in one thread"),
        (found(tasks_completed=Effort(0.2, 0.4)), "tasks: latency between the processes"),
    ],
)
def test_what_limits_it_follows_from_the_figures(bench, text):
    assert [line for line in output.limits(bench) if text in line]


def test_a_busy_machine_is_reported_and_nothing_about_its_processor():
    lines = list(output.limits(found(MACHINE._replace(load=4.0), tasks_completed=Effort(0.2, 0.4))))
    assert not [line for line in lines if line.startswith("tasks:")]


def test_a_broker_of_others_is_not_judged_by_our_disk():
    lines = list(output.limits(found(own=False, fsync_us=8000.0)))
    assert not [line for line in lines if "your disk" in line]


def test_the_table_fits_80_columns(capsys):
    output.show(found(requests_batched=Effort(0.9, 1.9), tasks_completed=Effort(0.2, 0.4)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("fsync of 4 KiB")]


def test_a_measurement_ends_by_its_time_by_its_number_or_by_its_event():
    ended = threading.Event()
    assert list(Bounds(60, 3, ended).each("x")) == ["x"] * 3
    assert not Bounds(0, 3, ended).more()
    ended.set()
    assert not Bounds(60, 3, ended).more()
    figure = figure_of([0.001] * 99 + [0.1])
    assert (figure.p50_us, figure.p99_us, figure.done) == (1000.0, 100_000.0, 100)


@pytest.mark.processes
@pytest.mark.slow
def test_without_a_broker_it_measures_a_network_of_its_own_and_nothing_is_left(confined, tmp_path):
    confined.environment["SCALE0_JOIN"] = ""
    value = confined.json("bench", "--own", "--seconds", "1")
    assert value.keys() >= FIGURES
    assert all(value[name]["rate"] > 0 for name in FIGURES)
    assert all(value[name]["p99_us"] >= value[name]["p50_us"] > 0 for name in FIGURES if name.endswith("single"))
    assert (value["own"], value["broker"]) == (True, "bench")
    assert value["machine"]["core_steps"] > 0
    assert value["limits"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "state").exists()


def rows_left(data_dir: str) -> list[tuple[Any, ...]]:
    """Tasks that the broker would keep for longer than a moment."""
    limit_us = int((time.time() + RESULT_TTL_SECONDS) * 1e6)
    with sqlite3.connect(f"file:{data_dir}/scale0.db?mode=ro", uri=True) as store:
        ended = store.execute("SELECT * FROM ended_tasks WHERE expires_us > ?", (limit_us,)).fetchall()
        clients = store.execute("SELECT * FROM task_clients WHERE id LIKE 'bench-%'").fetchall()
        return ended + clients + store.execute("SELECT * FROM open_tasks").fetchall()


def ended_tasks(data_dir: str) -> int:
    with sqlite3.connect(f"file:{data_dir}/scale0.db?mode=ro", uri=True) as store:
        found: int = store.execute("SELECT max(seq) FROM ended_tasks").fetchone()[0] or 0
        return found


@pytest.mark.processes
@pytest.mark.slow
def test_at_a_broker_that_is_there_it_says_so_first_and_leaves_nothing_behind(served, shell):
    services = {row["service"] for row in shell.json("services")}
    done = shell.run("bench", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert "which others may use: at most 20,000 requests and 2,000 tasks" in done.stderr
    assert (value["own"], value["broker"]) == (False, "broker-1")
    assert 0 < value["tasks_completed"]["done"] <= 2_000
    assert 0 < value["requests_batched"]["done"] <= 20_000
    # Its worker disconnected before it ended; the broker may receive that a moment later.
    until(lambda: {row["service"] for row in shell.json("services")} == services, "its services are gone")
    assert not [row for row in shell.json("clients") if "bench" in row["identity"]]
    assert rows_left(served.config["data_dir"]) == []


@pytest.mark.processes
@pytest.mark.slow
def test_a_signal_ends_it_and_no_task_is_left(served, shell):
    data_dir = served.config["data_dir"]
    known = ended_tasks(data_dir)
    with shell.background("bench", "--seconds", "4") as running:
        running.wait_for("which others may use")
        until(lambda: ended_tasks(data_dir) > known, "its tasks are under way")
        children = psutil.Process(running.process.pid).children(recursive=True)
        running.signal(signal.SIGINT)
        assert running.wait() == 130, running.output
    until(lambda: not any(child.is_running() for child in children), "its worker is gone")
    assert rows_left(data_dir) == []


@pytest.mark.processes
def test_a_broker_that_was_named_and_does_not_answer_is_not_reachable(tmp_path):
    done = Shell(tmp_path).run("bench", "--join", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no broker answers" in done.stderr


def test_a_time_that_is_too_long_is_wrong_usage():
    from scale0.cli.main import cli

    assert CliRunner().invoke(cli, ["bench", "--seconds", "3600"]).exit_code == 2
