"""Threads for what blocks: slow checks, name look-ups, the disk.

Lives here: a bounded number of daemon threads. Never here: deadlines; whoever asked stops waiting by itself.
Invariants: a thread that hangs holds only itself, and never the end of the process; answers come in the loop's thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

IDLE_SECONDS: Final = 30.0
"""A thread with nothing to do ends after so long: it keeps memory of its own."""

Done = Callable[[Any, BaseException | None], None]
"""Called with what the work gave, or what it raised."""


class ThreadPool:
    """At most `limit` threads, made when they are needed."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = limit
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._asked = 0
        """Work that was given and not finished yet, waiting or running."""

    def do(self, work: Callable[[], Any], done: Done) -> None:
        """Have `work` done, and `done` called in the loop's thread."""
        self._work.put((work, done))
        with self._lock:
            self._asked += 1
            if self._threads >= min(self._asked, self._limit):
                return
            self._threads += 1
        threading.Thread(target=self._serve, name="scale0-agent-work", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                work, done = self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    # Work that came just now has counted on this thread.
                    if self._threads > self._asked:
                        self._threads -= 1
                        return
                continue
            value, error = None, None
            try:
                value = work()
            except BaseException as raised:
                error = raised
            with self._lock:
                self._asked -= 1
            try:
                self._loop.call_soon_threadsafe(done, value, error)
            except RuntimeError:
                return  # the loop has ended, and the process is about to
