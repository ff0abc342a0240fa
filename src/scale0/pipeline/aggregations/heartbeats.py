"""Heartbeats by hour (`beats`), from `client.seen`: the longest gap and the number of heartbeats of every client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US, part_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from scale0.pipeline.aggregation import Parameters
    from scale0.pipeline.time_ranges import TimeRange

KIND: Final = "client.seen"

MAX_GAP_SECONDS: Final = 1e9
"""Thirty years: a longer gap is not a measurement."""

BEATS: Final = DataSet(
    name="beats",
    table="",
    period="hour",
    schema=fields(("identity", "string"), ("gap_seconds", "double"), ("heartbeats", "bigint")),
    key="identity",
)
"""`gap_seconds` is null if no event of the hour had a gap."""


class HeartbeatAggregation:
    name: Final = "beats"
    reads: Final = ("events",)
    kinds: Final = frozenset({KIND})
    columns: Final = ("at", "kind", "identity", "code", "seconds")
    key: Final = "identity"
    data_sets: Final = (BEATS,)
    state: Final = None

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        seen = rows["events"].where((f.col("kind") == KIND) & f.col("identity").isNotNull())
        gap = f.when(f.col("seconds").between(0.0, MAX_GAP_SECONDS), f.col("seconds"))
        hours = (
            seen.select("identity", part_column(f.unix_micros("at"), HOUR_US).alias(PART), gap.alias("gap"), "code")
            .groupBy("identity", PART)
            .agg(f.max("gap").alias("gap_seconds"), f.sum(f.greatest("code", f.lit(0))).alias("heartbeats"))
        )
        return {
            BEATS.name: hours.select(
                "identity", "gap_seconds", f.coalesce("heartbeats", f.lit(0)).alias("heartbeats"), PART
            )
        }
