"""Runs of the whole pipeline in tests: places, a clock that stands, and tables to compare."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scale0.pipeline import reading, registry
from scale0.pipeline.engine import advance, runs
from scale0.pipeline.engine.advance import Progress
from scale0.pipeline.spark_session import COMPILED, INTERPRETED
from scale0.pipeline.time_ranges import DAY_US
from tests.pipeline import naive_history

OPERATIONAL = frozenset({"restatements", "events"})
"""Tables that tell how it came about; the others are a function of the events."""


def ignore(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""


@contextlib.contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """Within it plans become Java, as in a run of more than a few events."""
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in INTERPRETED.items():
            spark.conf.set(name, value)


@contextlib.contextmanager
def only_tables(names: Collection[str]) -> Iterator[None]:
    """Within it a run computes these aggregations and marts alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advance, "AGGREGATIONS", tuple(one for one in registry.AGGREGATIONS if one.name in names))
        patch.setattr(advance, "MARTS", tuple(one for one in registry.MARTS if one.name in names))
        yield


@dataclass
class Bench:
    """One warehouse, and the segments that are delivered to it."""

    spark: SparkSession
    folder: Path
    now_us: int
    starts: int = field(default=0)
    ahead: int | None = field(default=None)
    """For how many events Spark was last started."""

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def segments(self) -> Path:
        return self.folder / "segments"

    def deliver(self, *paths: Path) -> None:
        """Segments arrive, in the folder of the day that they were written on."""
        for path in paths:
            place = self.segments / path.parent.name
            place.mkdir(parents=True, exist_ok=True)
            (place / path.name).write_bytes(path.read_bytes())

    def job(self, **options: Any) -> runs.RunOptions:
        return runs.RunOptions(warehouse=self.warehouse, segments=(str(self.segments),), **options)

    def _start(self, events: int | None) -> SparkSession:
        self.starts += 1
        self.ahead = events
        return self.spark

    def run(self, reach: Callable[[str], None] | None = None, **options: Any) -> runs.RunOutcome:
        more = () if reach is None else (reach,)
        return runs.run(self.job(**options), self._start, lambda: self.now_us, ignore, *more)

    def stream(self, progress: Progress, stop: threading.Event) -> Iterator[runs.RunOutcome]:
        return runs.stream(self.job(), self._start, lambda: self.now_us, progress, stop, 0.0)

    def backfill(self, first_us: int, end_us: int | None = None, **options: Any) -> runs.RunOutcome | None:
        return runs.backfill(self.job(**options), self._start, lambda: self.now_us, ignore, first_us, end_us)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return {
            name: rows_of(self.warehouse, name) for name in reading.tables(self.warehouse) if name not in OPERATIONAL
        }


class NaiveSegments:
    """A naive history, cut into segments, and places where runs compute its tables a day later."""

    def __init__(self, spark: SparkSession, folder: Path, seconds: int, roll_seconds: int) -> None:
        self.spark, self.folder = spark, folder
        events = naive_history.history(1, seconds).events
        self.files = naive_history.write(events, folder / "made", roll_seconds)
        self.first_us = min(event["at"] for event in events)
        self.last_us = max(event["time"] for event in events)

    def bench(self, name: str) -> Bench:
        return Bench(self.spark, self.folder / name, self.last_us + DAY_US)


def rows_of(warehouse: Path, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table, in an order that does not depend on its files."""
    rows = reading.open_arrow(warehouse, table).to_pylist()
    return sorted((tuple(map(frozen, row.values())) for row in rows), key=repr)


def frozen(cell: Any) -> Any:
    if isinstance(cell, list):
        return tuple(map(frozen, cell))
    if isinstance(cell, dict):
        return tuple((name, frozen(value)) for name, value in cell.items())
    return cell


def differences(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> list[str]:
    """In words: which rows only one of two sets of tables has."""
    found = []
    for name in sorted({*one, *other}):
        mine, theirs = one.get(name, []), other.get(name, [])
        if mine != theirs:
            only = [row for row in mine if row not in theirs][:3]
            others = [row for row in theirs if row not in mine][:3]
            found.append(
                f"{name}: {len(mine)} and {len(theirs)} rows; only the first: {only}; only the second: {others}"
            )
    return found
