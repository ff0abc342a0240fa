"""Deadlines in buckets: adding, removing and expiring each cost the same for one or a million.

Lives here: `TimerWheel`, and `LazyTimerWheel` for entries that mostly end long before their time. Never here: what a
deadline means. Invariant: an entry never comes out before its time, and at most one `grain` after it; entries of one
bucket come out in the order in which they went in. A heap would keep every answered request's entry until its time
came; here removal is real.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

MAX_EMPTY: Final = 1_024
"""Empty buckets that are kept in any case: most are filled again, or run out by themselves."""

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
        """Let `entry` come out at `when`; the answer is its bucket."""
        number = math.ceil(when / self.grain)
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = bucket = {}
            heapq.heappush(self._order, number)
        elif not bucket:
            self._empty -= 1
        bucket[entry] = None
        return number

    def remove(self, entry: Entry, number: int) -> None:
        """Forget an entry; one that is not there is no error."""
        bucket = self._buckets.get(number)
        if bucket and entry in bucket:
            del bucket[entry]
            if not bucket:
                self._empty += 1
                if self._empty > MAX_EMPTY and 2 * self._empty > len(self._buckets):
                    self._compact()

    def _compact(self) -> None:
        """Empty buckets go; most were emptied long before their time."""
        self._buckets = {number: bucket for number, bucket in self._buckets.items() if bucket}
        self._order = sorted(self._buckets)
        self._empty = 0

    def deadline(self) -> float | None:
        """When the next entry comes out."""
        order = self._order
        while order:
            if self._buckets[order[0]]:
                return order[0] * self.grain
            del self._buckets[heapq.heappop(order)]
            self._empty -= 1
        return None

    def expire(self, now: float) -> list[Entry]:
        """Take out all entries whose time has come, oldest bucket first."""
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
"""What is to be done, and to what."""


def ring(wheel: TimerWheel[Alarm], now: Now, effects: Effects) -> None:
    """Do what its time has come for."""
    alarms = deque(wheel.expire(now.mono))
    try:
        while alarms:
            act, subject = alarms.popleft()
            act(subject, now, effects)
    finally:
        # Should one of them fail by our own mistake, the others ring in the next turn.
        for alarm in alarms:
            wheel.add(alarm, now.mono)


class Timed(Protocol):
    """What a `LazyTimerWheel` holds."""

    deadline: float
    ended: bool
    bucket: int


TimedEntry = TypeVar("TimedEntry", bound=Timed)


class LazyTimerWheel(Generic[TimedEntry]):
    """A wheel whose entries mostly end soon: one that lives less than `youth` never touches a bucket."""

    __slots__ = ("_wheel", "_young", "youth")

    def __init__(self, youth: float = 0.25) -> None:
        self.youth = youth
        self._wheel: TimerWheel[TimedEntry] = TimerWheel()  # type: ignore[type-var]  # plain objects are hashable
        self._young: deque[tuple[float, list[TimedEntry]]] = deque()

    def add(self, entry: TimedEntry, now: float) -> None:
        """Let `entry` come out at its `deadline`, unless it has `ended` by then."""
        if entry.deadline - now <= 2 * self.youth:
            entry.bucket = self._wheel.add(entry, entry.deadline)
            return
        young = self._young
        if young and young[-1][0] == now:
            young[-1][1].append(entry)
        else:
            young.append((now, [entry]))

    def keep(self, entry: TimedEntry, when: float) -> None:
        """Let `entry` come out at `when`, ended or not."""
        entry.bucket = self._wheel.add(entry, when)

    def remove(self, entry: TimedEntry) -> None:
        """Forget an entry. A young one is forgotten by having `ended`."""
        if entry.bucket:
            self._wheel.remove(entry, entry.bucket)
            entry.bucket = 0

    def deadline(self) -> float | None:
        """When `expire` has something to do."""
        due = self._wheel.deadline()
        if self._young:
            # Twice: so that those who came within one youth grow up together, in one look and not one each.
            grown = self._young[0][0] + 2 * self.youth
            if due is None or grown < due:
                return grown
        return due

    def expire(self, now: float) -> list[TimedEntry]:
        """Take out all entries whose time has come."""
        young = self._young
        while young and young[0][0] + self.youth <= now:
            for entry in young.popleft()[1]:
                if not entry.ended and not entry.bucket:
                    entry.bucket = self._wheel.add(entry, entry.deadline)
        return self._wheel.expire(now)
