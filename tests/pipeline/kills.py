"""`python -m tests.pipeline.kills`: drivers of the pipeline die at random failpoints, and nothing is lost or doubled.

A driver is a real process and dies by SIGKILL at a failpoint of the product; after each death comes a plain run. A seed
decides by itself how much arrives and where its driver dies, so a chain can be run again from its first.

All drivers are forked from one process and use its Spark, one after the other: a JVM for each would cost more than
all the rest. A job that is under way when its driver dies writes on into the folder of that attempt, as it does where a
JVM outlives its driver for a moment. Rounds compute a few tables; at the end of a chain all of them are computed from
what the warehouse holds, and compared with those of a warehouse at which nobody was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from scale0.pipeline import reading
from scale0.pipeline.spark_session import start
from scale0.pipeline.time_ranges import DAY_US
from scale0.pipeline.warehouse.warehouse import FAILPOINTS, Warehouse
from tests.fakes.killed import kill_at
from tests.pipeline.engine_runs import Bench, NaiveSegments, differences, only_tables

SECONDS = 2 * 3600
ROLL_SECONDS = 60
CHAIN = 25
"""Seeds that share a warehouse: after so many all tables are compared."""
TRIES = 6
"""Draws of one seed until its driver comes by the place where it is to die."""
TWICE = ("attempt.begun", "segment.fetched", "files.registered", "chapter.written", "collection.file_removed")
"""Failpoints that a run may come by more than once."""
FEW = frozenset({"task_stats", "task_days", "audit"})
FAILED = 3
"""How a driver ends that raised an error."""
SMALL = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.sql.adaptive.enabled": "false"}


class Wrong(Exception):
    """A promise was broken; the message says which."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Draw:
    """Where one driver dies, and what it has to take in."""

    point: str
    occurrence: int
    files: int
    late: bool
    """The next segment is held back for a round."""


def draws(seed: int) -> Iterator[Draw]:
    """What a seed says: its first draw, and others should the driver not come by there."""
    dice = random.Random(f"scale0 driver {seed}")
    while True:
        point = dice.choice(FAILPOINTS)
        occurrence = dice.choice((1, 1, 2)) if point in TWICE else 1
        yield Draw(point, occurrence, dice.randint(1, 2), dice.random() < 0.2)


@dataclass
class Chain:
    """One warehouse, its segments bit by bit, and the drivers that die at it."""

    bench: Bench
    waiting: list[Path]
    held: list[Path] = field(default_factory=list)
    delivered: int = 0
    """Events."""

    def deliver(self, draw: Draw) -> None:
        """New segments arrive; one may be overtaken."""
        back, self.held = self.held, []
        if draw.late and len(self.waiting) > 1:
            self.held = [self.waiting.pop(0)]
        self._take([*back, *(self.waiting.pop(0) for _ in range(min(draw.files, len(self.waiting))))])
        # Two days later: what the last rounds left may be collected.
        self.bench.now_us += 2 * DAY_US

    def deliver_all(self) -> None:
        self._take([*self.held, *self.waiting])
        self.held, self.waiting = [], []

    def _take(self, files: list[Path]) -> None:
        self.bench.deliver(*files)
        self.delivered += sum(pq.read_metadata(path).num_rows for path in files)

    def kill(self, draw: Draw) -> bool:
        """A driver in a process of its own, killed at the failpoint; False: it never came by, and did its work."""
        before = events_of(self.bench.warehouse)
        status = forked(lambda: self.bench.run(reach=kill_at(draw.point, draw.occurrence)))
        judge(status, before, events_of(self.bench.warehouse), self.delivered)
        return status != 0

    def mend(self) -> None:
        """A plain run: every event is there, once."""
        outcome = self.bench.run()
        if outcome.problems:
            raise Wrong(f"a plain run says: {outcome.problems}")
        if events_of(self.bench.warehouse) != self.delivered:
            raise Wrong(f"{events_of(self.bench.warehouse)} events after a plain run, {self.delivered} were delivered")


def judge(status: int, before: int, found: int, delivered: int) -> None:
    """Wrong if a driver ended in another way than it should, or left something between before and after."""
    if status not in (0, -signal.SIGKILL):
        raise Wrong(f"the driver ended with {status}")
    if found not in (before, delivered):
        raise Wrong(f"after a kill there are {found} events: neither the {before} of before nor all {delivered}")


def events_of(warehouse: Path) -> int:
    """How many events readers see; each must be another."""
    if Warehouse(warehouse).latest() is None:
        return 0
    table = reading.open_arrow(warehouse, "events")
    keys = table.select(["source", "boot", "seq"])
    if keys.group_by(keys.column_names).aggregate([]).num_rows != table.num_rows:
        raise Wrong("an event is in the warehouse twice")
    return int(table.num_rows)


def forked(act: Callable[[], object]) -> int:
    """Do it in a process of its own; its exit status, or the number of the signal that killed it, negative."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = FAILED
        try:
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Nothing is tidied up: Spark is its parent's.
            os._exit(status)
    _, code = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(code)


class Soak:
    """A history, its tables, and chains of killed drivers that must come to the same."""

    def __init__(self, spark: SparkSession, folder: Path, whole: bool) -> None:
        self._segments = NaiveSegments(spark, folder, SECONDS, ROLL_SECONDS)
        self._whole = whole
        bench = self._segments.bench("undisturbed")
        bench.deliver(*self._segments.files)
        with only_tables(FEW) if not whole else contextlib.nullcontext():
            bench.run()
        self._tables = bench.tables()

    def chain(self, first: int, count: int) -> None:
        chain = Chain(self._segments.bench(f"killed-{first}"), list(self._segments.files))
        with only_tables(FEW):
            for seed in range(first, first + count):
                self._round(chain, seed)
            chain.deliver_all()
            chain.mend()
        if self._whole:
            chain.bench.backfill(self._segments.first_us)
        found = differences(chain.bench.tables(), self._tables)
        if found:
            raise Wrong("the tables are others than those of an undisturbed run: " + "; ".join(found))
        say(f"seeds {first} to {first + count - 1}: {len(self._tables)} tables are those of an undisturbed run")

    def _round(self, chain: Chain, seed: int) -> None:
        began = time.monotonic()
        for number, draw in enumerate(draws(seed)):
            where = f"{draw.point} ({draw.occurrence})"
            if number == TRIES:
                raise Wrong(f"seed {seed}: no driver came by its failpoint in {TRIES} draws")
            chain.deliver(draw)
            if chain.kill(draw):
                break
            say(f"seed {seed}: did not come by {where}, and is drawn again")
        chain.mend()
        say(
            f"seed {seed}: killed at {where}; a plain run has all {chain.delivered} events"
            f" ({time.monotonic() - began:.1f} s)"
        )


def main() -> int:
    """Exit 1 if a promise was broken, after saying how to see it again."""
    parser = argparse.ArgumentParser(description="Kill the pipeline's driver again and again.")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=int, default=100, help="how many drivers are killed (100)")
    parser.add_argument("--few", action="store_true", help="compare only the tables that the rounds compute")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scale0-kills-") as folder:
        spark = start("local[1]", SMALL, events=0)
        at, end = options.first, options.first + options.seeds
        try:
            soak = Soak(spark, Path(folder), not options.few)
            say(f"an undisturbed run is made ({time.monotonic() - began:.0f} s)")
            while at < end:
                count = min(CHAIN, end - at)
                soak.chain(at, count)
                at += count
        except Wrong as error:
            say(f"BROKEN: {error}")
            say(f"    python -m tests.pipeline.kills --first {at} --seeds {min(CHAIN, end - at)}")
            return 1
        finally:
            spark.stop()
    say(
        f"{options.seeds} drivers were killed, seeds {options.first} to {end - 1};"
        f" every promise was kept ({time.monotonic() - began:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
