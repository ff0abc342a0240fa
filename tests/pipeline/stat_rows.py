"""Rows of statistics, made comparable: times with their zone, histograms as lists, values of buckets about equal."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from scale0.pipeline.schemas import DataSet

Row = dict[str, Any]


def collected(frame: DataFrame, data_set: DataSet) -> list[Row]:
    """The rows of a slab, in the order of their keys."""
    rows = frame.select(*data_set.schema.fieldNames(), "part").collect()
    return ordered({name: _plain(value) for name, value in row.asDict().items()} for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    if isinstance(value, list):
        return [tuple(each) for each in value]
    return value


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row.get(name)) for name in ("method", "service", "node", "start", "part")])


def same(found: list[Row], wanted: Iterable[Row]) -> bool:
    """Equal rows; doubles but for their last bits, because Spark's exp and C's are not the same."""
    expected = ordered(wanted)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == {
            name: pytest.approx(value, rel=1e-12) if isinstance(value, float) and "_max" not in name else value
            for name, value in theirs.items()
        }
    return True
