"""`python -m tests.pipeline.kills`: drivers of the pipeline die at random failpoints, and nothing is lost or doubled.

Lives here: the rounds, each from a seed of its own, and what is compared. Never here: a second engine, or a failpoint
that the product has not got. Invariants: a driver is a real process and dies by SIGKILL; after each death comes a plain
run; a seed decides by itself how much arrives and where its driver dies, so a chain can be run again from its first.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from scale0.pipeline import reading, registry
from scale0.pipeline.engine import advance
from scale0.pipeline.spark_session import start
from scale0.pipeline.warehouse.warehouse import FAILPOINTS, Warehouse
from tests.pipeline import naive_history
from tests.pipeline.engine_runs import Bench, differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

SECONDS = 2 * 3600
ROLL_SECONDS = 60
CHAIN = 25
"""Seeds that share a warehouse: after so many all tables are compared."""
TRIES = 6
"""Draws of one seed until its driver comes by the place where it is to die."""
TWICE = ("attempt.begun", "segment.fetched", "files.registered", "chapter.written", "collection.file_removed")
"""Failpoints that a run may come by more than once."""
FEW = frozenset({"task_stats", "task_days", "audit"})
DAY_US = 86_400_000_000
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
        status = forked(lambda: doomed(self.bench, draw))
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


def doomed(bench: Bench, draw: Draw) -> None:
    """One run, to the failpoint."""
    left = draw.occurrence

    def reach(name: str) -> None:
        nonlocal left
        left -= name == draw.point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    bench.run(reach=reach)


def forked(act: Callable[[], None]) -> int:
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


@contextlib.contextmanager
def few_tables() -> Iterator[None]:
    """Only those whose computing costs little."""
    changed: Any = advance
    whole = changed.AGGREGATIONS, changed.MARTS
    changed.AGGREGATIONS = tuple(one for one in registry.AGGREGATIONS if one.name in FEW)
    changed.MARTS = tuple(one for one in registry.MARTS if one.name in FEW)
    try:
        yield
    finally:
        changed.AGGREGATIONS, changed.MARTS = whole


class Soak:
    """A history, its tables, and chains of killed drivers that must come to the same."""

    def __init__(self, spark: SparkSession, folder: Path, whole: bool) -> None:
        self._spark = spark
        self._folder = folder
        self._whole = whole
        history = naive_history.history(1, SECONDS)
        self._files = naive_history.write(history.events, folder / "made", ROLL_SECONDS)
        self._first_us = min(event["at"] for event in history.events)
        self._last_us = max(event["time"] for event in history.events)
        bench = self._bench("undisturbed")
        bench.deliver(*self._files)
        with few_tables() if not whole else contextlib.nullcontext():
            bench.run()
        self._tables = bench.tables()

    def _bench(self, name: str) -> Bench:
        return Bench(self._spark, self._folder / name, self._last_us + DAY_US)

    def chain(self, first: int, count: int) -> None:
        """So many seeds at one warehouse."""
        chain = Chain(self._bench(f"killed-{first}"), list(self._files))
        with few_tables():
            for seed in range(first, first + count):
                self._round(chain, seed)
            chain.deliver_all()
            chain.mend()
        if self._whole:
            chain.bench.backfill(self._first_us)
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
