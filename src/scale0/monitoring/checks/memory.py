"""The check `memory`: what is in use, and what a program could still get.

Lives here: the machine's memory. Never here: swap, or the memory of one process. Linux's own page is read here, because
it is asked often and psutil reads all of it; where it is not as expected, psutil answers.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import BYTES, PERCENT, Measurements, size
from scale0.monitoring.protocol.results import CheckFinding


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    warn: Limit = 90.0
    crit: Limit = 95.0
    available_warn: Limit = None
    available_crit: Limit = None


PAGE: Final = "/proc/meminfo"
MAX_PAGE_BYTES: Final = 8_192


class Memory(NamedTuple):
    """In bytes."""

    total: int
    available: int
    cached: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """In use is what is not available: caches that the system gives back at need are not in use."""
    total, available, cached = from_page() or from_psutil()
    used = total - available
    percent = 100.0 * used / total if total else 0.0
    warn, crit = limits(args)
    gauges = Measurements()
    says = f"{percent:.1f} % of {size(total)} in use, {size(available)} available"
    gauges.add("used_percent", percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, says=says)
    gauges.add("used_bytes", used, BYTES, low=0.0, high=float(total))
    warn, crit = limits(args, "available_")
    lacks = f"{size(available)} available of {size(total)}"
    gauges.add("available_bytes", available, BYTES, warn=warn, crit=crit, low=0.0, high=float(total), says=lacks)
    gauges.add("cached_bytes", cached, BYTES, low=0.0, high=float(total))
    return gauges.finding(says)


def from_psutil() -> Memory:
    """As psutil sees it, on any system."""
    found = psutil.virtual_memory()
    return Memory(found.total, found.available, getattr(found, "cached", 0))


def from_page() -> Memory | None:
    """As Linux says it; None where it says it otherwise."""
    try:
        descriptor = os.open(PAGE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        page = os.read(descriptor, MAX_PAGE_BYTES)
    finally:
        os.close(descriptor)
    total, available = _bytes_of(page, b"MemTotal:"), _bytes_of(page, b"\nMemAvailable:")
    if total is None or available is None or not 0 <= available <= total:
        return None  # some containers show a part of the truth
    return Memory(total, available, _bytes_of(page, b"\nCached:") or 0)


def _bytes_of(page: bytes, name: bytes) -> int | None:
    """The number behind a name, which stands there in KiB."""
    start = page.find(name)
    end = page.find(b" kB\n", start)
    number = page[start + len(name) : end].strip()
    return int(number) * 1_024 if start >= 0 and end >= 0 and number.isdigit() else None
