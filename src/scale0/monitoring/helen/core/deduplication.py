"""Deduplication of reports: a report counts once, however often it is sent.

The numbers of each spool are kept as ranges. A number that was added is never new again until its whole spool is
forgotten. A spool's row is written in the turn that added to it, so it is stored together with the reports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.kernel.names import is_identity
from scale0.storage.check_rows import DropSpool, PutSpool, SpoolRow

MAX_RANGES: Final = 256
"""Ranges of one spool. A gap remains if an agent continued while another Helen could not hand over. Beyond this limit
the oldest gap counts as seen: the other Helen has its reports."""
MAX_SPOOLS: Final = 256
"""Spools of one agent: each start of an agent makes one, and after an outage it sends many at once. Beyond this limit
the spool that was silent longest is forgotten; if its reports came again, they would count again."""
FORGET_SECONDS: Final = 30 * 86_400.0
"""A spool that was silent for longer is forgotten; an agent keeps results for a week."""

MAX_FOREIGN_BYTES: Final = 2 * MAX_RANGES * 9 + 5
"""The size of ranges in another Helen's bundle: nine bytes for the longest number."""

HandedSpool = tuple[str, bytes, int]
"""A spool in a bundle: its name, its encoded ranges, and when it was last seen (wall time, microseconds)."""

_MICROSECONDS: Final = 1_000_000
_to_bytes: Final = msgspec.msgpack.Encoder().encode
_from_bytes: Final = msgspec.msgpack.Decoder(list[int]).decode


class SeenReports:
    """A set of numbers that mostly arrive in order."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: list[int] = []
        """First and last number of each range, ascending; between two ranges numbers are missing."""

    def add(self, number: int) -> bool:
        """Add a number; True if it is new."""
        ends = self._ends
        if not ends or number > ends[-1]:
            if ends and number == ends[-1] + 1:
                ends[-1] = number
            else:
                ends += (number, number)
                self._bound()
            return True
        at = bisect_left(ends, number)
        if at & 1 or ends[at] == number:
            return False
        joins_lower = at > 0 and ends[at - 1] == number - 1
        joins_higher = ends[at] == number + 1
        if joins_lower and joins_higher:
            del ends[at - 1 : at + 1]
        elif joins_lower:
            ends[at - 1] = number
        elif joins_higher:
            ends[at] = number
        else:
            ends[at:at] = (number, number)
            self._bound()
        return True

    def _bound(self) -> None:
        if len(self._ends) > 2 * MAX_RANGES:
            del self._ends[1 : len(self._ends) - 2 * MAX_RANGES + 1]

    def merge(self, other: SeenReports) -> bool:
        """Add all numbers of another set; True if some were new."""
        before = self._ends
        ranges = sorted([*_pairs(before), *_pairs(other._ends)])
        ends: list[int] = []
        for first, last in ranges:
            if ends and first <= ends[-1] + 1:
                ends[-1] = max(ends[-1], last)
            else:
                ends += (first, last)
        self._ends = ends
        self._bound()
        return self._ends != before

    def encode(self) -> bytes:
        return _to_bytes(self._ends)

    @classmethod
    def decode(cls, body: bytes) -> SeenReports:
        """The inverse of `encode`. Raises ValueError if the bytes are not sorted ranges."""
        made = cls()
        made._ends = ends = _from_bytes(body)
        if len(ends) % 2 or any(ends[at] > ends[at + 1] - at % 2 for at in range(len(ends) - 1)):
            raise ValueError("invalid ranges")
        return made


def _pairs(ends: list[int]) -> Iterable[tuple[int, int]]:
    return zip(ends[::2], ends[1::2], strict=True)


class _Spool:
    __slots__ = ("changed", "last_seen", "seen")

    def __init__(self, seen: SeenReports, last_seen: float) -> None:
        self.seen = seen
        self.last_seen = last_seen
        """Monotonic time."""
        self.changed = False
        """It will be written at the end of this turn."""


class Spools:
    def __init__(self) -> None:
        self._by_agent: dict[str, dict[str, _Spool]] = {}
        self._to_write: list[tuple[str, str, _Spool]] = []
        self._forgotten: list[DropSpool] = []

    def load(self, rows: Iterable[SpoolRow], now: Now) -> None:
        for row in rows:
            age_seconds = max(0.0, now.wall - row.heard_us / _MICROSECONDS)
            try:
                spool = _Spool(SeenReports.decode(row.seen), now.mono - age_seconds)
            except (msgspec.MsgspecError, ValueError) as error:
                raise StoreError(f"the row of spool {row.spool} of agent {row.agent} is damaged: {error}") from error
            self._by_agent.setdefault(row.agent, {})[row.spool] = spool

    def add(self, agent: str, name: str, number: int, now: Now) -> bool:
        """Add a report's number; True if it is new."""
        spools = self._by_agent.get(agent)
        spool = None if spools is None else spools.get(name)
        if spool is None:
            spool = self._begin(agent, name, now)
        spool.last_seen = now.mono
        if not spool.seen.add(number):
            return False
        if not spool.changed:
            spool.changed = True
            self._to_write.append((agent, name, spool))
        return True

    def _begin(self, agent: str, name: str, now: Now) -> _Spool:
        spools = self._by_agent.setdefault(agent, {})
        if len(spools) >= MAX_SPOOLS:
            oldest = min(spools, key=lambda each: spools[each].last_seen)
            self._drop(agent, oldest)
        spools[name] = spool = _Spool(SeenReports(), now.mono)
        return spool

    def _drop(self, agent: str, name: str) -> None:
        spool = self._by_agent[agent].pop(name)
        if spool.changed:
            # A pending put must not come after the drop.
            self._to_write = [entry for entry in self._to_write if entry[2] is not spool]
        self._forgotten.append(DropSpool(agent, name))

    def settle(self, now: Now, effects: Effects) -> None:
        """Write what this turn changed. Drops come first: a dropped name may have been added again."""
        if self._forgotten:
            for drop in self._forgotten:
                effects.write(drop)
            self._forgotten = []
        if self._to_write:
            heard_us = round(now.wall * _MICROSECONDS)
            for agent, name, spool in self._to_write:
                spool.changed = False
                effects.write(PutSpool(agent, name, spool.seen.encode(), heard_us))
            self._to_write = []

    def hand_over(self, agent: str, now: Now) -> list[HandedSpool]:
        """Remove all spools of an agent; returns them for its bundle."""
        spools = self._by_agent.get(agent, {})
        rows = [
            (name, spool.seen.encode(), max(0, round((now.wall - (now.mono - spool.last_seen)) * _MICROSECONDS)))
            for name, spool in sorted(spools.items(), key=lambda item: item[1].last_seen)
        ]
        self.forget(agent)
        return rows

    def take_over(self, agent: str, handed_over: Iterable[tuple[str, SeenReports, int]], now: Now) -> None:
        """Merge the spools of another Helen's bundle."""
        for name, seen, heard_us in handed_over:
            last_seen = now.mono - max(0.0, now.wall - heard_us / _MICROSECONDS)
            spools = self._by_agent.get(agent, {})
            spool = spools.get(name)
            if spool is None:
                if len(spools) >= MAX_SPOOLS and last_seen < min(each.last_seen for each in spools.values()):
                    continue
                spool = self._begin(agent, name, now)
                spool.last_seen = last_seen
            spool.last_seen = max(spool.last_seen, last_seen)
            if spool.seen.merge(seen) and not spool.changed:
                spool.changed = True
                self._to_write.append((agent, name, spool))

    def prune(self, now: Now) -> int:
        """Forget spools that were silent for too long; returns how many."""
        before = now.mono - FORGET_SECONDS
        old = [
            (agent, name)
            for agent, spools in self._by_agent.items()
            for name, spool in spools.items()
            if spool.last_seen < before
        ]
        for agent, name in old:
            self._drop(agent, name)
            if not self._by_agent[agent]:
                del self._by_agent[agent]
        return len(old)

    def forget(self, agent: str) -> None:
        for name in list(self._by_agent.get(agent, ())):
            self._drop(agent, name)
        self._by_agent.pop(agent, None)


def read_foreign(body: bytes) -> SeenReports:
    """Decode ranges of another Helen's bundle. Raises ValueError or MsgspecError."""
    seen = SeenReports.decode(body)
    if len(body) > MAX_FOREIGN_BYTES:
        raise ValueError("too many ranges")
    return seen


def is_spool(name: str) -> bool:
    """True for a valid spool name: it must fit into a `ref`."""
    return is_identity(name) and ":" not in name
