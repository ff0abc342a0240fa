"""The one schema: the columns are those that segments and Spark are promised, in their order."""

from __future__ import annotations

import msgspec

from scale0.history.events.columns import (
    COLUMN_NAMES,
    COLUMNS,
    METRIC_FIELDS,
    SCHEMA_VERSION,
    EventMetric,
    EventRow,
    clip_int,
)

PROMISED = [
    ("source", "string"),
    ("boot", "bigint"),
    ("seq", "bigint"),
    ("time", "timestamp_us"),
    ("at", "timestamp_us"),
    ("kind", "string"),
    ("identity", "string"),
    ("service", "string"),
    ("ref", "string"),
    ("attempt", "int"),
    ("code", "int"),
    ("state", "string"),
    ("seconds", "double"),
    ("waited", "double"),
    ("histogram", "histogram"),
    ("bytes", "bigint"),
    ("metrics", "metrics"),
    ("data", "string"),
]


# Promise: JOUR-3
def test_the_columns_are_the_promised_ones_in_order():
    assert [(column.name, column.type) for column in COLUMNS] == PROMISED
    assert SCHEMA_VERSION == 1


def test_every_column_says_what_it_means():
    assert all(column.meaning for column in COLUMNS)


def test_an_event_fills_every_column_but_those_of_the_journal():
    own = {field.name for field in msgspec.structs.fields(EventRow)}
    assert own == set(COLUMN_NAMES) - {"source", "boot", "seq", "time"}


def test_a_metric_has_the_promised_fields():
    assert tuple(field.name for field in msgspec.structs.fields(EventMetric)) == tuple(
        name for name, _ in METRIC_FIELDS
    )


def test_a_number_beyond_32_bits_becomes_the_largest_that_fits():
    assert [clip_int(n) for n in (2**64, 2**31, 5, -(2**40))] == [2**31 - 1, 2**31 - 1, 5, -(2**31)]
