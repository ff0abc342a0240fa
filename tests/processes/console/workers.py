"""A worker for the tests of the console: what waits until a file is there, what fails, and what is quick."""

from __future__ import annotations

import os
import time
from pathlib import Path

import scale0

worker = scale0.Worker(identity=os.environ.get("TEST_WORKER"), prefetch=0)


@worker.service("thumbs.make", slots=2)
def make(gate: str) -> str:
    """End when a file is there, or nobody wants it any more."""
    scale0.progress(0.5, "half of it")
    while not Path(gate).exists() and not scale0.cancelled():
        time.sleep(0.01)
    return "made"


@worker.service("mail.send")
def send(gate: str) -> str:
    """Fail for good until a file is there."""
    if not Path(gate).exists():
        raise scale0.GiveUp("the mailbox is full")
    return "sent"


@worker.service("hello", slots=4)
def hello(name: str) -> str:
    return f"Hello, {name}!"
