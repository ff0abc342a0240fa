"""Processes of our own: started, waited for, ended.

Lives here: one `scale0 …` as a child of this command: one that stays, its output in a file, or an errand that ends by
itself. Never here: which ones there are.
Invariants: after `kill` or `stop` it is gone; it does not outlive the thread that started it, however that one ends.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

START_SECONDS: Final = 20.0
"""How long a process may take to say that it is ready."""
STOP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.02
WAIT_SECONDS: Final = 0.5
"""Between two looks at an errand that somebody waits for."""
MAX_LOG_BYTES: Final = 4 * 1024 * 1024
"""A log that is longer is put aside at the next start; the one that was aside before is gone."""
SET_PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class ChildFailed(Exception):
    """A process did not do what it should; its last words are in the message."""


class CommandProcess:
    """One process of ours, its output in a file."""

    def __init__(self, name: str, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        if self._log.exists() and self._log.stat().st_size > MAX_LOG_BYTES:
            self._log.replace(folder / f"{name}.log.1")
        self._log.touch(mode=0o600)
        with self._log.open("ab") as log:
            self._start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scale0", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for us: we end our children ourselves
                preexec_fn=tether(),  # noqa: PLW1509  # one system call, made ready before: no lock is needed
            )

    def ready(self, given_up: threading.Event | None = None) -> str:
        """The line that starts with `ready`, once it has come; Broken if it does not, or nobody waits any more."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            if found := self._ready_line():
                return found
            if given_up is not None and given_up.is_set():
                raise ChildFailed("stopped")
            time.sleep(LOOK_SECONDS)
        raise ChildFailed(f"{self.name} did not get ready; it said:\n{self._said()[-2_000:]}")

    def is_ready(self) -> bool:
        """True if that line has come, or never will: then `ready` says so."""
        return self.process.poll() is not None or bool(self._ready_line())

    def ending(self) -> str:
        """How it ended, in words; blank while it runs."""
        status = self.process.poll()
        if status is None:
            return ""
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """In order; by force if that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _ready_line(self) -> str:
        found = re.search(r"^ready .*\n", self._said(), re.MULTILINE)
        return found[0].strip() if found else ""

    def _said(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._start)
            return log.read().decode(errors="replace")


class CommandRun:
    """One command of ours that ends by itself, and whatever it has started."""

    def __init__(self, words: Sequence[str], to: int | None, environment: dict[str, str]) -> None:
        self._what = f"scale0 {' '.join(words[:2])}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scale0", *words],
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=to,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,  # so that all of it can be ended at once
            preexec_fn=tether(),  # noqa: PLW1509  # as above
        )

    def done(self, seconds: float, looked: Callable[[], None] | None = None) -> tuple[int, str, str]:
        """Its exit code and what it printed, once it has ended; Broken if that takes too long.

        `looked` is called now and then meanwhile, so that somebody who waits sees that it goes on.
        """
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            try:
                said, troubled = self._process.communicate(timeout=left if looked is None else min(left, WAIT_SECONDS))
            except subprocess.TimeoutExpired as error:
                if time.monotonic() >= until:
                    self.kill()
                    raise ChildFailed(f"{self._what} did not end within {seconds:.0f} s") from error
                if looked is not None:
                    looked()
            else:
                return self._process.returncode, said or "", troubled or ""

    def kill(self) -> None:
        """kill -9, of all of it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # another thread has just seen its end
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def tether() -> Callable[[], None] | None:
    """What a child does before it becomes a program: ask the kernel for SIGTERM when we die, even by kill -9."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tied() -> None:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was too late to ask
            os._exit(1)

    return tied
