"""Classes of subjects."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.pipeline.aggregations.presence_brokers import PEER_SAYS, SILENT, WATCHING
from scale0.pipeline.aggregations.presence_sessions import BROKER_LOST
from scale0.pipeline.aggregations.presence_state import SUBJECT, kept, starts_within
from scale0.pipeline.data_file import PART
from scale0.pipeline.tables import ABSENT, BROKER, DOWN, SERVICE, UNOBSERVED, UP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.time_ranges import TimeRange

SESSION: Final = "session"
OFFERED: Final = "offered"
NO_BACKEND: Final = "no_backend"
AWAY: Final = "away"
"""Absent for longer than this hour shows: never seen, or gone in an earlier one."""
LEFT: Final = "left"

_WHO: Final = ("subject_kind", "subject")
_ORDER: Final = ("at_us", "source", "boot", "seq", "rank", "end_id")

STATE: Final = (
    *_WHO,
    "at_us",
    "next_us",
    "class",
    "reason",
    "evidence",
    "down",
    "down_evidence",
    "live",
    "slots",
    "end",
    "ended_us",
    "peer",
)
"""[at_us, next_us) of a subject; next_us null: to the end of the range. `down`: the number of downtimes over it."""


def states(boundaries: list[DataFrame], stretch: TimeRange, absent_us: int) -> DataFrame:
    """One row per subject and instant at which anything changed."""
    rows = reduce(lambda one, other: one.unionByName(other), boundaries)
    order, instants = Window.partitionBy(*_WHO).orderBy(*_ORDER), Window.partitionBy(*_WHO).orderBy("at_us")
    so_far = order.rowsBetween(Window.unboundedPreceding, 0)
    totals = {name: f.sum(name).over(so_far) for name in ("live", "doubt", "down", "slots")}
    newest = {
        name: f.last(name, ignorenulls=True).over(so_far)
        for name in ("start_id", "end_id", "down_id", "end", "watch", "peer", "known", "carried")
    }
    largest = {name: f.max(name).over(so_far) for name in ("over", "ended_us")}
    then = f.lead("at_us").over(order)
    rows = rows.repartition(*_WHO).withColumns(totals | newest | largest | {"next_us": then})
    rows = rows.where(f.col("next_us").isNull() | (f.col("next_us") > f.col("at_us")))
    rows = rows.withColumn("is", _stands(absent_us))
    before = f.lag(f.struct("is.class", "is.reason")).over(instants)
    fresh = before.isNull() | (before != f.struct("is.class", "is.reason"))
    covered = (f.col("down") > 0) & (f.coalesce(f.lag("down").over(instants), f.lit(0)) == 0)
    at_first = f.col("at_us") < stretch.from_us
    why = f.when(at_first, f.col("carried.evidence")).otherwise(f.col("is.evidence"))
    planned = f.when(at_first, f.col("carried.down_evidence")).otherwise(f.col("down_id"))
    rows = rows.withColumns({"why": f.when(fresh, f.struct(why)), "planned": f.when(covered, f.struct(planned))})
    until_now = instants.rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumns(
        {name: f.last(name, ignorenulls=True).over(until_now)["col1"] for name in ("why", "planned")}
    )
    return rows.select(
        *_WHO,
        "at_us",
        "next_us",
        "is.class",
        "is.reason",
        f.col("why").alias("evidence"),
        "down",
        f.when(f.col("down") > 0, f.col("planned")).alias("down_evidence"),
        "live",
        "slots",
        "end",
        "ended_us",
        "peer",
    ).select(*STATE)


def _is(state: str, reason: str | Column, evidence: Column) -> Column:
    why = f.lit(reason) if isinstance(reason, str) else reason
    return f.struct(f.lit(state).alias("class"), why.alias("reason"), evidence.alias("evidence"))


def _stands(absent_us: int) -> Column:
    """The class, the reason and the evidence of an instant."""
    kind = f.col("subject_kind")
    broker, service = _broker(), _service(absent_us)
    return f.when(kind == BROKER, broker).when(kind == SERVICE, service).otherwise(_client())


def _client() -> Column:
    """Up with any session; otherwise as its latest one ended, and as that was resolved."""
    end, over = f.col("end"), f.col("over")
    same = f.coalesce(_key(end) == _key(over), f.lit(False))
    last = f.when(same, over).otherwise(end)
    away = _is(ABSENT, AWAY, f.lit(None).cast("string"))
    return (
        f.when(f.col("live") > 0, _is(UP, SESSION, f.col("start_id")))
        .when(end.isNull() | end["reason"].isNull(), away)
        .when(last["reason"] == LEFT, _is(ABSENT, LEFT, last["id"]))
        .when(last["reason"] == BROKER_LOST, _is(UNOBSERVED, BROKER_LOST, last["id"]))
        .otherwise(_is(DOWN, last["reason"], last["id"]))
    )


def _key(end: Column) -> Column:
    return f.struct(end["us"], end["source"], end["boot"], end["seq"])


def _service(absent_us: int) -> Column:
    """Up while offered; otherwise in doubt while any session that offered it is; absent after a while, and before its
    first.
    """
    nothing = f.lit(None).cast("string")
    expired = f.col("at_us") >= f.col("ended_us") + absent_us
    return (
        f.when(f.col("live") > 0, _is(UP, OFFERED, f.col("start_id")))
        .when(f.col("ended_us").isNull() | expired, _is(ABSENT, AWAY, nothing))
        .when(f.col("doubt") > 0, _is(UNOBSERVED, BROKER_LOST, f.col("end_id")))
        .otherwise(_is(DOWN, NO_BACKEND, f.col("end_id")))
    )


def _broker() -> Column:
    """From its own gaps; a peer's report counts where nothing else is known, and only for this gap."""
    watch, peer = f.col("watch"), f.col("peer")
    missed = f.coalesce(peer["lost"] & (peer["us"] >= watch["heard_us"]), f.lit(False))
    watching = watch.isNull() | (watch["class"] == UP)
    return (
        f.when(f.col("known").isNull(), _is(ABSENT, AWAY, f.lit(None).cast("string")))
        .when(watching, _is(UP, WATCHING, f.col("start_id")))
        .when((watch["reason"] == SILENT) & missed, _is(DOWN, PEER_SAYS, peer["id"]))
        .when(watch["class"] == DOWN, _is(DOWN, watch["reason"], f.col("end_id")))
        .otherwise(_is(UNOBSERVED, watch["reason"], f.col("end_id")))
    )


def states_kept(rows: DataFrame, stretch: TimeRange) -> DataFrame:
    """The state of subjects that are not absent, and of absent ones in a downtime."""
    part = f.explode(starts_within(stretch, f.col("at_us"), f.col("next_us"))).alias(PART)
    here_now, idle = f.col("class") != ABSENT, f.col("live") == 0
    is_client = ~f.col("subject_kind").isin(BROKER, SERVICE)
    ended = f.when(idle & is_client & here_now, f.col("end"))
    last_us = f.when(is_client, ended["us"]).otherwise(f.when(idle, f.col("ended_us")))
    lost = f.col("peer.lost")
    return kept(
        rows.where(here_now | (f.col("down") > 0)).select(
            part,
            "subject_kind",
            f.col("subject").alias("identity"),
            ended["source"].alias("source"),
            ended["boot"].alias("boot"),
            ended["seq"].alias("seq"),
            last_us.alias("last_us"),
            "class",
            f.when(here_now, f.col("reason")).otherwise(f.lit(AWAY)).alias("reason"),
            f.when(here_now, f.col("evidence")).alias("evidence"),
            "down_evidence",
            f.when(lost, f.col("peer.us")).alias("peer_us"),
            f.when(lost, f.col("peer.id")).alias("peer"),
        ),
        SUBJECT,
    )
