"""All tables by DuckDB, in one go: `python -m benchmarks.pipeline_duckdb.compute SEGMENTS OUT [--only task_stats]`.

Each SQL file beside this one makes relations with the names of tables; these are written as Parquet, and what is not
needed any more is dropped. Nothing is incremental: there is no carry, no hash and no manifest to pay for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Final, NamedTuple

import duckdb

HERE: Final = Path(__file__).parent
THREADS: Final = 2
MEMORY: Final = "6GB"


class Step(NamedTuple):
    """One file of SQL."""

    name: str
    tables: tuple[str, ...]
    """Relations that it leaves, to be written."""
    done_with: tuple[str, ...] = ()
    """Tables that nobody needs after it."""


STEPS: Final = (
    Step("task_stats", ("task_stats",), ("task_told", "task_buckets")),
    Step("requests", ("request_stats",), ("request_told", "request_minutes", "request_buckets", "request_failures")),
    Step("tasks", ("tasks",), ("task_groups", "task_rows_odd")),
    Step("metrics", ("metric_trends",), ("metric_points",)),
    Step("checks", ("check_states",), ("check_rows", "check_kept", "check_pieces")),
    Step("world", ("sessions", "audit", "node_stats"), ("pulses", "links", "boundaries", "segments", "states")),
    Step("incidents", ("timeline", "incidents"), ("check_timeline", "world_timeline")),
    Step("availability", ("availability", "noise"), ("timeline_us", "availability_hours")),
    Step("anomalies", ("anomalies",), ("task_hours", "request_hours", "beats")),
    Step("forecasts", ("forecasts",), ()),
)
TABLES: Final = tuple(sorted(table for step in STEPS for table in step.tables))


def compute(segments: Path, out: Path, only: str | None = None, threads: int = THREADS) -> dict[str, float]:
    """Write all tables (or those of one step that needs no other) to `out`; seconds by step, all of them, and whole."""
    out.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    with duckdb.connect(":memory:", config={"threads": threads, "memory_limit": MEMORY}) as connection:
        prepare(connection, segments)
        seconds["prepare"] = time.perf_counter() - began
        for step in STEPS:
            if only is None or step.name == only:
                seconds[step.name] = _take(connection, step, out)
    seconds["whole"] = time.perf_counter() - began
    return seconds


def prepare(connection: duckdb.DuckDBPyConnection, segments: Path) -> None:
    """The view of the events, the horizon, and the macros."""
    files = sorted(str(path) for path in segments.glob("written=*/seg-*.parquet"))
    if not files:
        raise FileNotFoundError(f"{segments} has no segments")
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    connection.execute("SET TimeZone = 'UTC'")
    # As Spark has it, so that ties are broken alike.
    connection.execute("SET default_null_order = 'nulls_first'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"CREATE VIEW events AS FROM read_parquet([{listed}], hive_partitioning = false)")
    found = connection.execute("SELECT epoch_us(max(time)) FROM events").fetchone()
    assert found is not None
    connection.execute(f"CREATE MACRO horizon_us() AS {int(found[0])}")
    connection.execute((HERE / "prelude.sql").read_text())


def _take(connection: duckdb.DuckDBPyConnection, step: Step, out: Path) -> float:
    began = time.perf_counter()
    connection.execute((HERE / f"{step.name}.sql").read_text())
    for table in step.tables:
        path = str(out / f"{table}.parquet").replace("'", "''")
        connection.execute(f"COPY (FROM {table}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    for table in step.done_with:
        # Views over it stay, and are not asked again.
        connection.execute(f"DROP TABLE {table}")
    return time.perf_counter() - began


def main() -> None:
    """Print the seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segments", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=["task_stats"])
    parser.add_argument("--threads", type=int, default=THREADS)
    args = parser.parse_args()
    print(json.dumps(compute(args.segments, args.out, args.only, args.threads)))


if __name__ == "__main__":
    main()
