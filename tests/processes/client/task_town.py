"""Handlers of tasks that run in processes of their own: each does one thing to its process.

Lives here: what the handlers do. Never here: a check.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import scale0


class Unsteady(ConnectionError):
    """An error that only a child ever sees."""


def add(one: int, other: int = 1) -> int:
    return one + other


def pid() -> int:
    return os.getpid()


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(status: int) -> None:
    os._exit(status)


def hog(limit: int) -> int:
    """Takes more memory than it may have."""
    used = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, resource.RLIM_INFINITY))
    return len(bytes(4 * limit))


def raises(name: str) -> None:
    kinds = {"unsteady": Unsteady, "value": ValueError, "retry": scale0.Retry, "give_up": scale0.GiveUp}
    raise kinds[name](f"{name} in {os.getpid()}")


def tells(words: int) -> int:
    for number in range(words):
        scale0.progress((number + 1) / words, f"word {number + 1}")
    return scale0.attempt()


def counts(most: int) -> Iterator[int]:
    yield from range(most)


def hangs(file: str) -> None:
    """Never ends, and neither does what it started."""
    other = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(f"{os.getpid()} {other.pid}")
    threading.Event().wait()
