"""`scale0 chaos`: kill parts of a network under load, and count what was lost.

Lives here: the command, and its story from start to end. Never here: how it looks (`chaos_show`), what is killed when
(`chaos_plan`), the processes (`chaos_network`), the tasks (`chaos_load`), or the verdict (`chaos_audit`). Invariant: it
ends only what it started, leaves nothing running, and exits with 1 if a promise was not kept.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scale0.cli.common import errors, output
from scale0.cli.common.signals import remove, told_to_end
from scale0.cli.demo.chaos_output import Show, progress, summary

if TYPE_CHECKING:
    from scale0.cli.demo.chaos_audit import ChaosReport, JournalFacts, RecordedRuns
    from scale0.cli.demo.chaos_load import ChaosLoad
    from scale0.cli.demo.chaos_network import ChaosNetwork, Killed
    from scale0.cli.demo.chaos_plan import Kill

HEAL_SECONDS: Final = 90.0
"""How long everything may take to end once nobody is killed any more."""
LOOK_SECONDS: Final = 0.1
MAX_SEED: Final = 2**31 - 1


@click.command()
@click.option("--seconds", type=click.FloatRange(1, 86_400), default=60.0, metavar="N", help="How long to kill (60).")
@click.option("--workers", type=click.IntRange(1, 50), default=3, metavar="N", help="How many workers there are (3).")
@click.option("--rate", type=click.FloatRange(1, 10_000), default=100.0, metavar="N", help="Tasks each second (100).")
@click.option(
    "--kill-every",
    type=click.FloatRange(0.5, 3_600),
    default=3.0,
    metavar="SECONDS",
    help="Between kills, on average (3).",
)
@click.option(
    "--seed", type=click.IntRange(0, MAX_SEED), metavar="N", help="Kill and submit as this number says (any)."
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Keep data and logs here."
)
@click.option("--json", "wants_json", is_flag=True, help="One JSON value on stdout.")
def chaos(
    seconds: float, workers: int, rate: float, kill_every: float, seed: int | None, keep: Path | None, wants_json: bool
) -> None:
    """Kill workers and a broker with kill -9 while tasks go through, and count what was lost.

    It starts a network of its own on free ports, submits tasks that are quick, slow, failing, hanging, keyed or
    chained, kills and restarts at random for --seconds, lets the network heal, and holds what was acknowledged against
    what was told, stored, recorded and run. It leaves nothing running. Exits with 1 if an acknowledged task was lost
    or had two results, if one failed or began that should not, or if a process ended by itself.

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
    report, folder = run_story(keep, seed, seconds, workers, rate, kill_every)
    left = None if keep is None and report.kept else folder
    if wants_json:
        said = {"seed": seed, "seconds": seconds, **report._asdict(), "kept": report.kept}
        said["recovery"] = {name: times._asdict() for name, times in report.recovery.items()}
        output.say(output.as_json(said))
    else:
        summary(report, seed, workers, time.monotonic() - began, left)
    if not report.kept:
        sys.exit(errors.NO)


def run_story(
    keep: Path | None, seed: int, seconds: float, workers: int, rate: float, kill_every: float
) -> tuple[ChaosReport, Path]:
    """The story, to its end or to a signal; its folder stays if it was asked for, or tells what went wrong."""
    import asyncio

    from scale0.cli.common.child_process import ChildFailed
    from scale0.cli.demo.chaos_network import ChaosNetwork
    from scale0.cli.demo.chaos_plan import kills

    plan = kills(seed, seconds, workers, kill_every)
    with told_to_end() as ending:
        folder = folder_for(keep)
        network = ChaosNetwork(folder)
        telling = False
        try:
            with progress() as show:
                report = ending.run(lambda: asyncio.run(story(network, seed, plan, seconds, workers, rate, show)))
            telling = not report.kept
        except ChildFailed as error:
            telling = True
            raise errors.CommandError(str(error), f"the logs are in {folder}") from error
        finally:
            network.close(in_order=False)
            if keep is None and not telling:
                remove(folder)
    return report, folder


def folder_for(keep: Path | None) -> Path:
    """An empty folder: a new one, or the one that was asked for."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="scale0-chaos-"))
    if keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep: {keep} is not empty")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


async def story(
    network: ChaosNetwork, seed: int, plan: list[Kill], seconds: float, workers: int, rate: float, show: Show
) -> ChaosReport:
    """Start, kill, heal, ask, stop, judge."""
    from scale0.cli.demo.chaos_audit import judge
    from scale0.cli.demo.chaos_load import ChaosLoad, ask_again
    from scale0.cli.demo.chaos_plan import BROKER, kinds

    healed = False
    try:
        show("starting", 0.0)
        network.start(BROKER).ready()
        for child in [network.start(f"worker-{number}") for number in range(1, workers + 1)]:
            child.ready()
        load = ChaosLoad(network.frontend, kinds(seed))
        try:
            killed = await disturb(network, load, plan, seconds, rate, show)
            await heal(network, load, show)
        finally:
            await load.close()
        show("asking again for every result", 1.0)
        await ask_again(network.frontend, load.entries)
        healed = True
    finally:
        network.close(in_order=healed)
    show("comparing", 1.0)
    return judge(load.entries, read_journal(network.data_dir), read_runs(network.folder), killed, network.crashed)


async def disturb(
    network: ChaosNetwork, load: ChaosLoad, plan: list[Kill], seconds: float, rate: float, show: Show
) -> list[Killed]:
    """Kill and start again as the plan says, while tasks are submitted; at the end everybody is there."""
    import asyncio
    import contextlib

    loop = asyncio.get_running_loop()
    killed: list[Killed] = []
    down: dict[str, float] = {}
    rest = list(plan)
    submitting = asyncio.create_task(load.submit(rate))
    began = loop.time()
    try:
        while (past := loop.time() - began) < seconds or rest or down:
            while rest and rest[0].at <= past:
                kill = rest.pop(0)
                done = network.kill(kill.victim)
                if done is not None:
                    killed.append(done)
                    down[kill.victim] = past + kill.down
            for name in [name for name, when in down.items() if when <= past]:
                network.start(name)
                del down[name]
            network.look()
            show(f"{load.accepted} accepted, {load.ended} ended, {len(killed)} killed", min(1.0, past / seconds))
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        submitting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await submitting
    return killed


async def heal(network: ChaosNetwork, load: ChaosLoad, show: Show) -> None:
    """Until everything has ended, or it takes too long."""
    until = time.monotonic() + HEAL_SECONDS
    while not await load.settle(LOOK_SECONDS) and time.monotonic() < until:
        network.look()
        show(f"healing: {load.accepted - load.ended} of {load.accepted} have not ended", 1.0)


def read_journal(data_dir: Path) -> JournalFacts:
    """What a broker that has stopped recorded of tasks: in segments, and in what its journal has left."""
    from scale0.cli.demo.chaos_audit import JournalFacts
    from scale0.history.segments.reader import EventFilter, read_all_events

    unread: list[str] = []
    events = read_all_events(data_dir, EventFilter(kind="task.*"), unread.append)
    if unread:
        raise errors.CommandError(f"the broker's history cannot be read: {unread[0]}")
    return JournalFacts(events)


def read_runs(folder: Path) -> RecordedRuns:
    """What all workers wrote down."""
    from scale0.cli.demo.chaos_audit import RecordedRuns
    from scale0.cli.demo.chaos_plan import RUNS_ENDING

    pages = sorted(folder.glob(f"*{RUNS_ENDING}"))
    return RecordedRuns(line for page in pages for line in page.read_text().splitlines())
