"""A worker for the tests of `scale0 task`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import scale0

worker = scale0.Worker()


@worker.service("echo")
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@worker.service("say")
def say(text: str) -> str:
    return text


@worker.service("breaks")
def breaks() -> None:
    raise LookupError("no such thing")


@worker.service("mends", slots=2)
def mends(gate: str) -> str:
    """Fail until a file is there."""
    if not Path(gate).exists():
        raise scale0.GiveUp("there is no gate")
    return "mended"


@worker.service("wait.for", slots=8)
def wait_for(gate: str) -> str:
    """End when a file is there, or nobody wants it any more."""
    scale0.progress(0.5, "half of \x1b[2J it")
    while not Path(gate).exists() and not scale0.cancelled():
        time.sleep(0.005)
    return "finished"
