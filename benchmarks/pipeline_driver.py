"""The driver's side of `benchmarks.pipeline`: one Spark session that reads commands as lines of JSON.

It is a process of its own, so that its memory can be measured, and so that the start of a session need not be part of
what is measured.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.task_stats import HOUR, MINUTE, TaskStatsAggregation
from scale0.pipeline.engine import runs
from scale0.pipeline.marts.stat_days import TASK_DAY, TASK_DAYS
from scale0.pipeline.schemas import EVENTS, PART
from scale0.pipeline.spark_session import start
from scale0.pipeline.time_ranges import TimeRange, hour_of


class Stages:
    """Seconds by what the engine says that it does."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._now = ""
        self._since = time.perf_counter()

    def told(self, what: str, done: int, whole: int) -> None:
        del done, whole
        now = time.perf_counter()
        if self._now:
            self.seconds[self._now] = self.seconds.get(self._now, 0.0) + now - self._since
        self._now, self._since = what, now


def run(spark: Any, segments: str, warehouse: str, fresh: bool) -> dict[str, Any]:
    """One `pipeline run`; with `fresh` into a warehouse that is not there yet."""
    if fresh:
        shutil.rmtree(warehouse, ignore_errors=True)
    stages = Stages()
    began = time.perf_counter()
    job = runs.RunOptions(warehouse=Path(warehouse), segments=(segments,))
    outcome = runs.run(job, lambda _events: spark, lambda: time.time_ns() // 1_000, stages.told)
    seconds = time.perf_counter() - began
    stages.told("", 0, 0)
    return {"seconds": seconds, "events": outcome.events, "problems": outcome.problems, "stages": stages.seconds}


def task_stats(spark: Any, segments: str, out: str, horizon_us: int, first_us: int) -> dict[str, Any]:
    """`task_stats` at its three grains, from segments to Parquet, and nothing else."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    paths = sorted(str(path) for path in Path(segments).glob("written=*/seg-*.parquet"))
    events = spark.read.schema(EVENTS).parquet(*paths)
    family = TaskStatsAggregation()
    rows = events.filter(events["kind"].isin(*sorted(family.kinds))).select(*family.columns)
    time_range = TimeRange(hour_of(first_us), hour_of(horizon_us) + 1, horizon_us)
    made = family.step(None, {"events": rows}, time_range, Parameters())
    for slab in (MINUTE, HOUR):
        made[slab.name].write.parquet(f"{out}/{slab.name}")
    hours = spark.read.parquet(f"{out}/{HOUR.name}")
    days = {row[0] // 24 for row in hours.select(PART).distinct().collect()}
    TASK_DAYS.compute({HOUR.name: hours}, days, horizon_us, Parameters())[TASK_DAY.name].write.parquet(
        f"{out}/{TASK_DAY.name}"
    )
    spark.catalog.clearCache()
    return {"seconds": time.perf_counter() - began}


DOES: dict[str, Callable[..., dict[str, Any]]] = {"run": run, "task_stats": task_stats}


def main() -> None:
    """`… pipeline_driver MASTER SETTINGS EVENTS`: a line for the session, then one for each that comes."""
    began = time.perf_counter()
    spark = start(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    print(json.dumps({"session_seconds": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(DOES[asked.pop("do")](spark, **asked)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
