"""One file of a spool: records with a length and a checksum each, read in order.

Lives here: the bytes of a part, and how far it was offered and acknowledged. Never here: which part comes next, or how
many there may be (`spool`). Invariants: what is acknowledged of a part is always its beginning, because records are
offered in order; a record is whole or it is not there; bytes that are no record hide none of those before them.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES

FORMAT: Final = 1
"""Written into each part; another one is not read."""
ENDING: Final = ".spool"
DAMAGED_ENDING: Final = ".damaged"
FILE_MODE: Final = 0o600
MAX_RECORD_BYTES: Final = MAX_BLOB_BYTES + 4_096
"""A result, its name and its times."""
READ_BYTES: Final = 65_536
"""Read at once."""
NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FRAME: Final = struct.Struct("<II")


class Instant(NamedTuple):
    """A moment by both clocks that a record is dated with."""

    boot: float
    """Seconds since this machine started, sleep included; it does not jump."""
    wall: float
    """Seconds since the Unix epoch, as far as this machine knows."""


class SegmentHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first record of a part. Times are those of the first result in it."""

    format: int
    spool: str
    boot_id: str
    boot: float
    wall: float


class LogRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One result. Times are those of its end."""

    n: int
    name: str
    boot: float
    wall: float
    body: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_header: Final = msgspec.msgpack.Decoder(SegmentHeader).decode
_decode_record: Final = msgspec.msgpack.Decoder(LogRecord).decode


def framed(value: SegmentHeader | LogRecord) -> bytes:
    """The value with its length and checksum."""
    payload = _encode(value)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class LogSegment:
    """One file, or a piece of memory where the disk takes nothing."""

    __slots__ = (
        *("_buffer", "_buffer_at", "_descriptor", "_header_end", "_read_to", "acked", "damaged_bytes"),
        *("dirty", "header", "in_flight", "live", "offered", "order", "path", "size"),
    )

    def __init__(self, order: int, path: Path | None, descriptor: int | None, size: int) -> None:
        self.order = order
        self.path = path
        self.size = size
        self.header: SegmentHeader | None = None
        self.live = False
        """What is in it was found while Helen was there: it goes before what is not."""
        self.offered = 0
        self.acked = 0
        self.in_flight = 0
        self.dirty = False
        self.damaged_bytes = 0
        self._descriptor = descriptor
        self._header_end = 0
        self._read_to = 0
        self._buffer = b""
        self._buffer_at = 0

    @classmethod
    def made(cls, order: int, folder: Path) -> LogSegment:
        """A new file; OSError if there is no room."""
        path = path_of(order, folder)
        return cls(order, path, os.open(path, NEW_FILE, FILE_MODE), 0)

    @classmethod
    def in_memory(cls, order: int) -> LogSegment:
        """The same in memory."""
        return cls(order, None, os.memfd_create("spool"), 0)

    @classmethod
    def found(cls, order: int, path: Path) -> LogSegment:
        """A file of an earlier run; `header` stays None if it is not one of ours."""
        part = cls(order, path, None, path.stat(follow_symlinks=False).st_size)
        frame = part._read_frame(0)
        if frame is not None and frame.whole:
            try:
                header = _decode_header(frame.payload)
            except msgspec.MsgspecError:
                header = None
            if header is not None and header.format == FORMAT:
                part.header = header
                part._header_end = part._read_to = part.offered = part.acked = frame.end
        part.let_go()
        return part

    def append(self, header: SegmentHeader, record: LogRecord) -> None:
        """Write one record, after `header` if it is the first; OSError and no trace of it if that fails."""
        data = framed(record)
        first = self.size == 0
        if first:
            head = framed(header)
            data = head + data
        descriptor = self._open()
        written = os.pwrite(descriptor, data, self.size)
        if written != len(data):
            os.ftruncate(descriptor, self.size)
            raise OSError(f"only {written} of {len(data)} bytes could be written")
        if first:
            self.header = header
            self._header_end = self._read_to = self.offered = self.acked = len(head)
        self.size += len(data)
        self.dirty = True

    def next(self) -> tuple[LogRecord, int] | None:
        """The next record that was not offered yet, and where it ends."""
        while self.offered < self.size:
            frame = self._read_frame(self.offered)
            if frame is None:
                # A write that the end of the machine tore, or worse: nothing behind it can be found again.
                self._hurt(self.size)
                self.offered = self.size
                return None
            record = _record_of(frame)
            if record is not None:
                self.offered = frame.end
                self._read_to = max(self._read_to, frame.end)
                self.in_flight += 1
                return record, frame.end
            self._hurt(frame.end)
            self.offered = frame.end
        return None

    def take_ack(self, end: int) -> None:
        """Helen has the record that ends there, and all before it."""
        self.in_flight -= 1
        self.acked = max(self.acked, end)

    def give_up(self) -> None:
        """A record that was offered cannot be sent; of those before it Helen still has to say that she has them."""
        self.in_flight -= 1

    def rewind(self) -> None:
        """Offer again what was not acknowledged."""
        self.offered = self.acked
        self.in_flight = 0

    def is_done(self) -> bool:
        """True when nothing is left to offer or to wait for."""
        return self.offered >= self.size and self.in_flight == 0

    def is_empty(self) -> bool:
        """True when nothing was written, or all of it was taken back."""
        return self.size == 0

    def count_left(self) -> int:
        """Records that Helen does not have yet; reads them."""
        was, in_flight = self.offered, self.in_flight
        self.offered, count = self.acked, 0
        while self.next() is not None:
            count += 1
        self.offered, self.in_flight = was, in_flight
        return count

    def empty(self) -> None:
        """Begin again: Helen has all of it."""
        os.ftruncate(self._open(), 0)
        self.size = self.offered = self.acked = self._header_end = self._read_to = 0
        self._buffer = b""
        self.dirty = False

    def move_to(self, folder: Path) -> None:
        """Have in a file what was in memory; OSError if there is no room, and nothing has changed then."""
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

    def let_go(self) -> None:
        """Close the file of a part that nobody reads now; memory is kept."""
        self._buffer = b""
        if self.path is not None and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Take it away; bytes that could not be read are put aside."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self.path is not None:
            if self.damaged_bytes:
                self.path.rename(self.path.with_suffix(DAMAGED_ENDING))
            else:
                self.path.unlink(missing_ok=True)

    def _open(self) -> int:
        if self._descriptor is None:
            assert self.path is not None
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._descriptor

    def _hurt(self, end: int) -> None:
        if end > self._read_to:
            self.damaged_bytes += end - max(self.offered, self._read_to)
            self._read_to = end

    def _read_frame(self, at: int) -> _Frame | None:
        try:
            return self._frame_at(at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None  # the disk has lost it: as good as torn, and one bad place must not stop all the others

    def _frame_at(self, at: int) -> _Frame | None:
        head = self._bytes(at, _FRAME.size)
        if len(head) < _FRAME.size:
            return None
        length, checksum = _FRAME.unpack(head)
        end = at + _FRAME.size + length
        if not 0 < length <= MAX_RECORD_BYTES or end > self.size:
            return None
        payload = self._bytes(at + _FRAME.size, length)
        return _Frame(payload, end, len(payload) == length and zlib.crc32(payload) == checksum)

    def _bytes(self, at: int, length: int) -> bytes:
        begin = at - self._buffer_at
        if not 0 <= begin <= begin + length <= len(self._buffer):
            wanted = min(max(length, READ_BYTES), self.size - at)
            self._buffer = os.pread(self._open(), wanted, at)
            self._buffer_at, begin = at, 0
        return self._buffer[begin : begin + length]


class _Frame(NamedTuple):
    payload: bytes
    end: int
    whole: bool


def path_of(order: int, folder: Path) -> Path:
    """The file of a part: names sort as the parts were made."""
    return folder / f"{order:012d}{ENDING}"


def _record_of(frame: _Frame) -> LogRecord | None:
    if not frame.whole:
        return None
    try:
        return _decode_record(frame.payload)
    except msgspec.MsgspecError:
        return None
