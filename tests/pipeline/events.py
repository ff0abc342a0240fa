"""Events from few words, as frames: what tests of families feed them."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

from scale0.pipeline.schemas import EVENTS
from scale0.pipeline.time_ranges import to_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

START = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
"""A Monday, at midnight: seconds in tests count from here."""
START_US = int(START.timestamp()) * 1_000_000
START_HOUR = START_US // 3_600_000_000


def event(second: float, kind: str, *, seq: int = 0, time: float | None = None, **columns: Any) -> dict[str, Any]:
    """One event, `second` seconds after START; `data` may be a dict. `frame` numbers those whose seq is 0."""
    at_us = START_US + round(second * 1_000_000)
    time_us = at_us if time is None else START_US + round(time * 1_000_000)
    row: dict[str, Any] = dict.fromkeys(EVENTS.fieldNames())
    row |= {"source": "broker-1", "boot": START_US, "seq": seq, "kind": kind, **columns}
    row |= {"at": to_time(at_us), "time": to_time(time_us)}
    if isinstance(row["data"], dict):
        row["data"] = json.dumps(row["data"], sort_keys=True)
    return row


def numbered(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those without a seq get one, by source, in the order of their times."""
    rows = [dict(row) for row in events]
    counts: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["time"]):
        if not row["seq"]:
            counts[row["source"]] = counts.get(row["source"], 0) + 1
            row["seq"] = counts[row["source"]]
    return rows


def frame(spark: SparkSession, events: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> DataFrame:
    """The events as a family gets them."""
    rows = spark.createDataFrame([tuple(row[name] for name in EVENTS.fieldNames()) for row in numbered(events)], EVENTS)
    return rows.select(*columns) if columns else rows
