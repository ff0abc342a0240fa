"""Which reports of which spools are stored already: a report counts once, however often it is sent.

Lives here: `SeenReports`, the numbers of one spool as ranges, and `Spools`, those of all agents with what must be
written. Never here: what a report says. Invariants: a number that was added is never fresh again, until its whole spool
is forgotten; a spool's row is written in the turn that added to it, so that it is on disk with what it speaks of.
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
"""Of one spool. A gap is left where an agent went on while another Helen could not say what she has; beyond this the
oldest gap counts as seen, because she has what was in it."""
MAX_SPOOLS: Final = 256
"""Of one agent: each of its starts makes one, and one that could not reach Helen for a while brings many at once.
Beyond this the one that was silent longest is forgotten; should its reports come again, they would count again."""
FORGET_SECONDS: Final = 30 * 86_400.0
"""A spool that was not heard for so long is forgotten; an agent keeps results for a week."""

MAX_FOREIGN_BYTES: Final = 2 * MAX_RANGES * 9 + 5
"""Of ranges that another Helen wrote: nine for the longest number."""

HandedSpool = tuple[str, bytes, int]
"""A spool on its way to another Helen: its name, what was seen of it, when it was last heard (wall, microseconds)."""

_MICROSECONDS: Final = 1_000_000
_to_bytes: Final = msgspec.msgpack.Encoder().encode
_from_bytes: Final = msgspec.msgpack.Decoder(list[int]).decode


class SeenReports:
    """A set of numbers that mostly come in order."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: list[int] = []
        """First and last of each range in turn, ascending; between two ranges something is missing."""

    def add(self, number: int) -> bool:
        """True: it was not in; now it is."""
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
        """Everything that the other one has is in; True: some of it was not."""
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
        """As the store keeps it."""
        return _to_bytes(self._ends)

    @classmethod
    def decode(cls, body: bytes) -> SeenReports:
        """What `encode` gave. ValueError: it is something else, and so the store is not ours or is damaged."""
        made = cls()
        made._ends = ends = _from_bytes(body)
        if len(ends) % 2 or any(ends[at] > ends[at + 1] - at % 2 for at in range(len(ends) - 1)):
            raise ValueError("these are no ranges of numbers")
        return made


def _pairs(ends: list[int]) -> Iterable[tuple[int, int]]:
    return zip(ends[::2], ends[1::2], strict=True)


class _Spool:
    """One spool of one agent."""

    __slots__ = ("changed", "last_seen", "seen")

    def __init__(self, seen: SeenReports, last_seen: float) -> None:
        self.seen = seen
        self.last_seen = last_seen
        """By the monotonic clock."""
        self.changed = False
        """It is among those to be written at the end of this turn."""


class Spools:
    """The spools of all agents."""

    __slots__ = ("_by_agent", "_forgotten", "_to_write")

    def __init__(self) -> None:
        self._by_agent: dict[str, dict[str, _Spool]] = {}
        self._to_write: list[tuple[str, str, _Spool]] = []
        self._forgotten: list[DropSpool] = []

    def load(self, rows: Iterable[SpoolRow], now: Now) -> None:
        """What the store remembers."""
        for row in rows:
            age_seconds = max(0.0, now.wall - row.heard_us / _MICROSECONDS)
            try:
                spool = _Spool(SeenReports.decode(row.seen), now.mono - age_seconds)
            except (msgspec.MsgspecError, ValueError) as error:
                raise StoreError(f"the row of spool {row.spool} of agent {row.agent} is damaged: {error}") from error
            self._by_agent.setdefault(row.agent, {})[row.spool] = spool

    def add(self, agent: str, name: str, number: int, now: Now) -> bool:
        """True: this report is fresh, and counts as seen from here on."""
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
            # Its put must not come behind its drop.
            self._to_write = [entry for entry in self._to_write if entry[2] is not spool]
        self._forgotten.append(DropSpool(agent, name))

    def settle(self, now: Now, effects: Effects) -> None:
        """The turn ends: write what it changed. Drops first: a name that was dropped may have come again."""
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
        """All spools of an agent that another Helen has now; they are forgotten here."""
        spools = self._by_agent.get(agent, {})
        rows = [
            (name, spool.seen.encode(), max(0, round((now.wall - (now.mono - spool.last_seen)) * _MICROSECONDS)))
            for name, spool in sorted(spools.items(), key=lambda item: item[1].last_seen)
        ]
        self.forget(agent)
        return rows

    def take_over(self, agent: str, handed_over: Iterable[tuple[str, SeenReports, int]], now: Now) -> None:
        """What another Helen has seen of an agent is seen."""
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
        """Forget what was silent for too long; how many that were."""
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
        """All spools of an agent that is no more."""
        for name in list(self._by_agent.get(agent, ())):
            self._drop(agent, name)
        self._by_agent.pop(agent, None)


def read_foreign(body: bytes) -> SeenReports:
    """Ranges that another Helen wrote. ValueError or MsgspecError: they are none."""
    seen = SeenReports.decode(body)
    if len(body) > MAX_FOREIGN_BYTES:
        raise ValueError("too many ranges")
    return seen


def is_spool(name: str) -> bool:
    """True for a name that a spool may have: one that fits into a `ref`."""
    return is_identity(name) and ":" not in name
