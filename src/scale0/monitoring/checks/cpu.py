"""The check `cpu`: what the processors did since the last run.

Lives here: shares of the processors' time. Never here: load, or one process. Invariant: it never waits; the first run
tells the shares since the machine started, and says so.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, limits
from scale0.monitoring.checks.check_run import CheckRun, earlier
from scale0.monitoring.checks.metrics import PERCENT, Measurements, span
from scale0.monitoring.checks.uptime import boot_seconds
from scale0.monitoring.protocol.results import CheckFinding


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    warn: Limit = 85.0
    crit: Limit = 95.0
    iowait_warn: Limit = None
    iowait_crit: Limit = None
    steal_warn: Limit = None
    steal_crit: Limit = None


class Spent(NamedTuple):
    """Seconds of all processors together, until `mono`."""

    mono: float
    total: float
    user: float
    system: float
    idle: float
    iowait: float
    steal: float


def spent() -> Spent:
    """What the system has counted since it started."""
    times = psutil.cpu_times()
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    iowait, steal = getattr(times, "iowait", 0.0), getattr(times, "steal", 0.0)
    # A guest's time is in user and nice already.
    total = sum(times) - guest
    user = times.user + getattr(times, "nice", 0.0)
    return Spent(time.monotonic(), total, user, total - user - times.idle - iowait - steal, times.idle, iowait, steal)


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Shares of the time since the last run, in percent of all processors."""
    now = spent()
    boot = Spent(now.mono - boot_seconds(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    before = earlier(run, now, boot)
    if now.total <= before.total:
        before = boot  # the counters began again
    since = "since boot" if before.total == 0 else f"over {span(now.mono - before.mono)}"
    total = now.total - before.total

    def share(later: float, earlier: float) -> float:
        # Some counters run back a little at times; no share is below nothing.
        return min(100.0, max(0.0, 100.0 * (later - earlier) / total)) if total > 0 else 0.0

    idle, iowait = share(now.idle, before.idle), share(now.iowait, before.iowait)
    steal = share(now.steal, before.steal)
    busy = round(max(0.0, 100.0 - idle - iowait), 6) if total > 0 else 0.0  # not 1e-10 on an idle machine
    gauges = Measurements()
    for name, percent, prefix in (("busy", busy, ""), ("iowait", iowait, "iowait_"), ("steal", steal, "steal_")):
        warn, crit = limits(args, prefix)
        says = f"{name} {percent:.1f} % {since}"
        gauges.add(f"{name}_percent", percent, PERCENT, warn=warn, crit=crit, low=0.0, high=100.0, says=says)
    gauges.add("user_percent", share(now.user, before.user), PERCENT, low=0.0, high=100.0)
    gauges.add("system_percent", share(now.system, before.system), PERCENT, low=0.0, high=100.0)
    return gauges.finding(f"busy {busy:.1f} %, iowait {iowait:.1f} %, steal {steal:.1f} % {since}")
