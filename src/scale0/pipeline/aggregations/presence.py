"""The aggregation of presence: brokers, clients, agents and services, from what sources recorded.

A step goes from evidence to classes: liveness samples show when a source was observing (`presence_sources`); that and
clients' events make sessions (`presence_sessions`); these and the brokers' own events make boundaries
(`presence_boundaries`); boundaries add up to states, and states are split at the hours.

All events of one instant count before a subject gets its class there. A run of one class and reason keeps its first
evidence, also across hours. A planned downtime overlays a class without changing it.

A subject has rows in the hours in which it is not absent for any time at all, and these rows cover such an hour
completely, up to the horizon. In other hours it has no rows: it is absent. An absence that began in an earlier hour has
the reason `away`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.pipeline.aggregations.presence_boundaries import (
    BROKER_KINDS,
    DOWNTIME_KINDS,
    PEER_REPORTED,
    SILENT,
    WATCHING,
    broker_boundaries,
    broker_stops,
    client_boundaries,
    downtime_boundaries,
    downtime_state,
    downtimes,
    gap_boundaries,
    service_boundaries,
    state_boundaries,
)
from scale0.pipeline.aggregations.presence_sessions import (
    BROKER_LOST,
    SEEN,
    SESSION_KINDS,
    SESSIONS,
    SESSIONS_OPEN,
    client_events,
    late_losses,
    session_segments,
    session_state,
    sessions,
    sessions_open,
)
from scale0.pipeline.aggregations.presence_sources import (
    SOURCE_HOURS,
    STATE,
    SUBJECT,
    GapLimits,
    boots,
    empty_state,
    sample_chain,
    source_hours,
    source_state,
    state_hours,
    state_rows,
)
from scale0.pipeline.caching import truncate_plan
from scale0.pipeline.schemas import (
    ABSENT,
    BROKER,
    CLIENT,
    DOWN,
    DOWNTIME,
    PART,
    SERVICE,
    TIMELINE,
    UNOBSERVED,
    UP,
    DataSet,
    fields,
)
from scale0.pipeline.time_ranges import DAY_US, HOUR_US, SECOND_US, TimeRange, part_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from scale0.pipeline.aggregation import Parameters

SESSION: Final = "session"
OFFERED: Final = "offered"
NO_BACKEND: Final = "no_backend"
AWAY: Final = "away"
"""Absent for longer than this hour shows: never seen, or gone in an earlier one."""
LEFT: Final = "left"

_WHO: Final = ("subject_kind", "subject")
_ORDER: Final = ("at_us", "source", "boot", "seq", "rank", "end_id")

SUBJECT_STATE: Final = (
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


def subject_states(boundaries: list[DataFrame], time_range: TimeRange, absent_us: int) -> DataFrame:
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
    rows = rows.withColumn("is", _class_at(absent_us))
    before = f.lag(f.struct("is.class", "is.reason")).over(instants)
    fresh = before.isNull() | (before != f.struct("is.class", "is.reason"))
    covered = (f.col("down") > 0) & (f.coalesce(f.lag("down").over(instants), f.lit(0)) == 0)
    at_first = f.col("at_us") < time_range.from_us
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
    ).select(*SUBJECT_STATE)


def _is(state: str, reason: str | Column, evidence: Column) -> Column:
    why = f.lit(reason) if isinstance(reason, str) else reason
    return f.struct(f.lit(state).alias("class"), why.alias("reason"), evidence.alias("evidence"))


def _class_at(absent_us: int) -> Column:
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
    missed = f.coalesce(peer["lost"] & (peer["us"] >= watch["seen_us"]), f.lit(False))
    watching = watch.isNull() | (watch["class"] == UP)
    return (
        f.when(f.col("known").isNull(), _is(ABSENT, AWAY, f.lit(None).cast("string")))
        .when(watching, _is(UP, WATCHING, f.col("start_id")))
        .when((watch["reason"] == SILENT) & missed, _is(DOWN, PEER_REPORTED, peer["id"]))
        .when(watch["class"] == DOWN, _is(DOWN, watch["reason"], f.col("end_id")))
        .otherwise(_is(UNOBSERVED, watch["reason"], f.col("end_id")))
    )


def subject_state(rows: DataFrame, time_range: TimeRange) -> DataFrame:
    """The state of subjects that are not absent, and of absent ones in a downtime."""
    part = f.explode(state_hours(time_range, f.col("at_us"), f.col("next_us"))).alias(PART)
    here_now, idle = f.col("class") != ABSENT, f.col("live") == 0
    is_client = ~f.col("subject_kind").isin(BROKER, SERVICE)
    ended = f.when(idle & is_client & here_now, f.col("end"))
    last_us = f.when(is_client, ended["us"]).otherwise(f.when(idle, f.col("ended_us")))
    lost = f.col("peer.lost")
    return state_rows(
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


PRESENCE_TIMELINE: Final = DataSet("timeline.world", "timeline", "hour", TIMELINE)
NODE_SLOTS: Final = DataSet(
    "node_slots", "", "hour", fields(("node", "string"), ("slots", "bigint"), ("live_seconds", "double"))
)
"""`slots`: the most that all sessions of a node offered at one time; `live_seconds`: how long it had any session."""


def presence_timeline(states: DataFrame, time_range: TimeRange) -> DataFrame:
    covered = (f.col("down") > 0) & (f.col("class") != ABSENT)
    shown = f.struct(
        f.when(covered, f.lit(DOWNTIME)).otherwise(f.col("class")).alias("class"),
        f.when(covered, f.lit(DOWNTIME)).otherwise(f.col("reason")).alias("reason"),
        f.when(covered, f.col("down_evidence")).otherwise(f.col("evidence")).alias("evidence"),
    )
    instants = Window.partitionBy("subject_kind", "subject").orderBy("at_us")
    been = f.max(f.col("class") != ABSENT).over(instants.rowsBetween(Window.unboundedPreceding, 0))
    rows = states.withColumn("been", been).where("been")
    rows = rows.select("subject_kind", "subject", "at_us", shown.alias("is"))
    before = f.lag("is").over(instants)
    rows = rows.withColumns({"new": before.isNull(), "before": before})
    rows = rows.where(f.col("new") | ~f.col("is").eqNullSafe(f.col("before")))
    rows = rows.withColumn("next_us", f.lead("at_us").over(instants))
    from_us = f.greatest(f.col("at_us"), f.lit(time_range.from_us))
    to_us = f.coalesce("next_us", f.lit(time_range.until_us))
    rows = rows.select(
        "subject_kind",
        "subject",
        "is.*",
        from_us.alias("from_us"),
        to_us.alias("to_us"),
        f.col("next_us").isNotNull().alias("followed"),
        (f.col("new") & (f.col("at_us") >= time_range.from_us)).alias("appears"),
    )
    pieces = f.concat(_lead_in(), f.when(f.col("class") == ABSENT, _absences()).otherwise(_hours()))
    cut = rows.select("subject_kind", "subject", f.explode(pieces).alias("p")).where("p.from_us < p.to_us")
    return cut.select(
        part_column(f.col("p.from_us"), HOUR_US).alias(PART),
        "subject_kind",
        "subject",
        f.timestamp_micros("p.from_us").alias("from"),
        f.timestamp_micros("p.to_us").alias("to"),
        "p.class",
        "p.reason",
        "p.evidence",
        f.lit(None).cast("string").alias("state"),
        f.lit(None).cast("boolean").alias("flapping"),
    )


def _piece(from_us: Column, to_us: Column, state: Column, reason: Column, evidence: Column) -> Column:
    return f.struct(
        from_us.alias("from_us"),
        to_us.alias("to_us"),
        state.alias("class"),
        reason.alias("reason"),
        evidence.alias("evidence"),
    )


def _away(from_us: Column, to_us: Column) -> Column:
    return _piece(from_us, to_us, f.lit(ABSENT), f.lit(AWAY), f.lit(None).cast("string"))


def _hour_start(us: Column) -> Column:
    return part_column(us, HOUR_US).cast("bigint") * HOUR_US


def _lead_in() -> Column:
    """A subject that appears within an hour was absent in it before."""
    from_us = f.col("from_us")
    piece = f.array(_away(_hour_start(from_us), from_us))
    return f.when(f.col("appears"), piece).otherwise(f.filter(piece, lambda _: f.lit(False)))


def _absences() -> Column:
    """In the hour in which it began, unless it began with it; and in the hour in which it ends."""
    from_us, to_us = f.col("from_us"), f.col("to_us")
    first = _hour_start(from_us)
    own = _piece(from_us, f.least(to_us, first + HOUR_US), f.col("class"), f.col("reason"), f.col("evidence"))
    back = f.col("followed") & (to_us > _hour_start(to_us))
    here = (from_us > first) | (back & (_hour_start(to_us) == first))
    later = f.when(back & (_hour_start(to_us) > first), _away(_hour_start(to_us), to_us))
    return f.array_compact(f.array(f.when(here, own), later))


def _hours() -> Column:
    from_us, to_us = f.col("from_us"), f.col("to_us")
    hours = f.sequence(part_column(from_us, HOUR_US), part_column(f.greatest(to_us - 1, from_us), HOUR_US))
    return f.transform(
        hours,
        lambda hour: _piece(
            f.greatest(from_us, hour.cast("bigint") * HOUR_US),
            f.least(to_us, (hour.cast("bigint") + 1) * HOUR_US),
            f.col("class"),
            f.col("reason"),
            f.col("evidence"),
        ),
    )


def node_slots(states: DataFrame, time_range: TimeRange) -> DataFrame:
    from_us = f.greatest(f.col("at_us"), f.lit(time_range.from_us))
    to_us = f.coalesce("next_us", f.lit(time_range.until_us))
    live = states.where((f.col("subject_kind") == CLIENT) & (f.col("live") > 0))
    rows = live.select("subject_kind", "subject", "slots", from_us.alias("from_us"), to_us.alias("to_us"))
    rows = rows.where("from_us < to_us")
    hours = f.sequence(part_column(f.col("from_us"), HOUR_US), part_column(f.col("to_us") - 1, HOUR_US))
    rows = rows.withColumn(PART, f.explode(hours))
    start = f.col(PART).cast("bigint") * HOUR_US
    live_us = f.least(f.col("to_us"), start + HOUR_US) - f.greatest(f.col("from_us"), start)
    return (
        rows.groupBy("subject_kind", "subject", PART)
        .agg(f.max("slots").alias("slots"), f.sum(live_us).alias("live_us"))
        .select(PART, f.col("subject").alias("node"), "slots", (f.col("live_us") / SECOND_US).alias("live_seconds"))
    )


EVENTS: Final = "events"
LIVENESS: Final = "pulses"


class PresenceAggregation(NamedTuple):
    name: str = "world"
    reads: tuple[str, ...] = (EVENTS, LIVENESS)
    kinds: frozenset[str] = frozenset((*BROKER_KINDS, *SESSION_KINDS, SEEN, *DOWNTIME_KINDS))
    columns: tuple[str, ...] = ("source", "boot", "seq", "time", "at", "kind", "identity", "service", "ref", "data")
    key: str = ""
    data_sets: tuple[DataSet, ...] = (PRESENCE_TIMELINE, SESSIONS, SESSIONS_OPEN, NODE_SLOTS, SOURCE_HOURS)
    state: DataSet | None = STATE

    def step(
        self, state: DataFrame | None, rows: Mapping[str, DataFrame], time_range: TimeRange, parameters: Parameters
    ) -> Mapping[str, DataFrame]:
        events, liveness = rows[EVENTS], rows[LIVENESS]
        before = empty_state(events.sparkSession) if state is None else state
        limits = GapLimits(time_range, parameters.silence_seconds * SECOND_US)
        absent_us = parameters.absent_days * DAY_US
        samples = truncate_plan(sample_chain(liveness, broker_stops(events), before, limits))
        source_boots = boots(samples)
        parts = truncate_plan(
            session_segments(client_events(events, before, source_boots, time_range.from_us), source_boots)
        )
        planned = downtimes(events, before)
        boundaries = [
            state_boundaries(before, time_range, absent_us),
            client_boundaries(parts, time_range),
            service_boundaries(parts, time_range, absent_us),
            gap_boundaries(samples, limits),
            broker_boundaries(events, limits),
            downtime_boundaries(planned, time_range),
        ]
        subjects = truncate_plan(subject_states(boundaries, time_range, absent_us))
        states = [
            source_state(samples, time_range),
            session_state(parts, late_losses(events, before), time_range),
            downtime_state(planned, time_range),
            subject_state(subjects, time_range),
        ]
        return {
            PRESENCE_TIMELINE.name: presence_timeline(subjects, time_range),
            SESSIONS.name: sessions(parts, time_range),
            SESSIONS_OPEN.name: sessions_open(parts, time_range),
            NODE_SLOTS.name: node_slots(subjects, time_range),
            SOURCE_HOURS.name: source_hours(samples, liveness, time_range),
            STATE.name: reduce(lambda one, other: one.unionByName(other), states),
        }
