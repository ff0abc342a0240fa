"""One segment of a spool: a file of records, each with its length and checksum, that is read in order.

A segment also knows how far its records were offered and acknowledged. Invariants: the acknowledged records are always
the first ones, because records are offered in order; a record is complete or it does not exist; damaged bytes hide no
other record. After damaged bytes, reading continues at the next frame with a valid checksum. The header is written
twice, because its records cannot be sent without it.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES

FORMAT: Final = 1
"""Written into each segment; a segment of another format is not read."""
SEGMENT_SUFFIX: Final = ".spool"
DAMAGED_SUFFIX: Final = ".damaged"
FILE_MODE: Final = 0o600
MAX_RECORD_BYTES: Final = MAX_BLOB_BYTES + 4_096
READ_BYTES: Final = 65_536
NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FRAME: Final = struct.Struct("<II")
_FRAME_BEGIN: Final = re.compile(rb"(?=..[\x00-\x10]\x00....\x95)", re.DOTALL)
"""A length of at most MAX_RECORD_BYTES, a checksum, and an array of five fields. The body of a record is JSON without a
zero byte, so that no frame is found inside it."""

Value = TypeVar("Value")


class Instant(NamedTuple):
    """A moment on both clocks that date a record."""

    boot: float
    """Seconds since the machine started, including suspend; this clock never jumps."""
    wall: float


class SegmentHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first record of a segment. The times are those of its first result."""

    format: int
    spool: str
    boot_id: str
    boot: float
    wall: float


class LogRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One result. The times are those of its end."""

    n: int
    name: str
    boot: float
    wall: float
    body: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_header: Final = msgspec.msgpack.Decoder(SegmentHeader).decode
_decode_record: Final = msgspec.msgpack.Decoder(LogRecord).decode


def framed(value: SegmentHeader | LogRecord) -> bytes:
    payload = _encode(value)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class LogSegment:
    """One file, or memory if the disk is full."""

    def __init__(self, order: int, path: Path | None, descriptor: int | None, size: int) -> None:
        self.order = order
        self.path = path
        self.size = size
        self.header: SegmentHeader | None = None
        self.live = False
        """Its records were written while Helen was connected: they are sent before older ones."""
        self.offered = 0
        self.acked = 0
        self.in_flight = 0
        self.dirty = False
        self.damaged_bytes = 0
        self._descriptor = descriptor
        self._read_to = 0
        self._buffer = b""
        self._buffer_at = 0

    @classmethod
    def create(cls, order: int, folder: Path) -> LogSegment:
        """Create a new file; OSError if there is no space."""
        path = path_of(order, folder)
        return cls(order, path, os.open(path, NEW_FILE, FILE_MODE), 0)

    @classmethod
    def in_memory(cls, order: int) -> LogSegment:
        return cls(order, None, os.memfd_create("spool"), 0)

    @classmethod
    def load(cls, order: int, path: Path) -> LogSegment:
        """Open a file of an earlier run; `header` stays None if it is not a valid segment."""
        segment = cls(order, path, None, path.stat(follow_symlinks=False).st_size)
        found = segment._find(0, _header_of)
        if found is not None and found.value.format == FORMAT:
            segment._mark_damaged(found.begin)
            second = segment._at(found.end, _header_of)
            end = found.end if second is None else second.end
            segment.header = found.value
            segment._read_to = segment.offered = segment.acked = end
        segment.release()
        return segment

    def append(self, header: SegmentHeader, record: LogRecord) -> None:
        """Write a record, after `header` if it is the first. If that raises OSError, nothing was written."""
        data = framed(record)
        first = self.size == 0
        if first:
            head = framed(header) * 2
            data = head + data
        descriptor = self._open()
        written = os.pwrite(descriptor, data, self.size)
        if written != len(data):
            os.ftruncate(descriptor, self.size)
            raise OSError(f"only {written} of {len(data)} bytes could be written")
        if first:
            self.header = header
            self._read_to = self.offered = self.acked = len(head)
        self.size += len(data)
        self.dirty = True

    def next(self) -> tuple[LogRecord, int] | None:
        """The next record that was not offered yet, and its end offset."""
        if self.offered >= self.size:
            return None
        found = self._find(self.offered, _record_of)
        begin = self.size if found is None else found.begin
        if begin > self.offered:
            self._mark_damaged(begin)
        if found is None:
            self.offered = self.size
            return None
        self.offered = found.end
        self._read_to = max(self._read_to, found.end)
        self.in_flight += 1
        return found.value, found.end

    def acknowledge(self, end: int) -> None:
        """Helen has stored the record that ends at this offset, and all before it."""
        self.in_flight -= 1
        self.acked = max(self.acked, end)

    def drop_offered(self) -> None:
        """A record that was offered cannot be sent; those before it still need an acknowledgement."""
        self.in_flight -= 1

    def rewind(self) -> None:
        """Offer again the records that were not acknowledged."""
        self.offered = self.acked
        self.in_flight = 0

    def is_done(self) -> bool:
        """True if no record is left to offer or to acknowledge."""
        return self.offered >= self.size and self.in_flight == 0

    def is_empty(self) -> bool:
        return self.size == 0

    def count_left(self) -> int:
        """Count the records that Helen does not have yet, by reading them."""
        was, in_flight = self.offered, self.in_flight
        self.offered, count = self.acked, 0
        while self.next() is not None:
            count += 1
        self.offered, self.in_flight = was, in_flight
        return count

    def clear(self) -> None:
        """Remove all records: Helen has stored them."""
        os.ftruncate(self._open(), 0)
        self.size = self.offered = self.acked = self._read_to = 0
        self._buffer = b""
        self.dirty = False

    def move_to(self, folder: Path) -> None:
        """Move the segment from memory to a file; if that raises OSError, nothing has changed."""
        memory = self._open()
        path = path_of(self.order, folder)
        file = os.open(path, NEW_FILE, FILE_MODE)
        try:
            at = 0
            while at < self.size:
                data = os.pread(memory, READ_BYTES, at)
                if not data or os.write(file, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                at += len(data)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        os.close(memory)
        self._descriptor, self.path, self.dirty = file, path, True

    def duplicate(self) -> int:
        """Another descriptor of the same file, for a thread that syncs it."""
        self.dirty = False
        return os.dup(self._open())

    def release(self) -> None:
        """Close the file until it is needed again; memory is kept."""
        self._buffer = b""
        if self.path is not None and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Delete the file; a damaged file is renamed and kept."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self.path is not None:
            if self.damaged_bytes:
                self.path.rename(self.path.with_suffix(DAMAGED_SUFFIX))
            else:
                self.path.unlink(missing_ok=True)

    def _open(self) -> int:
        if self._descriptor is None:
            assert self.path is not None
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._descriptor

    def _mark_damaged(self, end: int) -> None:
        if end > self._read_to:
            self.damaged_bytes += end - max(self.offered, self._read_to)
            self._read_to = end

    def _find(self, at: int, decode: Callable[[bytes], Value | None]) -> _Found[Value] | None:
        """The first whole frame of this kind that begins at this offset or later."""
        found = self._at(at, decode)
        if found is not None:
            return found
        at += 1
        while len(data := self._bytes(at, READ_BYTES)) > _FRAME.size:
            for match in _FRAME_BEGIN.finditer(data):
                found = self._at(at + match.start(), decode)
                if found is not None:
                    return found
            at += len(data) - _FRAME.size
        return None

    def _at(self, at: int, decode: Callable[[bytes], Value | None]) -> _Found[Value] | None:
        """The frame at this offset, or None if it is damaged or of another kind."""
        head = self._bytes(at, _FRAME.size)
        if len(head) < _FRAME.size:
            return None
        length, checksum = _FRAME.unpack(head)
        end = at + _FRAME.size + length
        if not 0 < length <= MAX_RECORD_BYTES or end > self.size:
            return None
        payload = self._bytes(at + _FRAME.size, length)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return None
        value = decode(payload)
        return None if value is None else _Found(value, at, end)

    def _bytes(self, at: int, length: int) -> bytes:
        """At most so many bytes; fewer at the end of the file, and before a sector that cannot be read."""
        length = min(length, self.size - at)
        if length <= 0:
            return b""
        begin = at - self._buffer_at
        if not 0 <= begin <= begin + length <= len(self._buffer):
            try:
                self._buffer = os.pread(self._open(), min(max(length, READ_BYTES), self.size - at), at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self._buffer = b""  # the segment ends here, so that other segments are still read
            self._buffer_at, begin = at, 0
        return self._buffer[begin : begin + length]


class _Found(NamedTuple, Generic[Value]):
    value: Value
    begin: int
    end: int


def path_of(order: int, folder: Path) -> Path:
    """The file of a segment; file names sort in the order of creation."""
    return folder / f"{order:012d}{SEGMENT_SUFFIX}"


def _header_of(payload: bytes) -> SegmentHeader | None:
    try:
        return _decode_header(payload)
    except msgspec.MsgspecError:
        return None


def _record_of(payload: bytes) -> LogRecord | None:
    try:
        return _decode_record(payload)
    except msgspec.MsgspecError:
        return None
