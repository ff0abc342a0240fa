"""The workers of `scale0 demo`, `scale0 chaos` and `scale0 bench`.

A run of a task is recorded in the file of runs before it has any effect, so that SIGKILL cannot hide it. Each run
returns a value that no other run returns.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

from scale0.cli.bench.measurements import RUN, service_of, task_service_of
from scale0.cli.demo.audit import BEGUN, ENDED
from scale0.cli.demo.local_network import NAME, RUNS
from scale0.client.task_context import attempt, cancelled
from scale0.client.worker import Worker

SLOTS: Final = 4
BENCH_SLOTS: Final = 1_000
"""More than are in flight: a request never waits for a slot."""
HANG_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.01

demo = Worker(identity=os.environ.get(NAME))
chaos = Worker(identity=os.environ.get(NAME))
bench = Worker()
bench_run: Final = os.environ.get(RUN, "run")
_runs: Final = os.open(os.environ.get(RUNS, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class RecordedRun:
    """One run of a task, recorded when it begins and when it ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = secrets.token_hex(8)
        self._write(BEGUN)

    def end(self) -> dict[str, Any]:
        self._write(ENDED)
        return {"number": self.number, "run": self.id}

    def _write(self, what: str) -> None:
        # One unbuffered write: it survives SIGKILL of this process.
        line = f"{what} {self.number} {self.id} {attempt()} {time.monotonic()!r} {os.getpid()}\n"
        os.write(_runs, line.encode())


@demo.service("demo.greet", slots=SLOTS)
def greet(name: str, politely: bool = False) -> str:
    """Greet somebody."""
    return f"Good day, {name}." if politely else f"Hello, {name}!"


@demo.service("demo.countdown", slots=SLOTS)
def countdown(start: int) -> Iterator[int]:
    """Yield: the answer is a stream."""
    yield from range(start, 0, -1)


@demo.service("demo.work", slots=SLOTS)
def work(number: int, seconds: float) -> dict[str, object]:
    """Take a while, and return which worker did it."""
    time.sleep(seconds)
    return {"number": number, "who": demo.identity}


@demo.service("demo.build", slots=SLOTS)
def build(number: int, seconds: float) -> dict[str, Any]:
    """A task that takes a while."""
    run = RecordedRun(number)
    time.sleep(seconds)
    return run.end()


@chaos.service("chaos.quick", slots=2)
def quick(number: int) -> dict[str, Any]:
    """Do nothing."""
    return RecordedRun(number).end()


@chaos.service("chaos.slow", slots=4)
def slow(number: int) -> dict[str, Any]:
    """Sleep for a while."""
    run = RecordedRun(number)
    time.sleep(0.05 + number % 10 * 0.05)
    return run.end()


@chaos.service("chaos.flaky")
def flaky(number: int) -> dict[str, Any]:
    """Raise in the first one or two attempts."""
    run = RecordedRun(number)
    if attempt() <= 1 + number % 2:
        raise LookupError("not yet")
    return run.end()


@chaos.service("chaos.failing")
def failing(number: int) -> dict[str, Any]:
    """Raise in every attempt."""
    RecordedRun(number)
    raise LookupError("never")


@chaos.service("chaos.hanging", slots=2)
def hanging(number: int) -> dict[str, Any]:
    """Exceed the timeout in the first attempt."""
    run = RecordedRun(number)
    until = time.monotonic() + HANG_SECONDS
    while attempt() == 1 and not cancelled() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return run.end()


@bench.service(service_of(bench_run), slots=BENCH_SLOTS, raw=True)
def echo(body: bytes) -> bytes:
    """A request."""
    return body


@bench.service(task_service_of(bench_run), slots=1)
def noop(text: str) -> str:
    """A task."""
    return text
