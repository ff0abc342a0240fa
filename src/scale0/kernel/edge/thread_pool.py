"""A bounded pool of daemon threads for blocking calls: slow checks, name lookups, the disk. It has no deadlines: the
caller stops waiting by itself. Invariants: a thread that hangs blocks neither other threads nor the end of the process;
callbacks run in the loop's thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

IDLE_SECONDS: Final = 30.0
"""An idle thread ends after this time, because it uses memory."""

Done = Callable[[Any, BaseException | None], None]
"""Called with the result, or with the exception."""


class ThreadPool:
    """At most `limit` threads, started when they are needed."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = limit
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._asked = 0
        """Queued and running calls."""

    def do(self, work: Callable[[], Any], done: Done) -> None:
        """Runs `work` in a thread, and `done` in the loop's thread."""
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
                    # A call that was just queued relies on this thread.
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
