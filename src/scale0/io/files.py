"""Files: configuration in, tokens out.

Lives here: reading and writing whole small files. Never here: what is in them. Invariant: a file with a secret is
readable by its owner alone from its first byte on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeVar

from scale0.base.errors import ConfigError
from scale0.config import MAX_DOCUMENT_BYTES, form_of, parse

TOKEN_FILE: Final = "token"
"""In `data_dir`: authorises management on the broker's own machine."""

Schema = TypeVar("Schema")


def read_config(path: Path, schema: type[Schema]) -> Schema:
    """A configuration file, its form taken from its ending."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    try:
        return parse(data, form_of(path.name), schema)
    except ConfigError as error:
        raise ConfigError([f"{path}: {reason}" for reason in error.reasons]) from error


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
