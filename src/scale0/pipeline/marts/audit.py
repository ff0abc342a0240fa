"""`audit`: what every source recorded in a day, and what was lost, rewound, duplicated or rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import DAY_HOURS, days_of, hours_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import DataFrame

    from scale0.pipeline.aggregation import Parameters

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


class Audit(NamedTuple):
    name: str = "audit"
    data_sets: tuple[DataSet, ...] = (AUDIT_DAYS,)
    inputs: tuple[str, ...] = (HOURS,)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        return days_of(changed.get(HOURS, ()))

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        return {HOURS: hours_of(parts)}

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        day = f.call_function("div", f.col(PART), f.lit(DAY_HOURS)).cast("int")
        rows = inputs[HOURS].withColumn(PART, day)
        sums = (f.sum(name).alias(name) for name in ("events", "holes", "rewinds", "duplicates", "rejected"))
        days = rows.groupBy("source", PART).agg(
            f.min("first_seq").alias("first_seq"), f.max("last_seq").alias("last_seq"), *sums
        )
        days = days.withColumn("day", f.date_from_unix_date(PART))
        return {AUDIT_DAYS.name: days.select(PART, *AUDIT_DAYS.schema.fieldNames())}
