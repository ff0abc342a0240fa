"""The worker that `scale0 chaos` kills: functions that write down each time that they run.

Lives here: the functions. Never here: what should come of them. Invariant: a run is on its page before it has any
effect, so that no kill hides it; each run returns something that no other run returns.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any, Final

from scale0.cli.demo.chaos_plan import BEGUN, ENDED, FOLDER, NAME, RUNS_ENDING
from scale0.client.task_context import attempt, cancelled
from scale0.client.worker import Worker

HANG_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.01

name: Final = os.environ.get(NAME, "worker")
worker = Worker(identity=name)
_page: Final = os.open(
    Path(os.environ.get(FOLDER, ".")) / f"{name}{RUNS_ENDING}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
)


class FunctionRun:
    """One run of a function, from its first line on the page to its last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = secrets.token_hex(8)
        self._write(BEGUN)

    def end(self) -> dict[str, Any]:
        """What the function returns."""
        self._write(ENDED)
        return {"number": self.number, "run": self.id}

    def _write(self, word: str) -> None:
        # One write, straight to the system: what it has survives kill -9 of this process.
        line = f"{word} {self.number} {self.id} {attempt()} {time.monotonic()!r}\n"
        os.write(_page, line.encode())


@worker.service("chaos.quick", slots=2)
def quick(number: int) -> dict[str, Any]:
    """Nothing."""
    return FunctionRun(number).end()


@worker.service("chaos.slow", slots=4)
def slow(number: int) -> dict[str, Any]:
    """Sleep for a while."""
    run = FunctionRun(number)
    time.sleep(0.05 + number % 10 * 0.05)
    return run.end()


@worker.service("chaos.flaky")
def flaky(number: int) -> dict[str, Any]:
    """Raise once or twice."""
    run = FunctionRun(number)
    if attempt() <= 1 + number % 2:
        raise LookupError("not yet")
    return run.end()


@worker.service("chaos.failing")
def failing(number: int) -> dict[str, Any]:
    """Raise always."""
    FunctionRun(number)
    raise LookupError("never")


@worker.service("chaos.hanging", slots=2)
def hanging(number: int) -> dict[str, Any]:
    """Outlast the timeout once."""
    run = FunctionRun(number)
    until = time.monotonic() + HANG_SECONDS
    while attempt() == 1 and not cancelled() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    return run.end()
