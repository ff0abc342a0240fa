"""What Spark really read: the rows and files of every scan, by who was computing, from Spark's own metrics.

A scan counts once, with the rows that came out of its files (of row groups and pages that were not skipped), whatever
was asked for; a frame that is kept in memory counts where it was read, not where it is used again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

ROWS = "number of output rows"
FILES = "number of files read"
SCAN = "Scan parquet"
WAIT_MS = 60_000
SHOWN = "spark.sql.maxMetadataStringLength"
PATH_LENGTH = "2000"
"""So that a plan shows where a scan's first file lies: of a deep folder it would be cut off."""


class Scan(NamedTuple):
    who: str
    """The aggregation or mart that was being computed."""
    place: str
    """The data set that it is of, or `events`, or `pulses`."""
    rows: int
    files: int


class Meter:
    """Listens to a run: give it `progress`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._shown = str(spark.conf.get(SHOWN))
        spark.conf.set(SHOWN, PATH_LENGTH)
        self._who = ""
        self._seen = self._newest()
        self.scans: list[Scan] = []
        self._stages = self._known_stages()
        self.records: Counter[str] = Counter()
        """By who: the rows that its tasks took in, whatever the plans say; batches kept in memory count as a row."""

    def progress(self, what: str, _done: int, _total: int) -> None:
        """What came until now is of who was named before."""
        self._take()
        self._who = what

    def finish(self) -> None:
        self._take()
        self._spark.conf.set(SHOWN, self._shown)

    def _take(self) -> None:
        newest = self._newest()
        for number in range(self._seen + 1, newest + 1):
            self.scans += (Scan(self._who, *scan) for scan in scans(self._store, number))
        self._seen = newest
        stages = self._known_stages()
        self.records[self._who] += sum(rows for stage, rows in stages.items() if stage not in self._stages)
        self._stages = stages

    def _known_stages(self) -> dict[tuple[int, int], int]:
        """By stage and attempt: the rows that it took in. Spark keeps the newest thousand."""
        gateway: Any = self._spark.sparkContext._gateway
        none, quantiles = gateway.jvm.java.util.ArrayList(), gateway.new_array(gateway.jvm.double, 0)
        stages = self._spark.sparkContext._jsc.sc().statusStore().stageList(none, False, False, quantiles, none)
        found = (stages.apply(n) for n in range(stages.size()))
        return {(stage.stageId(), stage.attemptId()): stage.inputRecords() for stage in found}

    @property
    def _store(self) -> Any:
        return self._spark._jsparkSession.sharedState().statusStore()

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
    known: set[int] = set()
    for place in range(nodes.size()):
        node = nodes.apply(place)
        if not node.name().startswith(SCAN):
            continue
        metrics = (node.metrics().apply(n) for n in range(node.metrics().size()))
        ids = {metric.name(): metric.accumulatorId() for metric in metrics if metric.name() in (ROWS, FILES)}
        # A frame that is held stands in the plan as often as it is used, and is one scan.
        if ids[ROWS] in known:
            continue
        known.add(ids[ROWS])
        rows, files = (values.get(ids[name]) for name in (ROWS, FILES))
        if rows.isDefined() or files.isDefined():
            yield named(node.desc()), number_of(rows), number_of(files)


def number_of(value: Any) -> int:
    return int(value.get().replace(",", "")) if value.isDefined() else 0


def named(description: str) -> str:
    """Which data set a scan is of, by the place of its first file."""
    match = re.search(r"/data/[^/]+/([^/,\]]+)/", description)
    assert match, f"a scan of an unknown place: {description}"
    return match[1]
