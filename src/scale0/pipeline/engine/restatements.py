"""Restatements: changes to hours that were already complete.

A part that ended an hour or more before the old horizon never changes without a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scale0.pipeline.schemas import DataSet
from scale0.pipeline.time_ranges import DAY_HOURS, HOUR_US, Period, days_of_month, to_time
from scale0.pipeline.warehouse.records import RESTATEMENTS, FileEntry, Sum
from scale0.pipeline.warehouse.types import arrow_type

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.staging import StagingDirectory

SETTLED_US: Final = HOUR_US
"""How long before the horizon a part must have ended to count as complete."""

COLUMNS: Final = {
    "run": "bigint",
    "table": "string",
    "part": "timestamp",
    "period": "string",
    "rows_before": "bigint",
    "rows_after": "bigint",
    "hash_before": "bigint",
    "hash_after": "bigint",
    "cause": "string",
}
"""Types by Spark's names, as the manifest records them."""
SCHEMA: Final = pa.schema([(name, arrow_type(type_name)) for name, type_name in COLUMNS.items()])

NOTHING: Final[Sum] = (0, 0)
"""Sums of a part without rows."""


class RestatedValue(NamedTuple):
    data_set: DataSet
    part: int
    before: Sum
    after: Sum


def part_bounds_us(period: Period, part: int) -> tuple[int, int]:
    match period:
        case "hour":
            return part * HOUR_US, (part + 1) * HOUR_US
        case "day":
            return part * DAY_HOURS * HOUR_US, (part + 1) * DAY_HOURS * HOUR_US
        case _:
            days = days_of_month(part)
            return days.start * DAY_HOURS * HOUR_US, days.stop * DAY_HOURS * HOUR_US


def restated_changes(
    changes: Mapping[tuple[str, int], RestatedValue], old_horizon_us: int | None
) -> list[RestatedValue]:
    """Changes of complete parts, ordered by table and part."""
    if old_horizon_us is None:
        return []
    out = []
    for key in sorted(changes):
        change = changes[key]
        if change.data_set.period == "open" or not change.data_set.table or change.before == change.after:
            continue
        if part_bounds_us(change.data_set.period, change.part)[1] <= old_horizon_us - SETTLED_US:
            out.append(change)
    return out


def write_restatements(staging: StagingDirectory, changes: list[RestatedValue], cause: str) -> FileEntry:
    rows: list[dict[str, Any]] = [
        {
            "run": staging.number,
            "table": change.data_set.name,
            "part": to_time(part_bounds_us(change.data_set.period, change.part)[0]),
            "period": change.data_set.period,
            "rows_before": change.before[0],
            "rows_after": change.after[0],
            "hash_before": change.before[1],
            "hash_after": change.after[1],
            "cause": cause,
        }
        for change in changes
    ]
    path = staging.new_file(RESTATEMENTS, RESTATEMENTS)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd", write_page_checksum=True)
    return staging.register_whole(path)
