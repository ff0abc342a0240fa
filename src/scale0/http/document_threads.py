"""Large bodies and configuration documents are validated and compared in threads, so that other requests are answered
meanwhile: two at a time, and few of one user."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from scale0.http.problem import ApiProblem
from scale0.http.thread_pool import BlockingThreads, ThreadPoolBusy, ThreadPoolTimeout

THREADS: Final = 2
MAX_WAITING: Final = 16
MAX_OF_USER: Final = 4
"""Of one user, with those that wait."""
WORK_SECONDS: Final = 20.0
BUSY_SECONDS: Final = 1.0

Result = TypeVar("Result")


class DocumentThreads:
    def __init__(self) -> None:
        self._threads = BlockingThreads("documents", THREADS, MAX_WAITING)
        self._open: Counter[str] = Counter()
        """Of each user. Work goes on after its deadline, and counts until it ends."""
        self._lock = threading.Lock()

    async def run(self, user: str, work: Callable[[], Result]) -> Result:
        """The result of `work`. Raises `ApiProblem` if too much is in progress, or if it takes too long."""
        with self._lock:
            if self._open[user] >= MAX_OF_USER:
                message = f"{MAX_OF_USER} documents of {user[:60]} are being processed"
                raise ApiProblem(429, message, retry_after=BUSY_SECONDS)
            self._open[user] += 1
        try:
            return await self._threads.run(lambda: self._counted(user, work), WORK_SECONDS)
        except ThreadPoolBusy as error:
            self._ended(user)
            raise ApiProblem(429, str(error), retry_after=BUSY_SECONDS) from None
        except ThreadPoolTimeout as error:
            raise ApiProblem(504, str(error), "send a smaller document") from None

    def close(self) -> None:
        self._threads.close()

    def _counted(self, user: str, work: Callable[[], Result]) -> Result:
        try:
            return work()
        finally:
            self._ended(user)

    def _ended(self, user: str) -> None:
        with self._lock:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
