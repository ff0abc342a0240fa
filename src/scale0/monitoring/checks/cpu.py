"""The check `cpu`: what the processors did since the last run.

Invariant: it never waits; the first run reports the shares since boot, and says so.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun, previous_counters
from scale0.monitoring.checks.metrics import PERCENT, Measurements, duration
from scale0.monitoring.checks.uptime import boot_seconds
from scale0.monitoring.protocol.results import CheckFinding


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    warn: Limit = 85.0
    crit: Limit = 95.0
    iowait_warn: Limit = None
    iowait_crit: Limit = None
    steal_warn: Limit = None
    steal_crit: Limit = None


class CpuTimes(NamedTuple):
    """Seconds of all processors together, until `mono`."""

    mono: float
    total: float
    user: float
    system: float
    idle: float
    iowait: float
    steal: float


def read_cpu_times() -> CpuTimes:
    times = psutil.cpu_times()
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    iowait, steal = getattr(times, "iowait", 0.0), getattr(times, "steal", 0.0)
    # The time of guests is included in user and nice.
    total = sum(times) - guest
    user = times.user + getattr(times, "nice", 0.0)
    return CpuTimes(
        time.monotonic(), total, user, total - user - times.idle - iowait - steal, times.idle, iowait, steal
    )


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Shares of the time since the last run, in percent of all processors."""
    now = read_cpu_times()
    boot = CpuTimes(now.mono - boot_seconds(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    before = previous_counters(run, now, boot)
    if now.total <= before.total:
        before = boot  # the counters were reset
    since = "since boot" if before.total == 0 else f"over {duration(now.mono - before.mono)}"
    total = now.total - before.total

    def share(later: float, sooner: float) -> float:
        # Some counters decrease a little at times; a share is never negative.
        return min(100.0, max(0.0, 100.0 * (later - sooner) / total)) if total > 0 else 0.0

    idle, iowait = share(now.idle, before.idle), share(now.iowait, before.iowait)
    steal = share(now.steal, before.steal)
    busy = round(max(0.0, 100.0 - idle - iowait), 6) if total > 0 else 0.0  # not 1e-10 on an idle machine
    metrics = Measurements()
    for name, percent, prefix in (("busy", busy, ""), ("iowait", iowait, "iowait_"), ("steal", steal, "steal_")):
        warn, crit = limits(args, prefix)
        message = f"{name} {percent:.1f} % {since}"
        metrics.add(f"{name}_percent", percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, message=message)
    metrics.add("user_percent", share(now.user, before.user), PERCENT, low=0.0, high=100.0)
    metrics.add("system_percent", share(now.system, before.system), PERCENT, low=0.0, high=100.0)
    return metrics.finding(f"busy {busy:.1f} %, iowait {iowait:.1f} %, steal {steal:.1f} % {since}")
