"""Files with a secret in them: tokens and keys.

Lives here: writing and reading them whole. Never here: what is in them, or a configuration: every client imports this.
Invariant: such a file is readable by its owner alone from its first byte on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TOKEN_FILE: Final = "token"
"""In `data_dir`: authorises management on the broker's own machine."""


def write_secret(path: Path, text: str) -> None:
    """Replace a file that only its owner may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_secret(path: Path) -> str | None:
    """A secret, or None where there is none or it is not ours."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
