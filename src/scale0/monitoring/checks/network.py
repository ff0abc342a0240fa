"""The check `network`: what each interface carried since the last run.

Lives here: counters of interfaces, as rates. Never here: whether anybody is reachable (`ping`, `tcp`). Invariants: it
never waits; a counter that began again gives no rate; the first run tells the averages since boot, and says so.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import msgspec
import psutil

from scale0.monitoring.checks.arguments import Limit, Texts, WrongArgs, is_literal, limits, wanted
from scale0.monitoring.checks.check_run import CheckRun, earlier
from scale0.monitoring.checks.metrics import BYTES_PER_SECOND, PER_SECOND, Measurements, named, not_known, size, span
from scale0.monitoring.checks.thresholds import Range
from scale0.monitoring.checks.uptime import boot_seconds
from scale0.monitoring.protocol.results import CRITICAL, CheckFinding

MAX_INTERFACES: Final = 90
"""Of one answer; a machine with more has mostly virtual ones, and should name those that matter."""


class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """See docs/checks.md."""

    include: Texts = ()
    exclude: Texts = ("lo", "veth*")
    warn: Limit = None
    crit: Limit = None
    errors_warn: Limit = 1.0
    errors_crit: Limit = None
    drops_warn: Limit = None
    drops_crit: Limit = None


class Counted(NamedTuple):
    """What one interface has counted."""

    received: int
    sent: int
    errors: int
    drops: int


class InterfaceCounters(NamedTuple):
    """What all interfaces have counted until `mono`."""

    mono: float
    by_name: dict[str, Counted]
    is_boot: bool = False


def counted() -> InterfaceCounters:
    """The counters of now."""
    found = psutil.net_io_counters(pernic=True, nowrap=False)
    by_name = {
        name: Counted(io.bytes_recv, io.bytes_sent, io.errin + io.errout, io.dropin + io.dropout)
        for name, io in found.items()
    }
    return InterfaceCounters(time.monotonic(), by_name)


def measure(args: Args, run: CheckRun) -> CheckFinding:
    """Rates of each interface that was asked for."""
    now = counted()
    boot = InterfaceCounters(now.mono - boot_seconds(), dict.fromkeys(now.by_name, Counted(0, 0, 0, 0)), True)
    before = earlier(run, now, boot)
    seconds = now.mono - before.mono
    since = "since boot" if before.is_boot else f"over {span(seconds)}"
    gauges = Measurements()
    names = chosen(args, list(now.by_name), gauges)
    received = sent = 0.0
    for name in names:
        sooner = before.by_name.get(name)
        if sooner is None:
            continue  # it is new: the next run has something to compare with
        deltas = [last - first for last, first in zip(now.by_name[name], sooner, strict=True)]
        if min(deltas) < 0 or seconds <= 0:
            continue  # the interface was made anew, and its counters with it
        rates = InterfaceRates(*(delta / seconds for delta in deltas))
        received, sent = received + rates.received, sent + rates.sent
        tell(name, rates, args, gauges)
    if gauges.is_empty and not names:
        return not_known("no interface matches")
    calm = f"{len(names)} interfaces, {size(received)}/s in, {size(sent)}/s out {since}"
    return gauges.finding(calm)


class InterfaceRates(NamedTuple):
    """Of one interface, each a second."""

    received: float
    sent: float
    errors: float
    drops: float


def tell(name: str, rates: InterfaceRates, args: Args, gauges: Measurements) -> None:
    """The metrics of one interface."""
    both = limits(args)
    rows: tuple[tuple[str, str, float, str, tuple[Range | None, Range | None]], ...] = (
        ("received_bytes_per_second", f"receives {size(rates.received)}/s", rates.received, BYTES_PER_SECOND, both),
        ("sent_bytes_per_second", f"sends {size(rates.sent)}/s", rates.sent, BYTES_PER_SECOND, both),
        ("errors_per_second", f"{rates.errors:.3g} errors/s", rates.errors, PER_SECOND, limits(args, "errors_")),
        ("drops_per_second", f"{rates.drops:.3g} drops/s", rates.drops, PER_SECOND, limits(args, "drops_")),
    )
    for what, says, rate, unit, (warn, crit) in rows:
        gauges.add(named(what, name), rate, unit, warn=warn, crit=crit, low=0.0, says=f"{name}: {says}")


def chosen(args: Args, names: list[str], gauges: Measurements) -> list[str]:
    """The interfaces that were asked for. One that was named and is not there, or is down, is a problem."""
    picked = [name for name in names if wanted(name, args.include, args.exclude)]
    literal = [name for name in args.include if is_literal(name)]
    states = psutil.net_if_stats() if literal else {}
    for name in literal:
        if name not in states:
            gauges.blame(CRITICAL, f"{name}: there is no such interface")
        elif not states[name].isup:
            gauges.blame(CRITICAL, f"{name} is down")
    if len(picked) > MAX_INTERFACES:
        raise WrongArgs(f"{len(picked)} interfaces match, more than {MAX_INTERFACES}: say which ones with include")
    return sorted(picked)
