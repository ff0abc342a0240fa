"""Boundaries of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.aggregations.presence_boundaries import clipped, listed, shaped
from scale0.pipeline.aggregations.presence_sources import Sight
from scale0.pipeline.tables import BROKER, DOWN, UNOBSERVED, UP, event_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STARTED: Final = "broker.started"
STOPPED: Final = "broker.stopped"
PEER_JOINED: Final = "peer.joined"
PEER_LOST: Final = "peer.lost"
KINDS: Final = (STARTED, STOPPED, PEER_JOINED, PEER_LOST)

WATCHING: Final = "watching"
SILENT: Final = "silent"
"""Nothing is known about the gap yet."""
PEER_SAYS: Final = "peer_lost"
_STOPPED: Final = "stopped"
_RESTARTED: Final = "restarted"
_ASLEEP: Final = "asleep"
"""It was seen again in the same boot, and had recorded nothing."""
_HOLE: Final = "hole"


def stops(events: DataFrame) -> DataFrame:
    return events.where(f.col("kind") == STOPPED).select("source", "boot", "seq")


def of_gaps(links: DataFrame, seen: Sight) -> DataFrame:
    """From the chain of liveness samples: where a gap begins, is resolved, and ends."""
    heard, following = f.col("heard_us"), f.col("next")
    unheard = f.lit(seen.known_us) - heard > seen.silence_us
    parted = following["begins"] | following["hole"] | (following["first_us"] - heard > seen.silence_us)
    gap = f.when(following.isNull(), unheard | f.col("stopped").isNotNull()).otherwise(parted)
    # The gap between two boots of the previous state is over.
    lasts = following.isNull() | (following["first_us"] >= seen.stretch.from_us)
    rows = links.where(gap & lasts & (following.isNull() | (following["first_us"] > heard)))
    ends = following.isNotNull()
    return listed(
        rows,
        f.when(~ends, _unsettled(seen)),
        f.when(ends, _settled(seen)),
        f.when(ends, _again()),
        stretch=seen.stretch,
    )


def _watch(state: Column, reason: Column) -> Column:
    return f.struct(state.alias("class"), reason.alias("reason"), f.col("heard_us"))


def _who(boot: str = "boot", seq: str = "seq") -> dict[str, Column]:
    source = f.col("source")
    return {"subject_kind": f.lit(BROKER), "subject": source, "source": source, "boot": f.col(boot), "seq": f.col(seq)}


def _unsettled(seen: Sight) -> Column:
    said = f.col("stopped").isNotNull()
    watch = _watch(
        f.when(said, f.lit(DOWN)).otherwise(f.lit(UNOBSERVED)), f.when(said, f.lit(_STOPPED)).otherwise(f.lit(SILENT))
    )
    at = clipped(f.col("heard_us"), seen.stretch)
    return shaped(**_who(), at_us=at, rank=f.lit(1), watch=watch, end_id=event_id())


def _settled(seen: Sight) -> Column:
    said, hole = f.col("stopped").isNotNull(), f.col("next.hole")
    reason = (
        f.when(hole, f.lit(_HOLE))
        .when(said, f.lit(_STOPPED))
        .when(f.col("next.begins"), f.lit(_RESTARTED))
        .otherwise(f.lit(_ASLEEP))
    )
    watch = _watch(f.when(hole, f.lit(UNOBSERVED)).otherwise(f.lit(DOWN)), reason)
    proof = f.when(said & ~hole, event_id()).otherwise(event_id("source", f.col("next.boot"), f.col("next.first_seq")))
    return shaped(**_who(), at_us=clipped(f.col("heard_us"), seen.stretch), rank=f.lit(2), watch=watch, end_id=proof)


def _again() -> Column:
    watch = _watch(f.lit(UP), f.lit(WATCHING))
    proof = event_id("source", f.col("next.boot"), f.col("next.first_seq"))
    return shaped(**_who("next.boot", "next.first_seq"), at_us=f.col("next.first_us"), watch=watch, start_id=proof)


def of_said(events: DataFrame, seen: Sight) -> DataFrame:
    """From events of brokers about themselves and their peers. A broker that started is no longer lost."""
    kind = f.col("kind")
    rows = events.where(kind.isin(STARTED, PEER_JOINED, PEER_LOST)).withColumn("at_us", f.unix_micros("at"))
    who = {name: f.col(name) for name in ("source", "boot", "seq", "at_us")} | {"subject_kind": f.lit(BROKER)}
    lost = f.struct((kind == PEER_LOST).alias("lost"), f.col("at_us").alias("us"), event_id().alias("id"))
    started = shaped(**who, subject=f.col("source"), known=f.lit(True), start_id=event_id(), peer=lost)
    peer = shaped(**who, subject=f.col("identity"), peer=lost)
    is_peer = (kind != STARTED) & f.col("identity").isNotNull()
    return listed(rows, f.when(kind == STARTED, started), f.when(is_peer, peer), stretch=seen.stretch)
