"""Client events."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.presence_state import DEATH, DOUBT, LIVE, sort_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FRONTEND: Final = "frontend"
BACKEND: Final = "backend"
AGENT: Final = "agent"

JOINED: Final = "client.joined"
CHANGED: Final = "client.changed"
LEFT: Final = "client.left"
LOST: Final = "client.lost"
REPLACED: Final = "client.replaced"
SEEN: Final = "client.seen"
SESSION_KINDS: Final = (JOINED, CHANGED, LEFT, LOST, REPLACED)
STILLBORN: Final = "stillborn"
"""A join that was over when it began: the client's last sign of life, as recorded later, is not after it."""

OFFER: Final = "struct<role:string,services:array<string>,slots:bigint>"
SEEN_ROLES: Final = (BACKEND, FRONTEND, AGENT)
"""A summary of heartbeats has no role: it applies to every role that is known."""

_KEY: Final = ("identity", "role", "source", "boot")
SAID: Final = (
    *_KEY,
    "at_us",
    "seq",
    "kind",
    "services",
    "slots",
    "mark",
    "first_us",
    "last_us",
    "id",
    "over_us",
    "spent",
)
"""`mark`: the seq of a loss, or of an end in the previous state. For a session of the previous state `first_us`,
`last_us` and `id` are its join, its end and its id; `over_us`: since when its source is seen again; `spent`: it
cannot continue.
"""


def said(events: DataFrame, carry: DataFrame, boots: DataFrame, from_us: int) -> DataFrame:
    """Everything known about clients in a range, ordered by (at_us, seq) with the previous state first."""
    offer = f.from_json("data", OFFER)
    clients = (
        events.where(f.col("kind").isin(*SESSION_KINDS) & f.col("identity").isNotNull())
        .withColumn("offer", offer)
        .select(
            "identity",
            f.coalesce("offer.role", f.lit("")).alias("role"),
            "source",
            "boot",
            f.unix_micros("at").alias("at_us"),
            "seq",
            "kind",
            f.when(f.col("kind").isin(JOINED, CHANGED), _services()).alias("services"),
            f.when(f.col("kind").isin(JOINED, CHANGED), f.coalesce("offer.slots", f.lit(0))).alias("slots"),
            f.when(f.col("kind") == LOST, f.col("seq")).alias("mark"),
        )
    )
    parts = (clients, _heartbeats(events, boots), _carried(carry, from_us))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts).select(*SAID)


def _services() -> Column:
    offered = f.array_compact(f.coalesce("offer.services", f.array().cast("array<string>")))
    return f.array_sort(f.array_distinct(offered))


def _heartbeats(events: DataFrame, boots: DataFrame) -> DataFrame:
    """The first heartbeat of every client after every gap of its boot."""
    opened = f.broadcast(boots.where(f.size("openings") > 0).select("source", "boot", "openings"))
    seen = events.where((f.col("kind") == SEEN) & f.col("identity").isNotNull())
    seen = seen.select("identity", "source", "boot", "seq", f.unix_micros("at").alias("at_us"))
    behind = f.array_max(f.filter("openings", lambda opened_us: opened_us <= f.col("at_us")))
    seen = seen.join(opened, on=["source", "boot"], how="inner").withColumn("opened_us", behind)
    first = (
        seen.where(f.col("opened_us").isNotNull())
        .groupBy("identity", "source", "boot", "opened_us")
        .agg(f.min(f.struct("at_us", "seq")).alias("first"))
    )
    roles = f.explode(f.array(*(f.lit(role) for role in SEEN_ROLES))).alias("role")
    return first.select("identity", "source", "boot", "first.*", f.lit(SEEN).alias("kind"), roles)


def _carried(carry: DataFrame, from_us: int) -> DataFrame:
    columns = ("sort", *_KEY, "seq", "id", "services", "slots", "first_us", "last_us", "opened_us", "stopped")
    rows = carry.where(f.col("sort").isin(LIVE, DOUBT, DEATH)).select(*columns)
    return rows.select(
        *_KEY,
        f.lit(from_us).alias("at_us"),
        f.lit(-1).cast("bigint").alias("seq"),
        f.col("sort").alias("kind"),
        "services",
        "slots",
        f.col("seq").alias("mark"),
        "first_us",
        "last_us",
        "id",
        f.col("opened_us").alias("over_us"),
        f.col("stopped").alias("spent"),
    )


def deaths(events: DataFrame, carry: DataFrame) -> DataFrame:
    """Losses that were recorded in a later hour than they happened: key, seq, and both times."""
    new = (
        events.where((f.col("kind") == LOST) & f.col("identity").isNotNull())
        .withColumn("offer", f.from_json("data", OFFER))
        .select(
            "identity",
            f.coalesce("offer.role", f.lit("")).alias("role"),
            "source",
            "boot",
            "seq",
            f.unix_micros("at").alias("first_us"),
            f.unix_micros("time").alias("last_us"),
        )
    )
    return new.unionByName(sort_of(carry, DEATH, *_KEY, "seq", "first_us", "last_us"))
