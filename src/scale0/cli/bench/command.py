"""`scale0 bench`: what this machine, or a broker that is there, is good for.

Lives here: the command, and its story from start to end. Never here: a measure (`bench_measure`), a process
(`bench_network`), or how it looks (`bench_show`). Invariants: it ends only what it started, and leaves nothing behind;
at a broker that is not its own it does no more than it said before it began.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0 import __version__
from scale0.cli.common import errors, output
from scale0.cli.common.endpoints import KEY, SERVER_KEY, joins
from scale0.cli.common.signals import remove, told_to_end
from scale0.cli.common.watch_mode import json_option
from scale0.cli.demo.chaos_output import Show, progress

if TYPE_CHECKING:
    from scale0.cli.bench.measurements import Bounds, Figure
    from scale0.cli.bench.network import BenchNetwork
    from scale0.cli.bench.output import Bench, Effort, MachineFacts
    from scale0.client.client import Client

SHARES: Final = {
    "requests_single": 0.2,
    "requests_in_flight": 0.2,
    "requests_batched": 0.2,
    "tasks_single": 0.1,
    "tasks_submitted": 0.05,
    "tasks_completed": 0.15,
}
"""Of all the time, by measure; the disk and a core have the rest. Submission has little: what it makes must be done."""
PROBE_SHARE: Final = 0.05
NO_BOUND: Final = 10**9
GUEST_REQUESTS: Final = 20_000
GUEST_TASKS: Final = 2_000
"""The most that each measure asks of a broker that is not ours."""
DRAWN_PER_SECOND: Final = 1.0
"""Each time is a millisecond in which this process measures nothing: too few for the slowest of a hundred."""
ENDING_SECONDS: Final = 5.0
"""How long what is under way may take to end after a signal."""


@click.command()
@joins
@click.option("--own", is_flag=True, help="Measure a network of its own, whatever answers at --join.")
@click.option("--seconds", type=click.FloatRange(1, 60), default=10.0, metavar="N", help="How long to measure (10).")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Where the disk is measured, and a network of its own has its files (the system's place for temporary ones).",
)
@json_option
def bench(join: str, own: bool, seconds: float, data: Path | None, wants_json: bool) -> None:
    """Measure requests, durable tasks, the disk and one core, and say what limits them.

    Against the broker at --join, if one answers: it says so first, and does not do more than 20,000 requests or 2,000
    tasks in a measure. Else, or with --own, against a broker and a worker of its own on free ports, which are gone
    afterwards. A worker of its own does the work in either case, under names (`scale0-bench.…`) that nobody else asks
    for; the broker forgets its tasks within a minute. Only its history says that they were.

    Figures of two machines compare if nothing else runs: look at the load, and at steps of Python on one core.

    \b
    With --json, an object:
      broker, join, own, seconds, limits [sentences],
      machine {scale0, python, libzmq, system, cores, load, folder, filesystem, core_steps},
      requests_single, requests_in_flight, requests_batched, tasks_single, tasks_submitted,
      tasks_completed, fsync: each {rate a second, done, p50_us, p99_us where one by one}

    \b
    Examples:
      scale0 bench                                  the broker here, or a network of its own
      scale0 bench --own --data /var/lib            that disk
      scale0 bench --join broker.example.com --seconds 5 --json
    """
    place = None if own else broker_at(join)
    if place is not None:
        output.note(
            f"measuring the broker at {place}, which others may use: at most {GUEST_REQUESTS:,} requests and "
            f"{GUEST_TASKS:,} tasks in each measure, {seconds:g} s; --own measures beside it"
        )
    found = run_story(place, seconds, data)
    if wants_json:
        from scale0.cli.bench.output import as_value

        output.say(output.as_json(as_value(found)))
    else:
        from scale0.cli.bench.output import show

        show(found)


def broker_at(join: str) -> str | None:
    """The place, if a broker answers there; None: none does, and nobody named it."""
    from scale0.cli.common.connection import connect
    from scale0.errors import Unreachable

    context = click.get_current_context()
    try:
        with connect(join) as client:
            client.ping()
        return join
    except Unreachable:
        if context.get_parameter_source("join") is not click.core.ParameterSource.DEFAULT:
            raise
    output.note("no broker answers here: measuring a network of its own")
    return None


def run_story(join: str | None, seconds: float, data: Path | None) -> Bench:
    """The story, to its end or to a signal; what is under way then has a moment to end."""
    import os

    from scale0.cli.bench.network import BenchNetwork
    from scale0.cli.common.child_process import ChildFailed

    if join is None:  # keys are for another broker than the one that is started now
        for name in (KEY, SERVER_KEY):
            os.environ.pop(name, None)
    ended, over = threading.Event(), threading.Event()

    def told() -> Bench:
        try:
            with progress("bench", DRAWN_PER_SECOND) as show:
                return story(network, seconds, folder, ended, show)
        finally:
            over.set()

    with told_to_end() as ending:
        folder = Path(tempfile.mkdtemp(prefix="scale0-bench-", dir=data))
        network = BenchNetwork(folder, join)
        try:
            return ending.run(told)
        except ChildFailed as error:
            raise errors.CommandError(f"what was to be measured did not start: {error}") from error
        finally:
            ended.set()
            over.wait(ENDING_SECONDS)
            network.close()
            remove(folder)


def story(network: BenchNetwork, seconds: float, folder: Path, ended: threading.Event, show: Show) -> Bench:
    """Look at the machine, start, measure."""
    from scale0.cli.bench.measurements import PROBES, Bounds, core, fsync
    from scale0.cli.bench.output import NAMES, Bench

    began = time.monotonic()
    show("a core and the disk", 0.0)
    machine = machine_here(folder, core(Bounds(seconds * PROBE_SHARE, NO_BOUND, ended)))
    disk = fsync(folder, Bounds(seconds * PROBE_SHARE, PROBES, ended))
    show("starting", 2 * PROBE_SHARE)
    network.start()
    figures: dict[str, Figure] = {}
    efforts: dict[str, Effort] = {}
    with network.client() as net:
        for name, take in measures(network, net).items():
            most = NO_BOUND if network.own else GUEST_TASKS if name.startswith("tasks") else GUEST_REQUESTS
            show(NAMES[name], 2 * PROBE_SHARE + sum(list(SHARES.values())[: len(figures)]))
            bounds = Bounds(seconds * SHARES[name], most, ended)
            figures[name], efforts[name] = measured(network, take, bounds)
    figures["fsync"] = disk
    took = time.monotonic() - began
    return Bench(network.name, network.frontend, network.own, took, machine, figures, efforts if network.own else {})


def measures(network: BenchNetwork, net: Client) -> dict[str, Callable[[Bounds], Figure]]:
    """By name, each ready to be taken."""
    from scale0.cli.bench import measurements as take

    run = network.run
    return {
        "requests_single": lambda bounds: take.requests_single(net, run, bounds),
        "requests_in_flight": lambda bounds: take.requests_in_flight(network.async_client, run, bounds),
        "requests_batched": lambda bounds: take.requests_batched(net, run, bounds),
        "tasks_single": lambda bounds: take.tasks_single(net, run, bounds),
        "tasks_submitted": lambda bounds: take.tasks_submitted(net, run, bounds),
        "tasks_completed": lambda bounds: take.tasks_completed(net, run, bounds),
    }


def measured(network: BenchNetwork, take: Callable[[Bounds], Figure], bounds: Bounds) -> tuple[Figure, Effort]:
    """A figure, and how many cores it took."""
    from scale0.cli.bench.output import Effort

    before = network.used()
    figure = take(bounds)
    after = network.used()
    past = max(after.at - before.at, 1e-9)
    return figure, Effort((after.broker - before.broker) / past, (after.all - before.all) / past)


def machine_here(folder: Path, core_steps: float) -> MachineFacts:
    """What this runs on."""
    import os
    import platform

    from scale0.cli.bench.output import MachineFacts
    from scale0.transport.edge.zmq_context import libzmq_version

    return MachineFacts(
        scale0=__version__,
        python=platform.python_version(),
        libzmq=libzmq_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=os.getloadavg()[0],
        folder=str(folder.parent),
        filesystem=filesystem_of(folder),
        core_steps=core_steps,
    )


def filesystem_of(folder: Path) -> str:
    """Its kind, by the mount that is nearest above it."""
    import psutil

    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    return next((mounts[one] for one in (resolved, *resolved.parents) if one in mounts), "unknown")
