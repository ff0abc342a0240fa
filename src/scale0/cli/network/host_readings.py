"""Readings of this host for `scale0 doctor`.

A reading that fails is None or blank and never an error. Nothing is changed except for a temporary file.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from scale0.cli.common.endpoints import is_free

SYNCS: Final = 5
"""How often a file is written and synced; the median counts."""
SYNC_BYTES: Final = 4_096
JAVA_SECONDS: Final = 10.0
STA_UNSYNC: Final = 0x40
"""Of adjtimex(2): the clock is not synchronised."""
TIMEX_BYTES: Final = 512
"""More than the size of a `struct timex` on any machine."""


class PortReading(NamedTuple):
    """A port that one of our processes would listen on."""

    name: str
    number: int
    free: bool
    owner: str
    """The program that listens on it; blank: free or not known."""
    pid: int | None


class DiskReading(NamedTuple):
    """The disk of a data folder that exists or will be made."""

    folder: str
    free_bytes: int
    file_system: str
    trouble: str
    """Why it cannot be written; blank: it can."""
    sync_seconds: float | None
    """How long a small synced write takes: the median of a few."""


class JavaReading(NamedTuple):
    """The Java that Spark would use."""

    path: str
    output: str
    """Of `java -version`."""


class ClockReading(NamedTuple):
    wall: float
    mono: float


def installed(modules: Sequence[str]) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in modules)


def read_ports(wanted: Mapping[str, int], host: str) -> list[PortReading]:
    """Who listens on these ports; 0 means any free one and is left out."""
    owners = _listeners()
    found = []
    for name, number in wanted.items():
        if number:
            free = is_free(number, host)
            pid = None if free else owners.get(number)
            found.append(PortReading(name, number, free, "" if pid is None else _program(pid), pid))
    return found


def _listeners() -> dict[int, int]:
    """Process ids by port, as far as we may see them."""
    found: dict[int, int] = {}
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.pid is not None and one.laddr:
                found[one.laddr.port] = one.pid
    return found


def _program(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except psutil.Error:
        return ""


def read_clock() -> ClockReading:
    return ClockReading(time.time(), time.monotonic())


def is_synchronised() -> bool | None:
    """True if the clock is synchronised (adjtimex); None: not known."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        timex = ctypes.create_string_buffer(TIMEX_BYTES)  # modes = 0: read only
        if library.adjtimex(timex) < 0:
            return None
    except (OSError, AttributeError):
        return None
    # struct timex: unsigned modes; long offset, freq, maxerror, esterror; int status
    long_bytes = ctypes.sizeof(ctypes.c_long)
    status = ctypes.c_int.from_buffer(timex, long_bytes * 5).value
    return not status & STA_UNSYNC


def read_java(environment: Mapping[str, str]) -> JavaReading | None:
    """Java of JAVA_HOME, or the first one in PATH; None: there is none."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH", ""))
    if not path:
        return None
    try:
        done = subprocess.run(
            [path, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_SECONDS,
            env=dict(environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return JavaReading(path, str(error))
    return JavaReading(path, done.stderr + done.stdout)


def read_disk(folder: Path) -> DiskReading:
    """Free space, type and speed of the disk that the folder is on or would be on."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    trouble, seconds = "", None
    try:
        seconds = _sync_seconds(existing)
    except OSError as error:
        trouble = error.strerror or str(error)
    return DiskReading(str(folder), free, file_system_of(existing, mounts()), trouble, seconds)


def _sync_seconds(folder: Path) -> float:
    """Write and sync a little a few times: the median duration."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * SYNC_BYTES, 0)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system_of(folder: Path, mounts: str) -> str:
    """The type of a file system, from the text of /proc/mounts; blank: not known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 2:
            point = Path(words[1].replace("\\040", " "))
            if len(point.parts) >= best and (point == folder or point in folder.parents):
                best, kind = len(point.parts), words[2]
    return kind


def max_files() -> int | None:
    """The maximum number of descriptors of a process; None: unlimited."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def memory() -> tuple[int, int]:
    found = psutil.virtual_memory()
    return found.available, found.total
