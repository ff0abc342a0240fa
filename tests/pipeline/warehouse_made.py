"""Segments, data sets and warehouses from few words, without Spark: what tests of the warehouse feed it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scale0.history.segments.arrow import SCHEMA, write
from scale0.history.segments.names import Segment, name_of
from scale0.pipeline.time_ranges import DAY_US, HOUR_US
from scale0.pipeline.warehouse.ingestion import IngestedSegments, ingest_segments
from scale0.pipeline.warehouse.records import DataSetInfo, FileEntry, Manifest, TableInfo
from scale0.pipeline.warehouse.staging import StagingDirectory
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import Warehouse, no_failpoint
from tests.fakes.killed import kill_at

HOUR = 494_000
"""The hour that tests begin in; day 20583 has the hours 493992 to 494015, so it is the ninth of its day."""
DAY = HOUR // 24
START_US = HOUR * HOUR_US
NOW_US = START_US + 400 * 24 * HOUR_US
"""The driver's clock: long after everything."""
SECOND = 1_000_000

TALLY = TableInfo({"name": "string", "count": "bigint"}, {"tally": DataSetInfo("hour", ("secret",))})
"""A table with one data set of hours."""


def rows(first: int, last: int, *, at: int = START_US, step: int = SECOND, **columns: Any) -> list[dict[str, Any]]:
    """Events with these seqs, one each `step` µs from `at` on."""
    return [
        {
            "seq": seq,
            "time": at + (seq - first) * step,
            "at": at + (seq - first) * step,
            "kind": "task.submitted" if seq % 2 else "task.completed",
            "identity": f"client-{seq % 3}",
            "ref": f"ref-{seq}",
            "metrics": [{"name": "load", "value": seq / 4}] if seq % 5 == 0 else None,
            "histogram": [{"bucket": seq, "count": 2}] if seq % 7 == 0 else None,
            **columns,
        }
        for seq in range(first, last + 1)
    ]


def table(events: list[dict[str, Any]], source: str = "broker-1", boot: int = 7) -> pa.Table:
    full = [{"source": source, "boot": boot, **row} for row in events]
    return pa.Table.from_pylist(full, schema=SCHEMA)


def put(
    segments: Path,
    events: list[dict[str, Any]],
    *,
    source: str = "broker-1",
    boot: int = 7,
    day: str = "2026-05-10",
    name: str | None = None,
) -> Path:
    folder = segments / f"written={day}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or name_of(Segment(source, boot, events[0]["seq"], events[-1]["seq"])))
    path.unlink(missing_ok=True)  # a hard link of the warehouse's stays what it was
    write(table(events, source, boot), path)
    return path


@contextlib.contextmanager
def begin(warehouse: Warehouse) -> Iterator[Transaction]:
    """A transaction on what the newest manifest lists."""
    with warehouse.begin() as staging:
        yield Transaction(warehouse.latest(), warehouse, staging)


def run(
    warehouse: Warehouse, segments: Path | str, *, now_us: int = NOW_US, rescan: bool = False
) -> tuple[IngestedSegments, Manifest]:
    with begin(warehouse) as transaction:
        taken = ingest_segments(transaction, str(segments), now_us, rescan=rescan)
        return taken, commit(transaction, now_us)


def commit(transaction: Transaction, now_us: int = NOW_US) -> Manifest:
    return transaction.commit(
        transaction.newest_us, now_us=now_us, parameters={"a": 1}, code_version="1", tables={"tally": TALLY}
    )


def part_file(staging: StagingDirectory, data_set: str, found: list[tuple[int, str, int]]) -> Path:
    """A file as Spark would write it: (part, name, count) each, and a hash."""
    path = staging.new_file(data_set, "made")
    columns = {
        "name": pa.array([name for _, name, _ in found], pa.string()),
        "count": pa.array([count for _, _, count in found], pa.int64()),
        "secret": pa.array(["x" for _ in found], pa.string()),
        "part": pa.array([part for part, _, _ in found], pa.int32()),
        "row_hash": pa.array([hash_of(row) for row in found], pa.int64()),
    }
    pq.write_table(pa.table(columns), path)
    return path


def hash_of(row: tuple[int, str, int]) -> int:
    """Any number that depends on the whole row."""
    return hash((row[0], row[2])) * 0x9E3779B97F4A7C15 % 2**64 - 2**63


def add(
    transaction: Transaction, data_set: str, found: list[tuple[int, str, int]], parts: set[int] | None = None
) -> list[FileEntry]:
    """Write rows and have them replace their parts."""
    entries = transaction.staging.register(data_set, [part_file(transaction.staging, data_set, found)])
    transaction.replace(data_set, "hour", parts or {part for part, _, _ in found}, entries)
    return entries


def seqs(warehouse: Warehouse, **bounds: Any) -> list[int]:
    from scale0.pipeline.reading import open_arrow

    return sorted(open_arrow(warehouse, "events", **bounds)["seq"].to_pylist())


def drive(root: Path, segments: Path, reach: Callable[[str], None] = no_failpoint, *, days: int = 0) -> None:
    """One whole run, `days` after the first; the data set says in every part how many events it has seen in all."""
    warehouse = Warehouse(root, reach)
    with warehouse.lock("test"), begin(warehouse) as transaction:
        ingest_segments(transaction, str(segments), NOW_US)
        total = sum(last - first + 1 for ranges in transaction.coverage.frozen().values() for _, first, last in ranges)
        add(transaction, "tally", [(hour, "events", total) for hour in (HOUR, HOUR + 1, HOUR + 30)])
        commit(transaction, NOW_US + days * DAY_US)
        warehouse.collect(NOW_US + (days + 2) * DAY_US)


def main() -> None:
    """`ROOT SEGMENTS FAILPOINT`: it is killed there."""
    root, segments, point = sys.argv[1:]
    drive(Path(root), Path(segments), kill_at(point), days=3)


if __name__ == "__main__":
    main()
