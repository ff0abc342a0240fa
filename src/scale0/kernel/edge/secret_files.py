"""Reads and writes files that belong to one process: tokens, keys and states. Invariant: such a file is readable only
by its owner from its creation on, and it is replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TOKEN_FILE: Final = "token"
"""In `data_dir`: authorises administration on the broker's own machine."""


def write_secret(path: Path, content: str | bytes) -> None:
    """Replaces the file atomically; its content is on disk when this returns. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_secret(path: Path) -> str | None:
    """Returns the secret; None if the file does not exist or is not readable."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
