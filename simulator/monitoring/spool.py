"""The spool of a simulated agent: what `monitoring/agent/edge/spool.py` promises, without a disk.

Lives here: parts in the order in which they were begun, and what a restart leaves of them. Never here: a file, or a
connection. Invariants: a record is given up only by an acknowledgement, or because it is among the oldest of too many;
what was found while Helen was there goes first; a restart forgets what was acknowledged of a part that is not done, so
that it is offered again; each start has a spool id of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

PARTS_PER_SPOOL: Final = 8
MAX_PART_RECORDS: Final = 40
SYNC_SECONDS: Final = 1.0
"""What is younger may be lost with the power."""

_to_json: Final = msgspec.json.Encoder().encode


class Record(NamedTuple):
    """One result, and when it ended by the machine's own clock."""

    n: int
    name: str
    boot: float
    body: bytes


class Part:
    """One file of a spool."""

    __slots__ = ("acked", "boot_id", "in_flight", "live", "offered", "records", "spool")

    def __init__(self, spool: str, boot_id: int) -> None:
        self.spool = spool
        self.boot_id = boot_id
        self.records: list[Record] = []
        self.offered = 0
        self.acked = 0
        self.in_flight = 0
        self.live = False

    @property
    def done(self) -> bool:
        """Nothing is left to offer or to wait for."""
        return self.offered >= len(self.records) and self.in_flight == 0

    def ref(self, record: Record) -> str:
        """What names this result everywhere."""
        return f"{self.spool}:{record.n}"


Place = tuple[Part, int]
"""A part, and how many of its records are over when this one is."""


class SpoolModel:
    """All results of one machine that Helen may not have."""

    __slots__ = ("_connected", "_current", "_n", "_part_records", "_parts", "_spool", "boot_id", "lost", "most")

    def __init__(self, most: int, lost: Callable[[str], None]) -> None:
        self.most = most
        self._part_records = max(1, min(MAX_PART_RECORDS, most // PARTS_PER_SPOOL))
        self.lost = lost
        """Told of each result that nobody need hear of any more."""
        self.boot_id = 1
        self._spool = ""
        self._n = 0
        self._parts: list[Part] = []
        self._current: Part | None = None
        self._connected = False

    @property
    def has_more(self) -> bool:
        """True when `next` has something."""
        return any(part.offered < len(part.records) for part in self._parts)

    @property
    def count(self) -> int:
        """Records that are kept."""
        return sum(len(part.records) for part in self._parts)

    def begin(self, spool: str) -> None:
        """A process starts, and finds what the last one left."""
        self.disconnected()
        self._current = None
        self._spool, self._n = spool, 0
        self._parts = [part for part in self._parts if part.records]
        for part in self._parts:
            part.offered = part.acked = part.in_flight = 0

    def lose_power(self, boot: float) -> None:
        """The machine ends: what was not synced is gone. Its clock begins again."""
        for part in self._parts:
            kept = [record for record in part.records if boot - record.boot > SYNC_SECONDS]
            for record in part.records[len(kept) :]:
                self.lost(part.ref(record))
            part.records = kept
        self.boot_id += 1

    def lose_all(self) -> None:
        """The machine is gone with its disk."""
        for part in self._parts:
            for record in part.records:
                self.lost(part.ref(record))
        self._parts, self._current = [], None

    def append(self, name: str, body: bytes, boot: float) -> str:
        """Keep a result; its ref."""
        self._n += 1
        if self._current is not None and len(self._current.records) >= self._part_records:
            self._roll()
        if self._current is None:
            self._current = Part(self._spool, self.boot_id)
            self._current.live = self._connected
            self._parts.append(self._current)
        record = Record(self._n, name, boot, body)
        self._current.records.append(record)
        ref = self._current.ref(record)
        while len(self._parts) > 1 and self.count > self.most:
            self._drop(self._parts[0])
        return ref

    def connected(self) -> None:
        """Helen is there: what is found from now on goes first."""
        self._connected = True
        if self._current is not None and not self._current.records:
            self._current.live = True
        else:
            self._roll()

    def disconnected(self) -> None:
        """She is not: what she did not acknowledge is offered again."""
        self._connected = False
        for part in self._parts:
            part.offered, part.in_flight, part.live = part.acked, 0, False

    def next(self, boot: float, wall: float) -> tuple[Place, str, bytes] | None:
        """The next report to send: live ones first, then the oldest."""
        for live in (True, False):
            for part in self._parts:
                if part.live is live and part.offered < len(part.records):
                    record = part.records[part.offered]
                    part.offered += 1
                    part.in_flight += 1
                    return (part, part.offered), record.name, self._report(part, record, boot, wall)
        return None

    def _report(self, part: Part, record: Record, boot: float, wall: float) -> bytes:
        more: dict[str, str | int | float] = {"spool": part.spool, "n": record.n}
        if part.boot_id == self.boot_id:
            more["age"] = max(0.0, round(boot - record.boot, 6))
        more["sent"] = round(wall, 6)
        return record.body[:-1] + b"," + _to_json(more)[1:]

    def delivered(self, place: Place) -> None:
        """Helen has it, and all before it in its part."""
        part, end = place
        if part not in self._parts:
            return
        part.in_flight -= 1
        part.acked = max(part.acked, end)
        self._settle(part)

    def _roll(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            self._settle(current)

    def _settle(self, part: Part) -> None:
        if not part.done:
            return
        if part is self._current:
            part.records = []
            part.offered = part.acked = 0
            part.live = self._connected
        else:
            self._parts.remove(part)

    def _drop(self, part: Part) -> None:
        self._parts.remove(part)
        if part is self._current:
            self._current = None
        for record in part.records[part.acked :]:
            self.lost(part.ref(record))
