"""The data directory: created, checked, and locked by one process at a time.

While one process holds the lock, another is refused; the lock ends with its process. The refusal has the holder's
process id if the holder locked the file that contains it.
"""

from __future__ import annotations

import errno
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


class DirectoryLock:
    """The lock of a data directory, held until it is closed or its process ends.

    The directory itself is locked, since its file `lock` can be deleted. The file is locked as well, because earlier
    versions lock only that, and it names the process."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / LOCK_NAME
        self._descriptors: list[int] = []
        try:
            file = self._open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            self._open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            self.close()
            raise StoreRefused(
                f"cannot write {path}: {error.strerror}; check the owner of the data directory"
            ) from error
        try:
            for descriptor in self._descriptors:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            # The lock of the directory does not say whose it is, and the file may name a process that ended.
            holder = _holder(file) if descriptor == file else "another process, which locked the directory itself"
            self.close()
            raise StoreRefused(
                f"the data directory {data_dir} is in use by {holder}; stop it, or choose another data_dir"
            ) from error
        except OSError as error:
            self.close()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreRefused(f"cannot write {path}: {error.strerror}; free some space on that disk") from error
            raise StoreRefused(
                f"cannot lock {path}: {error.strerror}; the data directory must be on a local disk"
            ) from error

    def _open(self, path: Path, flags: int) -> int:
        self._descriptors.append(os.open(path, flags, FILE_MODE))
        return self._descriptors[-1]

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


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
