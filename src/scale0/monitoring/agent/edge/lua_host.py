"""What a Lua check can read about its machine: the implementation of its `host` table.

Nothing here changes the machine. Invariants: Lua receives a number, bytes, or a tuple of these, never a Python object;
every answer is bounded; no function raises.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

MAX_READ_BYTES: Final = 65_536
MAX_PATH_BYTES: Final = 4_096

READABLE: Final = frozenset(
    {
        *("cpuinfo", "diskstats", "interrupts", "loadavg", "mdstat", "meminfo", "mounts", "softirqs", "stat"),
        *("swaps", "uptime", "version", "vmstat", "zoneinfo", "buddyinfo", "filesystems", "modules"),
        *("net/dev", "net/snmp", "net/netstat", "net/sockstat", "net/tcp", "net/tcp6", "net/udp", "net/route"),
        *("pressure/cpu", "pressure/io", "pressure/memory"),
        *("sys/fs/file-nr", "sys/fs/inode-nr", "sys/kernel/pid_max", "sys/kernel/random/entropy_avail"),
        *("sys/kernel/osrelease", "sys/net/netfilter/nf_conntrack_count", "sys/net/netfilter/nf_conntrack_max"),
    }
)
"""Files below /proc that `host.read` may read."""

READABLE_FOLDERS: Final = ("/sys/class/hwmon/", "/sys/class/net/", "/sys/class/power_supply/", "/sys/class/thermal/")
"""Directories below which it may read any file that resolves to a path in /sys."""

Answer = float | bytes | tuple[float | bytes | bool, ...]


def refused(reason: str) -> Answer:
    """Lua receives nil and the reason."""
    return (False, reason.encode("utf-8", "replace"))


def read(path: bytes) -> Answer:
    """The beginning of a file that is on the list."""
    name = os.fsdecode(path)
    inside = name.removeprefix("/proc/")
    if not (name.startswith("/proc/") and inside in READABLE):
        below = name.startswith(READABLE_FOLDERS) and ".." not in name.split("/")
        if not below or not os.path.realpath(name).startswith("/sys/"):
            return refused(f"{name[:256]} is not a file that checks may read")
        name = os.path.realpath(name)
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        parts: list[bytes] = []
        left = MAX_READ_BYTES
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def load(_: bytes) -> Answer:
    return os.getloadavg()


def memory(_: bytes) -> Answer:
    """Bytes: total, available, free, buffers, cached, swap total, swap free."""
    found: dict[bytes, int] = {}
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            name, _, rest = line.partition(b":")
            found[name] = int(rest.split()[0]) * 1_024  # digits that the kernel wrote
    names = (b"MemTotal", b"MemAvailable", b"MemFree", b"Buffers", b"Cached", b"SwapTotal", b"SwapFree")
    return tuple(found.get(name, 0) for name in names)


def disk(path: bytes) -> Answer:
    """Bytes: total, used, available; inodes: total, free."""
    found = os.statvfs(path)
    size = found.f_frsize
    used = (found.f_blocks - found.f_bfree) * size
    return (found.f_blocks * size, used, found.f_bavail * size, found.f_files, found.f_ffree)


def uptime(_: bytes) -> Answer:
    with open("/proc/uptime", "rb") as file:
        return float(file.read().split()[0])


def cpus(_: bytes) -> Answer:
    return os.cpu_count() or 1


def name(_: bytes) -> Answer:
    return socket.gethostname().encode()


QUESTIONS: Final[dict[bytes, Callable[[bytes], Answer]]] = {
    b"cpus": cpus,
    b"disk": disk,
    b"load": load,
    b"memory": memory,
    b"name": name,
    b"read": read,
    b"uptime": uptime,
}


def ask(question: object, about: object) -> Answer:
    """The only Python function that Lua can call."""
    try:
        if not isinstance(question, bytes) or not isinstance(about, bytes) or len(about) > MAX_PATH_BYTES:
            return refused("invalid question")
        return QUESTIONS[question](about)
    except OSError as error:
        return refused(error.strerror or "it failed")
    except (ValueError, IndexError, KeyError):  # a zero byte in a path; a file with unexpected content
        return refused("it could not be read")
