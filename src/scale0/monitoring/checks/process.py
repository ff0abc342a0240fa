"""The check `process`: which processes run, how many, and what they use.

Invariants: only globs and plain text are matched, so that no pattern takes long on external text; the process of the
agent itself is never counted.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, Text, WrongArgs, limits, matches
from scale0.monitoring.checks.check_run import CheckRun, previous_counters
from scale0.monitoring.checks.metrics import BYTES, PERCENT, SECONDS, Measurements, byte_size, duration, excerpt
from scale0.monitoring.protocol.results import CheckFinding

MAX_MATCHED: Final = 10_000
"""Processes that one check may match."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: Text = ""
    command: Text = ""
    user: Text = ""
    warn: Limit = None
    crit: Limit = "1:"
    memory_warn: Limit = None
    memory_crit: Limit = None
    cpu_warn: Limit = None
    cpu_crit: Limit = None
    age_warn: Limit = None
    age_crit: Limit = None


class ProcessSample(NamedTuple):
    started: float
    cpu_seconds: float
    memory_bytes: int
    threads: int


class EarlierSample(NamedTuple):
    """Processor time of each process at the last run; a reused pid has another start time."""

    mono: float
    cpu_seconds: dict[tuple[int, float], float]


def measure(args: Args, run: CheckRun) -> CheckFinding:
    if not (args.name or args.command or args.user):
        raise WrongArgs("one of the args name, command and user is required")
    found, zombies = matching(args, run)
    now = EarlierSample(time.monotonic(), {(pid, one.started): one.cpu_seconds for pid, one in found.items()})
    if len(found) > MAX_MATCHED:
        raise WrongArgs(f"{len(found)} processes match, more than {MAX_MATCHED}: select fewer")
    percent = cpu_percent(found, now, previous_counters(run, now, EarlierSample(now.mono, {})))
    metrics = Measurements()
    what = " ".join(excerpt(word) for word in (args.name, args.command, args.user) if word)
    warn, crit = limits(args)
    metrics.add("count", len(found), warn=warn, crit=crit, low=0.0, message=f"{len(found)} processes of {what}")
    memory = sum(one.memory_bytes for one in found.values())
    warn, crit = limits(args, "memory_")
    message = f"{what} uses {byte_size(memory)}"
    metrics.add("memory_bytes", memory, BYTES, warn=warn, crit=crit, low=0.0, message=message)
    warn, crit = limits(args, "cpu_")
    message = f"{what} uses {percent:.1f} % of a core"
    metrics.add("cpu_percent", percent, PERCENT, warn=warn, crit=crit, low=0.0, message=message)
    metrics.add("threads", sum(one.threads for one in found.values()), low=0.0)
    metrics.add("zombies", zombies, low=0.0)
    if found:
        age = max(0.0, time.time() - max(one.started for one in found.values()))
        warn, crit = limits(args, "age_")
        message = f"the youngest of {what} started {duration(age)} ago"
        metrics.add("youngest_seconds", age, SECONDS, warn=warn, crit=crit, low=0.0, message=message)
    return metrics.finding(f"{len(found)} processes of {what}, {byte_size(memory)}, {percent:.1f} % of a core")


def matching(args: Args, run: CheckRun) -> tuple[dict[int, ProcessSample], int]:
    found: dict[int, ProcessSample] = {}
    zombies = 0
    own = os.getpid()
    for process in psutil.process_iter():
        run.deadline.left()
        if process.pid == own:
            continue
        try:
            with process.oneshot():
                if not is_match(process, args):
                    continue
                if process.status() == psutil.STATUS_ZOMBIE:
                    zombies += 1
                    continue
                times, memory = process.cpu_times(), process.memory_info().rss
                spent = times.user + times.system
                found[process.pid] = ProcessSample(process.create_time(), spent, memory, process.num_threads())
        except psutil.Error:
            continue  # it has ended meanwhile, or we may not inspect it
    return found, zombies


def is_match(process: psutil.Process, args: Args) -> bool:
    """True if all configured conditions hold; the most expensive one is last."""
    if args.name and not matches(process.name(), args.name):
        return False
    if args.user and process.username() != args.user:
        return False
    return not args.command or args.command in " ".join(process.cmdline())


def cpu_percent(found: dict[int, ProcessSample], now: EarlierSample, before: EarlierSample) -> float:
    """Percent of one core since the last run; of a new process, and on the first run, since its start."""
    total = 0.0
    wall = time.time()
    for pid, one in found.items():
        previous = before.cpu_seconds.get((pid, one.started))
        if previous is None:
            spent, seconds = one.cpu_seconds, wall - one.started
        else:
            spent, seconds = one.cpu_seconds - previous, now.mono - before.mono
        if seconds > 0:
            total += 100.0 * max(0.0, spent) / seconds
    return total
