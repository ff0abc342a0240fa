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


@worker.service("echo")
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@worker.service("say")
def say(text: str) -> str:
    return text


@worker.service("nothing")
def nothing() -> None:
    return None


@worker.service("empty.list")
def empty_list() -> list[int]:
    return []


@worker.service("count")
def count(most: int) -> Iterator[int]:
    yield from range(most)


@worker.service("breaks")
def breaks() -> None:
    raise LookupError("no such thing")


@worker.service("bytes", raw=True)
def frames(*bodies: bytes) -> list[bytes]:
    return [body[::-1] for body in bodies]


@worker.service("bytes.parts", raw=True)
def frames_in_parts(*bodies: bytes) -> Iterator[bytes]:
    yield from bodies


@worker.service("who")
def who() -> str | None:
    return worker.identity


@worker.service("wait.for", slots=2)
def wait_for(begun: str, gate: str) -> str:
    """Say that it began, and end when a file is there."""
    Path(begun).touch()
    while not Path(gate).exists():
        time.sleep(0.005)
    return "finished"
