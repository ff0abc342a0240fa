"""Work that would block the loop: in a few threads, with a deadline, and with a limit on who waits.

Lives here: `BlockingThreads`. Never here: what the work is. Invariants: never more than `threads` pieces of work at
once; who finds too many waiting is refused at once; who waited too long is told so, though the work itself goes on to
its end (a thread cannot be ended) and keeps its place until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from scale0.kernel.errors import Scale0Error

Result = TypeVar("Result")


class ThreadPoolBusy(Scale0Error):
    """Too many wait already."""


class ThreadPoolTimeout(Scale0Error):
    """It was not done in time."""


class BlockingThreads:
    """Some threads for one sort of work."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = threads + waiting
        self._open = 0

    async def run(self, work: Callable[[], Result], seconds: float | None) -> Result:
        """What the work gives. Busy or TooLate if that is not to be had."""
        if self._open >= self._most:
            raise ThreadPoolBusy("too many ask for this at once; try again in a moment")
        self._open += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), seconds)
        except TimeoutError:
            if future.done():
                raise  # the work's own
            raise ThreadPoolTimeout(f"it took longer than {seconds:g} s; ask for less") from None

    def close(self) -> None:
        """Take no more; what has not begun does not begin."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._open -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left to hear it
