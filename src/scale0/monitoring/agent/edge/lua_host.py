"""What a Lua check can learn about its machine: the other end of its `host` table.

Lives here: a few questions with short answers. Never here: anything that changes the machine. Invariants: what goes to
Lua is a number, bytes, or a tuple of these, never an object of Python; every answer is bounded; nothing raises.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

MAX_READ_BYTES: Final = 65_536
"""Of one file."""
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
"""Files below /proc that `host.read` reads."""

READABLE_FOLDERS: Final = ("/sys/class/hwmon/", "/sys/class/net/", "/sys/class/power_supply/", "/sys/class/thermal/")
"""Below these it reads any file that leads to nowhere but /sys."""

Answer = float | bytes | tuple[float | bytes | bool, ...]


def refused(reason: str) -> Answer:
    """What Lua sees as nil and a reason."""
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
    """Of one, five and fifteen minutes."""
    return os.getloadavg()


def memory(_: bytes) -> Answer:
    """Bytes: total, available, free, buffers, cached, swap total, swap free."""
    found: dict[bytes, int] = {}
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            name, _, rest = line.partition(b":")
            found[name] = int(rest.split()[0]) * 1_024  # the kernel's own digits
    names = (b"MemTotal", b"MemAvailable", b"MemFree", b"Buffers", b"Cached", b"SwapTotal", b"SwapFree")
    return tuple(found.get(name, 0) for name in names)


def disk(path: bytes) -> Answer:
    """Bytes: total, used, available; inodes: total, free."""
    found = os.statvfs(path)
    size = found.f_frsize
    used = (found.f_blocks - found.f_bfree) * size
    return (found.f_blocks * size, used, found.f_bavail * size, found.f_files, found.f_ffree)


def uptime(_: bytes) -> Answer:
    """Seconds since the machine started."""
    with open("/proc/uptime", "rb") as file:
        return float(file.read().split()[0])


def cpus(_: bytes) -> Answer:
    """How many processors there are."""
    return os.cpu_count() or 1


def name(_: bytes) -> Answer:
    """What the machine calls itself."""
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
    """The one function of ours that Lua can reach."""
    try:
        if not isinstance(question, bytes) or not isinstance(about, bytes) or len(about) > MAX_PATH_BYTES:
            return refused("not a question")
        return QUESTIONS[question](about)
    except OSError as error:
        return refused(error.strerror or "it failed")
    except (ValueError, IndexError, KeyError):  # a zero byte in a path; a file that looks otherwise than expected
        return refused("it could not be read")
