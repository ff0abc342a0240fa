"""`scale0 demo`: it ends by itself, keeps its promises, reports what happened, and leaves nothing running."""

# Promise: CLI-2
from __future__ import annotations

import re
import signal
from typing import Any

import psutil
import pytest

from scale0.cli.demo import report_is_right
from scale0.cli.demo_report import count, missing
from tests.cli.shell import Shell, eventually, processes_with

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEMO_SECONDS = 500.0
"""A free machine takes under three minutes; on one that runs other tests as well, Spark takes its time."""
ROWS = {
    "availability": r"^(worker-1|worker-2|demo) +(client|broker) .* [1-9]\d* +[\d.]+ m?s$",
    "tasks": r"^demo\.work +40 +40 +0 ",
    "requests": r"^demo\.work +604 +0 ",
}
"""What the reports must say of what was done."""


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def report_of(said: str, name: str) -> str:
    """What a report of the last chapter said."""
    _, _, last = said.partition("== What just happened, computed by Spark")
    _, _, report = last.partition(f"\n{name.capitalize()}, ")
    return re.split(r"\n(?:Tasks|Requests), |\nall of it", report)[0]


@pytest.mark.timeout(DEMO_SECONDS + 60)
def test_the_demo_keeps_its_promises_and_reports_what_happened(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    with Shell(tmp_path, TMPDIR=str(folder)).background("demo") as demo:
        demo.wait_for("worker-2  offers")
        children = children_of(demo.process.pid)
        # A broker and two workers; the broker has a child of its own, which writes segments.
        assert len([child for child in children if child.ppid() == demo.process.pid]) == 3
        assert demo.wait(DEMO_SECONDS) == 0, demo.said
    assert "BROKEN" not in demo.said
    assert len(re.findall(r"^kept ", demo.said, re.MULTILINE)) == 12
    assert "600 answered" in demo.said
    assert "0 failed" in demo.said
    assert "\x1b" not in demo.said
    assert all(len(line) <= 110 for line in demo.said.splitlines() if str(folder) not in line)
    for name, row in ROWS.items():
        assert re.search(row, report_of(demo.said, name), re.MULTILINE), (name, demo.said)
    assert "the report counts 40 tasks and 607 calls" in demo.said
    assert "it knows who was killed: demo, worker-1, worker-2" in demo.said
    [page] = folder.iterdir()
    assert f"all of it, with plots: {page}" in demo.said
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert all(text in html for text in ("worker-1", "demo.work", "demo/memory", "<svg"))
    eventually(lambda: not processes_with(folder), "nothing of it is left running")


def test_a_demo_whose_report_says_something_else_has_broken_a_promise():
    rows: dict[str, Any] = {
        "tasks": [{"finished": 40, "retried": 2}],
        "requests": [{"service": "demo.work", "answered": 607}, {"service": "helen.check", "answered": 9}],
        "availability": [
            {"subject_kind": kind, "subject": name, "incidents": 1}
            for kind, name in (
                ("broker", "demo"),
                ("client", "worker-1"),
                ("client", "worker-2"),
                ("client", "helen-demo"),
            )
        ],
    }
    ends = [("worker-1", "lost"), ("worker-1", "broker_lost"), ("worker-2", "replaced"), ("helen-demo", "broker_lost")]
    sessions: list[Any] = [{"identity": name, "role": "backend", "reason": reason} for name, reason in ends]

    def kept(rows: dict[str, Any], sessions: list[Any]) -> list[bool]:
        return [promise.kept for promise in report_is_right(count(rows, sessions))]

    assert kept(rows, sessions) == [True, True]
    assert kept({**rows, "tasks": [{"finished": 39, "retried": 2}]}, sessions) == [False, True]
    assert kept(rows, sessions[1:]) == [True, False], "worker-1 was not missed"
    assert kept({**rows, "availability": rows["availability"][1:]}, sessions) == [True, False], "nor the broker"


def test_without_java_the_demo_leaves_out_its_report_and_says_what_it_needs(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "Java 17" in missing()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_demo_that_is_ended_takes_its_processes_and_its_folder_with_it(tmp_path, number, code):
    folder = tmp_path / "tmp"
    folder.mkdir()
    with Shell(tmp_path, TMPDIR=str(folder)).background("demo") as demo:
        demo.wait_for("worker-2  offers")
        children = children_of(demo.process.pid)
        demo.signal(number)
        assert demo.wait() == code, demo.said
        eventually(lambda: not any(child.is_running() for child in children), "the children are gone")
    assert list(folder.iterdir()) == []
