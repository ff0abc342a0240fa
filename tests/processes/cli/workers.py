"""A worker for the tests of the command line: what a user's own file may hold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scale0

worker = scale0.Worker(identity=os.environ.get("TEST_WORKER"))
empty = scale0.Worker()
worker.add("nothing", lambda: None)
worker.add("empty.list", list)
worker.add("who", lambda: worker.identity)
worker.add("bytes", lambda *bodies: [body[::-1] for body in bodies], raw=True)


@worker.service("say")
def say(text: str) -> str:
    return text


@worker.service("echo")
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@worker.service("count")
def count(most: int) -> Iterator[int]:
    yield from range(most)


@worker.service("breaks")
def breaks() -> None:
    raise LookupError("no such thing")


@worker.service("bytes.parts", raw=True)
def frames_in_parts(*bodies: bytes) -> Iterator[bytes]:
    yield from bodies


@worker.service("mends", slots=2)
def mends(gate: str) -> str:
    if not Path(gate).exists():
        raise scale0.GiveUp("there is no gate")
    return "mended"


@worker.service("wait.for", slots=8)
def wait_for(gate: str, begun: str = "") -> str:
    """Make the file `begun`; end when the file `gate` is there, or the task is cancelled."""
    if begun:
        Path(begun).touch()
    scale0.progress(0.5, "half of \x1b[2J it")
    while not Path(gate).exists() and not scale0.cancelled():
        time.sleep(0.005)
    return "finished"
