"""`audit`: what every source recorded in a day, and what was lost, rewound, duplicated or rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregation import PeriodMart
from scale0.pipeline.schemas import PART, DataSet, day_of_hour, fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

HOURS: Final = "source_hours"

AUDIT_DAYS: Final = DataSet(
    "audit",
    "audit",
    "day",
    fields(
        ("source", "string"),
        ("day", "date"),
        ("events", "bigint"),
        ("first_seq", "bigint"),
        ("last_seq", "bigint"),
        ("holes", "bigint"),
        ("rewinds", "bigint"),
        ("duplicates", "bigint"),
        ("rejected", "bigint"),
    ),
)


def audit_days(inputs: Mapping[str, DataFrame], _horizon_us: int) -> DataFrame:
    rows = inputs[HOURS].withColumn(PART, day_of_hour())
    sums = (f.sum(name).alias(name) for name in ("events", "holes", "rewinds", "duplicates", "rejected"))
    days = rows.groupBy("source", PART).agg(
        f.min("first_seq").alias("first_seq"), f.max("last_seq").alias("last_seq"), *sums
    )
    return days.withColumn("day", f.date_from_unix_date(PART)).select(PART, *AUDIT_DAYS.schema.fieldNames())


AUDIT: Final = PeriodMart("audit", AUDIT_DAYS, (HOURS,), audit_days)
