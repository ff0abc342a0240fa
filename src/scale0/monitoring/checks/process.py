"""The check `process`: which processes run, how many, and what they use.

Lives here: choosing processes, and sums over them. Never here: starting or ending one. Invariants: no pattern that can
take long is run over foreign text (globs and plain text only); the process that asks is never counted.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, Text, WrongArgs, fits, limits
from scale0.monitoring.checks.check_run import CheckRun, earlier
from scale0.monitoring.checks.metrics import BYTES, PERCENT, SECONDS, Measurements, excerpt, size, span
from scale0.monitoring.protocol.results import CheckFinding

MAX_MATCHED: Final = 10_000
"""Processes that one check may be about."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

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
    """What is known of one process."""

    started: float
    cpu_seconds: float
    memory_bytes: int
    threads: int


class EarlierSample(NamedTuple):
    """Processor time of each process at the last run; a number that was used again has another start."""

    mono: float
    cpu_seconds: dict[tuple[int, float], float]


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Count and sums over the processes that match."""
    if not (args.name or args.command or args.user):
        raise WrongArgs("say which processes: name, command or user")
    found, zombies = matching(args, run)
    now = EarlierSample(time.monotonic(), {(pid, one.started): one.cpu_seconds for pid, one in found.items()})
    if len(found) > MAX_MATCHED:
        raise WrongArgs(f"{len(found)} processes match, more than {MAX_MATCHED}: say more exactly which")
    percent = cpu_percent(found, now, earlier(run, now, EarlierSample(now.mono, {})))
    gauges = Measurements()
    what = " ".join(excerpt(word) for word in (args.name, args.command, args.user) if word)
    warn, crit = limits(args)
    gauges.add("count", len(found), warn=warn, crit=crit, low=0.0, says=f"{len(found)} processes of {what}")
    memory = sum(one.memory_bytes for one in found.values())
    warn, crit = limits(args, "memory_")
    says = f"{what} uses {size(memory)}"
    gauges.add("memory_bytes", memory, BYTES, warn=warn, crit=crit, low=0.0, says=says)
    warn, crit = limits(args, "cpu_")
    says = f"{what} uses {percent:.1f} % of a core"
    gauges.add("cpu_percent", percent, PERCENT, warn=warn, crit=crit, low=0.0, says=says)
    gauges.add("threads", sum(one.threads for one in found.values()), low=0.0)
    gauges.add("zombies", zombies, low=0.0)
    if found:
        age = max(0.0, time.time() - max(one.started for one in found.values()))
        warn, crit = limits(args, "age_")
        says = f"the youngest of {what} started {span(age)} ago"
        gauges.add("youngest_seconds", age, SECONDS, warn=warn, crit=crit, low=0.0, says=says)
    return gauges.finding(f"{len(found)} processes of {what}, {size(memory)}, {percent:.1f} % of a core")


def matching(args: Args, run: CheckRun) -> tuple[dict[int, ProcessSample], int]:
    """The processes that match, and how many of them have ended and wait for their parent."""
    found: dict[int, ProcessSample] = {}
    zombies = 0
    own = os.getpid()
    for process in psutil.process_iter():
        run.deadline.left()
        if process.pid == own:
            continue
        try:
            with process.oneshot():
                if not is_wanted(process, args):
                    continue
                if process.status() == psutil.STATUS_ZOMBIE:
                    zombies += 1
                    continue
                times, memory = process.cpu_times(), process.memory_info().rss
                spent = times.user + times.system
                found[process.pid] = ProcessSample(process.create_time(), spent, memory, process.num_threads())
        except psutil.Error:
            continue  # it has ended meanwhile, or is not ours to look at
    return found, zombies


def is_wanted(process: psutil.Process, args: Args) -> bool:
    """True if all that was asked for fits; the dearest question last."""
    if args.name and not fits(process.name(), args.name):
        return False
    if args.user and process.username() != args.user:
        return False
    return not args.command or args.command in " ".join(process.cmdline())


def cpu_percent(found: dict[int, ProcessSample], now: EarlierSample, before: EarlierSample) -> float:
    """Of one core, since the last run; of a process that was not there then, and on the first run, since its start."""
    total = 0.0
    wall = time.time()
    for pid, one in found.items():
        sooner = before.cpu_seconds.get((pid, one.started))
        if sooner is None:
            spent, seconds = one.cpu_seconds, wall - one.started
        else:
            spent, seconds = one.cpu_seconds - sooner, now.mono - before.mono
        if seconds > 0:
            total += 100.0 * max(0.0, spent) / seconds
    return total
