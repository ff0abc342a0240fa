"""What is ours alone: folders and files that hold secrets, looked at before anything is opened.

Lives here: modes, and what is done about those that are too open. Never here: which process needs which file open.
Invariants: a file that others could read or change is closed, and a line says so; one that we cannot close, and a data
folder that others can write to, are a reason not to start, with the command that mends it. Rights of a group to read
are left alone where a file may have come from elsewhere: certificates are often kept so.
"""

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
OWN_FILES: Final = ("scale0.db", "scale0.db-wal", "scale0.db-shm", TOKEN_FILE, "segments.json")
"""Of a data folder: made by us with 0600, and opened by somebody since if they are not so."""


def check(data_dir: Path, given: Iterable[Path]) -> None:
    """Close what is ours; ConfigError for what cannot be, and for a folder in which others can put files of theirs."""
    faults = folder_faults(data_dir)
    if not faults:
        for name in OWN_FILES:
            faults += closed(data_dir / name, NOBODY_ELSE)
    for path in given:
        faults += closed(path, NOT_EVERYBODY)
    if faults:
        raise ConfigError(faults)


def folder_faults(folder: Path) -> list[str]:
    """What is wrong with a data folder that is there. It is not closed by us: it may hold what is not ours."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return []  # it is made, or the store says better what is wrong
    if not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return []
    return [f"data_dir: others can write to {folder} (mode {stat.S_IMODE(mode):o}): chmod 700 {folder}"]


def closed(path: Path, forbidden: int) -> list[str]:
    """Take forbidden rights away from a file that is there, and say so; or why that did not work."""
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
    log.warning("others had access to %s (mode %o): it is %o now", path, mode, wanted, extra=about(file=str(path)))
    return []
