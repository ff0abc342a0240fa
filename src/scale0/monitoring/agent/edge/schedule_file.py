"""The schedule on disk, so that an agent that starts while Helen is away knows what to do.

Lives here: one small file. Never here: what is in it. Invariant: the file is a whole schedule or it is not there, and
one that cannot be read is as good as none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES

PLAN_NAME: Final = "schedule.json"


class ScheduleFile:
    """The last schedule that Helen sent."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PLAN_NAME
        self._body = self._read()

    @property
    def body(self) -> bytes | None:
        """What she sent last; None: nothing yet."""
        return self._body

    def keep(self, body: bytes) -> bool:
        """Take note of a schedule; True if it must be written, by `write` in a thread."""
        if body == self._body:
            return False
        self._body = body
        return True

    def write(self, body: bytes) -> None:
        """Replace the file; blocks. OSError."""
        partial = self._path.with_name(f".{PLAN_NAME}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._path)

    def _read(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BLOB_BYTES)
        except OSError:
            return None
