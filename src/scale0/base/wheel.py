"""Deadlines in buckets: adding, removing and expiring each cost the same for one or a million.

Lives here: `Wheel`. Never here: what a deadline means. Invariant: an entry never comes out before
its time, and at most one `grain` after it. A heap would keep every answered request's entry until its
time came; here removal is real.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

Entry = TypeVar("Entry", bound=Hashable)


class Wheel(Generic[Entry]):
    """A set of entries by time. `add` returns the bucket that `remove` needs."""

    __slots__ = ("_buckets", "_order", "grain")

    def __init__(self, grain: float = 1 / 64) -> None:
        self.grain = grain
        self._buckets: dict[int, set[Entry]] = {}
        self._order: list[int] = []

    def add(self, entry: Entry, when: float) -> int:
        """Let `entry` come out at `when`; the answer is its bucket."""
        number = math.ceil(when / self.grain)
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = bucket = set()
            heapq.heappush(self._order, number)
        bucket.add(entry)
        return number

    def remove(self, entry: Entry, number: int) -> None:
        """Forget an entry; one that is not there is no error."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.discard(entry)

    def deadline(self) -> float | None:
        """When the next entry comes out."""
        order = self._order
        while order:
            if self._buckets[order[0]]:
                return order[0] * self.grain
            del self._buckets[heapq.heappop(order)]
        return None

    def expire(self, now: float) -> list[Entry]:
        """Take out all entries whose time has come, oldest bucket first."""
        out: list[Entry] = []
        order = self._order
        limit = now / self.grain
        while order and order[0] <= limit:
            out.extend(self._buckets.pop(heapq.heappop(order)))
        return out

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))
