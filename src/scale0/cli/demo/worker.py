"""The workers of `scale0 demo`: a worker as anybody would write one, that also writes down each run of a task.

Lives here: the functions. Never here: what should come of them. Invariant: a run is on its page before it has any
effect, so that no kill hides it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from scale0.cli.demo.plan import BEGUN, ENDED, ENDPOINTS, NAME, RUNS
from scale0.client.worker import Worker

SLOTS: Final = 4

_endpoints: Final = os.environ.get(ENDPOINTS, "tcp://127.0.0.1:5701").split()
worker = Worker(_endpoints, identity=os.environ.get(NAME))
_page: Final = os.open(os.environ.get(RUNS, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@worker.service("demo.greet", slots=SLOTS)
def greet(name: str, politely: bool = False) -> str:
    """Greet somebody."""
    return f"Good day, {name}." if politely else f"Hello, {name}!"


@worker.service("demo.countdown", slots=SLOTS)
def countdown(start: int) -> Iterator[int]:
    """Yield: the answer travels in parts."""
    yield from range(start, 0, -1)


@worker.service("demo.work", slots=SLOTS)
def work(number: int, seconds: float) -> dict[str, object]:
    """Take a while, and say who did it."""
    time.sleep(seconds)
    return {"number": number, "who": worker.identity}


@worker.service("demo.build", slots=SLOTS)
def build(number: int, seconds: float) -> dict[str, object]:
    """The same for tasks, which are counted wherever they run."""
    _write(BEGUN, number)
    time.sleep(seconds)
    _write(ENDED, number)
    return {"number": number, "who": worker.identity}


def _write(word: str, number: int) -> None:
    # One write, straight to the system: what it has survives kill -9 of this process.
    os.write(_page, f"{word} {number} {worker.identity} {os.getpid()}\n".encode())
