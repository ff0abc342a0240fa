"""The workers of `scale0 demo`: a worker as anybody would write one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from scale0.client.worker import Worker

worker = Worker(identity=os.environ.get("SCALE0_DEMO_NAME"))


@worker.service("demo.greet", slots=2)
def greet(name: str, politely: bool = False) -> str:
    """Greet somebody."""
    return f"Good day, {name}." if politely else f"Hello, {name}!"


@worker.service("demo.countdown", slots=2)
def countdown(start: int) -> Iterator[int]:
    """Yield: the answer travels in parts."""
    yield from range(start, 0, -1)


@worker.service("demo.work", slots=2)
def work(number: int, seconds: float = 0.01) -> dict[str, object]:
    """Take a while, and say who did it."""
    time.sleep(seconds)
    return {"number": number, "who": worker.identity}
