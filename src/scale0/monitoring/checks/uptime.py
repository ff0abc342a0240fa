"""The check `uptime`: how long ago the machine started.

Lives here: one clock and its thresholds. Never here: how long the agent runs.
"""

from __future__ import annotations

import time

import msgspec

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import SECONDS, Measurements, span
from scale0.monitoring.protocol.results import CheckFinding


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    warn: Limit = None
    crit: Limit = None


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Seconds since the start, suspended time included."""
    seconds = boot_seconds()
    warn, crit = limits(args)
    gauges = Measurements()
    says = f"up {span(seconds)}"
    gauges.add("uptime_seconds", seconds, SECONDS, warn=warn, crit=crit, low=0.0, says=says)
    return gauges.finding(says)


def boot_seconds() -> float:
    """Seconds since the machine started, by a clock that does not jump."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
