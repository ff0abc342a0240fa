"""The check `memory`: what is in use, and what programs can still allocate.

On Linux /proc/meminfo is parsed here, because the check runs often and psutil parses all of it; if it is not as
expected, psutil is used.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import BYTES, PERCENT, Measurements, byte_size
from scale0.monitoring.protocol.results import CheckFinding


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    warn: Limit = 90.0
    crit: Limit = 95.0
    available_warn: Limit = None
    available_crit: Limit = None


MEMINFO: Final = "/proc/meminfo"
MAX_PAGE_BYTES: Final = 8_192


class Memory(NamedTuple):
    """In bytes."""

    total: int
    available: int
    cached: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Memory in use is what is not available: caches that the system can free do not count."""
    total, available, cached = from_meminfo() or from_psutil()
    used = total - available
    percent = 100.0 * used / total if total else 0.0
    warn, crit = limits(args)
    metrics = Measurements()
    message = f"{percent:.1f} % of {byte_size(total)} in use, {byte_size(available)} available"
    metrics.add("used_percent", percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, message=message)
    metrics.add("used_bytes", used, BYTES, low=0.0, high=float(total))
    warn, crit = limits(args, "available_")
    available_message = f"{byte_size(available)} available of {byte_size(total)}"
    metrics.add(
        "available_bytes", available, BYTES, warn=warn, crit=crit, low=0.0, high=float(total), message=available_message
    )
    metrics.add("cached_bytes", cached, BYTES, low=0.0, high=float(total))
    return metrics.finding(message)


def from_psutil() -> Memory:
    found = psutil.virtual_memory()
    return Memory(found.total, found.available, getattr(found, "cached", 0))


def from_meminfo() -> Memory | None:
    """From /proc/meminfo; None if it is not as expected."""
    try:
        descriptor = os.open(MEMINFO, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, MAX_PAGE_BYTES)
    finally:
        os.close(descriptor)
    total, available = _bytes_of(text, b"MemTotal:"), _bytes_of(text, b"\nMemAvailable:")
    if total is None or available is None or not 0 <= available <= total:
        return None  # some containers show only a part of it
    return Memory(total, available, _bytes_of(text, b"\nCached:") or 0)


def _bytes_of(text: bytes, name: bytes) -> int | None:
    """The number after a name, which is in KiB."""
    start = text.find(name)
    end = text.find(b" kB\n", start)
    number = text[start + len(name) : end].strip()
    return int(number) * 1_024 if start >= 0 and end >= 0 and number.isdigit() else None
