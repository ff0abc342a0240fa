"""The check `uptime`: how long ago the machine started."""

from __future__ import annotations

import time

import msgspec

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import SECONDS, Measurements, duration
from scale0.monitoring.protocol.results import CheckFinding


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    warn: Limit = None
    crit: Limit = None


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Seconds since boot, including suspend."""
    seconds = boot_seconds()
    warn, crit = limits(args)
    metrics = Measurements()
    message = f"up {duration(seconds)}"
    metrics.add("uptime_seconds", seconds, SECONDS, warn=warn, crit=crit, low=0.0, message=message)
    return metrics.finding(message)


def boot_seconds() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
