"""Queries that are read beside the commits: one at a time, and in turn by sender, so that a sender with many of them
delays only itself. Invariant: each query is answered once, with a `Refusal` if it cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from scale0.kernel import codes
from scale0.kernel.effects import StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.log_context import about
from scale0.kernel.sender_queue import SenderQueue

log = logging.getLogger("scale0.runner")


class AsideQueries:
    def __init__(self, read: Callable[[Any], Awaitable[Any]], give: Callable[[StoreQuery, Any], None]) -> None:
        self._read = read
        self._give = give
        self._waiting: SenderQueue[StoreQuery] = SenderQueue()
        self._task: asyncio.Task[None] | None = None

    def add(self, query: StoreQuery) -> None:
        self._waiting.add(query.sender, query)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        """Reads none of those that wait."""
        self._waiting = SenderQueue()

    async def _work(self) -> None:
        try:
            while self._waiting:
                query = self._waiting.take()
                self._give(query, await self._answer(query))
        finally:
            self._task = None

    async def _answer(self, query: StoreQuery) -> Any:
        try:
            return await self._read(query)
        except Exception as error:
            log.error("cannot read %s from the store", type(query.ask).__name__, exc_info=error, extra=about())
            return Refusal(codes.NOT_SERVING, "the store could not be read; the broker's log says why: try again later")
