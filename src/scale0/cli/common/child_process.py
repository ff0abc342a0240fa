"""`scale0 …` commands as child processes of this command: servers that log to a file, and one-shot commands.

After `kill` or `stop` the process has ended. It also ends with the thread that started it, even if that is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scale0.kernel.edge import parent_death

START_SECONDS: Final = 20.0
"""How long a process may take to print its `ready` line."""
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02
PROGRESS_SECONDS: Final = 0.5
"""Between two calls of `progress` while a one-shot command runs."""
MAX_LOG_BYTES: Final = 4 * 1024 * 1024
"""A longer log is renamed to `.log.1` at the next start."""


class ChildFailed(Exception):
    """A child process failed; the end of its output is in the message."""


class CommandProcess:
    """One child process. With `log_dir` its output goes to a file there, otherwise to `output` (None: ours)."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        name: str = "",
        log_dir: Path | None = None,
        output: int | None = None,
    ) -> None:
        self.name = name or f"scale0 {' '.join(words[:2])}"
        self._log: Path | None = None
        with contextlib.ExitStack() as stack:
            target: int | None = output
            if log_dir is not None:
                self._log = log_dir / f"{name}.log"
                rotate(self._log)
                file = stack.enter_context(self._log.open("ab"))
                self._log_start, target = file.tell(), file.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scale0", *words],
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=target,
                text=True,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches only us, and the whole group can be killed
                preexec_fn=parent_death.before_exec(),  # noqa: PLW1509  # one prepared system call: it needs no lock
            )

    def ready(self, cancelled: threading.Event | None = None) -> str:
        """Wait for the line that starts with `ready`, and return it."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            if found := self._ready_line():
                return found
            if cancelled is not None and cancelled.is_set():
                raise ChildFailed("stopped")
            time.sleep(POLL_SECONDS)
        raise ChildFailed(f"{self.name} did not become ready; its output was:\n{self._logged()[-2_000:]}")

    def is_ready(self) -> bool:
        """True if `ready` returns or raises at once."""
        return self.process.poll() is not None or bool(self._ready_line())

    def ending(self) -> str:
        """How it ended, for a message; blank while it runs."""
        status = self.process.poll()
        if status is None:
            return ""
        return f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"

    def result(self, seconds: float, progress: Callable[[], None] | None = None) -> tuple[int, str, str]:
        """Wait for a one-shot command: its exit code, and what it printed to a pipe."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            try:
                output, trouble = self.process.communicate(timeout=min(left, PROGRESS_SECONDS) if progress else left)
            except subprocess.TimeoutExpired as error:
                if time.monotonic() >= until:
                    self.kill_group()
                    raise ChildFailed(f"{self.name} did not end within {seconds:.0f} s") from error
                if progress is not None:
                    progress()
            else:
                return self.process.returncode, output or "", trouble or ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        """SIGKILL to the process and to all that it has started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # another thread has just seen its end
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _ready_line(self) -> str:
        found = re.search(r"^ready .*\n", self._logged(), re.MULTILINE)
        return found[0].strip() if found else ""

    def _logged(self) -> str:
        if self._log is None:
            return ""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")


def rotate(log: Path) -> None:
    """Make sure that a private log file is there, and rename one that has grown too long."""
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    log.touch(mode=0o600)
