"""What Spark really read: the rows and files of every scan, by who was computing.

Lives here: Spark's own metrics of the scans of its plans. Never here: a limit. Invariants: a scan counts once, with the
rows that came out of its files (of row groups and pages that were not skipped), whatever was asked for; a frame that is
kept in memory counts where it was read, not where it is used again.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROWS = "number of output rows"
FILES = "number of files read"
SCAN = "Scan parquet"
WAIT_MS = 60_000


@dataclass
class Reads:
    """What one family or derivation read."""

    scans: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """By slab (or `events`, `pulses`); what is scanned twice counts twice."""
    files: Counter[str] = field(default_factory=Counter)


class Meter:
    """Listens to a run: give it `told` as its progress."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._who = ""
        self._seen = self._newest()
        self.reads: dict[str, Reads] = {}

    def told(self, what: str, _done: int, _total: int) -> None:
        """What came until now is of who was named before."""
        self._take()
        self._who = what

    def finish(self) -> dict[str, Reads]:
        self._take()
        return {who: reads for who, reads in self.reads.items() if reads.scans}

    def _take(self) -> None:
        newest = self._newest()
        for number in range(self._seen + 1, newest + 1):
            for place, rows, files in scans(self._store, number):
                reads = self.reads.setdefault(self._who, Reads())
                reads.scans += 1
                reads.rows[place] += rows
                reads.files[place] += files
        self._seen = newest

    @property
    def _store(self) -> Any:
        return self._spark._jsparkSession.sharedState().statusStore()  # type: ignore[attr-defined]

    def _newest(self) -> int:
        """The number of the newest execution, once its metrics are there."""
        context = self._spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty(WAIT_MS)
        executions = self._store.executionsList()
        return max((executions.apply(n).executionId() for n in range(executions.size())), default=-1)


def scans(store: Any, number: int) -> Iterator[tuple[str, int, int]]:
    """Of one execution: what was scanned, its rows and its files."""
    values = store.executionMetrics(number)
    nodes = store.planGraph(number).allNodes()
    for place in range(nodes.size()):
        node = nodes.apply(place)
        if not node.name().startswith(SCAN):
            continue
        found = {}
        for n in range(node.metrics().size()):
            metric = node.metrics().apply(n)
            value = values.get(metric.accumulatorId())
            if value.isDefined():
                found[metric.name()] = int(value.get().replace(",", "").split()[0])
        if ROWS in found or FILES in found:
            yield named(node.desc()), found.get(ROWS, 0), found.get(FILES, 0)


def named(description: str) -> str:
    """Which slab a scan is of, by the place of its first file."""
    match = re.search(r"/data/[^/]+/([^/,\]]+)/", description)
    return match[1] if match else description[:200]
