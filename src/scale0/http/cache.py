"""Answers that are shared for a moment: ten readers cost the broker what one does.

Lives here: what was read a moment ago, and what is being read now. Never here: who may read it; that was asked before.
Invariants: nothing is older than it may be; there are never more than MAX_SNAPSHOTS; a refusal is never shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from scale0.http.problem import ApiProblem

MAX_SNAPSHOTS: Final = 500
"""Different questions that are remembered at once."""
REFUSALS: Final = (401, 403)
"""Problems of whoever asked, not of what was asked."""

Make = Callable[[], Awaitable[Any]]


class CacheEntry(NamedTuple):
    """One answer, or the wait for it."""

    task: asyncio.Task[Any]
    until: float
    """Loop time; an answer that is still awaited holds until it is there."""


class ResponseCache:
    """What was read lately, by what was asked."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, CacheEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: str, seconds: float, make: Make) -> Any:
        """What `make` gave at most `seconds` ago, or gives now."""
        entry = self._entries.get(key)
        now = asyncio.get_running_loop().time()
        if entry is not None and (not entry.task.done() or entry.until > now):
            try:
                return await asyncio.shield(entry.task)
            except ApiProblem as problem:
                if problem.status not in REFUSALS:
                    raise
        task = asyncio.ensure_future(self._made(key, seconds, make))
        self._put(key, CacheEntry(task, now + seconds))
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Something has changed: whoever asks from now on is told what is there now."""
        self._entries.clear()

    async def _made(self, key: str, seconds: float, make: Make) -> Any:
        own = asyncio.current_task()
        try:
            found = await make()
        except BaseException:
            entry = self._entries.get(key)
            if entry is not None and entry.task is own:
                del self._entries[key]
            raise
        entry = self._entries.get(key)
        if entry is not None and entry.task is own:
            self._entries[key] = CacheEntry(entry.task, asyncio.get_running_loop().time() + seconds)
        return found

    def _put(self, key: str, entry: CacheEntry) -> None:
        self._entries.pop(key, None)
        if len(self._entries) >= MAX_SNAPSHOTS:
            now = asyncio.get_running_loop().time()
            for old in [name for name, one in self._entries.items() if one.task.done() and one.until <= now]:
                del self._entries[old]
        while len(self._entries) >= MAX_SNAPSHOTS:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry
