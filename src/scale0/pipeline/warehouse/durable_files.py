"""Files that survive a power loss, and the warehouse's lock file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync(path: Path) -> None:
    """fsync a file or a directory."""
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


def make(folder: Path) -> None:
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
    for place, _, _ in os.walk(folder):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
