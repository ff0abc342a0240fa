"""The processes of `scale0 demo`: a broker and its workers, started, killed and ended.

Lives here: which children there are. Never here: the story that is told with them. Invariant: every
process that was started here is gone when `close` returns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from scale0.cli.broker import PORTS
from scale0.cli.child import START_SECONDS, Child

WORKER: Final = "scale0.cli.demo_worker:worker"


class DemoNetwork:
    """A broker on free ports, and workers by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, Child] = {}
        self.endpoints: dict[str, str] = {}
        self.data_dir = folder / "data"

    def start_broker(self) -> None:
        """On any free ports at first, on the same ones later."""
        words = ["broker", "--identity", "demo", "--data-dir", str(self.data_dir)]
        for name in PORTS:
            port = self.endpoints[name].rpartition(":")[2] if self.endpoints else "0"
            words += [f"--{name.replace('_', '-')}-port", port]
        broker = self._start("broker", words)
        self.endpoints = dict(word.split("=", 1) for word in broker.ready().split() if "=" in word)

    def start_worker(self, name: str) -> None:
        """A worker process, once the broker has taken it in."""
        words = ["worker", WORKER, "--endpoint", self.endpoints["backend"]]
        self._start(name, words, {"SCALE0_DEMO_NAME": name}).ready()

    def kill(self, name: str) -> int:
        """kill -9; the number of the process that was."""
        child = self._children.pop(name)
        child.kill()
        return child.process.pid

    def close(self) -> None:
        """End everybody: workers first."""
        for name in sorted(self._children, key=lambda name: name == "broker"):
            self._children.pop(name).stop()

    def run(self, *words: str) -> tuple[int, str]:
        """A command of ours, as typed; its exit code and what it printed."""
        join = self.endpoints["frontend"].removeprefix("tcp://")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scale0", *words, "--join", join],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
            env={**os.environ, "XDG_STATE_HOME": str(self._folder / "state")},  # its user is nobody's memory
        )
        return done.returncode, done.stdout + done.stderr

    def _start(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> Child:
        child = Child(name, words, self._folder, environment or {})
        self._children[name] = child
        return child
