"""The spool: results of scheduled checks, kept on disk until Helen has stored them.

It decides which segment is sent next, what is dropped when there is too much, and what a report adds to a result.
Invariants: a record is removed only by an acknowledgement, or because it is among the oldest of too many (which is
counted); results from while Helen was connected are sent before older ones; (spool, n) never names two results,
because each run of an agent has its own spool id.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.kernel.log_context import about
from scale0.monitoring.agent.edge.log_segment import (
    DAMAGED_SUFFIX,
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
MAX_SEGMENT_BYTES: Final = 1024 * 1024
"""Of one segment, which is the unit of dropping."""
MAX_SEGMENT_SECONDS: Final = 3_600.0
"""Of one segment: its age is that of its first record, and it is dropped as a whole."""
SEGMENTS_PER_SPOOL: Final = 8
"""A small spool has smaller segments, so that an eighth of it is dropped and not half."""
MAX_SEGMENTS: Final = 256
"""Segments that frequent reconnects may create."""
MAX_MEMORY_BYTES: Final = 4 * 1024 * 1024
"""Results kept in memory while the disk is full."""
DISK_RETRY_SECONDS: Final = 10.0
"""How long after a failed write the disk is tried again."""
EARLIEST_WALL: Final = 1_577_836_800.0
"""2020: an earlier time means that the clock was not set. A machine may boot in 1970 until it has synchronized."""
MAX_DAMAGED: Final = 8
"""Damaged files that are kept for inspection."""
MAX_RESULT_BYTES: Final = MAX_BLOB_BYTES - 256
"""Of a result, so that the fields that a report adds still fit."""

_SEGMENT_NAME: Final = re.compile(r"([0-9]{12})\.spool", re.ASCII)


class SpoolPosition(NamedTuple):
    """The position of a record: the token of its report in a session."""

    segment: LogSegment
    end: int


class SpooledRecord(NamedTuple):
    position: SpoolPosition
    name: str
    body: bytes


class Spool:
    """The results of this run, and those of earlier runs that Helen has not stored."""

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
        self._segment_bytes = min(MAX_SEGMENT_BYTES, max(1, max_bytes // SEGMENTS_PER_SPOOL))
        self._segment_seconds = min(MAX_SEGMENT_SECONDS, max_seconds / SEGMENTS_PER_SPOOL)
        self._segments: list[LogSegment] = []
        """Oldest first."""
        self._current: LogSegment | None = None
        self._connected = False
        self._names_changed = False
        self._disk_retry_at = 0.0
        self._n = 0
        self._order = 0
        self.dropped = 0
        """Results dropped because there were too many, or because they were too old."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._find_segments()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def has_more(self) -> bool:
        return any(segment.offered < segment.size for segment in self._segments)

    def append(self, name: str, body: bytes, ended: Instant) -> None:
        """Store one result, a JSON object; drops the oldest results if there is no space."""
        if len(body) > MAX_RESULT_BYTES:
            body = msgspec.json.encode({"state": "unknown", "message": f"the result had {len(body)} bytes: too many"})
        self._n += 1
        record = LogRecord(self._n, name, ended.boot, ended.wall, body)
        header = SegmentHeader(FORMAT, self._spool, self._boot_id, ended.boot, ended.wall)
        try:
            self._segment_for(ended).append(header, record)
        except OSError as error:
            self._fall_back(error, ended).append(header, record)
        self._enforce_limits()

    def number(self) -> tuple[str, int]:
        """The spool id, and a number for a report that is not stored and may arrive out of order."""
        self._n += 1
        return self._spool, self._n

    def connected(self) -> None:
        """Helen is connected: results from now on are sent first."""
        self._connected = True
        if self._current is not None and self._current.is_empty():
            self._current.live = True
        elif len(self._segments) < MAX_SEGMENTS:
            self._roll()

    def lost(self) -> None:
        """Helen is disconnected: offer again all that she did not acknowledge, in the order of age."""
        self._connected = False
        for segment in self._segments:
            segment.rewind()
            segment.live = False

    def next(self, now: Instant) -> SpooledRecord | None:
        """The next record to send, or None: first those since Helen connected, then the oldest."""
        for live in (True, False):
            for segment in tuple(self._segments):
                if segment.live is not live or segment.offered >= segment.size:
                    continue
                found = segment.next()
                if found is not None:
                    record, end = found
                    if segment.offered >= segment.size and segment is not self._current:
                        segment.release()  # there may be many small segments in flight, and each would keep a file open
                    return SpooledRecord(SpoolPosition(segment, end), record.name, self._report(segment, record, now))
                self._remove_if_done(segment)
        return None

    def delivered(self, position: SpoolPosition) -> None:
        segment = position.segment
        if segment in self._segments:
            segment.acknowledge(position.end)
            self._remove_if_done(segment)
        else:
            # It was dropped while it was in flight, and arrived nevertheless.
            self.dropped -= 1

    def drop(self, position: SpoolPosition) -> None:
        """It can never be sent; records before it still need an acknowledgement."""
        if position.segment in self._segments:
            self.dropped += 1
            position.segment.drop_offered()
            self._remove_if_done(position.segment)

    def to_disk(self) -> None:
        """Write to disk what is kept in memory, as far as the disk has space."""
        for segment in self._segments:
            if segment.path is None and not segment.is_empty():
                try:
                    segment.move_to(self._folder)
                except OSError:
                    return
                self._names_changed = True

    def expire(self, now: Instant) -> None:
        for segment in tuple(self._segments):
            if (
                segment.header is not None
                and not segment.is_empty()
                and self._age(segment.header, now) > self._max_seconds
            ):
                self._drop_segment(segment, "too old")

    def begin_sync(self) -> Callable[[], None] | None:
        """The work for a thread that syncs new records to the disk; None: there are none."""
        dirty = [segment for segment in self._segments if segment.dirty and segment.path is not None]
        if not dirty:
            return None
        descriptors = [segment.duplicate() for segment in dirty]
        folder = self._folder if self._names_changed else None
        self._names_changed = False
        return lambda: sync(descriptors, folder)

    def close(self) -> None:
        """Leave on disk only what Helen has not stored."""
        self.lost()
        for segment in tuple(self._segments):
            if segment.path is None and (count := segment.count_left()):
                self.dropped += count
                log.error("%d results are lost: they could not be written to the disk", count, extra=about())
            if segment.is_empty() or segment.path is None:
                segment.remove()
            segment.release()
        self._segments.clear()
        self._current = None

    def _find_segments(self) -> None:
        for path in sorted(self._folder.iterdir()):
            match = _SEGMENT_NAME.fullmatch(path.name)
            if match is None:
                continue
            order = int(match[1])
            self._order = max(self._order, order)
            if not is_regular(path):
                log.error("%s is not a regular file; it is skipped, remove it", path, extra=about(spool=path))
                continue
            segment = LogSegment.load(order, path)
            if segment.header is not None:
                self._segments.append(segment)
            elif segment.is_empty():
                path.unlink()
            else:
                segment.damaged_bytes = segment.size
                self._discard(segment)
        self._enforce_limits()

    def _segment_for(self, now: Instant) -> LogSegment:
        current = self._current
        if current is not None:
            header = None if current.is_empty() else current.header
            old = header is not None and now.boot - header.boot > self._segment_seconds
            disk_is_back = current.path is None and now.boot >= self._disk_retry_at
            if current.size >= self._segment_bytes or old or disk_is_back:
                self._roll()
        if self._current is None:
            if now.boot < self._disk_retry_at:
                raise OSError(errno.ENOSPC, "the disk was full a moment ago")
            self._add(LogSegment.create(self._order + 1, self._folder))
            self._names_changed = True
            self.to_disk()
        assert self._current is not None
        return self._current

    def _fall_back(self, error: OSError, now: Instant) -> LogSegment:
        """The disk is full: continue in memory, so that at least a connected Helen receives the results."""
        if now.boot >= self._disk_retry_at:
            log.error(
                "cannot write to the spool; results are kept in memory: %s", error.strerror or error, extra=about()
            )
            self._disk_retry_at = now.boot + DISK_RETRY_SECONDS
        if self._current is None or self._current.path is not None:
            self._roll()
            self._add(LogSegment.in_memory(self._order + 1))
        assert self._current is not None
        return self._current

    def _add(self, segment: LogSegment) -> None:
        self._order = segment.order
        segment.live = self._connected
        self._segments.append(segment)
        self._current = segment

    def _roll(self) -> None:
        """Close the current segment for writing."""
        current, self._current = self._current, None
        if current is not None:
            if current.is_empty():
                self._segments.remove(current)
                current.remove()
            else:
                self._remove_if_done(current)

    def _remove_if_done(self, segment: LogSegment) -> None:
        if not segment.is_done():
            return
        if segment is self._current and not segment.damaged_bytes:
            segment.clear()
            segment.live = self._connected
            return
        if segment is self._current:
            self._current = None
        self._segments.remove(segment)
        self._discard(segment)

    def _enforce_limits(self) -> None:
        """Drop the oldest segments until the limits are met."""
        while len(self._segments) > 1 and self.size_bytes > self._max_bytes:
            self._drop_segment(self._segments[0], "too many")
        memory = [segment for segment in self._segments if segment.path is None]
        while len(memory) > 1 and sum(segment.size for segment in memory) > MAX_MEMORY_BYTES:
            self._drop_segment(memory.pop(0), "too many to keep in memory")

    def _drop_segment(self, segment: LogSegment, why: str) -> None:
        count = segment.count_left()
        self.dropped += count
        self._segments.remove(segment)
        if segment is self._current:
            self._current = None
        if count:
            log.warning(
                "dropped %d results that Helen never received: %s; %d dropped so far",
                count,
                why,
                self.dropped,
                extra=about(),
            )
        self._discard(segment)

    def _discard(self, segment: LogSegment) -> None:
        if segment.damaged_bytes:
            log.error(
                "%s: %d bytes are damaged; the file is kept with the suffix .damaged",
                segment.path,
                segment.damaged_bytes,
                extra=about(spool=segment.path),
            )
        segment.remove()
        self._names_changed = True
        if segment.damaged_bytes:
            for path in sorted(filter(is_regular, self._folder.glob(f"*{DAMAGED_SUFFIX}")))[:-MAX_DAMAGED]:
                path.unlink(missing_ok=True)

    def _age(self, header: SegmentHeader, now: Instant) -> float:
        """Seconds since the header's time; after a reboot only the wall clock can tell, if it was set."""
        if header.boot_id == self._boot_id:
            return now.boot - header.boot
        return now.wall - header.wall if min(now.wall, header.wall) >= EARLIEST_WALL else 0.0

    def _report(self, segment: LogSegment, record: LogRecord, now: Instant) -> bytes:
        """A result with the fields that a report adds, as of now."""
        assert segment.header is not None
        more: dict[str, str | int | float] = {"spool": segment.header.spool, "n": record.n}
        if segment.header.boot_id == self._boot_id:
            more["age"] = max(0.0, round(now.boot - record.boot, 6))
        more["sent"] = round(now.wall, 6)
        return record.body[:-1] + b"," + msgspec.json.encode(more)[1:]


def is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def sync(descriptors: list[int], folder: Path | None) -> None:
    """Sync these files, and their folder's entries, to disk; closes the descriptors."""
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
