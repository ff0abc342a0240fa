"""Checks the permissions of directories and files with secrets before anything is opened. Invariants: a file that other
users could read or change is restricted, with a warning; if that fails, or if others can write to the data directory,
the process does not start, and the error names the command that fixes it. Group read permission stays on files that the
operator provides, because certificates often have it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scale0.kernel.edge.secret_files import TOKEN_FILE
from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.files")

NOBODY_ELSE: Final = stat.S_IRWXG | stat.S_IRWXO
NOT_EVERYBODY: Final = stat.S_IWGRP | stat.S_IRWXO
OWN_FILES: Final = (
    "scale0.db",
    "scale0.db-wal",
    "scale0.db-shm",
    "commits",
    TOKEN_FILE,
    "segments.json",
    "accepted-keys.json",
)
"""Files in the data directory that Scale0 creates with mode 0600."""


def check(data_dir: Path, given: Iterable[Path]) -> None:
    """Restricts these files; raises ConfigError if that fails, or if others can write to the directory."""
    faults = folder_faults(data_dir)
    if not faults:
        for name in OWN_FILES:
            faults += closed(data_dir / name, NOBODY_ELSE)
    for path in given:
        faults += closed(path, NOT_EVERYBODY)
    if faults:
        raise ConfigError(faults)


def folder_faults(folder: Path) -> list[str]:
    """Checks an existing data directory. It is not restricted, because it may hold files of other programs."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return []  # it will be created, or the store reports a better error
    if not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return []
    return [f"data_dir: others can write to {folder} (mode {stat.S_IMODE(mode):o}): chmod 700 {folder}"]


def closed(path: Path, forbidden: int) -> list[str]:
    """Removes forbidden permissions from an existing file and logs that; returns the error if that fails."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return []
    wanted = mode & ~forbidden
    if mode == wanted:
        return []
    try:
        os.chmod(path, wanted)
    except OSError:
        return [f"{path}: others have access to it (mode {mode:o}): chmod {wanted:o} {path}"]
    log.warning("%s was accessible to others (mode %o); changed to %o", path, mode, wanted, extra=about(file=str(path)))
    return []
