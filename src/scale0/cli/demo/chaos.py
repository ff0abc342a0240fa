"""`scale0 chaos`: kill processes of a network under load, and count what was lost.

The same seed and the same options give the same kills and the same tasks. The command ends only processes that it
started, leaves none running, and exits with 1 if a promise was not kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from scale0.cli.common import errors, output
from scale0.cli.common.child_process import ChildFailed
from scale0.cli.common.signals import remove, stop_on_signal
from scale0.cli.demo.audit import ChaosReport, DurationStats, JournalFacts, Killed, RecordedRuns, SubmittedTask, judge
from scale0.cli.demo.local_network import LocalNetwork
from scale0.cli.network.listing import counted

if TYPE_CHECKING:
    from scale0.cli.demo.load import Load, Start
    from scale0.client.async_client import AsyncClient

HEAL_SECONDS: Final = 90.0
"""How long all tasks may take to end after the last kill."""
POLL_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 60.0
"""How long an acknowledgement may take: longer than a broker is down."""
MAX_SEED: Final = 2**31 - 1
MAX_LINE_CHARS: Final = 300
"""Of an example, so that a summary fits on one screen."""

BROKER: Final = "broker"
CLIENT: Final = "chaos"
BROKER_SHARE: Final = 0.3
"""Of the kills; the rest are workers."""
BURST_SHARE: Final = 0.15
"""Of the kills that another one follows at once: two processes at a time, or one that has just started."""
FIRST_SECONDS: Final = 1.0
"""Before the first kill."""
MIN_GAP_SECONDS: Final = 0.3
BURST_SECONDS: Final = 0.8
MAX_DOWN_SECONDS: Final = 1.5

MANY: Final = 30
"""Attempts of tasks that must finish: more than kills can use up."""
FEW: Final = 3
"""Attempts of tasks that always fail."""
CHAIN: Final = 3
"""Tasks in one chain."""


class Kill(NamedTuple):
    """One SIGKILL: seconds from the start, and seconds until the process is started again."""

    at: float
    victim: str
    down: float


class TaskKind(NamedTuple):
    """A kind of task, and how often it is submitted in relation to the others."""

    service: str
    share: int
    ends: str = "finished"
    max_attempts: int = MANY
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed


KINDS: Final = {
    "quick": TaskKind("chaos.quick", 60),
    "slow": TaskKind("chaos.slow", 12),
    "flaky": TaskKind("chaos.flaky", 10, options={"backoff": 0.1}),
    "failing": TaskKind("chaos.failing", 6, "failed", FEW),
    "hanging": TaskKind("chaos.hanging", 1, options={"timeout": 1.0}),
    "keyed": TaskKind("chaos.quick", 6),
    "chained": TaskKind("chaos.quick", 5),
}
"""quick: does nothing. slow: sleeps. flaky: raises in its first attempts. failing: raises in every attempt. hanging:
exceeds its timeout in its first attempt. keyed: submitted twice with one key. chained: three, each `after` another."""


@click.command()
@click.option("--seconds", type=click.FloatRange(1, 86_400), default=60.0, metavar="N", help="How long to kill (60).")
@click.option("--workers", type=click.IntRange(1, 50), default=3, metavar="N", help="How many workers to start (3).")
@click.option("--rate", type=click.FloatRange(1, 10_000), default=100.0, metavar="N", help="Tasks per second (100).")
@click.option(
    "--kill-every",
    type=click.FloatRange(0.5, 3_600),
    default=3.0,
    metavar="SECONDS",
    help="Average time between kills (3).",
)
@click.option(
    "--seed", type=click.IntRange(0, MAX_SEED), metavar="N", help="Repeat the kills and tasks of this seed (random)."
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep data and logs in this folder."
)
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON value to stdout.")
def chaos(
    seconds: float, workers: int, rate: float, kill_every: float, seed: int | None, keep: Path | None, wants_json: bool
) -> None:
    """Kill workers and a broker under load; count lost tasks.

    The command starts its own network on free ports and submits tasks that are quick, slow, failing, hanging, keyed or
    chained. For --seconds it kills (SIGKILL) and restarts processes at random, then it lets the network recover. It
    compares the acknowledged tasks with what clients received and what was stored, recorded and run. Nothing stays
    running. It exits with 1 if an acknowledged task was lost or has two results, if a task failed or started that
    should not, or if a process ended by itself.

    \b
    With --json, an object:
      seed, seconds, submitted, accepted, unanswered, finished, failed_as_expected, failed,
      lost, duplicated, out_of_order, executions, beyond_max_attempts, attempts_repeated,
      kills {broker, worker}, crashed, examples, kept,
      recovery {worker, broker, taken_back: {kills, p50, p99, max} in seconds}

    \b
    Examples:
      scale0 chaos
      scale0 chaos --seconds 60 --workers 5 --seed 7
    """
    import random

    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    began = time.monotonic()
    plan = kills(seed, seconds, workers, kill_every)
    report, folder = run_chaos(keep, ChaosPlan(plan, kinds(seed), seconds, workers, rate))
    if wants_json:
        value = {"seed": seed, "seconds": seconds, **report._asdict(), "kept": report.kept}
        value["recovery"] = {name: times._asdict() for name, times in report.recovery.items()}
        output.say(output.as_json(value))
    else:
        left = None if keep is None and report.kept else folder
        summary(report, seed, workers, time.monotonic() - began, left)
    if not report.kept:
        sys.exit(errors.NO)


def kills(seed: int, seconds: float, workers: int, every: float) -> list[Kill]:
    """What to kill when: one process each `every` seconds on average, at least a worker and a broker."""
    import random

    rng = random.Random(f"kills {seed}")
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    made: list[Kill] = []
    at = FIRST_SECONDS
    first = [BROKER, rng.choice(names)]
    while at < seconds or first:
        victim = first.pop() if first else BROKER if rng.random() < BROKER_SHARE else rng.choice(names)
        made.append(Kill(min(at, seconds), victim, rng.uniform(0.0, MAX_DOWN_SECONDS)))
        gap = BURST_SECONDS * rng.random() if rng.random() < BURST_SHARE else rng.expovariate(1.0 / every)
        at += max(MIN_GAP_SECONDS, gap)
    return made


def kinds(seed: int) -> Iterator[str]:
    """The kinds of the tasks to submit, without end."""
    import random

    rng = random.Random(f"tasks {seed}")
    names, shares = list(KINDS), [kind.share for kind in KINDS.values()]
    while True:
        yield from rng.choices(names, shares, k=100)


class ChaosPlan(NamedTuple):
    kills: list[Kill]
    kinds: Iterator[str]
    seconds: float
    workers: int
    rate: float


def run_chaos(keep: Path | None, plan: ChaosPlan) -> tuple[ChaosReport, Path]:
    """The report and the folder, which stays if it was asked for or if something went wrong."""
    import tempfile

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep: {keep} is not empty")
    with stop_on_signal() as signals:
        if keep is None:
            folder = Path(tempfile.mkdtemp(prefix="scale0-chaos-"))
        else:
            keep.mkdir(parents=True, exist_ok=True)
            folder = keep.resolve()
        network = LocalNetwork(folder, (BROKER,))
        failed = False
        try:
            with output.progress("chaos") as show:
                report = signals.run(lambda: scenario(network, plan, show))
            failed = not report.kept
        except ChildFailed as error:
            failed = True
            raise errors.CommandError(str(error), f"the logs are in {folder}") from error
        finally:
            network.close()
            if keep is None and not failed:
                remove(folder)
    return report, folder


def scenario(network: LocalNetwork, plan: ChaosPlan, show: output.Show) -> ChaosReport:
    """Start, kill under load, let the network recover, ask for every result again, stop, and judge."""
    import asyncio

    from scale0.cli.demo.load import Load, ask_again, at_rate

    show("starting", 0.0)
    victims = Victims(network)
    victims.start(BROKER).ready()
    for child in [victims.start(f"worker-{number}") for number in range(1, plan.workers + 1)]:
        child.ready()
    source = at_rate((start_of(kind) for kind in plan.kinds), plan.rate)
    load = Load(network.frontends, {CLIENT: source}, ANSWER_SECONDS)
    record = load.record

    def recovering() -> None:
        network.restart_crashed(victims.start)
        show(f"recovering: {record.accepted - record.ended} of {record.accepted} tasks have not ended", 1.0)

    try:
        load.start()
        killed = disturb(network, victims, load, plan, show)
        load.stop(HEAL_SECONDS, recovering)
    finally:
        load.abandon()
    show("asking again for every result", 1.0)
    asyncio.run(ask_again(network.frontends[0], CLIENT, record.tasks, ANSWER_SECONDS))
    for name in network.pids():
        if name != BROKER:
            network.kill(name)
    network.stop()
    show("comparing", 1.0)
    runs = RecordedRuns(network.runs.read_text().splitlines() if network.runs.exists() else ())
    return judge(record.tasks, read_journal(network.data_dir), runs, killed, network.crashed)


class Victims:
    """Starts and kills the processes of the plan; a worker has a new identity after each start."""

    def __init__(self, network: LocalNetwork) -> None:
        self._network = network
        self._starts = 0

    def start(self, name: str) -> Any:
        if name == BROKER:
            return self._network.start_broker(name, self._network.data_dir)
        self._starts += 1
        endpoint = self._network.endpoint(BROKER, "backend")
        return self._network.start_worker(name, "chaos", [endpoint], f"{name}.{self._starts}")

    def kill(self, name: str) -> Killed | None:
        child = self._network.kill(name)
        return None if child is None else Killed(BROKER if name == BROKER else "worker", child.name, time.time())


def disturb(network: LocalNetwork, victims: Victims, load: Load, plan: ChaosPlan, show: output.Show) -> list[Killed]:
    killed: list[Killed] = []
    down: dict[str, float] = {}
    rest = list(plan.kills)
    began = time.monotonic()
    while (past := time.monotonic() - began) < plan.seconds or rest or down:
        while rest and rest[0].at <= past:
            kill = rest.pop(0)
            victim = victims.kill(kill.victim)
            if victim is not None:
                killed.append(victim)
                down[kill.victim] = past + kill.down
        for name in [name for name, when in down.items() if when <= past]:
            victims.start(name)
            del down[name]
        network.restart_crashed(victims.start)
        counts = f"{load.record.accepted} accepted, {load.record.ended} ended, {len(killed)} killed"
        show(counts, min(1.0, past / plan.seconds))
        time.sleep(POLL_SECONDS)
    return killed


def start_of(name: str) -> Start:
    """How tasks of one kind are submitted and followed."""
    import asyncio

    kind = KINDS[name]

    def start(load: Load, client: AsyncClient) -> tuple[int, Any]:
        count = CHAIN if name == "chained" else 1
        tasks = [load.new_task(name, kind.ends, kind.max_attempts) for _ in range(count)]
        how = {"chained": chain, "keyed": twice}.get(name, once)
        return count, how(load, client, tasks)

    async def once(load: Load, client: AsyncClient, tasks: Sequence[SubmittedTask]) -> None:
        await load.follow(tasks[0], await load.submit(client, tasks[0], kind.service, **kind.options))

    async def chain(load: Load, client: AsyncClient, tasks: Sequence[SubmittedTask]) -> None:
        """Each after the one before."""
        async with asyncio.TaskGroup() as group:
            options: dict[str, Any] = {}
            for index, task in enumerate(tasks):
                task.after = tasks[index - 1].number if index else None
                handle = await load.submit(client, task, kind.service, **options)
                if handle is None:
                    break
                options = {"after": [handle]}
                group.create_task(load.follow(task, handle))

    async def twice(load: Load, client: AsyncClient, tasks: Sequence[SubmittedTask]) -> None:
        """The same key twice at the same time: it must be one task."""
        task, key = tasks[0], f"key-{tasks[0].number}"
        first, second = await asyncio.gather(
            load.submit(client, task, kind.service, key=key), load.submit(client, task, kind.service, key=key)
        )
        if first is not None and second is not None:
            task.other_id = second.id
        handle = first or second
        if handle is not None:
            task.id = handle.id
            await load.follow(task, handle)

    return start


def read_journal(data_dir: Path) -> JournalFacts:
    """What a stopped broker recorded about tasks: in segments, and in the rest of its journal."""
    from scale0.history.segments.reader import EventFilter, read_all_events

    unread: list[str] = []
    events = read_all_events(data_dir, EventFilter(kind="task.*"), unread.append)
    if unread:
        raise errors.CommandError(f"cannot read the history of the broker: {unread[0]}")
    return JournalFacts(events)


def summary(report: ChaosReport, seed: int, workers: int, seconds: float, folder: Path | None) -> None:
    killed = ", ".join(f"{name} {count} x" for name, count in sorted(report.kills.items())) or "nothing"
    output.say(f"Seed {seed}: {counted(workers, 'worker')} and a broker, {seconds:.0f} s in all; killed: {killed}\n")
    output.facts(
        [
            ("accepted", f"{report.accepted} of {report.submitted} submitted"),
            ("finished", report.finished),
            ("failed, as expected", report.failed_as_expected),
            ("failed, unexpectedly", report.failed),
            ("lost", report.lost),
            ("two results", report.duplicated),
            ("out of order", report.out_of_order),
            ("executions", f"{report.executions}; tasks beyond max_attempts: {report.beyond_max_attempts}"),
        ]
    )
    output.say()
    heads = ("SECONDS AFTER A KILL", "KILLS", "P50", "P99", "MAX")
    rows = [
        ("worker: to the next completion", *_cells(report.recovery["worker"])),
        ("broker: to the next completion", *_cells(report.recovery["broker"])),
        ("worker: until its tasks were reclaimed", *_cells(report.recovery["taken_back"])),
    ]
    output.table(heads, rows, numbers=heads[1:])
    for crash in report.crashed:
        output.say(f"crashed: {crash}")
    for name, examples in report.examples.items():
        for example in examples:
            output.say(output.clean(f"{name}: {example}")[:MAX_LINE_CHARS])
    output.say()
    if report.kept:
        output.say(output.painted("Kept: no acknowledged task was lost, and none has two results.", "green"))
    else:
        output.say(output.painted(f"BROKEN; --seed {seed} repeats the same kills.", "red"))
    if folder is not None:
        output.say(f"Data and logs are in {folder}.")


def _cells(times: DurationStats) -> tuple[str, ...]:
    return (str(times.kills), *("-" if one is None else f"{one:.2f}" for one in (times.p50, times.p99, times.max)))
