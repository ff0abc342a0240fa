"""A model of an agent's spool: the promises of `monitoring/agent/edge/spool.py` without a disk.

A record is removed only by an acknowledgement, or as one of the oldest when there are too many. Results from the
current connection go first. A restart forgets the acknowledgements of an unfinished segment, which is then offered
again. Each start has a new spool id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

PARTS_PER_SPOOL: Final = 8
MAX_PART_RECORDS: Final = 40
SYNC_SECONDS: Final = 1.0
"""Younger records may be lost at a power failure."""

_to_json: Final = msgspec.json.Encoder().encode


class Record(NamedTuple):
    """A result, and when it ended by the machine's boot clock."""

    n: int
    name: str
    boot: float
    body: bytes


class Part:
    """One segment of a spool."""

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
        """True if nothing is left to offer, and everything is acknowledged."""
        return self.offered >= len(self.records) and self.in_flight == 0

    def ref(self, record: Record) -> str:
        """The ref of a result."""
        return f"{self.spool}:{record.n}"


Place = tuple[Part, int]
"""A segment, and the number of its records up to this one."""


class SpoolModel:
    """The results of one machine that Helen may not have."""

    def __init__(self, most: int, lost: Callable[[str], None]) -> None:
        self.most = most
        self._part_records = max(1, min(MAX_PART_RECORDS, most // PARTS_PER_SPOOL))
        self.lost = lost
        """Called for each result that is lost for good."""
        self.boot_id = 1
        self._spool = ""
        self._n = 0
        self._parts: list[Part] = []
        self._current: Part | None = None
        self._connected = False

    @property
    def has_more(self) -> bool:
        return any(part.offered < len(part.records) for part in self._parts)

    @property
    def count(self) -> int:
        return sum(len(part.records) for part in self._parts)

    def begin(self, spool: str) -> None:
        """A process starts, with the segments of the last one."""
        self.disconnected()
        self._current = None
        self._spool, self._n = spool, 0
        self._parts = [part for part in self._parts if part.records]
        for part in self._parts:
            part.offered = part.acked = part.in_flight = 0

    def lose_power(self, boot: float) -> None:
        """A power failure: records that were not synced are lost, and the boot clock starts again."""
        for part in self._parts:
            kept = [record for record in part.records if boot - record.boot > SYNC_SECONDS]
            for record in part.records[len(kept) :]:
                self.lost(part.ref(record))
            part.records = kept
        self.boot_id += 1

    def lose_all(self) -> None:
        """The machine and its disk are lost."""
        for part in self._parts:
            for record in part.records:
                self.lost(part.ref(record))
        self._parts, self._current = [], None

    def append(self, name: str, body: bytes, boot: float) -> str:
        """Spool a result; returns its ref."""
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
        """Connected: results from now on go first."""
        self._connected = True
        if self._current is not None and not self._current.records:
            self._current.live = True
        else:
            self._roll()

    def disconnected(self) -> None:
        """Disconnected: what was not acknowledged is offered again."""
        self._connected = False
        for part in self._parts:
            part.offered, part.in_flight, part.live = part.acked, 0, False

    def next(self, boot: float, wall: float) -> tuple[Place, str, bytes] | None:
        """The next report: those of this connection first, then the oldest."""
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
        """Helen has acknowledged this record and all before it in its segment."""
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
