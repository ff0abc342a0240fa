"""Node statistics by hour: work done, and slots offered.

There is a row for every node that ended an attempt in the hour, or had a live session with slots; idle nodes have
zeros; `slots` is null if no session is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.aggregations.task_stats import NODE_WORK
from scale0.pipeline.histograms import seconds_of
from scale0.pipeline.schemas import PART, DataSet, fields
from scale0.pipeline.time_ranges import HOUR_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import DataFrame

    from scale0.pipeline.aggregation import Parameters

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


class NodeStats:
    name: Final = "node_stats"
    data_sets: Final = (NODE_STATS,)
    inputs: Final = (NODE_WORK.name, NODE_SLOTS)

    def touched(self, changed: Mapping[str, Set[int]], horizon_us: int) -> Set[int]:
        return frozenset(part for name in self.inputs for part in changed.get(name, ()))

    def wants(self, parts: Set[int]) -> Mapping[str, Set[int]]:
        return dict.fromkeys(self.inputs, parts)

    def compute(
        self, inputs: Mapping[str, DataFrame], parts: Set[int], horizon_us: int, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        del parts, horizon_us, parameters
        return {NODE_STATS.name: node_stats(inputs[NODE_WORK.name], inputs[NODE_SLOTS])}


def node_stats(work: DataFrame, slots: DataFrame) -> DataFrame:
    """Frontends and agents offer no slots: they are not nodes."""
    offered = slots.filter(f.col("slots") > 0).select("node", PART, "slots")
    rows = work.join(offered, ["node", PART], how="full")
    return rows.select(
        "node",
        f.timestamp_micros(f.col(PART).cast("bigint") * HOUR_US).alias("hour"),
        f.coalesce("attempts", f.lit(0)).cast("bigint").alias("attempts"),
        seconds_of(f.coalesce("busy_us", f.lit(0))).alias("busy_seconds"),
        f.col("slots").cast("bigint").alias("slots"),
        f.coalesce("lost", f.lit(0)).cast("bigint").alias("lost"),
        PART,
    )
