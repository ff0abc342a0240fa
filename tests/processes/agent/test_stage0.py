"""stage0 restarts the agent with backoff, and stays small."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scale0.monitoring.agent.edge import stage0
from scale0.monitoring.agent.edge.stage0 import FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS, wait_before
from tests.fakes.agent_process import AgentProcess


def test_waits_grow_and_end_somewhere():
    longest = [wait_before(failures, 1.0) for failures in range(1, 1_000)]
    assert longest[0] == FIRST_WAIT_SECONDS
    assert longest == sorted(longest)
    assert longest[-1] == MAX_WAIT_SECONDS
    assert all(wait_before(failures, 0.0) == longest[failures - 1] / 2 for failures in range(1, 1_000))


def test_a_start_that_fails_is_tried_again(monkeypatch):
    """A machine without a free process, or an interpreter that is being replaced, is no reason to end for good."""
    tries: list[list[str]] = []
    supervisor = stage0.Stage0(["agent.zpl"])

    def spawn(_path: str, command: list[str], *_: object, **__: object) -> int:
        tries.append(command)
        supervisor._stopping = len(tries) == 3
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", spawn)
    monkeypatch.setattr(stage0, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_, **__: -1)
    before = len(os.listdir("/proc/self/fd"))
    assert supervisor.run() == 0
    assert len(tries) == 3
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.processes
def test_modules_in_the_folder_that_it_was_started_in_are_not_ours(authority, tmp_path):
    """Whoever may write there could put code into an agent that runs as root."""
    agent = AgentProcess(tmp_path, authority, 1)
    agent.file.write_text(json.dumps(agent.config))
    folder = tmp_path / "cwd"
    folder.mkdir()
    for module in ("asyncio", "msgspec", "ssl"):
        (folder / f"{module}.py").write_text("raise SystemExit(9)")
    command = [sys.executable, "-P", stage0.__file__, str(agent.file)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # It never ends by itself, and never says that it is ready where it loads what it should not.
        impatient = threading.Timer(15, process.send_signal, [signal.SIGTERM])
        impatient.start()
        try:
            assert process.stdout.readline().startswith("ready")
        finally:
            impatient.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)


def test_it_imports_nothing_of_the_agent():
    """What stage0 imports stays in memory on every machine for good."""
    tree = ast.parse(Path(stage0.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "os", "select", "signal", "sys", "time"}
