"""The lock of a warehouse."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from scale0.pipeline.warehouse import durable_files
from scale0.pipeline.warehouse.errors import WarehouseBusy, WarehouseError

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME: Final = "lock"
MAX_HOLDER_BYTES: Final = 200
"""Bytes that are read of the lock file."""


def take(root: Path, purpose: str) -> int:
    """Return a descriptor that holds the lock until it is closed, or the process ends. WarehouseBusy if another process
    has it.

    Where locks do not work, the fence still protects the warehouse (`transaction.py`).
    """
    path = root / LOCK_NAME
    try:
        durable_files.make(root)
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
        pid, said = _holder(descriptor)
        os.close(descriptor)
        who = f"process {pid}" if pid else "another process"
        doing = f" ({said})" if said else ""
        raise WarehouseBusy(f"the warehouse {root} is in use by {who}{doing}; wait for it, or stop it", said) from error
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
