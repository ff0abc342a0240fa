"""What this host is like, for `scale0 doctor`: readings, each taken once.

Lives here: asking the system. Never here: whether the answer is good (`cli.network.doctor_findings`). Invariants: a
reading that cannot be had is None or blank, and never an error; nothing is changed but a file of our own that is
removed again.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import zmq

SYNCS: Final = 5
"""How often a file is written and synced: one alone may be unlucky."""
SYNC_BYTES: Final = 4_096
JAVA_SECONDS: Final = 10.0
STA_UNSYNC: Final = 0x40
"""Of adjtimex(2): nobody sets the clock."""
TIMEX_BYTES: Final = 512
"""More than a `struct timex` has on any machine."""


class ZmqReading(NamedTuple):
    """The messaging library."""

    pyzmq: str
    libzmq: tuple[int, int, int]
    curve: bool


class PortReading(NamedTuple):
    """A port that a part of ours would listen on."""

    name: str
    number: int
    free: bool
    owner: str
    """The program that has it; blank: free, or it cannot be told."""
    pid: int | None


class DiskReading(NamedTuple):
    """Where data is kept, or would be."""

    folder: str
    free_bytes: int
    total_bytes: int
    file_system: str
    trouble: str
    """Why nothing can be written there; blank: it can."""
    sync_seconds: float | None
    """How long a small write takes to be on the disk: the middle of a few."""


class JavaReading(NamedTuple):
    """The one that Spark would use."""

    path: str
    said: str
    """What `java -version` printed."""


class ClockReading(NamedTuple):
    """Two clocks at one moment."""

    wall: float
    mono: float


def read_zmq() -> ZmqReading:
    """Versions, and whether it can encrypt."""
    major, minor, patch = zmq.zmq_version_info()
    return ZmqReading(zmq.pyzmq_version(), (major, minor, patch), bool(zmq.has("curve")))


def installed(modules: Sequence[str]) -> bool:
    """True if all of these could be imported."""
    return all(importlib.util.find_spec(name) is not None for name in modules)


def read_ports(wanted: Mapping[str, int], host: str) -> list[PortReading]:
    """Who has these ports; 0 is any free one, and nobody's."""
    owners = _listeners()
    found = []
    for name, number in wanted.items():
        if number:
            free = _is_free(host, number)
            pid = None if free else owners.get(number)
            found.append(PortReading(name, number, free, "" if pid is None else _program(pid), pid))
    return found


def _is_free(host: str, number: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, number))
        except OSError:
            return False
    return True


def _listeners() -> dict[int, int]:
    """Processes by the port they listen on, as far as we may know."""
    found: dict[int, int] = {}
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.pid is not None and one.laddr:
                found[one.laddr.port] = one.pid
    return found


def _program(pid: int) -> str:
    """Its command line, in short."""
    try:
        return " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except psutil.Error:
        return ""


def read_clock() -> ClockReading:
    """Now, by both."""
    return ClockReading(time.time(), time.monotonic())


def is_synchronised() -> bool | None:
    """True if somebody keeps this machine's clock right (adjtimex); None: it does not say."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        timex = ctypes.create_string_buffer(TIMEX_BYTES)  # modes = 0: only look
        if library.adjtimex(timex) < 0:
            return None
    except (OSError, AttributeError):
        return None
    # struct timex: unsigned modes; long offset, freq, maxerror, esterror; int status
    long_bytes = ctypes.sizeof(ctypes.c_long)
    status = ctypes.c_int.from_buffer(timex, long_bytes * 5).value
    return not status & STA_UNSYNC


def read_java(environment: Mapping[str, str]) -> JavaReading | None:
    """That of JAVA_HOME, else the first on PATH; None: there is none."""
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
    """Room, kind and speed of where a folder is, or would be made."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    trouble, seconds = "", None
    try:
        seconds = _synced(place)
    except OSError as error:
        trouble = error.strerror or str(error)
    return DiskReading(str(folder), usage.free, usage.total, file_system_of(place, _mounts()), trouble, seconds)


def _synced(place: Path) -> float:
    """Write a little and have it on the disk, a few times; how long that took."""
    taken = []
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * SYNC_BYTES, 0)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system_of(place: Path, mounts: str) -> str:
    """Its kind, from the text of /proc/mounts; blank: not known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 2:
            point = Path(words[1].replace("\\040", " "))
            if len(point.parts) >= best and (point == place or point in place.parents):
                best, kind = len(point.parts), words[2]
    return kind


def max_files() -> int | None:
    """How many descriptors a process may have at most; None: as many as it wants."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def memory() -> tuple[int, int]:
    """Bytes that are available, and all of them."""
    found = psutil.virtual_memory()
    return found.available, found.total
