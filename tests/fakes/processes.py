"""Real processes for tests: servers that print `ready`, and programs in the background.

Whatever a test does, the processes that it started have ended when its block ends, and no others.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.fakes.waiting import PATIENCE_SECONDS

READY_SECONDS: Final = 30.0
"""How long a start may take on a busy machine."""
STOP_SECONDS: Final = 15.0
"""How long an orderly stop may take before it is a failure."""
READ_BYTES: Final = 65_536
LOG_CHARS: Final = 4_000
"""How much of a log a failure shows."""


def environment(**more: str) -> dict[str, str]:
    """The variables of this process, and the folders that it imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def scale0_command(*words: str) -> list[str]:
    """The command line `scale0 WORDS...`."""
    return [sys.executable, "-m", "scale0", *words]


class ServerProcess:
    """A server that prints a line beginning with `ready`; it may be killed and started again, and has one log."""

    def __init__(self, log: Path, command: Sequence[str], first_line: bytes = b"") -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.command = list(command)
        self.prefix: list[str] = []
        """What comes before the command, such as `ip netns exec NAME`."""
        self._first_line = first_line
        """Written to its standard input, which then stays open."""
        self.stop_seconds = STOP_SECONDS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one that runs now, or ran last."""
        assert self._process is not None, f"{self.log.stem} was never started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Start it and wait until it serves; the line that it printed."""
        assert not self.running, f"{self.log.stem} is running already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *self.command],
                stdin=subprocess.PIPE if self._first_line else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
            )
        if self._process.stdin is not None:
            self._process.stdin.write(self._first_line)
            self._process.stdin.flush()
        return self._ready_line()

    def wait(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(self.stop_seconds)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        if self.running:
            self.send_signal(number)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.log.stem} did not stop in time\n{self.log_tail()}") from None
        finally:
            self.close()

    def kill9(self) -> None:
        self.end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it with the same files and ports."""
        if self.running:
            self.end()
        self.start()

    def close(self) -> None:
        """End it, whatever happened."""
        if self._process is None:
            return
        if self.running:
            self.send_signal(signal.SIGKILL)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def log_tail(self) -> str:
        return self.log_text()[-LOG_CHARS:]

    def assert_no_traceback(self) -> None:
        """A server of ours never logs an exception."""
        assert "Traceback" not in self.log_text(), self.log_tail()

    def _ready_line(self) -> str:
        assert self.process.stdout is not None
        descriptor, printed = self.process.stdout.fileno(), b""
        deadline = time.monotonic() + READY_SECONDS
        while (left := deadline - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
            more = os.read(descriptor, READ_BYTES)
            if not more:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.wait()
                break
            printed += more
            for line in printed.decode(errors="replace").splitlines(keepends=True):
                if line.startswith("ready") and line.endswith("\n"):
                    return line
        self.close()
        raise AssertionError(f"{self.log.stem} is not ready; it printed {printed!r}\n{self.log_tail()}")


class Background:
    """A program that goes on while the test does something else; it prints to one pipe, which the test reads."""

    def __init__(self, command: Sequence[str], folder: Path, variables: dict[str, str]) -> None:
        self.command = command
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=variables,
        )
        self.output = ""

    def wait_for(self, text: str) -> str:
        """Until it has printed this; all that it printed."""
        return self.wait_until(lambda: text in self.output)

    def wait_until(self, is_enough: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> str:
        """Until its output is enough; all that it printed."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while not is_enough():
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(descriptor, READ_BYTES) if readable else b""
            assert more, f"{self.command} printed no more than:\n{self.output}"
            self.output += more.decode(errors="replace")
        return self.output

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit status; what it printed last is in `output`."""
        last, _ = self.process.communicate(timeout=seconds)
        self.output += last.decode(errors="replace")
        return self.process.returncode


@contextlib.contextmanager
def background(command: Sequence[str], folder: Path, variables: dict[str, str] | None = None) -> Iterator[Background]:
    """A program that is killed at the end of the block, if it still runs."""
    running = Background(command, folder, variables or environment())
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
        if running.process.stdout is not None:
            running.process.stdout.close()


def gone(pid: int) -> bool:
    """True of a process that has ended, also if its parent has not read its status yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def processes_with(folder: Path) -> list[str]:
    """The running processes that were started with this folder for temporary files, or one in it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(folder)):
                found.append(" ".join(process.cmdline())[:200])
    return found
