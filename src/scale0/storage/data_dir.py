"""The data directory: created, checked, and locked by one process at a time.

While one process holds the lock, another is refused with the holder's process id; the lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from scale0.storage.interface import StoreRefused

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME: Final = "lock"
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_MAX_PID_BYTES: Final = 20
"""More than any process id has."""


def make_directory(path: Path) -> None:
    """Create a directory that can be written. An existing one keeps its mode: it may hold files that are not ours."""
    try:
        if not path.exists():
            path.mkdir(mode=DIRECTORY_MODE, parents=True)
            sync_directory(path.parent)
    except OSError as error:
        raise StoreRefused(
            f"cannot create the data directory {path}: {error.strerror}; choose another data_dir"
        ) from error
    if not path.is_dir():
        raise StoreRefused(f"{path} is not a directory; choose another data_dir")
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreRefused(
            f"cannot write to the data directory {path}; grant this user write permission, or choose another data_dir"
        )


def acquire_lock(data_dir: Path) -> int:
    """A descriptor that holds the lock until it is closed. StoreRefused if another process has it."""
    path = data_dir / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        raise StoreRefused(f"cannot write {path}: {error.strerror}; check the owner of the data directory") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise StoreRefused(
            f"the data directory {data_dir} is in use by {holder}; stop it, or choose another data_dir"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise StoreRefused(
            f"cannot lock {path}: {error.strerror}; the data directory must be on a local disk"
        ) from error
    return descriptor


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, _MAX_PID_BYTES, 0).strip()
    # bytes.isdigit accepts ASCII digits only.
    return f"process {text.decode('ascii')}" if text.isdigit() else "another process"


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(data_dir: Path) -> int:
    try:
        disk = os.statvfs(data_dir)
    except OSError as error:
        raise StoreRefused(f"cannot read the free space of the data directory {data_dir}: {error.strerror}") from error
    return disk.f_bavail * disk.f_frsize
