"""The spool: results of scheduled checks on disk until Helen has them.

Lives here: which part comes next, what is thrown away when there is too much, and what a report adds to a result. Never
here: a clock, a connection, or the bytes of a part. Invariants: a record is given up only by an acknowledgement, or
because it is among the oldest of too many (then it is counted); what was found while Helen was there goes before what
waited for her; (spool, n) never names two results, because each run of an agent has a spool of its own.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.kernel.log_context import about
from scale0.monitoring.agent.edge.log_segment import (
    DAMAGED_ENDING,
    ENDING,
    FORMAT,
    Instant,
    LogRecord,
    LogSegment,
    SegmentHeader,
)
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES

log = logging.getLogger("scale0.agent")

MAX_SPOOL_BYTES: Final = 64 * 1024 * 1024
MAX_SPOOL_SECONDS: Final = 7 * 86_400.0
MAX_PART_BYTES: Final = 1024 * 1024
"""Of one file: so much is thrown away at once when there is too much."""
MAX_PART_SECONDS: Final = 3_600.0
"""Of one file: its age is that of its first record, and it is thrown away as a whole."""
PARTS_PER_SPOOL: Final = 8
"""A small spool has smaller parts, so that the oldest eighth goes and not half of it."""
MAX_PARTS: Final = 256
"""Files; a connection that comes and goes makes no more of them."""
MAX_MEMORY_BYTES: Final = 4 * 1024 * 1024
"""Results kept in memory while the disk takes none."""
DISK_AGAIN_SECONDS: Final = 10.0
"""How long after a failure the disk is tried again."""
EARLIEST_WALL: Final = 1_577_836_800.0
"""2020: before it a clock was not set. A machine may begin in 1970 with each start until it has asked for the time."""
MAX_DAMAGED: Final = 8
"""Damaged files that are kept for somebody to look at."""
MAX_RESULT_BYTES: Final = MAX_BLOB_BYTES - 256
"""A result, so that what a report adds to it still fits."""

_PART_NAME: Final = re.compile(r"([0-9]{12})\.spool", re.ASCII)


class SpoolPosition(NamedTuple):
    """Where a record is: what a session hands back when Helen has it."""

    part: LogSegment
    end: int


class SpooledRecord(NamedTuple):
    """A record on its way to Helen."""

    place: SpoolPosition
    name: str
    body: bytes


class Spool:
    """The results of this run, and of earlier ones that Helen has not got."""

    def __init__(
        self,
        folder: Path,
        spool: str,
        boot_id: str,
        max_bytes: int = MAX_SPOOL_BYTES,
        max_seconds: float = MAX_SPOOL_SECONDS,
    ) -> None:
        self._folder = folder
        self._spool = spool
        self._boot_id = boot_id
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._part_bytes = min(MAX_PART_BYTES, max(1, max_bytes // PARTS_PER_SPOOL))
        self._part_seconds = min(MAX_PART_SECONDS, max_seconds / PARTS_PER_SPOOL)
        self._parts: list[LogSegment] = []
        """Oldest first."""
        self._current: LogSegment | None = None
        self._connected = False
        self._names_changed = False
        self._disk_again = 0.0
        self._n = 0
        self._order = 0
        self.dropped = 0
        """Results that were thrown away because there were too many, or they were too old."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._find_parts()

    @property
    def size_bytes(self) -> int:
        """How much is kept."""
        return sum(part.size for part in self._parts)

    @property
    def has_more(self) -> bool:
        """True when `next` has something."""
        return any(part.offered < part.size for part in self._parts)

    def append(self, name: str, body: bytes, ended: Instant) -> None:
        """Keep one result, a JSON object; the oldest go if there is no room."""
        if len(body) > MAX_RESULT_BYTES:
            body = msgspec.json.encode({"state": "unknown", "message": f"the result had {len(body)} bytes: too many"})
        self._n += 1
        record = LogRecord(self._n, name, ended.boot, ended.wall, body)
        header = SegmentHeader(FORMAT, self._spool, self._boot_id, ended.boot, ended.wall)
        try:
            self._part_for(ended).append(header, record)
        except OSError as error:
            self._fall_back(error, ended).append(header, record)
        self._bound()

    def number(self) -> tuple[str, int]:
        """This spool's name, and a number of it for a report that is not kept: it is out of date when it comes late."""
        self._n += 1
        return self._spool, self._n

    def connected(self) -> None:
        """Helen is there: what is found from now on goes first."""
        self._connected = True
        if self._current is not None and self._current.is_empty():
            self._current.live = True
        elif len(self._parts) < MAX_PARTS:
            self._roll()

    def lost(self) -> None:
        """She is not: whatever she did not acknowledge will be offered again, and is no longer live."""
        self._connected = False
        for part in self._parts:
            part.rewind()
            part.live = False

    def next(self, now: Instant) -> SpooledRecord | None:
        """The next record to send: live ones first, then the oldest. None: there is none for now."""
        for live in (True, False):
            for part in tuple(self._parts):
                if part.live is not live or part.offered >= part.size:
                    continue
                found = part.next()
                if found is not None:
                    record, end = found
                    if part.offered >= part.size and part is not self._current:
                        part.let_go()  # many small parts are many files, and all may be under way at once
                    return SpooledRecord(SpoolPosition(part, end), record.name, self._report(part, record, now))
                self._settle(part)
        return None

    def delivered(self, place: SpoolPosition) -> None:
        """Helen has it."""
        part = place.part
        if part in self._parts:
            part.take_ack(place.end)
            self._settle(part)
        else:
            # It was thrown away while it was on its way, and arrived after all.
            self.dropped -= 1

    def given_up(self, place: SpoolPosition) -> None:
        """It can never be sent; that says nothing about those before it."""
        if place.part in self._parts:
            self.dropped += 1
            place.part.give_up()
            self._settle(place.part)

    def to_disk(self) -> None:
        """Have on disk what is kept in memory, as far as it takes that by now."""
        for part in self._parts:
            if part.path is None and not part.is_empty():
                try:
                    part.move_to(self._folder)
                except OSError:
                    return
                self._names_changed = True

    def expire(self, now: Instant) -> None:
        """Throw away what is too old."""
        for part in tuple(self._parts):
            if part.header is not None and not part.is_empty() and self._age(part.header, now) > self._max_seconds:
                self._drop(part, "too old")

    def begin_sync(self) -> Callable[[], None] | None:
        """What a thread should do so that the disk really has it; None: nothing that Helen does not have is new."""
        dirty = [part for part in self._parts if part.dirty and part.path is not None]
        if not dirty:
            return None
        descriptors = [part.duplicate() for part in dirty]
        folder = self._folder if self._names_changed else None
        self._names_changed = False
        return lambda: sync(descriptors, folder)

    def close(self) -> None:
        """Leave on disk what Helen has not got, and nothing else."""
        self.lost()
        for part in tuple(self._parts):
            if part.path is None and (count := part.count_left()):
                self.dropped += count
                log.error("%d results are lost: the disk takes nothing", count, extra=about())
            if part.is_empty() or part.path is None:
                part.remove()
            part.let_go()
        self._parts.clear()
        self._current = None

    def _find_parts(self) -> None:
        for path in sorted(self._folder.iterdir()):
            match = _PART_NAME.fullmatch(path.name)
            if match is None:
                continue
            order = int(match[1])
            self._order = max(self._order, order)
            part = LogSegment.found(order, path)
            if part.header is not None:
                self._parts.append(part)
            elif part.is_empty():
                path.unlink()
            else:
                part.damaged_bytes = part.size
                self._retire(part)
        self._bound()

    def _part_for(self, now: Instant) -> LogSegment:
        """The part that the next record belongs in."""
        current = self._current
        if current is not None:
            header = None if current.is_empty() else current.header
            old = header is not None and now.boot - header.boot > self._part_seconds
            disk_is_back = current.path is None and now.boot >= self._disk_again
            if current.size >= self._part_bytes or old or disk_is_back:
                self._roll()
        if self._current is None:
            if now.boot < self._disk_again:
                raise OSError(errno.ENOSPC, "the disk took nothing a moment ago")
            self._add(LogSegment.made(self._order + 1, self._folder))
            self._names_changed = True
            self.to_disk()
        assert self._current is not None
        return self._current

    def _fall_back(self, error: OSError, now: Instant) -> LogSegment:
        """The disk takes nothing: go on in memory, so that at least a Helen who is there hears of it."""
        if now.boot >= self._disk_again:
            log.error(
                "the spool cannot be written, results are kept in memory: %s", error.strerror or error, extra=about()
            )
            self._disk_again = now.boot + DISK_AGAIN_SECONDS
        if self._current is None or self._current.path is not None:
            self._roll()
            self._add(LogSegment.in_memory(self._order + 1))
        assert self._current is not None
        return self._current

    def _add(self, part: LogSegment) -> None:
        self._order = part.order
        part.live = self._connected
        self._parts.append(part)
        self._current = part

    def _roll(self) -> None:
        """Write no more into the current part."""
        current, self._current = self._current, None
        if current is not None:
            if current.is_empty():
                self._parts.remove(current)
                current.remove()
            else:
                self._settle(current)

    def _settle(self, part: LogSegment) -> None:
        """Take a part away if Helen has all of it."""
        if not part.is_done():
            return
        if part is self._current and not part.damaged_bytes:
            part.empty()
            part.live = self._connected
            return
        if part is self._current:
            self._current = None
        self._parts.remove(part)
        self._retire(part)

    def _bound(self) -> None:
        """Keep to the limits: the oldest go."""
        while len(self._parts) > 1 and self.size_bytes > self._max_bytes:
            self._drop(self._parts[0], "too many")
        memory = [part for part in self._parts if part.path is None]
        while len(memory) > 1 and sum(part.size for part in memory) > MAX_MEMORY_BYTES:
            self._drop(memory.pop(0), "too many to keep in memory")

    def _drop(self, part: LogSegment, why: str) -> None:
        count = part.count_left()
        self.dropped += count
        self._parts.remove(part)
        if part is self._current:
            self._current = None
        if count:
            log.warning(
                "%d results that Helen never got were thrown away: %s; %d so far",
                count,
                why,
                self.dropped,
                extra=about(),
            )
        self._retire(part)

    def _retire(self, part: LogSegment) -> None:
        if part.damaged_bytes:
            log.error(
                "%s: %d bytes cannot be read; it is put aside",
                part.path,
                part.damaged_bytes,
                extra=about(spool=part.path),
            )
        part.remove()
        self._names_changed = True
        if part.damaged_bytes:
            for path in sorted(self._folder.glob(f"*{DAMAGED_ENDING}"))[:-MAX_DAMAGED]:
                path.unlink(missing_ok=True)

    def _age(self, header: SegmentHeader, now: Instant) -> float:
        """Seconds since then. Over a restart of the machine only the wall clock can tell, if it was set at all."""
        if header.boot_id == self._boot_id:
            return now.boot - header.boot
        return now.wall - header.wall if min(now.wall, header.wall) >= EARLIEST_WALL else 0.0

    def _report(self, part: LogSegment, record: LogRecord, now: Instant) -> bytes:
        """A result with what a report adds to it, as it is at this moment."""
        assert part.header is not None
        more: dict[str, str | int | float] = {"spool": part.header.spool, "n": record.n}
        if part.header.boot_id == self._boot_id:
            more["age"] = max(0.0, round(now.boot - record.boot, 6))
        more["sent"] = round(now.wall, 6)
        return record.body[:-1] + b"," + msgspec.json.encode(more)[1:]


def sync(descriptors: list[int], folder: Path | None) -> None:
    """Have the disk keep these files, and the names in their folder; closes what it was given."""
    try:
        for descriptor in descriptors:
            os.fdatasync(descriptor)
        if folder is not None:
            names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            descriptors.append(names)
            os.fsync(names)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


__all__ = ["ENDING", "Instant", "Spool", "SpoolPosition", "SpooledRecord", "sync"]
