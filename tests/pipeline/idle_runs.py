"""A warehouse that has taken in all of its segments, and the runs that then need no Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine import runs
from scale0.pipeline.engine.backfill_queue import QUEUE
from scale0.pipeline.registry import table_infos
from scale0.pipeline.status import WarehouseStatus, status_of
from scale0.pipeline.time_ranges import HOUR_US
from scale0.pipeline.warehouse.ingestion import IngestedSegments, ingest_segments
from scale0.pipeline.warehouse.records import Manifest
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.engine_runs import ignore
from tests.pipeline.warehouse_made import NOW_US, begin, put, rows

DAMAGED = "written=2026-05-10/seg-broker-2-7-1-9.parquet"
FOREIGN = "written=2026-05-10/notes.txt"


def never(_events: int | None) -> Any:
    raise AssertionError("there is nothing to compute")


def take(warehouse: Warehouse, url: str) -> tuple[IngestedSegments, Manifest]:
    """Take in what is new as a run does; its tables stay empty."""
    with begin(warehouse) as transaction:
        taken = ingest_segments(transaction, url, NOW_US)
        return taken, commit(transaction)


def commit(transaction: Transaction) -> Manifest:
    return transaction.commit(
        transaction.newest_us,
        now_us=NOW_US,
        parameters=msgspec.to_builtins(Parameters()),
        code_version=runs.code_version(),
        tables=table_infos(),
    )


class Place:
    """Segments, and a warehouse that has taken in all of them."""

    def __init__(self, folder: Path) -> None:
        self.segments = folder / "segments"
        self.warehouse = folder / "warehouse"
        put(self.segments, rows(1, 10, step=HOUR_US))
        take(Warehouse(self.warehouse), str(self.segments))

    def job(self, **options: Any) -> runs.RunOptions:
        return runs.RunOptions(warehouse=self.warehouse, segments=(str(self.segments),), **options)

    def run(self) -> runs.RunOutcome:
        return runs.run(self.job(), never, lambda: NOW_US, ignore)

    def stream(self, **options: Any) -> list[runs.RunOutcome]:
        """One round of a stream: it is stopped as soon as its run asks for the time."""
        stop = threading.Event()

        def clock() -> int:
            stop.set()
            return NOW_US

        return list(runs.stream(self.job(**options), never, clock, ignore, stop, 1.0))

    def status(self) -> WarehouseStatus:
        return status_of(self.warehouse, (str(self.segments),), NOW_US)

    def numbers(self) -> list[int]:
        return Warehouse(self.warehouse).numbers()

    def queue(self) -> list[str]:
        return sorted(path.name for path in (self.warehouse / QUEUE).iterdir())
