"""The check `swap`: how much is in use, and how much moves in and out.

Lives here: swap space and its traffic since the last run. Never here: memory.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun, earlier
from scale0.monitoring.checks.metrics import BYTES, BYTES_PER_SECOND, PERCENT, Measurements, size
from scale0.monitoring.checks.uptime import boot_seconds
from scale0.monitoring.protocol.results import OK, CheckFinding, State


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    warn: Limit = 60.0
    crit: Limit = 90.0
    moved_warn: Limit = None
    moved_crit: Limit = None
    missing: State = OK


class _Then(NamedTuple):
    mono: float
    came: int
    left: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """In use in percent; what moved since the last run, in bytes a second."""
    found = psutil.swap_memory()
    now = _Then(time.monotonic(), found.sin, found.sout)
    before = earlier(run, now, _Then(now.mono - boot_seconds(), 0, 0))
    warn, crit = limits(args)
    moved_warn, moved_crit = limits(args, "moved_")
    gauges = Measurements()
    says = f"{found.percent:.1f} % of {size(found.total)} swap in use"
    if not found.total:
        says = "there is no swap"
        if args.missing != OK:
            gauges.blame(args.missing, says)
        gauges.add("used_bytes", 0, BYTES, low=0.0, high=0.0)
        return gauges.finding(says)
    gauges.add("used_percent", found.percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, says=says)
    gauges.add("used_bytes", found.used, BYTES, low=0.0, high=float(found.total))
    if (seconds := now.mono - before.mono) > 0:
        for name, moved in (("in", now.came - before.came), ("out", now.left - before.left)):
            rate = max(0, moved) / seconds
            told = f"swap moves {name} at {size(rate)}/s"
            metric = f"{name}_bytes_per_second"
            gauges.add(metric, rate, BYTES_PER_SECOND, warn=moved_warn, crit=moved_crit, low=0.0, says=told)
    return gauges.finding(says)
