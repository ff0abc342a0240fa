"""A cache of answers for a moment, so that ten readers cost the broker as much as one.

Authorization comes before the cache. An authorization error is never shared between users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from scale0.http.problem import ApiProblem

MAX_ENTRIES: Final = 500
UNSHARED: Final = (401, 403)
"""Errors that depend on the user and not on the question."""

Entry = TypeVar("Entry")
Value = TypeVar("Value")


def put(entries: dict[str, Entry], key: str, entry: Entry, limit: int, is_over: Callable[[Entry], bool]) -> None:
    """Add an entry as the newest. If there are `limit` already, those that are over are removed, then the oldest."""
    entries.pop(key, None)
    if len(entries) >= limit:
        for old in [name for name, one in entries.items() if is_over(one)]:
            del entries[old]
    while len(entries) >= limit:
        del entries[next(iter(entries))]
    entries[key] = entry


class CacheEntry(NamedTuple):
    task: asyncio.Task[Any]
    until: float
    """Loop time; an entry whose task still runs is valid until it has ended."""


class ResponseCache:
    def __init__(self) -> None:
        self._entries: dict[str, CacheEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: str, seconds: float, make: Callable[[], Awaitable[Value]]) -> Value:
        """The cached answer if it is at most `seconds` old, otherwise a new one by `make`."""
        entry = self._entries.get(key)
        now = asyncio.get_running_loop().time()
        if entry is not None and (not entry.task.done() or entry.until > now):
            try:
                known: Value = await asyncio.shield(entry.task)
                return known
            except ApiProblem as problem:
                if problem.status not in UNSHARED:
                    raise
        task = asyncio.ensure_future(self._made(key, seconds, make))
        self._put(key, CacheEntry(task, now + seconds))
        return await asyncio.shield(task)

    def clear(self) -> None:
        self._entries.clear()

    async def _made(self, key: str, seconds: float, make: Callable[[], Awaitable[Value]]) -> Value:
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
        now = asyncio.get_running_loop().time()
        put(self._entries, key, entry, MAX_ENTRIES, lambda one: one.task.done() and one.until <= now)
