"""A driver that is killed at a failpoint: takes segments in, replaces a slab's parts, commits and collects."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from scale0.pipeline.warehouse.ingestion import ingest_segments
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import Warehouse, no_failpoint
from tests.pipeline.warehouse_made import HOUR, NOW_US, add, commit

DAY_US = 86_400_000_000


def drive(root: Path, segments: Path, reach: Callable[[str], None] = no_failpoint, *, days: int = 0) -> None:
    """One whole run, `days` after the first; the slab says in every part how many events it has seen in all."""
    warehouse = Warehouse(root, reach)
    with warehouse.lock("test"), warehouse.begin() as staging:
        transaction = Transaction(warehouse.latest(), warehouse, staging)
        ingest_segments(transaction, str(segments), NOW_US)
        total = sum(last - first + 1 for ranges in transaction.covered().values() for _, first, last in ranges)
        add(transaction, "tally", [(hour, "events", total) for hour in (HOUR, HOUR + 1, HOUR + 30)])
        commit(transaction, NOW_US + days * DAY_US)
        warehouse.collect(NOW_US + (days + 2) * DAY_US)


def main() -> None:
    """`root segments failpoint`: dies there."""
    root, segments, point = sys.argv[1:]

    def die(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    drive(Path(root), Path(segments), die, days=3)


if __name__ == "__main__":
    main()
