"""The check `network`: what each interface carried since the last run.

Invariants: it never waits; a counter that was reset gives no rate; the first run reports the averages since boot, and
says so.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, Texts, WrongArgs, is_literal, is_selected, limits
from scale0.monitoring.checks.check_run import CheckRun, previous_counters
from scale0.monitoring.checks.metrics import (
    BYTES_PER_SECOND,
    PER_SECOND,
    Measurements,
    byte_size,
    duration,
    metric_name,
)
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.checks.uptime import boot_seconds
from scale0.monitoring.protocol.results import CRITICAL, UNKNOWN, CheckFinding

MAX_INTERFACES: Final = 90
"""Of one run; a machine with more has mostly virtual ones, and should configure those that matter."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    include: Texts = ()
    exclude: Texts = ("lo", "veth*")
    warn: Limit = None
    crit: Limit = None
    errors_warn: Limit = 1.0
    errors_crit: Limit = None
    drops_warn: Limit = None
    drops_crit: Limit = None


class Counts(NamedTuple):
    received: int
    sent: int
    errors: int
    drops: int


class InterfaceCounters(NamedTuple):
    """The counters of all interfaces at `mono`."""

    mono: float
    by_name: dict[str, Counts]
    is_boot: bool = False


def read_counters() -> InterfaceCounters:
    found = psutil.net_io_counters(pernic=True, nowrap=False)
    by_name = {
        name: Counts(io.bytes_recv, io.bytes_sent, io.errin + io.errout, io.dropin + io.dropout)
        for name, io in found.items()
    }
    return InterfaceCounters(time.monotonic(), by_name)


def measure(args: Args, run: CheckRun) -> CheckFinding:
    now = read_counters()
    boot = InterfaceCounters(now.mono - boot_seconds(), dict.fromkeys(now.by_name, Counts(0, 0, 0, 0)), True)
    before = previous_counters(run, now, boot)
    seconds = now.mono - before.mono
    since = "since boot" if before.is_boot else f"over {duration(seconds)}"
    metrics = Measurements()
    names = select_interfaces(args, list(now.by_name), metrics)
    received = sent = 0.0
    for name in names:
        previous = before.by_name.get(name)
        if previous is None:
            continue  # it is new: the next run can compare
        deltas = [last - first for last, first in zip(now.by_name[name], previous, strict=True)]
        if min(deltas) < 0 or seconds <= 0:
            continue  # the interface was recreated, and its counters were reset
        rates = InterfaceRates(*(delta / seconds for delta in deltas))
        received, sent = received + rates.received, sent + rates.sent
        add_interface(name, rates, args, metrics)
    if metrics.is_empty and not names:
        return CheckFinding(UNKNOWN, "no interface matches")
    ok_message = f"{len(names)} interfaces, {byte_size(received)}/s in, {byte_size(sent)}/s out {since}"
    return metrics.finding(ok_message)


class InterfaceRates(NamedTuple):
    """Of one interface, per second."""

    received: float
    sent: float
    errors: float
    drops: float


def add_interface(name: str, rates: InterfaceRates, args: Args, metrics: Measurements) -> None:
    both = limits(args)
    rows: tuple[tuple[str, str, float, str, tuple[Range | None, Range | None]], ...] = (
        (
            "received_bytes_per_second",
            f"receives {byte_size(rates.received)}/s",
            rates.received,
            BYTES_PER_SECOND,
            both,
        ),
        ("sent_bytes_per_second", f"sends {byte_size(rates.sent)}/s", rates.sent, BYTES_PER_SECOND, both),
        ("errors_per_second", f"{rates.errors:.3g} errors/s", rates.errors, PER_SECOND, limits(args, "errors_")),
        ("drops_per_second", f"{rates.drops:.3g} drops/s", rates.drops, PER_SECOND, limits(args, "drops_")),
    )
    for what, message, rate, unit, (warn, crit) in rows:
        metrics.add(metric_name(what, name), rate, unit, warn=warn, crit=crit, low=0.0, message=f"{name}: {message}")


def select_interfaces(args: Args, names: list[str], metrics: Measurements) -> list[str]:
    picked = [name for name in names if is_selected(name, args.include, args.exclude)]
    literal = [name for name in args.include if is_literal(name)]
    states = psutil.net_if_stats() if literal else {}
    for name in literal:
        if name not in states:
            metrics.add_problem(CRITICAL, f"{name}: there is no such interface")
        elif not states[name].isup:
            metrics.add_problem(CRITICAL, f"{name} is down")
    if len(picked) > MAX_INTERFACES:
        raise WrongArgs(f"{len(picked)} interfaces match, more than {MAX_INTERFACES}: select some with include")
    return sorted(picked)
