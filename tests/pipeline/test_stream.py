"""A stream with Spark: it does what was asked for as it was asked, and months stay whole.

Promise: PIPE-1, PIPE-4
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Set
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from scale0.pipeline import registry
from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine import advance, runs
from scale0.pipeline.engine.backfill_queue import QUEUE, QueuedBackfill, enqueue
from scale0.pipeline.marts.availability import AVAILABILITY_DAYS, AVAILABILITY_MONTHS
from scale0.pipeline.time_ranges import HOUR_US, days_of_month, month_of
from scale0.pipeline.warehouse.retention import drop_before
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.engine_runs import Bench, ignore
from tests.pipeline.idle_runs import commit
from tests.pipeline.warehouse_made import DAY, NOW_US, START_US, begin, put, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OTHER = Parameters(flapping="nagios")


def test_a_stream_backfills_with_the_parameters_that_were_asked_for_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        advance, "AGGREGATIONS", tuple(one for one in registry.AGGREGATIONS if one.name == "request_stats")
    )
    monkeypatch.setattr(advance, "MARTS", ())
    bench = Bench(spark, tmp_path, NOW_US)
    put(bench.segments, rows(1, 10))
    bench.run()
    enqueue(bench.warehouse, QueuedBackfill(START_US, None, OTHER))
    stop = threading.Event()

    def clock() -> int:
        if not any((bench.warehouse / QUEUE).iterdir()):
            stop.set()
        return NOW_US

    job = bench.job(parameters=Parameters(), parameters_given=True)
    outcomes = list(runs.stream(job, lambda _events: spark, clock, ignore, stop, 1.0))
    assert [(outcome.number, outcome.problems) for outcome in outcomes] == [(2, ())]
    manifest = Warehouse(bench.warehouse).latest()
    assert manifest is not None
    assert manifest.parameters["flapping"] == "nagios"


class Months:
    """A mart that is asked for the months of two, and remembers which it had to compute."""

    name = "months"
    data_sets = (AVAILABILITY_MONTHS,)
    inputs = (AVAILABILITY_DAYS.name,)

    def __init__(self) -> None:
        self.computed: list[set[int]] = []

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        return {month_of(DAY), month_of(DAY) + 1}

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        return {}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        self.computed.append({*parts})
        some = inputs[AVAILABILITY_DAYS.name]
        return {AVAILABILITY_MONTHS.name: some.sparkSession.createDataFrame([], some.schema)}


def test_a_month_of_which_a_day_is_gone_stays_as_it_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    months = Months()
    monkeypatch.setattr(advance, "AGGREGATIONS", ())
    monkeypatch.setattr(advance, "MARTS", (months,))
    bench = Bench(spark, tmp_path, NOW_US)
    put(bench.segments, rows(1, 10))
    bench.run()
    warehouse = Warehouse(bench.warehouse)
    with begin(warehouse) as transaction:
        drop_before(transaction, days_of_month(month_of(DAY)).start + 1)
        commit(transaction)
    put(bench.segments, rows(11, 20, at=START_US + HOUR_US))
    bench.run()
    assert months.computed == [{month_of(DAY), month_of(DAY) + 1}, {month_of(DAY) + 1}]
