"""The check `swap`: how much is in use, and how much moves in and out."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun, previous_counters
from scale0.monitoring.checks.metrics import BYTES, BYTES_PER_SECOND, PERCENT, Measurements, byte_size
from scale0.monitoring.checks.uptime import boot_seconds
from scale0.monitoring.protocol.results import OK, CheckFinding, State


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    warn: Limit = 60.0
    crit: Limit = 90.0
    moved_warn: Limit = None
    moved_crit: Limit = None
    missing: State = OK


class _SwapCounters(NamedTuple):
    mono: float
    swapped_in: int
    swapped_out: int


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Use in percent, and what moved since the last run, in bytes per second."""
    found = psutil.swap_memory()
    now = _SwapCounters(time.monotonic(), found.sin, found.sout)
    before = previous_counters(run, now, _SwapCounters(now.mono - boot_seconds(), 0, 0))
    warn, crit = limits(args)
    moved_warn, moved_crit = limits(args, "moved_")
    metrics = Measurements()
    message = f"{found.percent:.1f} % of {byte_size(found.total)} swap in use"
    if not found.total:
        message = "there is no swap"
        if args.missing != OK:
            metrics.add_problem(args.missing, message)
        metrics.add("used_bytes", 0, BYTES, low=0.0, high=0.0)
        return metrics.finding(message)
    metrics.add("used_percent", found.percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, message=message)
    metrics.add("used_bytes", found.used, BYTES, low=0.0, high=float(found.total))
    if (seconds := now.mono - before.mono) > 0:
        for name, moved in (("in", now.swapped_in - before.swapped_in), ("out", now.swapped_out - before.swapped_out)):
            rate = max(0, moved) / seconds
            rate_message = f"swap moves {name} at {byte_size(rate)}/s"
            metric = f"{name}_bytes_per_second"
            metrics.add(metric, rate, BYTES_PER_SECOND, warn=moved_warn, crit=moved_crit, low=0.0, message=rate_message)
    return metrics.finding(message)
