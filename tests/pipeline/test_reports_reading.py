"""Reports read no more than they need: of each table the grains that make up the period, and no library but DuckDB.

Promise: PIPE-9
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scale0.pipeline.reports.catalog import make
from scale0.pipeline.reports.period import period_of
from scale0.pipeline.reports.query import ReportQuery, ReportReader
from scale0.pipeline.time_ranges import DAY_US, HOUR_US
from scale0.pipeline.warehouse.selection import select, span_of
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline import reports_made as made
from tests.pipeline.reports_made import HORIZON_US, START_US


def test_a_period_is_read_from_its_own_grains_and_no_other_file_is_opened(reports_root):
    warehouse = Warehouse(reports_root)
    manifest = warehouse.latest()
    assert manifest is not None
    period = period_of(START_US + HOUR_US, START_US + 9 * DAY_US + HOUR_US, 0, START_US, HORIZON_US)
    reader = ReportReader(warehouse, manifest, ReportQuery(from_us=period.from_us, to_us=period.to_us), ("task_stats",))
    for table in ("task_stats", "availability", "request_stats"):
        found = reader.covered(f"SELECT grain, epoch_us(start) FROM {table} GROUP BY ALL ORDER BY ALL", table)
        hours = [("hour", START_US + hour * HOUR_US) for hour in range(1, 24)]
        days = [("day", START_US + day * DAY_US) for day in range(1, 9)]
        assert found == [*days, *hours, ("hour", START_US + 9 * DAY_US)]
        files = select(warehouse, manifest, table, span_of(None, None), period.cover).files
        assert {Path(path).parent.name for one in files for path in one.paths} == {f"{table}.hour", f"{table}.day"}
    reader.close()


def test_a_reader_distinguishes_the_whole_table_from_the_cover_of_the_period(reports_root):
    warehouse = Warehouse(reports_root)
    manifest = warehouse.latest()
    assert manifest is not None
    reader = ReportReader(warehouse, manifest, ReportQuery(last_us=5 * DAY_US), ())
    hours = "SELECT count(DISTINCT start) FROM availability WHERE grain = 'hour'"
    before_the_first_day = -reader.period.from_us % DAY_US // HOUR_US
    whole = -(-(reader.period.to_us - reader.period.from_us) // HOUR_US)
    for _ in range(2):
        assert reader.covered(hours, "availability") == [(before_the_first_day,)]
        assert reader.rows(hours, ("availability",)) == [(whole,)]
    reader.close()


@pytest.mark.processes
def test_a_report_waits_neither_for_pyarrow_nor_for_spark(reports_root):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from scale0.pipeline.reports.catalog import MAKERS, make\n"
        "from scale0.pipeline.reports.query import ReportQuery\n"
        "print(len(make(tuple(MAKERS), Path(sys.argv[1]), ReportQuery())))\n"
        "print(sorted({'numpy', 'pandas', 'pyarrow', 'pyspark'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program, str(reports_root)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "7\n[]\n"


def test_sums_of_seconds_are_exact_and_so_the_same_in_every_run(tmp_path):
    data_sets = made.data_sets()
    data_sets["node_stats"] = [(hour, {**row, "busy_seconds": 0.1}) for hour, row in data_sets["node_stats"]]
    made.write(tmp_path, data_sets)
    (report,) = make(("capacity",), tmp_path, ReportQuery())
    nodes = next(table for table in report.tables if table.name == "nodes")
    names = [column.name for column in nodes.columns]
    rows = {node: sum(row["node"] == node for _, row in data_sets["node_stats"]) for node in ("node-1", "node-2")}
    found = {row[0]: row[names.index("busy_seconds")] for row in nodes.rows}
    assert found == {node: hours / 10 for node, hours in rows.items() if hours}
