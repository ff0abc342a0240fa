"""`scale0 demo`: it ends by itself, keeps its promises, and leaves nothing behind."""

# Promise: CLI-2
from __future__ import annotations

import re
import signal
import time

import psutil
import pytest

from tests.cli.shell import Shell, eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEMO_SECONDS = 40.0


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_the_demo_keeps_its_promises_within_its_time(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    began = time.monotonic()
    with Shell(tmp_path, TMPDIR=str(folder)).background("demo") as demo:
        demo.wait_for("worker-2  offers")
        children = children_of(demo.process.pid)
        # A broker and two workers; the broker has a child of its own, which writes segments.
        assert len([child for child in children if child.ppid() == demo.process.pid]) == 3
        assert demo.wait() == 0, demo.said
    assert time.monotonic() - began < DEMO_SECONDS
    assert "BROKEN" not in demo.said
    assert len(re.findall(r"^kept ", demo.said, re.MULTILINE)) == 6
    assert "600 answered" in demo.said
    assert "0 failed" in demo.said
    assert "\x1b" not in demo.said
    assert all(len(line) <= 100 for line in demo.said.splitlines())
    assert list(folder.iterdir()) == []
    assert not any(child.is_running() for child in children)


def test_a_demo_that_is_ended_takes_its_processes_with_it(tmp_path):
    with Shell(tmp_path).background("demo") as demo:
        demo.wait_for("worker-2  offers")
        children = children_of(demo.process.pid)
        demo.signal(signal.SIGTERM)
        assert demo.wait() == 1
        eventually(lambda: not any(child.is_running() for child in children), "the children are gone")
