"""Reads and writes files that belong to one process: tokens, keys and states. Invariant: such a file is readable only
by its owner from its creation on, and it is replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

TOKEN_FILE: Final = "token"
"""In `data_dir`: authorises administration on the broker's own machine."""


MAX_SECRET_BYTES: Final = 4_096
"""The size of a file that the network document refers to."""
FORBIDDEN: Final = stat.S_IWGRP | stat.S_IRWXO
"""Permissions that such a file must not give."""


class SecretUnavailable(Exception):
    """A file that the network document refers to cannot be used. The text names the machine and the file, and has
    nothing of its content."""


class SecretDirectory:
    """The files that `secret:NAME` in the network document refers to on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> str:
        """The one line of this file. `name` must be valid. Raises SecretUnavailable."""
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                mode = os.fstat(descriptor).st_mode
                if not stat.S_ISREG(mode):
                    raise _unavailable(path, "is not a file")
                if mode & FORBIDDEN:
                    raise _unavailable(path, f"is accessible to others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}")
                content = file.read(MAX_SECRET_BYTES + 1)
        except FileNotFoundError:
            raise _unavailable(path, "does not exist: create it with mode 600") from None
        except IsADirectoryError:
            raise _unavailable(path, "is not a file") from None
        except OSError as error:
            raise _unavailable(path, f"cannot be read: {error.strerror}") from None
        return _one_line(path, content)


def _one_line(path: Path, content: bytes) -> str:
    if len(content) > MAX_SECRET_BYTES:
        raise _unavailable(path, f"has more than {MAX_SECRET_BYTES} bytes")
    try:
        text = content.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise _unavailable(path, "is not UTF-8 text") from None
    if not text:
        raise _unavailable(path, "is empty")
    if not text.isprintable():
        raise _unavailable(path, "is not one line of text")
    return text


def _unavailable(path: Path, reason: str) -> SecretUnavailable:
    return SecretUnavailable(f"{os.uname().nodename}: the secret file {path} {reason}")


def write_secret(path: Path, content: str | bytes) -> None:
    """Replaces the file atomically; its content is on disk when this returns. Raises OSError with the file's name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    partial.rename(path)


def read_secret(path: Path) -> str | None:
    """Returns the secret; None if the file does not exist or is not readable."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
