"""Timers in buckets: add, remove and expire take constant time. `LazyTimerWheel` is for entries that mostly end long
before their time. Invariant: an entry never expires before its time, and at most one `grain` after it; entries of one
bucket expire in insertion order. A heap would keep the entry of every answered request until its time; here removal
frees it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

MAX_EMPTY: Final = 1_024
"""Empty buckets that are always kept: most are filled again or expire."""

NEVER: Final = 1 << 60
"""The bucket of a time that is too late for any number: after the end of every clock."""

Entry = TypeVar("Entry", bound=Hashable)


class TimerWheel(Generic[Entry]):
    """A set of entries by time. `add` returns the bucket that `remove` needs."""

    __slots__ = ("_buckets", "_empty", "_order", "grain")

    def __init__(self, grain: float = 1 / 64) -> None:
        self.grain = grain
        self._buckets: dict[int, dict[Entry, None]] = {}
        self._order: list[int] = []
        self._empty = 0

    def add(self, entry: Entry, when: float) -> int:
        """Lets `entry` expire at `when`; returns its bucket."""
        try:
            number = math.ceil(when / self.grain)
        except OverflowError:
            number = NEVER
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = bucket = {}
            heapq.heappush(self._order, number)
        elif not bucket:
            self._empty -= 1
        bucket[entry] = None
        return number

    def remove(self, entry: Entry, number: int) -> None:
        """Removes an entry, if it is there."""
        bucket = self._buckets.get(number)
        if bucket and entry in bucket:
            del bucket[entry]
            if not bucket:
                self._empty += 1
                if self._empty > MAX_EMPTY and 2 * self._empty > len(self._buckets):
                    self._compact()

    def _compact(self) -> None:
        """Removes empty buckets; most are emptied long before their time."""
        self._buckets = {number: bucket for number, bucket in self._buckets.items() if bucket}
        self._order = sorted(self._buckets)
        self._empty = 0

    def deadline(self) -> float | None:
        """Returns when the next entry expires."""
        order = self._order
        while order:
            if self._buckets[order[0]]:
                return order[0] * self.grain
            del self._buckets[heapq.heappop(order)]
            self._empty -= 1
        return None

    def expire(self, now: float) -> list[Entry]:
        """Removes and returns all expired entries, oldest bucket first."""
        out: list[Entry] = []
        order = self._order
        limit = now / self.grain
        while order and order[0] <= limit:
            bucket = self._buckets.pop(heapq.heappop(order))
            if not bucket:
                self._empty -= 1
            out.extend(bucket)
        return out

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))


Alarm = tuple[Callable[[Any, Now, Effects], None], Any]
"""A callback and its argument."""


def ring(wheel: TimerWheel[Alarm], now: Now, effects: Effects) -> None:
    """Calls the expired callbacks."""
    alarms = deque(wheel.expire(now.mono))
    try:
        while alarms:
            act, subject = alarms.popleft()
            act(subject, now, effects)
    finally:
        # If one raises an exception, the others run in the next turn.
        for alarm in alarms:
            wheel.add(alarm, now.mono)


class Timed(Protocol):
    deadline: float
    ended: bool
    bucket: int


TimedEntry = TypeVar("TimedEntry", bound=Timed)


class LazyTimerWheel(Generic[TimedEntry]):
    """A wheel whose entries mostly end soon: an entry that lives less than `youth` never enters a bucket."""

    __slots__ = ("_wheel", "_young", "youth")

    def __init__(self, youth: float = 0.25) -> None:
        self.youth = youth
        self._wheel: TimerWheel[TimedEntry] = TimerWheel()  # type: ignore[type-var]  # plain objects are hashable
        self._young: deque[tuple[float, list[TimedEntry]]] = deque()

    def add(self, entry: TimedEntry, now: float) -> None:
        """Lets `entry` expire at its `deadline`, unless it has `ended` by then."""
        if entry.deadline - now <= 2 * self.youth:
            entry.bucket = self._wheel.add(entry, entry.deadline)
            return
        young = self._young
        if young and young[-1][0] == now:
            young[-1][1].append(entry)
        else:
            young.append((now, [entry]))

    def keep(self, entry: TimedEntry, when: float) -> None:
        """Lets `entry` expire at `when`, ended or not."""
        entry.bucket = self._wheel.add(entry, when)

    def remove(self, entry: TimedEntry) -> None:
        """Removes an entry. A young one is skipped once it has `ended`."""
        if entry.bucket:
            self._wheel.remove(entry, entry.bucket)
            entry.bucket = 0

    def deadline(self) -> float | None:
        """Returns when `expire` has something to do."""
        due = self._wheel.deadline()
        if self._young:
            # Twice, so that all entries of one `youth` period move to buckets together, in one call.
            grown = self._young[0][0] + 2 * self.youth
            if due is None or grown < due:
                return grown
        return due

    def expire(self, now: float) -> list[TimedEntry]:
        """Removes and returns all expired entries."""
        young = self._young
        while young and young[0][0] + self.youth <= now:
            for entry in young.popleft()[1]:
                if not entry.ended and not entry.bucket:
                    entry.bucket = self._wheel.add(entry, entry.deadline)
        return self._wheel.expire(now)
