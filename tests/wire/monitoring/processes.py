"""`scale0 helen` and `scale0 agent` as processes. Each process that a test started has ended after it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

READY_SECONDS = 30.0
STOP_SECONDS = 15.0


def run(*words: str) -> str:
    """One command of ours to its end; what it printed."""
    command = [sys.executable, "-m", "scale0", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Process:
    """`scale0 <role> --config FILE`."""

    def __init__(self, role: str, folder: Path, config: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.role, self.folder, self.config = role, folder, config
        self.log = folder / f"{role}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it; the line that says it is ready."""
        file = self.folder / f"{self.role}.json"
        file.write_text(json.dumps(self.config))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scale0", self.role, "--config", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
            )
        return self._ready()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def terminate(self) -> int:
        """Ask it to stop in order; its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(STOP_SECONDS)
        self.close()
        return status

    def close(self) -> None:
        """End it, whatever happened."""
        if self._process is None:
            return
        if self.running:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ready(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, end, said = self._process.stdout.fileno(), time.monotonic() + READY_SECONDS, b""
        while (left := end - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
            more = os.read(descriptor, 65_536)
            if not more:
                break
            said += more
            for line in said.decode(errors="replace").splitlines(keepends=True):
                if line.startswith("ready") and line.endswith("\n"):
                    return line
        self.close()
        raise AssertionError(f"{self.role} did not say ready; it said {said!r}\n{self.said()[-4_000:]}")
