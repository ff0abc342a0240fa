"""The check `load`: averages of processes that run or wait to run."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from scale0.monitoring.checks.arguments import Limit, limit
from scale0.monitoring.checks.check_run import CheckRun
from scale0.monitoring.checks.metrics import Measurements
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.protocol.results import CheckFinding

Limits = str | float | Annotated[tuple[Limit, ...], msgspec.Meta(min_length=3, max_length=3)] | None
"""One range for all averages, or three: of 1, 5 and 15 minutes."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    warn: Limits = 2.0
    crit: Limits = 4.0
    per_core: bool = True


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """The three averages, per core unless `per_core` is false."""
    averages = os.getloadavg()
    cores = os.cpu_count() or 1
    warns, crits = _three("warn", args.warn), _three("crit", args.crit)
    metrics = Measurements()
    for minutes, average, warn, crit in zip((1, 5, 15), averages, warns, crits, strict=True):
        share = average / cores
        if args.per_core:
            metrics.add(f"load{minutes}", average, low=0.0)
            message = f"{minutes}-minute load is {share:.2f} per core"
            metrics.add(f"load{minutes}_per_core", share, warn=warn, crit=crit, low=0.0, message=message)
        else:
            message = f"{minutes}-minute load is {average:.2f}"
            metrics.add(f"load{minutes}", average, warn=warn, crit=crit, low=0.0, message=message)
            metrics.add(f"load{minutes}_per_core", share, low=0.0)
    one, five, fifteen = averages
    return metrics.finding(f"load {one:.2f}, {five:.2f}, {fifteen:.2f} on {cores} cores")


def _three(key: str, given: Limits) -> tuple[Range | None, ...]:
    if isinstance(given, tuple):
        return tuple(limit(key, one) for one in given)
    return (limit(key, given),) * 3
