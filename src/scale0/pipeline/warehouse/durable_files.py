"""Files that survive a loss of power.

Lives here: writing, syncing and removing. Never here: what the bytes mean. Invariant: what a function here has written
is on the disk when it returns; its name is once its folder is synced.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync(path: Path) -> None:
    """Have a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, body: bytes) -> None:
    """A new file, synced. FileExistsError if there is one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def make(folder: Path) -> None:
    """A folder and those above it, their names synced."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


def sync_tree(folder: Path) -> None:
    """Every folder at and below this one; its files are synced by who writes them."""
    for place, _, _ in os.walk(folder):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
