"""What a run costs: after a run over days, one over the newest percent reads that percent, and what is live.

Counted is what Spark read, by its own metrics: the rows that came out of files, and the files that were opened. Files
of tables hold a day each, and a small file is read whole: so the day is what a look at one of its hours may cost here.

Promise: PIPE-11
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from scale0.history.segments import arrow, names
from scale0.pipeline.aggregations.presence import PresenceAggregation
from scale0.pipeline.engine import advance, runs
from scale0.pipeline.time_ranges import DAY_HOURS, DAY_US, HOUR_US, SECOND_US, day_of, hour_of, month_of
from scale0.pipeline.warehouse.warehouse import Warehouse
from simulator.history import generate
from tests.pipeline.engine_runs import Bench
from tests.pipeline.reads_counted import Meter, Scan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.extended]

EVENTS, DAYS, SEED = 85_000, 7, 3
NEW_US = int(0.01 * DAYS * DAY_US)
"""The newest percent comes in the second run."""
ROWS_SHARE = 0.02
FILES_SHARE = 0.02
"""Of the history: the new percent, and the hour of the old horizon, which is stepped again."""
LIVE_DAYS = 1
"""The carry at the frontier and tables by hour: of the day that is touched."""
BACK_DAYS = {
    "anomalies": 2,  # the previous 24 hours (and the same hour of 8 weeks, which this history does not have)
    "forecasts": 14,  # the fortnight that is fitted: in a short history all of it
    "availability.month": 31,  # the days of the month
    "noise": 31,
}
"""Marts that look further back, by what they mean: so much and no more, however long the history is."""
KEPT_BATCHES = 1_000
"""Frames that are held in memory count by their batches whenever they are used: 413 of the world were seen."""


class Listing:
    """What a manifest lists: rows by data set and part; and the events."""

    def __init__(self, place: Path) -> None:
        warehouse = Warehouse(place)
        manifest = warehouse.latest()
        assert manifest is not None
        self.horizon_us = manifest.horizon_us
        self.periods = manifest.periods
        self.rows: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.events = 0
        entries = [*manifest.months.items(), *manifest.open.items()]
        for day in manifest.chapters:
            day_manifest = warehouse.day_manifest(manifest, day)
            self.events += sum(sum(kinds.values()) for file in day_manifest.events for kinds in file.hours.values())
            entries += [*day_manifest.slabs.items(), ("pulses", day_manifest.pulses)]
        for data_set, files in entries:
            for file in files:
                for part, (rows, _) in file.parts.items():
                    self.rows[data_set][part] += rows

    def since(self, data_set: str, hour: int) -> int:
        """The rows of a data set from the part that holds an hour on."""
        day = day_of(hour)
        first = {"hour": hour, "day": day, "month": month_of(day), "open": 0}[self.periods.get(data_set, "hour")]
        return sum(rows for part, rows in self.rows[data_set].items() if part >= first)


class Costs:
    """Two runs over one history: all but the newest percent, and that; and what each of them read."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        made = generate(events=EVENTS, days=DAYS, seed=SEED, out=folder / "made")
        cut_us = made.to_us - NEW_US
        old, new = hourly(folder / "made", folder / "cut", cut_us)
        bench = Bench(spark, folder, made.to_us)
        bench.deliver(*old)
        self.full = metered(bench)
        self.before = Listing(bench.warehouse)
        bench.deliver(*new)
        self.newest = metered(bench)
        self.after = Listing(bench.warehouse)
        self.files = len(old)
        self.frontier = hour_of(self.before.horizon_us)
        assert self.after.horizon_us > cut_us > self.before.horizon_us
        assert 0.005 < (self.after.events - self.before.events) / self.before.events < 0.015


def hourly(made: Path, out: Path, cut_us: int) -> tuple[list[Path], list[Path]]:
    """The segments of a history cut by the hour, and at one instant: those before it, and those from it on."""
    old: list[Path] = []
    new: list[Path] = []
    for path in sorted(made.rglob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        time = table["time"].cast("int64").to_numpy()
        group = time // HOUR_US * 2 + (time >= cut_us)
        bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), time.size]
        for first, end in itertools.pairwise(bounds):
            piece = table.slice(first, end - first)
            source, boot, first_seq, last_seq = (
                piece[name][row].as_py() for name, row in (("source", 0), ("boot", 0), ("seq", 0), ("seq", -1))
            )
            folder = out / names.folder_of(names.day_at(int(time[end - 1]) / SECOND_US))
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / names.name_of(names.Segment(source, boot, first_seq, last_seq))
            arrow.write(piece, file)
            (old if time[first] < cut_us else new).append(file)
    return old, new


def metered(bench: Bench) -> Meter:
    meter = Meter(bench.spark)
    outcome = runs.run(bench.job(), lambda _events: bench.spark, lambda: bench.now_us, meter.progress)
    assert outcome.problems == ()
    meter.finish()
    return meter


@pytest.fixture(scope="module")
def costs(compiling: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Costs:
    with pytest.MonkeyPatch.context() as patch:
        # One at a time: otherwise nobody could say who read what.
        patch.setattr(advance, "CONCURRENT_TABLES", 1)
        return Costs(compiling, tmp_path_factory.mktemp("reads"))


def of_events(scans: list[Scan]) -> list[Scan]:
    return [scan for scan in scans if scan.place == "events"]


def total(meter: Meter) -> tuple[int, int]:
    found = of_events(meter.scans)
    return sum(scan.rows for scan in found), sum(scan.files for scan in found)


def test_the_first_run_is_seen_to_read_everything(costs: Costs):
    """Otherwise the numbers below would say nothing."""
    assert total(costs.full) == (costs.before.events, costs.files)


def test_all_looks_at_the_events_together_are_at_the_newest_hours(costs: Costs):
    """Every aggregation wants them, and they are read once."""
    rows, files = total(costs.newest)
    assert costs.after.events - costs.before.events <= rows <= ROWS_SHARE * costs.before.events
    assert 0 < files <= FILES_SHARE * costs.files


def test_of_the_tables_only_what_is_live_or_looked_back_at_is_read(costs: Costs):
    today = day_of(hour_of(costs.after.horizon_us))
    for scan in costs.newest.scans:
        if scan.place == "events":
            continue
        first_day = today - BACK_DAYS.get(scan.who, LIVE_DAYS) + 1
        # What was replaced stands in its old file still.
        replaced = costs.before.since(scan.place, costs.frontier)
        assert scan.rows <= costs.after.since(scan.place, first_day * DAY_HOURS) + replaced, scan


def test_the_tasks_took_in_what_the_scans_say(costs: Costs):
    """By another count of Spark, which knows nothing of plans.

    The world's frames are cut: their rows count whenever they are read, so that only their scans can be looked for.
    """
    for meter in (costs.full, costs.newest):
        for who, records in meter.records.items():
            mine = [scan for scan in meter.scans if scan.who == who]
            known = sum(scan.rows for scan in mine)
            if who == PresenceAggregation().name:
                assert "pulses" in {scan.place for scan in mine if scan.rows}, mine
                assert known <= records, (records, known)
            else:
                assert 0 <= records - known <= KEPT_BATCHES, (who, records, known)
