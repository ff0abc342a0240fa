"""The memory of a process and all that it started: the sum of their proportional set sizes, sampled.

It reads /proc. Shared pages count once, so a sum over processes is correct.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType

EVERY_SECONDS = 1.0
AGAIN_SECONDS = 0.1
"""A child that Java starts has all of its parent's memory for a millisecond, until it is another program, and nothing
tells that it is the same memory. So the lesser of two looks counts."""


def tree_bytes(pid: int) -> int:
    """What a process and all below it hold now; whoever ends meanwhile holds nothing."""
    return own_bytes(pid) + sum(tree_bytes(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """Asked of the process itself: a look at all processes would cost more than what is measured allows."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def own_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Peak:
    """The most that a tree held while this was open, in bytes."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            first = tree_bytes(self._pid)
            self._stop.wait(AGAIN_SECONDS)
            self.bytes = max(self.bytes, min(first, tree_bytes(self._pid)))
