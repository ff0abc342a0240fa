"""The lock of a warehouse: one driver at a time, and the next one is told who has it.

Lives here: the lock's file. Never here: the fence, which holds even where locks do not (`commit.py`). Invariant: a
process that dies lets go by dying.
"""

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
"""What is read of who holds it."""


def take(root: Path, purpose: str) -> int:
    """The descriptor that holds the lock until it is closed. Busy at once if another has it."""
    path = root / LOCK_NAME
    try:
        durable_files.make(root)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise WarehouseError(
            f"cannot write {path}: {error.strerror}; give this user the right, or choose another --warehouse"
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
    """The process that wrote its number into the lock's file, and what it does; empty where that cannot be said."""
    pid, _, purpose = os.pread(descriptor, MAX_HOLDER_BYTES, 0).strip().partition(b" ")
    # bytes.isdigit knows ASCII digits only.
    if not pid.isdigit():
        return "", ""
    return pid.decode("ascii"), "".join(c for c in purpose.decode("utf-8", "replace") if c.isprintable())
