"""Compares the tables of Spark and DuckDB: `python -m benchmarks.pipeline_duckdb.compare WAREHOUSE OUT`, exit 1 if they
differ. Values must be equal, except doubles that are means or medians: the engines add them up in different orders.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pipeline_duckdb.compute import TABLES
from scale0.pipeline import reading

PART: Final = "part"
"""What the warehouse adds to every row."""
NEAR: Final = 1e-9
"""Doubles that differ by less than this share of themselves are equal."""
LOOSE: Final = {"forecasts": 1e-5, "anomalies": 1e-6}
"""Least squares and deviations take small differences of large numbers."""

KEYS: Final = {
    "anomalies": ("subject_kind", "subject", "metric", "hour"),
    "audit": ("source", "day"),
    "availability": ("subject_kind", "subject", "grain", "start"),
    "check_states": ("agent", "check", "id"),
    "forecasts": ("agent", "check", "metric", "as_of"),
    "incidents": ("subject_kind", "subject", "opened"),
    "metric_trends": ("agent", "check", "metric", "grain", "start"),
    "node_stats": ("node", "hour"),
    "noise": ("check", "month"),
    "request_stats": ("service", "grain", "start"),
    "sessions": ("identity", "role", "broker", "id"),
    "task_stats": ("method", "grain", "start"),
    "tasks": ("ref", "method", "submitted", "ended"),
    "timeline": ("subject_kind", "subject", "from"),
}


class Difference(NamedTuple):
    """What two answers for one table do not share."""

    table: str
    rows: int
    theirs: int
    only_ours: int
    only_theirs: int
    columns: dict[str, int]
    """By column: rows of both whose values differ."""

    @property
    def none(self) -> bool:
        """True if they are equal."""
        return not (self.only_ours or self.only_theirs or self.columns)


def compare(warehouse: Path, out: Path, table: str) -> Difference:
    """A warehouse's table beside the yardstick's."""
    return _compared(reading.open_arrow(warehouse, table), out, table)


def compare_folder(files: Sequence[Path], out: Path, table: str) -> Difference:
    """The same, for a table that is in files of its own."""
    return _compared(pa.concat_tables([pq.read_table(file) for file in files], promote_options="default"), out, table)


def _compared(ours: pa.Table, out: Path, table: str) -> Difference:
    """Rows by their key, then value by value."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("ours", ours)
        path = str(out / f"{table}.parquet").replace("'", "''")
        connection.execute(f"CREATE VIEW theirs AS FROM read_parquet('{path}')")
        on = " AND ".join(f'a."{key}" IS NOT DISTINCT FROM b."{key}"' for key in KEYS[table])
        asked = {name: _differs(ours.schema.field(name), table) for name in ours.column_names if name != PART}
        columns = ", ".join(
            f'count(*) FILTER (a.found AND b.found AND {sql}) AS "{name}"' for name, sql in asked.items()
        )
        found = connection.execute(
            "SELECT count(a.found), count(b.found), count_if(b.found IS NULL), count_if(a.found IS NULL),"
            f" {columns} FROM (SELECT *, true AS found FROM ours) a"
            f" FULL JOIN (SELECT *, true AS found FROM theirs) b ON {on}"
        ).fetchone()
    assert found is not None
    others = {name: count for name, count in zip(asked, found[4:], strict=True) if count}
    rows, theirs, only_ours, only_theirs = found[:4]
    return Difference(table, rows, theirs, only_ours, only_theirs, others)


def _differs(field: pa.Field, table: str) -> str:
    ours, theirs = f'a."{field.name}"', f'b."{field.name}"'
    if pa.types.is_floating(field.type):
        near = LOOSE.get(table, NEAR)
        apart = f"abs({ours} - {theirs}) > {near} * greatest(abs({ours}), abs({theirs}), 1e-9)"
        return f"(({ours} IS NULL) <> ({theirs} IS NULL) OR coalesce({apart}, false))"
    if pa.types.is_timestamp(field.type) and table == "forecasts":
        return f"(({ours} IS NULL) <> ({theirs} IS NULL) OR coalesce(abs(epoch({ours}) - epoch({theirs})) > 60, false))"
    if pa.types.is_map(field.type):
        ours, theirs = (f"list_sort(map_entries({side}))" for side in (ours, theirs))
    return f"{ours} IS DISTINCT FROM {theirs}"


def main() -> None:
    """One line for each table."""
    warehouse, out = (Path(word) for word in sys.argv[1:3])
    equal = True
    for table in sys.argv[3:] or TABLES:
        found = compare(warehouse, out, table)
        equal = equal and found.none
        verdict = (
            "equal" if found.none else f"only ours {found.only_ours}, only theirs {found.only_theirs}, {found.columns}"
        )
        print(f"{table:14} {found.rows:9,} {found.theirs:9,}  {verdict}")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
