"""`scale0 bench`: measure this machine, or a running broker.

The command ends only processes that it started and leaves nothing behind. At a broker that is not its own it does no
more than it announced.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from scale0 import __version__
from scale0.cli.common import errors, output
from scale0.cli.common.authentication import PATIENCE_SECONDS
from scale0.cli.common.child_process import ChildFailed
from scale0.cli.common.connection import connect, own_identity
from scale0.cli.common.endpoints import KEY, SERVER_KEY, host_of, join_option
from scale0.cli.common.options import json_option
from scale0.cli.common.signals import remove, stop_on_signal
from scale0.cli.demo.local_network import LocalNetwork
from scale0.cli.tasks.connection import own_id

if TYPE_CHECKING:
    from scale0.cli.bench.measurements import Bounds, Figure
    from scale0.cli.bench.output import Bench, Effort, MachineFacts
    from scale0.client.async_client import AsyncClient
    from scale0.client.client import Client

SHARES: Final = {
    "requests_single": 0.2,
    "requests_in_flight": 0.2,
    "requests_batched": 0.2,
    "tasks_single": 0.1,
    "tasks_submitted": 0.05,
    "tasks_completed": 0.15,
}
"""Of the time; the disk and a core have the rest. Submission has little: all of its tasks must also be done."""
PROBE_SHARE: Final = 0.05
NO_BOUND: Final = 10**9
GUEST_REQUESTS: Final = 20_000
GUEST_TASKS: Final = 2_000
"""The maximum of each measurement at a broker that is not our own."""
DRAWN_PER_SECOND: Final = 1.0
"""Each redraw takes a millisecond in which nothing is measured: too few to affect the 99th percentile."""
ENDING_SECONDS: Final = 5.0
"""How long work in flight may take to end after a signal."""
ANSWER_SECONDS: Final = 30.0
BROKER: Final = "bench"


@click.command()
@join_option
@click.option("--own", is_flag=True, help="Measure a network of its own, even if a broker answers at --join.")
@click.option("--seconds", type=click.FloatRange(1, 60), default=10.0, metavar="N", help="How long to measure (10).")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="The folder whose disk is measured, and for the files of its own network (the folder for temporary files).",
)
@json_option
def bench(join: str, own: bool, seconds: float, data: Path | None, wants_json: bool) -> None:
    """Measure requests, tasks, the disk and one core.

    The command also reports what limits the figures. If a broker answers at --join, the command measures it: it
    announces that first, and sends at most 20,000 requests or 2,000 tasks in each measurement. Otherwise, or with
    --own, it measures a broker and a worker of its own on free ports, which end afterwards. The worker is always its
    own, with service names (`scale0-bench.…`) that no other client uses. The broker deletes the tasks within a minute;
    only its history keeps them.

    Compare the figures of two machines only if nothing else runs on them: look at the load, and at the steps of Python
    on one core.

    \b
    With --json, an object:
      broker, join, own, seconds, limits [sentences],
      machine {scale0, python, system, cores, load, folder, filesystem, core_steps},
      requests_single, requests_in_flight, requests_batched, tasks_single, tasks_submitted,
      tasks_completed, fsync: each {rate per second, done, p50_us, p99_us where one by one}

    \b
    Examples:
      scale0 bench                                  the broker here, or a network of its own
      scale0 bench --own --data /var/lib            that disk
      scale0 bench --join broker.example.com --seconds 5 --json
    """
    from scale0.cli.bench.output import as_value, show

    address = None if own else broker_at(join)
    if address is not None:
        output.note(
            f"measuring the broker at {address}, which others may use: at most {GUEST_REQUESTS:,} requests and "
            f"{GUEST_TASKS:,} tasks in each measurement, {seconds:g} s; --own measures a separate network"
        )
    found = run_bench(address, seconds, data)
    if wants_json:
        output.say(output.as_json(as_value(found)))
    else:
        show(found)


def broker_at(join: str) -> str | None:
    """The address if a broker answers there; None: none answers at the default address."""
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


def run_bench(join: str | None, seconds: float, data: Path | None) -> Bench:
    """Measure until the end or a signal; work in flight then gets a moment to end."""
    if join is None:  # the keys belong to another broker than the one that is started now
        for name in (KEY, SERVER_KEY):
            os.environ.pop(name, None)
    ended, over = threading.Event(), threading.Event()

    def work() -> Bench:
        try:
            with output.progress("bench", DRAWN_PER_SECOND) as show:
                return measure_all(network, seconds, folder, ended, show)
        finally:
            over.set()

    with stop_on_signal() as signals:
        folder = Path(tempfile.mkdtemp(prefix="scale0-bench-", dir=data))
        network = BenchNetwork(folder, join)
        try:
            return signals.run(work)
        except ChildFailed as error:
            raise errors.CommandError(f"the processes to measure did not start: {error}") from error
        finally:
            ended.set()
            over.wait(ENDING_SECONDS)
            network.close()
            remove(folder)


class BenchCpuTimes(NamedTuple):
    """Processor time in seconds: of the broker, and of all processes."""

    at: float
    broker: float
    all: float


class BenchNetwork:
    """A broker and a worker of our own, or a worker of our own at another broker."""

    def __init__(self, folder: Path, join: str | None) -> None:
        self.run = secrets.token_hex(4)
        self.own = join is None
        self.name = BROKER
        """Of the broker."""
        self._network = LocalNetwork(folder, (BROKER,))
        self.frontend = join or self._network.endpoint(BROKER, "frontend")

    def start(self) -> None:
        from scale0.cli.bench.measurements import RUN

        if self.own:
            self._network.start_broker(BROKER, self._network.data_dir).ready()
        backend = self._network.endpoint(BROKER, "backend") if self.own else self._find_backend()
        self._network.start_worker("worker", "bench", [backend], **{RUN: self.run}).ready()

    def _find_backend(self) -> str:
        """The broker's backend port, at the host that reached it."""
        with self.client() as client:
            row = client.brokers()[0]
        self.name = row["broker"]
        port = row["endpoints"]["backend"].rpartition(":")[2]
        host = host_of(self.frontend)
        return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"

    def client(self) -> Client:
        """For requests and tasks. At another broker the tasks are the user's, as a broker never deletes a client."""
        from scale0.client.client import Client

        identity = own_identity(self.frontend, f"bench-{self.run}")
        owner = identity if self.own else own_id(self.frontend)
        return Client(
            self.frontend, identity=identity, timeout=ANSWER_SECONDS, patience=PATIENCE_SECONDS, task_client=owner
        )

    def async_client(self) -> AsyncClient:
        """It may be connected at the same time as `client`."""
        from scale0.client.async_client import AsyncClient

        identity = own_identity(self.frontend, f"bench-{self.run}-async")
        return AsyncClient(self.frontend, identity=identity, timeout=ANSWER_SECONDS, patience=PATIENCE_SECONDS)

    def cpu_times(self) -> BenchCpuTimes:
        """Of the broker and the worker that we started, and of this process."""
        import psutil

        def seconds(pid: int | None) -> float:
            times = psutil.Process(pid).cpu_times()
            return float(times.user + times.system)

        spent = {name: seconds(pid) for name, pid in self._network.pids().items()}
        return BenchCpuTimes(time.monotonic(), spent.get(BROKER, 0.0), sum(spent.values()) + seconds(None))

    def close(self) -> None:
        """Stop the worker in order at another broker, which must see it disconnect; kill our own network."""
        if not self.own:
            self._network.stop()
        self._network.close()


def measure_all(
    network: BenchNetwork, seconds: float, folder: Path, ended: threading.Event, show: output.Show
) -> Bench:
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
    with network.client() as client:
        for name, measurement in measurements_of(network, client).items():
            most = NO_BOUND if network.own else GUEST_TASKS if name.startswith("tasks") else GUEST_REQUESTS
            show(NAMES[name], 2 * PROBE_SHARE + sum(list(SHARES.values())[: len(figures)]))
            bounds = Bounds(seconds * SHARES[name], most, ended)
            figures[name], efforts[name] = measured(network, measurement, bounds)
    figures["fsync"] = disk
    took = time.monotonic() - began
    return Bench(network.name, network.frontend, network.own, took, machine, figures, efforts if network.own else {})


def measurements_of(network: BenchNetwork, client: Client) -> dict[str, Callable[[Bounds], Figure]]:
    from scale0.cli.bench import measurements

    run = network.run
    return {
        "requests_single": lambda bounds: measurements.requests_single(client, run, bounds),
        "requests_in_flight": lambda bounds: measurements.requests_in_flight(network.async_client, run, bounds),
        "requests_batched": lambda bounds: measurements.requests_batched(client, run, bounds),
        "tasks_single": lambda bounds: measurements.tasks_single(client, run, bounds),
        "tasks_submitted": lambda bounds: measurements.tasks_submitted(client, run, bounds),
        "tasks_completed": lambda bounds: measurements.tasks_completed(client, run, bounds),
    }


def measured(network: BenchNetwork, measurement: Callable[[Bounds], Figure], bounds: Bounds) -> tuple[Figure, Effort]:
    """A figure, and how many cores were busy meanwhile."""
    from scale0.cli.bench.output import Effort

    before = network.cpu_times()
    figure = measurement(bounds)
    after = network.cpu_times()
    past = max(after.at - before.at, 1e-9)
    return figure, Effort((after.broker - before.broker) / past, (after.all - before.all) / past)


def machine_here(folder: Path, core_steps: float) -> MachineFacts:
    import platform

    from scale0.cli.bench.output import MachineFacts

    return MachineFacts(
        scale0=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=os.getloadavg()[0],
        folder=str(folder.parent),
        filesystem=filesystem_of(folder),
        core_steps=core_steps,
    )


def filesystem_of(folder: Path) -> str:
    """The type of the file system, by the nearest mount above the folder."""
    from scale0.cli.network.host_readings import file_system_of, mounts

    return file_system_of(folder.resolve(), mounts()) or "unknown"
