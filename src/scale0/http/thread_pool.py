"""Blocking work in a few threads, with a deadline and a limit on how many calls wait.

A call that finds too many waiting is refused at once. A call that exceeds its deadline fails, but its work goes on to
the end, because a thread cannot be stopped, and occupies its thread until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from scale0.kernel.errors import Scale0Error

Result = TypeVar("Result")


class ThreadPoolBusy(Scale0Error):
    """Too many calls wait already."""


class ThreadPoolTimeout(Scale0Error):
    """The work exceeded its deadline."""


class BlockingThreads:
    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._max_open = threads + waiting
        self._open = 0

    async def run(self, work: Callable[[], Result], seconds: float | None) -> Result:
        """The result of `work`. Raises `ThreadPoolBusy` or `ThreadPoolTimeout`."""
        if self._open >= self._max_open:
            raise ThreadPoolBusy("too many requests of this kind are in progress; try again in a moment")
        self._open += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), seconds)
        except TimeoutError:
            if future.done():
                raise  # the work's own
            raise ThreadPoolTimeout(f"the request took longer than {seconds:g} s; ask for less") from None

    def close(self) -> None:
        """Accept no more work; work that has not begun is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._open -= 1
        if not future.cancelled():
            future.exception()  # retrieve it: its caller may have stopped waiting
