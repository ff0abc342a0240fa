"""How `scale0 bench` looks: one table, and in words what limits it.

Lives here: text and JSON of what was measured. Never here: measuring. Invariants: it fits a terminal of 80 columns; a
sentence about a limit follows from figures of the same run.
"""

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
    "tasks_completed": "tasks submitted, done, result in hand",
    "fsync": "fsync of 4 KiB",
}
"""By the key in JSON, in the order of the table."""
COMMITS: Final = 2
"""How many times a task waits for the disk: until it is taken, and until its result is kept."""
BUSY_SHARE: Final = 0.5
"""Load average for each core before we began: above it others took what we wanted."""
FULL_SHARE: Final = 0.8
DISK_SHARE: Final = 0.5
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class MachineFacts(NamedTuple):
    """What it ran on."""

    scale0: str
    python: str
    libzmq: str
    system: str
    cores: int
    load: float
    """Average of the minute before."""
    folder: str
    filesystem: str
    core_steps: float
    """Steps of a plain Python loop in a second, on one core."""


class Effort(NamedTuple):
    """Cores that were used on average while something was measured."""

    broker: float
    all: float


class Bench(NamedTuple):
    """All that was found."""

    broker: str
    join: str
    own: bool
    seconds: float
    machine: MachineFacts
    figures: Mapping[str, Figure]
    efforts: Mapping[str, Effort]
    """By the names of figures; empty where the broker is not ours."""


def as_value(found: Bench) -> dict[str, Any]:
    """For --json."""
    figures = {
        name: {key: value for key, value in figure._asdict().items() if value is not None}
        for name, figure in found.figures.items()
    }
    about = {"broker": found.broker, "join": found.join, "own": found.own, "seconds": round(found.seconds, 1)}
    return {**about, "machine": found.machine._asdict(), **figures, "limits": list(limits(found))}


def show(found: Bench) -> None:
    """The table, and what follows from it."""
    machine = found.machine
    where = "a broker and a worker of its own" if found.own else f"{found.broker} at {found.join}, a worker here"
    output.say(f"Scale0 {machine.scale0}, {where}; {found.seconds:.0f} s")
    output.say(f"Python {machine.python}, libzmq {machine.libzmq}, {machine.system}, {machine.cores} cores")
    output.say()
    heads = ("MEASURED", "A SECOND", "P50", "P99")
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
    """A short time, as people say it."""
    if microseconds is None:
        return "-"
    if microseconds < 10_000:
        return f"{microseconds:,.0f} µs"
    return f"{microseconds / 1e3:,.1f} ms"


def limits(found: Bench) -> Iterator[str]:
    """What holds these figures down, as far as they tell it."""
    machine = found.machine
    if machine.load > BUSY_SHARE * machine.cores:
        yield (
            f"others: the load was {machine.load:.1f} on {machine.cores} cores before this began; "
            "measure again when nothing else runs"
        )
    yield from _disk(found)
    if machine.load <= BUSY_SHARE * machine.cores:
        yield from _processor(found)
    if not found.own:
        yield "the load was bounded, as others may use this broker; --own measures without bounds"


def _disk(found: Bench) -> Iterator[str]:
    machine, disk, single = found.machine, found.figures["fsync"], found.figures["tasks_single"]
    if not disk.p50_us or not single.p50_us:
        return
    if not found.own:
        yield f"fsync was measured here, in {machine.folder}; the broker's disk may be another"
        return
    if machine.filesystem in IN_MEMORY:
        yield (
            f"no disk at all: {machine.folder} is {machine.filesystem}, so nothing there survives a power cut; "
            "--data FOLDER measures a disk of yours"
        )
        return
    share = COMMITS * disk.p50_us / single.p50_us
    if share >= DISK_SHARE:
        yield (
            f"fsync {duration(disk.p50_us)}: tasks one by one are bound by your disk, as each waits for {COMMITS} "
            "commits; many at once share a commit, so submit with `submit_many` or `map`"
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
        each = f"the broker takes {effort.broker / figure.rate * MICRO:.0f} µs for each"
        if effort.all >= FULL_SHARE * cores:
            yield (
                f"{what}: the processor: broker, worker and client used {effort.all:.1f} of {cores} cores, "
                f"and {each}; more or faster cores help"
            )
        elif effort.broker >= FULL_SHARE:
            yield (
                f"{what}: the broker used {effort.broker:.1f} cores, and decides in one thread: {each}; "
                "a faster core helps, or a second broker"
            )
        else:
            yield (
                f"{what}: waiting for each other: {effort.all:.1f} of {cores} cores were used, "
                f"{effort.broker:.1f} by the broker; {each}"
            )
