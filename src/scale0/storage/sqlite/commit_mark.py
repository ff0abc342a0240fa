"""The mark of the last commit, in a file beside the database.

SQLite ends its recovery at the first frame of the write-ahead log that is damaged or missing, without an error: later
commits are gone, although they were acknowledged. Every commit has events, which are numbered, or is counted; this file
repeats both numbers after the commit. A number in the file that is larger than that of the database shows at the next
start that commits are missing. Invariant: the file is written after the commit, so it never has one that did not
happen.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.kernel.edge.secret_files import write_secret
from scale0.storage.data_dir import sync_directory
from scale0.storage.interface import StoreRefused

if TYPE_CHECKING:
    from pathlib import Path

MARK_NAME: Final = "commits"
SYNC_SECONDS: Final = 1.0
"""After a power loss the file may be this much older than the database, and a loss of the newest commits unnoticed."""

_FIELDS: Final = struct.Struct("<8sQQQ")
_MAGIC: Final = b"SCL0MARK"
_RECORD: Final = struct.Struct(f"<{_FIELDS.size}sI")
_SPACING: Final = 512
"""Two records in turn, each in a sector of its own: a torn write damages the older one only."""


class CommitNumbers(msgspec.Struct, frozen=True, order=True):
    next_seq: int
    """Of the journal."""
    commits: int
    """Those without an event."""
    time_us: int = 0
    """Wall clock of the last one; 0 if it was before 1970."""


class MarkDamaged(StoreRefused):
    """The file exists, and has no record."""


class CommitMark:
    """The open file of one process, which holds the lock of the data directory."""

    def __init__(self, path: Path) -> None:
        if not os.path.lexists(path):
            # As a whole: a file without a record is always damaged.
            write_secret(path, _record(0, 0, 0).ljust(2 * _SPACING, b"\0"))
            sync_directory(path.parent)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        os.posix_fallocate(self._descriptor, 0, 2 * _SPACING)
        self._place = 0
        self._synced = 0.0

    def write(self, next_seq: int, commits: int) -> None:
        """Record a commit that has returned; OSError if the disk fails."""
        self._place = _SPACING - self._place
        os.pwrite(self._descriptor, _record(next_seq, commits, time.time_ns() // 1000), self._place)
        now = time.monotonic()
        if now - self._synced >= SYNC_SECONDS:
            os.fdatasync(self._descriptor)
            self._synced = now

    def close(self) -> None:
        os.close(self._descriptor)


def read_mark(path: Path, is_new: bool = False) -> CommitNumbers | None:
    """The newest numbers; None: there is no file. MarkDamaged if nothing in it is intact.

    `is_new`: the database is, so the file may be one that a start of an older version was killed over."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreRefused(f"cannot read {path}: {error.strerror}; restore the file that was there") from error
    found = [numbers for at in (0, _SPACING) if (numbers := _read(data[at : at + _RECORD.size])) is not None]
    if not found and not (is_new and not any(data)):
        raise MarkDamaged(
            f"{path} is damaged, so it is not known whether the database lacks commits that were acknowledged."
            f" Nothing was changed: restore the files, or run `scale0 store accept-loss --data-dir {path.parent}` to"
            " continue with what the database has"
        )
    return max(found, default=None)


def _record(next_seq: int, commits: int, time_us: int) -> bytes:
    fields = _FIELDS.pack(_MAGIC, next_seq, commits, max(0, time_us))
    return _RECORD.pack(fields, zlib.crc32(fields))


def _read(record: bytes) -> CommitNumbers | None:
    if len(record) < _RECORD.size:
        return None
    fields, found = _RECORD.unpack(record)
    magic, *numbers = _FIELDS.unpack(fields)
    return CommitNumbers(*numbers) if magic == _MAGIC and zlib.crc32(fields) == found else None
