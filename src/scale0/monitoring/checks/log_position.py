"""Where a log was read to: kept in memory, and on disk where the agent has a place for it.

Lives here: `Position`, how a file is known again, and its file on disk. Never here: what lines mean. Invariants: a
position on disk is never ahead of what was answered, so that after a crash lines may be counted twice and are never
left out; a file is the same only if device, inode and first bytes are.
"""

from __future__ import annotations

import hashlib
import os
import stat
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD_BYTES: Final = 256
"""First bytes of a file, by which a new one with an old inode is told from the old."""
MAX_FOLDER_ENTRIES: Final = 10_000
"""Files of a folder among which a rotated log is looked for."""
MAX_POSITION_FILES: Final = 1_000
"""On disk; the oldest go first. Checks come and go, and none says farewell."""
FOLDER: Final = "logs"


class Position(msgspec.Struct, frozen=True, gc=False):
    """Up to `offset` the file was read."""

    device: int
    inode: int
    offset: int
    head_bytes: int
    head: str


NOT_THERE: Final = Position(0, 0, 0, 0, "")
"""There was no file."""


def position_of(descriptor: int, offset: int) -> Position:
    """The position `offset` of an open file."""
    found = os.fstat(descriptor)
    head = os.pread(descriptor, min(HEAD_BYTES, offset), 0)
    return Position(found.st_dev, found.st_ino, offset, len(head), _digest(head))


def is_same(descriptor: int, position: Position) -> bool:
    """True if this is the file that was read to `position`, and it was not cut since."""
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (position.device, position.inode) or found.st_size < position.offset:
        return False
    return _digest(os.pread(descriptor, position.head_bytes, 0)) == position.head


def rotated(path: str, position: Position) -> str | None:
    """The name under which the old file lies now, in the same folder; None: it is gone, or was compressed."""
    folder = os.path.dirname(path) or "."
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MAX_FOLDER_ENTRIES), entries, strict=False):
                if entry.inode() == position.inode and entry.is_file(follow_symlinks=False):
                    return entry.path
    except OSError:
        return None
    return None


def open_log(path: str, allowed: Sequence[str] | None = None) -> int:
    """A descriptor of a regular file; anything else is OSError. Never waits, as opening a pipe would.

    `allowed`: globs of what may be read; None: all. What counts is the file that was really opened, wherever links led.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if allowed is not None and not any(fnmatchcase(real, glob) for glob in allowed):
            raise PermissionError("log_paths in the agent's file does not have it")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def load(data_dir: Path | None, key: bytes) -> Position | None:
    """The position that an earlier agent left; what cannot be read is none."""
    if data_dir is None:
        return None
    try:
        return msgspec.json.decode(_file(data_dir, key).read_bytes(), type=Position)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def save(data_dir: Path | None, key: bytes, position: Position) -> None:
    """Put a position on disk, whole or not at all; a disk that refuses costs only what it would have kept."""
    if data_dir is None:
        return
    file = _file(data_dir, key)
    new = file.with_suffix(".new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            _make_room(file.parent)
        with new.open("wb") as out:
            out.write(msgspec.json.encode(position))
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
    except OSError:
        return


def _make_room(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - MAX_POSITION_FILES + 1)]:
        file.unlink(missing_ok=True)


def _file(data_dir: Path, key: bytes) -> Path:
    return data_dir / FOLDER / f"{_digest(key)}.json"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
