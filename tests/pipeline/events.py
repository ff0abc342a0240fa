"""Events from few words, as frames: what tests of aggregations feed them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from scale0.pipeline.schemas import EVENTS, PART, fields
from scale0.pipeline.time_ranges import to_time

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


def with_part(schema: StructType) -> StructType:
    """The columns of a data set, and `part`."""
    return fields(*((field.name, field.dataType) for field in schema), (PART, "int"))


def frame(spark: SparkSession, events: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> DataFrame:
    rows = spark.createDataFrame([tuple(row[name] for name in EVENTS.fieldNames()) for row in numbered(events)], EVENTS)
    return rows.select(*columns) if columns else rows


def written(pieces: Iterable[tuple[int, int, str]]) -> str:
    """Pieces of a timeline (from, to, what) as text, in seconds from START; pieces that go on are one.

    "0 up 1000 down 1300" is up until 1000, then down until 1300; after a gap the seconds stand beside each other.
    """
    words: list[str] = []
    for begin, end, what in pieces:
        first, last = (f"{(us - START_US) / 1e6:.12g}" for us in (begin, end))
        if words[-1:] != [first]:
            words.append(first)
        elif words[-2] == what:
            words.pop()
            words.append(last)
            continue
        words += [what, last]
    return " ".join(words)
