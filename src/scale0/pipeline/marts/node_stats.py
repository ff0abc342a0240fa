"""Node statistics by hour: work done, and slots offered.

There is a row for every node that ended an attempt in the hour, or had a live session with slots; idle nodes have
zeros; `slots` is null if no session is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.aggregation import PeriodMart
from scale0.pipeline.aggregations.task_stats import NODE_WORK
from scale0.pipeline.histograms import seconds_of
from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

NODE_SLOTS: Final = "node_slots"
"""By node, the most slots that its live sessions offered in the hour."""

NODE_STATS: Final = DataSet(
    "node_stats",
    "node_stats",
    "hour",
    fields(
        ("node", t.StringType()),
        ("hour", t.TimestampType()),
        ("attempts", t.LongType()),
        ("busy_seconds", t.DoubleType()),
        ("slots", t.LongType()),
        ("lost", t.LongType()),
    ),
)


def node_stats(inputs: Mapping[str, DataFrame], _horizon_us: int) -> DataFrame:
    """Frontends and agents offer no slots: they are not nodes."""
    offered = inputs[NODE_SLOTS].filter(f.col("slots") > 0).select("node", PART, "slots")
    rows = inputs[NODE_WORK.name].join(offered, ["node", PART], how="full")
    return rows.select(
        "node",
        f.timestamp_micros(f.col(PART).cast("bigint") * HOUR_US).alias("hour"),
        f.coalesce("attempts", f.lit(0)).cast("bigint").alias("attempts"),
        seconds_of(f.coalesce("busy_us", f.lit(0))).alias("busy_seconds"),
        f.col("slots").cast("bigint").alias("slots"),
        f.coalesce("lost", f.lit(0)).cast("bigint").alias("lost"),
        PART,
    )


NODE_HOURS: Final = PeriodMart("node_stats", NODE_STATS, (NODE_WORK.name, NODE_SLOTS), node_stats)
