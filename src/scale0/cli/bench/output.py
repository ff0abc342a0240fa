"""The output of `scale0 bench`: one table within 80 columns, and sentences about what limits the figures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from scale0.cli.bench.measurements import IN_FLIGHT, MICRO, Figure
from scale0.cli.common import output

NAMES: Final = {
    "requests_single": "requests, one by one",
    "requests_in_flight": f"requests, {IN_FLIGHT} in flight",
    "requests_batched": f"requests in batches, {IN_FLIGHT} in flight",
    "tasks_single": "tasks, one by one, to the result",
    "tasks_submitted": "tasks submitted, each on disk",
    "tasks_completed": "tasks submitted, done, result received",
    "fsync": "fsync of 4 KiB",
}
"""By the key in JSON, in the order of the table."""
COMMITS: Final = 2
"""How often a task waits for the disk: when it is accepted, and when its result is stored."""
BUSY_SHARE: Final = 0.5
"""Load average per core before the start: above it, other processes compete."""
FULL_SHARE: Final = 0.8
DISK_SHARE: Final = 0.5
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class MachineFacts(NamedTuple):
    scale0: str
    python: str
    system: str
    cores: int
    load: float
    """Load average of the minute before."""
    folder: str
    filesystem: str
    core_steps: float
    """Steps of a plain Python loop per second on one core."""


class Effort(NamedTuple):
    """Average number of busy cores during a measurement."""

    broker: float
    all: float


class Bench(NamedTuple):
    broker: str
    join: str
    own: bool
    seconds: float
    machine: MachineFacts
    figures: Mapping[str, Figure]
    efforts: Mapping[str, Effort]
    """By the names of figures; empty if the broker is not our own."""


def as_value(found: Bench) -> dict[str, Any]:
    figures = {
        name: {key: value for key, value in figure._asdict().items() if value is not None}
        for name, figure in found.figures.items()
    }
    about = {"broker": found.broker, "join": found.join, "own": found.own, "seconds": round(found.seconds, 1)}
    return {**about, "machine": found.machine._asdict(), **figures, "limits": list(limits(found))}


def show(found: Bench) -> None:
    machine = found.machine
    where = "a broker and a worker of its own" if found.own else f"{found.broker} at {found.join}, a worker here"
    output.say(f"Scale0 {machine.scale0}, {where}; {found.seconds:.0f} s")
    output.say(f"Python {machine.python}, {machine.system}, {machine.cores} cores")
    output.say()
    heads = ("MEASURED", "PER SECOND", "P50", "P99")
    rows = [
        (NAMES[name], f"{figure.rate:,.0f}", duration(figure.p50_us), duration(figure.p99_us))
        for name, figure in found.figures.items()
    ]
    rows.append(("steps of Python, one core", f"{machine.core_steps / 1e6:,.1f} M", "-", "-"))
    output.table(heads, rows, numbers=heads[1:])
    output.say()
    output.say("What limits it:")
    for line in limits(found):
        output.say(textwrap.fill(line, output.WIDTH, initial_indent="- ", subsequent_indent="  "))


def duration(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    if microseconds < 10_000:
        return f"{microseconds:,.0f} µs"
    return f"{microseconds / 1e3:,.1f} ms"


def limits(found: Bench) -> Iterator[str]:
    machine = found.machine
    if machine.load > BUSY_SHARE * machine.cores:
        yield (
            f"other processes: the load was {machine.load:.1f} on {machine.cores} cores before the start; "
            "measure again when nothing else runs"
        )
    yield from _disk(found)
    if machine.load <= BUSY_SHARE * machine.cores:
        yield from _processor(found)
    if not found.own:
        yield "the number of requests was limited, as others may use this broker; --own measures without this limit"


def _disk(found: Bench) -> Iterator[str]:
    machine, disk, single = found.machine, found.figures["fsync"], found.figures["tasks_single"]
    if not disk.p50_us or not single.p50_us:
        return
    if not found.own:
        yield f"fsync was measured on this machine, in {machine.folder}; the broker may use another disk"
        return
    if machine.filesystem in IN_MEMORY:
        yield (
            f"no disk: {machine.folder} is {machine.filesystem}, and nothing there survives a power failure; "
            "--data FOLDER measures a disk"
        )
        return
    share = COMMITS * disk.p50_us / single.p50_us
    if share >= DISK_SHARE:
        yield (
            f"fsync {duration(disk.p50_us)}: tasks one by one are limited by your disk, as each waits for {COMMITS} "
            "commits; tasks at the same time share a commit, so submit with `submit_many` or `map`"
        )
    else:
        yield (
            f"not the disk: a task's {COMMITS} commits take {share:.0%} of its {duration(single.p50_us)} "
            f"at fsync {duration(disk.p50_us)}"
        )


def _processor(found: Bench) -> Iterator[str]:
    cores = found.machine.cores
    for name in ("requests_batched", "tasks_completed"):
        effort, figure = found.efforts.get(name), found.figures[name]
        if effort is None or not figure.rate:
            continue
        what = name.partition("_")[0]
        each = f"the broker needs {effort.broker / figure.rate * MICRO:.0f} µs for each"
        if effort.all >= FULL_SHARE * cores:
            yield (
                f"{what}: the CPU: broker, worker and client used {effort.all:.1f} of {cores} cores, "
                f"and {each}; more or faster cores help"
            )
        elif effort.broker >= FULL_SHARE:
            yield (
                f"{what}: the broker used {effort.broker:.1f} cores, and works in one thread: {each}; "
                "a faster core helps, or a second broker"
            )
        else:
            yield (
                f"{what}: latency between the processes: {effort.all:.1f} of {cores} cores were used, "
                f"{effort.broker:.1f} by the broker; {each}"
            )
