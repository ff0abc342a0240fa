"""`scale0 demo`: it ends by itself, keeps its promises, reports what happened, and leaves nothing running."""

# Promise: CLI-2
from __future__ import annotations

import re
import shutil
import signal
import socket
import threading

import psutil
import pytest

from scale0.cli.demo.report import missing
from scale0.cli.demo.scenario import new_load
from tests.fakes.processes import Background, processes_with
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.extended]

DEMO_SECONDS = 500.0
"""A free machine takes under three minutes; on one that runs other tests as well, Spark takes its time."""
NETWORK_SECONDS = 200.0
"""Without Spark; a free machine takes half a minute."""


def without_java(shell: Shell) -> Shell:
    """A shell without Java: the demo shows the network alone."""
    shell.environment["PATH"] = str(shell.folder)
    shell.environment.pop("JAVA_HOME", None)
    return shell


def last_screen(demo: Background) -> list[str]:
    _, heading, last = demo.output.rpartition("== Summary: ")
    return (heading + last).rstrip().splitlines()


@pytest.mark.timeout(DEMO_SECONDS + 60)
def test_the_demo_keeps_its_promises_and_reports_what_happened(confined):
    folder = confined.folder / "tmp"
    with confined.background("demo") as demo:
        demo.wait_for("worker-3  prefers demo-2")
        direct = psutil.Process(demo.process.pid).children()
        assert len(direct) == 5, "two brokers and three workers"
        assert demo.wait(DEMO_SECONDS) == 0, demo.output
    screen = last_screen(demo)
    [page] = folder.iterdir()
    assert len(screen) <= 24, screen
    assert all(len(line) <= 80 for line in screen if str(page) not in line), screen
    assert "\x1b" not in demo.output
    text = re.sub(r"\s+", " ", " ".join(screen))
    assert "every promise was kept (10 of 10; " in text
    assert re.search(r"kept (\d[\d,]*) of \1 calls answered \(", text)
    counted = re.search(r"kept (\d[\d,]*) tasks acknowledged, \1 finished, none lost", text)
    assert counted
    assert f"over both brokers and Helen: {counted[1]} tasks finished" in text
    assert "Spark finds the killed processes: worker-1, demo-1" in text
    assert "Spark finds the incident: demo/demo-1-answers, down for" in text
    assert f"The report, with plots: {page}" in text
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert all(word in html for word in ("worker-1", "demo-2", "demo.build", "demo/memory", "<svg"))
    # While it ran, one could see what was killed and how the count went on.
    steps = ("worker-1 (process", "demo-1 (process", "Helen opens an incident", "Helen closes the incident")
    assert sorted(steps, key=demo.output.index) == list(steps)
    assert len(re.findall(r"calls [\d,]+ answered, 0 failed; tasks", demo.output)) > 5
    until(lambda: not processes_with(folder), "nothing of it is left running")


@pytest.mark.timeout(NETWORK_SECONDS + 60)
def test_a_demo_that_loses_tasks_says_so_and_exits_with_1(confined):
    """Planted: the disk of a broker is lost while it is dead, with tasks on it that were acknowledged."""
    folder = confined.folder / "tmp"
    with without_java(confined).background("demo") as demo:
        demo.wait_until(lambda: "demo-1 (process" in demo.output, NETWORK_SECONDS)
        [home] = folder.glob("scale0-demo-*/data/demo-1")
        shutil.rmtree(home)
        assert demo.wait(NETWORK_SECONDS) == 1, demo.output
    screen = last_screen(demo)
    assert "A PROMISE WAS BROKEN" in screen[0]
    [tasks] = [line for line in screen if "tasks acknowledged" in line]
    assert tasks.startswith("BROKEN  ")
    assert re.search(r", [1-9]\d* lost", tasks)
    assert any("No report was made: it needs Java 17" in line for line in screen)
    assert [path.name in screen[-2] for path in folder.iterdir()] == [True], "its logs stay"
    until(lambda: not processes_with(folder), "nothing of it is left running")


def test_work_that_is_abandoned_ends_though_nobody_answers():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        before = threading.active_count()
        work = new_load([f"tcp://127.0.0.1:{unused.getsockname()[1]}"])
        work.start()
        until(lambda: work.record.calls, "it asks")
        work.abandon()
    until(lambda: threading.active_count() <= before, "its thread is gone")
    assert work.record.answered_at == []


def test_without_java_the_demo_leaves_out_its_report_and_says_what_it_needs(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "Java 17" in missing()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_demo_that_is_ended_takes_its_processes_and_its_folder_with_it(confined, number, code):
    folder = confined.folder / "tmp"
    with confined.background("demo") as demo:
        demo.wait_for("tasks 0 accepted")
        children = psutil.Process(demo.process.pid).children(recursive=True)
        demo.signal(number)
        assert demo.wait() == code, demo.output
        until(lambda: not any(child.is_running() for child in children), "the children are gone")
    assert list(folder.iterdir()) == []
