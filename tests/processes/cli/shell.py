"""A shell for tests: commands as somebody would type them, and workers in the background.

Lives here: processes of ours. Never here: what they should say. Invariant: what was started here is gone at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from tests.fakes.waiting import PATIENCE_SECONDS

REPOSITORY: Final = Path(__file__).resolve().parents[3]
EXAMPLES: Final = REPOSITORY / "examples"

VARIABLES: Final = ("SCALE0_JOIN", "SCALE0_JOIN_BACKEND", "SCALE0_TOKEN", "SCALE0_PASSWORD", "SCALE0_DATA_DIR")


class Shell:
    """One user's shell: a folder to be in, and a memory of its own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        path = os.pathsep.join(filter(None, sys.path))
        self.environment = {**kept, "PYTHONPATH": path, "XDG_STATE_HOME": str(folder / "state"), **variables}

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """`scale0 WORDS…`, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "scale0", *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def json(self, *words: str) -> Any:
        """What a reading command says with --json."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def background(self, *words: str) -> Iterator[Background]:
        """`scale0 WORDS… &`."""
        with background([sys.executable, "-m", "scale0", *words], self.folder, self.environment) as running:
            yield running


class Background:
    """A process that goes on."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.words = words
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        )
        self.said = ""

    def wait_for(self, text: str) -> str:
        """Until it has said this; all that it said."""
        return self.wait_until(lambda: text in self.said)

    def wait_until(self, true: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> str:
        """Until what it said makes it true."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        until = time.monotonic() + seconds
        while not true():
            readable, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            more = os.read(descriptor, 65_536) if readable else b""
            assert more, f"{self.words} said no more than:\n{self.said}"
            self.said += more.decode(errors="replace")
        return self.said

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit status; what it said last is in `said`."""
        last, _ = self.process.communicate(timeout=seconds)
        self.said += last.decode(errors="replace")
        return self.process.returncode


@contextlib.contextmanager
def background(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Background]:
    running = Background(words, folder, environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
        if running.process.stdout is not None:
            running.process.stdout.close()


def processes_with(folder: Path) -> list[str]:
    """Who still runs of those that were started with this folder for temporary files, or one in it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(folder)):
                found.append(" ".join(process.cmdline())[:200])
    return found
