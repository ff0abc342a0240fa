"""A queue in which senders take turns, so that the number of entries of one sender delays only its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class SenderQueue(Generic[T]):
    """Each sender's entries are in order. The caller limits their number."""

    def __init__(self) -> None:
        self._by_sender: dict[Hashable, deque[T]] = {}
        """In the order of turns."""
        self._first: dict[int, deque[T]] = {}
        """By rank, in order of arrival. No deque is empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for rank in sorted(self._first, reverse=True):
            yield from self._first[rank]
        for entries in self._by_sender.values():
            yield from entries

    def count(self, sender: Hashable) -> int:
        return len(self._by_sender.get(sender, ()))

    def add(self, sender: Hashable, entry: T, rank: int = 0) -> None:
        """Entries of a higher rank come first; only those of rank 0 are taken from the senders in turn."""
        entries = self._first.setdefault(rank, deque()) if rank else self._by_sender.setdefault(sender, deque())
        entries.append(entry)
        self._count += 1

    def take(self) -> T:
        """The next entry; there must be one."""
        self._count -= 1
        if self._first:
            rank = max(self._first)
            entry = self._first[rank].popleft()
            if not self._first[rank]:
                del self._first[rank]
            return entry
        sender = next(iter(self._by_sender))
        entries = self._by_sender.pop(sender)
        entry = entries.popleft()
        if entries:
            self._by_sender[sender] = entries
        return entry

    def remove(self, sender: Hashable, entry: T) -> None:
        """Remove an entry that waits; one that does not is ignored."""
        for rank, entries in self._first.items():
            if entry in entries:
                entries.remove(entry)
                self._count -= 1
                if not entries:
                    del self._first[rank]
                return
        entries = self._by_sender.get(sender, deque())
        if entry in entries:
            entries.remove(entry)
            self._count -= 1
            if not entries:
                del self._by_sender[sender]
