"""Files that survive a power loss, and the warehouse's lock file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from scale0.pipeline.warehouse.records import WarehouseBusy, WarehouseError


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, body: bytes) -> None:
    """Create a file and fsync it. FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def make_directory(folder: Path) -> None:
    """Create a directory and its parents, and fsync their entries."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


def sync_tree(folder: Path) -> None:
    """fsync every directory at and below this one; the writers of files fsync those."""
    for directory, _, _ in os.walk(folder):
        sync(Path(directory))


LOCK_NAME: Final = "lock"
MAX_HOLDER_BYTES: Final = 200
"""Bytes that are read of the lock file."""


def acquire_lock(root: Path, purpose: str) -> int:
    """Return a descriptor that holds the lock until it is closed, or the process ends. WarehouseBusy if another process
    has it.

    Where locks do not work, the fence still protects the warehouse (`transaction.py`).
    """
    path = root / LOCK_NAME
    try:
        make_directory(root)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise WarehouseError(
            f"cannot write {path}: {error.strerror}; grant this user write access, or choose another --warehouse"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {purpose}\n".encode()[:MAX_HOLDER_BYTES], 0)
    except BlockingIOError as error:
        pid, purpose_of_holder = _holder(descriptor)
        os.close(descriptor)
        who = f"process {pid}" if pid else "another process"
        detail = f" ({purpose_of_holder})" if purpose_of_holder else ""
        raise WarehouseBusy(
            f"the warehouse {root} is in use by {who}{detail}; wait for it, or stop it", purpose_of_holder
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise WarehouseError(f"cannot lock {path}: {error.strerror}; choose another --warehouse") from error
    return descriptor


def _holder(descriptor: int) -> tuple[str, str]:
    """The process id and the purpose in the lock file; empty if they are not valid."""
    pid, _, purpose = os.pread(descriptor, MAX_HOLDER_BYTES, 0).strip().partition(b" ")
    # bytes.isdigit accepts ASCII digits only.
    if not pid.isdigit():
        return "", ""
    return pid.decode("ascii"), "".join(c for c in purpose.decode("utf-8", "replace") if c.isprintable())
