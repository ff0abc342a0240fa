"""The data folder: made, checked, and held by one process at a time.

Lives here: the folder and its lock. Never here: what is in it. Invariant: while one process holds the lock, another
that asks is refused and told who has it; a process that dies lets go by dying.
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
"""More than any process number has."""


def make_directory(folder: Path) -> None:
    """Have a folder that can be written. One that exists keeps its mode: it may hold what is not ours."""
    try:
        if not folder.exists():
            folder.mkdir(mode=DIRECTORY_MODE, parents=True)
            sync_directory(folder.parent)
    except OSError as error:
        raise StoreRefused(
            f"cannot make the data folder {folder}: {error.strerror}; choose another data_dir"
        ) from error
    if not folder.is_dir():
        raise StoreRefused(f"{folder} is not a folder; choose another data_dir")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreRefused(f"cannot write to the data folder {folder}; give this user the right, or choose another")


def acquire_lock(folder: Path) -> int:
    """The descriptor that holds the lock until it is closed. StoreRefused if another has it."""
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    except OSError as error:
        raise StoreRefused(f"cannot write {path}: {error.strerror}; check who owns the data folder") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError as error:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise StoreRefused(f"the data folder {folder} is in use by {holder}; stop it, or choose another") from error
    except OSError as error:
        os.close(descriptor)
        raise StoreRefused(f"cannot lock {path}: {error.strerror}; the data folder must be on a local disk") from error
    return descriptor


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, _MAX_PID_BYTES, 0).strip()
    # bytes.isdigit knows ASCII digits only.
    return f"process {text.decode('ascii')}" if text.isdigit() else "another process"


def sync_directory(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
