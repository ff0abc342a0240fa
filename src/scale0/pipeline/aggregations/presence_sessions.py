"""Sessions of clients at sources: when they began and ended, and what they offered.

A client is identified by (source, boot, role, identity). Of its heartbeats, which are a large part of all events, only
the first after a gap is used. Unreadable JSON counts as empty.

A session belongs to one boot, ends at the latest with it, and never ends before it begins. Events recorded before a
loss in the same boot are not after it. If a source continues in the same boot after a gap, its clients do not join
again: the first heartbeat or change of a client begins another session, with the id of that event. Overlapping boots of
one source are separate; but once another boot began, clients of a silent boot are no longer expected.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from scale0.pipeline.aggregations.presence_sources import DEATH, DOUBT, LIVE, rows_of_sort, state_hours, state_rows
from scale0.pipeline.schemas import PART, DataSet, event_id, fields
from scale0.pipeline.time_ranges import HOUR_US, OPEN_PART, TimeRange, part_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

FRONTEND: Final = "frontend"
BACKEND: Final = "backend"
AGENT_ROLE: Final = "agent"

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
SEEN_ROLES: Final = (BACKEND, FRONTEND, AGENT_ROLE)
"""A summary of heartbeats has no role: it applies to every role that is known."""

_KEY: Final = ("identity", "role", "source", "boot")
CLIENT_EVENT: Final = (
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


def client_events(events: DataFrame, state: DataFrame, boots: DataFrame, from_us: int) -> DataFrame:
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
    parts = (clients, _heartbeats(events, boots), _from_state(state, from_us))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts).select(*CLIENT_EVENT)


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


def _from_state(state: DataFrame, from_us: int) -> DataFrame:
    columns = ("sort", *_KEY, "seq", "id", "services", "slots", "first_us", "last_us", "opened_us", "stopped")
    rows = state.where(f.col("sort").isin(LIVE, DOUBT, DEATH)).select(*columns)
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


def late_losses(events: DataFrame, state: DataFrame) -> DataFrame:
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
    return new.unionByName(rows_of_sort(state, DEATH, *_KEY, "seq", "first_us", "last_us"))


BROKER_LOST: Final = "broker_lost"
OPEN: Final = "open"
RESTARTED: Final = "restarted"
"""A doubt was resolved because the source restarted without the client."""
UNHEARD: Final = "unheard"
"""A doubt was resolved because the source continued in the same boot, and the client was not seen yet."""
REASONS: Final = {LEFT: "left", LOST: "lost", REPLACED: "replaced", JOINED: "replaced", STILLBORN: "replaced"}

_SCHEMA: Final = fields(
    ("identity", "string"),
    ("id", "string"),
    ("joined", "timestamp"),
    ("left", "timestamp"),
    ("reason", "string"),
    ("broker", "string"),
    ("role", "string"),
    ("services", "array<string>"),
    ("slots", "bigint"),
)
SESSIONS: Final = DataSet("sessions", "sessions", "hour", _SCHEMA)
SESSIONS_OPEN: Final = DataSet("sessions.open", "sessions", "open", _SCHEMA)

SEGMENT: Final = (
    "identity",
    "role",
    "source",
    "boot",
    "kind",
    "id",
    "joined_us",
    "from_us",
    "from_seq",
    "to_us",
    "reason",
    "end_seq",
    "services",
    "slots",
    "over_us",
    "over_reason",
    "over_id",
    "sign_us",
    "begin_us",
    "spent",
)
"""[from_us, to_us) with the offer of event from_seq; to_us null: it continues. `reason` null: so does its session;
end_seq is the event that ended it. A session that ended BROKER_LOST is in doubt over [to_us, over_us), until its
source is seen again, and then resolved with `over_reason`; it may continue until the client's next sign, or until
another boot begins. Kinds of NO_SESSION have no from_us: such a session of an earlier range, and a client.left
without a session.
"""
NO_SESSION: Final = (DOUBT, LEFT)


def _order() -> WindowSpec:
    return Window.partitionBy("identity", "role", "source", "boot").orderBy("at_us", "seq")


def _so_far() -> WindowSpec:
    return _order().rowsBetween(Window.unboundedPreceding, 0)


def session_segments(events: DataFrame, boots: DataFrame) -> DataFrame:
    """From the events of clients, and the breaks of their sources' boots."""
    rows = events.join(f.broadcast(boots), on=["source", "boot"], how="left").repartition("identity")
    return _segments(_effective(_born(rows)))


def _born(rows: DataFrame) -> DataFrame:
    """Drops what was recorded before a loss although its time is after it, and adds `watch`.

    `watch` counts the gaps before a row: no session continues over a gap.
    """
    marked = f.max("mark").over(_order().rowsBetween(Window.unboundedPreceding, -1))
    lost = f.col("kind").isin(JOINED, CHANGED, SEEN) & f.coalesce(f.col("seq") < marked, f.lit(False))
    past = f.size(f.filter("breaks", lambda one: one["us"] < f.col("at_us")))
    from_state = f.col("kind").isin(LIVE, DOUBT)
    rows = rows.withColumns(
        {"dead": lost, "watch": f.when(from_state | f.col("breaks").isNull(), f.lit(0)).otherwise(past)}
    )
    rows = rows.where(~(f.col("dead") & f.col("kind").isin(CHANGED, SEEN)) & (f.col("kind") != DEATH))
    return rows.withColumn("kind", f.when(f.col("dead"), f.lit(STILLBORN)).otherwise(f.col("kind")))


def _effective(rows: DataFrame) -> DataFrame:
    """The rows that begin, change or end something, with `starts`: a session begins here."""
    kind = f.col("kind")
    signs = kind.isin(CHANGED, SEEN)
    can_go_on = kind.isin(JOINED, LIVE) | ((kind == DOUBT) & f.col("spent").isNull())
    continues = f.when(~signs, can_go_on)
    rows = rows.withColumn("held", f.coalesce(f.last(continues, ignorenulls=True).over(_so_far()), f.lit(False)))
    alive = f.when(signs, f.col("held")).otherwise(kind.isin(JOINED, LIVE))
    rows = rows.withColumn("alive", alive)
    was_alive = f.lag("alive").over(_order()) & (f.lag("watch").over(_order()) == f.col("watch"))
    rows = rows.withColumn("was_alive", f.coalesce(was_alive, f.lit(False)))
    rows = rows.withColumn("starts", (kind == JOINED) | (signs & f.col("alive") & ~f.col("was_alive")))
    return rows.where(~signs | f.col("starts") | ((kind == CHANGED) & f.col("alive")))


def _segments(rows: DataFrame) -> DataFrame:
    own_id = event_id()
    begins = f.col("starts") | (f.col("kind") == STILLBORN)
    started = f.when(begins, f.struct(f.col("at_us").alias("us"), own_id.alias("id")))
    from_state = f.when(f.col("kind").isin(LIVE, DOUBT), f.struct(f.col("first_us").alias("us"), "id"))
    rows = rows.withColumns(
        {
            "session": f.last(f.coalesce(started, from_state), ignorenulls=True).over(_so_far()),
            "services": f.last("services", ignorenulls=True).over(_so_far()),
            "slots": f.last("slots", ignorenulls=True).over(_so_far()),
            "next": f.lead(f.struct("at_us", "seq", "kind", "watch")).over(_order()),
        }
    )
    farewell = (f.col("kind") == LEFT) & ~f.col("was_alive")
    rows = rows.where(f.col("kind").isin(LIVE, DOUBT, STILLBORN, CHANGED) | f.col("starts") | farewell)
    rows = rows.withColumns(
        {
            "here": f.coalesce(f.col("next.watch") == f.col("watch"), f.lit(False)),
            "break": f.get("breaks", f.col("watch")),
            "instant": f.col("kind").isin(STILLBORN, LEFT),
        }
    )
    rows = rows.withColumns(_ends()).withColumns(_doubts())
    renamed = {"id": f.col("session.id"), "joined_us": f.col("session.us"), "from_seq": f.col("seq")}
    return rows.withColumns(renamed | {"sign_us": f.col("next.at_us")}).select(*SEGMENT)


def _ends() -> dict[str, Column]:
    """Where a segment ends, why, and by which event."""
    kind, here = f.col("kind"), f.col("here")
    reasons = f.create_map(*(f.lit(text) for pair in REASONS.items() for text in pair))
    return {
        "from_us": f.when(kind == LIVE, f.col("first_us")).when(~kind.isin(*NO_SESSION), f.col("at_us")),
        "to_us": f.when(kind == DOUBT, f.col("last_us"))
        .when(f.col("instant"), f.col("at_us"))
        .when(here, f.col("next.at_us"))
        .otherwise(f.col("break.us")),
        "reason": f.when(kind == DOUBT, f.lit(BROKER_LOST))
        .when(f.col("instant"), f.when(kind == LEFT, f.lit("left")).otherwise(f.lit("lost")))
        .when(here, f.try_element_at(reasons, f.col("next.kind")))
        .when(f.col("break").isNotNull(), f.lit(BROKER_LOST)),
        "end_seq": f.when(kind == DOUBT, f.col("mark"))
        .when(f.col("instant"), f.col("seq"))
        .when(here, f.col("next.seq"))
        .otherwise(f.col("break.seq")),
    }


def _doubts() -> dict[str, Column]:
    """Until when it is unknown whether a client lost with its source is alive; and until when it may continue."""
    from_state = f.col("kind") == DOUBT
    again = f.when(from_state, f.col("again")).otherwise(f.col("break.again"))
    begin = f.when(from_state, f.col("begin")).otherwise(f.col("break.begin"))
    why = f.when(again["boot"] == f.col("boot"), f.lit(UNHEARD)).otherwise(f.lit(RESTARTED))
    in_doubt = f.col("reason") == BROKER_LOST
    return {
        "begin_us": f.when(in_doubt, begin["us"]),
        "over_reason": f.when(in_doubt & again.isNotNull(), why),
        "over_id": f.when(in_doubt & again.isNotNull(), event_id("source", again["boot"], again["seq"])),
        "over_us": f.when(in_doubt, f.coalesce("over_us", again["us"])),
    }


def has_ended(us: Column, time_range: TimeRange) -> Column:
    """Whether an instant lies in the range, and not after the horizon; false for null."""
    return f.coalesce((us <= time_range.horizon_us) & (us < time_range.end * HOUR_US), f.lit(False))


def sessions(parts: DataFrame, time_range: TimeRange) -> DataFrame:
    """The sessions that ended in the range, each in the hour of its end."""
    over = f.col("reason").isNotNull() & ~f.col("kind").isin(*NO_SESSION) & has_ended(f.col("to_us"), time_range)
    rows = parts.where(over).withColumn(PART, part_column(f.col("to_us"), HOUR_US))
    return _table(rows, f.timestamp_micros("to_us"), f.col("reason"))


def sessions_open(parts: DataFrame, time_range: TimeRange) -> DataFrame:
    """The sessions that are open at the end of the range."""
    rows = parts.where(~f.col("kind").isin(*NO_SESSION) & ~has_ended(f.col("to_us"), time_range))
    rows = rows.withColumn(PART, f.lit(OPEN_PART))
    return _table(rows, f.lit(None).cast("timestamp"), f.lit(OPEN))


def _table(rows: DataFrame, left: Column, reason: Column) -> DataFrame:
    return rows.select(
        PART,
        "identity",
        "id",
        f.timestamp_micros("joined_us").alias("joined"),
        left.alias("left"),
        reason.alias("reason"),
        f.col("source").alias("broker"),
        "role",
        "services",
        "slots",
    )


def session_state(parts: DataFrame, losses: DataFrame, time_range: TimeRange) -> DataFrame:
    """The state of sessions: live ones, those in doubt, and losses that were recorded later."""
    key = ("identity", "role", "source", "boot")
    live = f.explode(state_hours(time_range, f.col("from_us"), f.col("to_us"))).alias(PART)
    session = (*key, "id", f.col("joined_us").alias("first_us"), "services", "slots")
    lives = parts.where(~f.col("kind").isin(*NO_SESSION)).select(live, *session)
    never = f.lit(time_range.end * HOUR_US)
    waits = f.when(f.col("spent"), f.lit(0)).otherwise(f.coalesce(f.least("sign_us", "begin_us"), never))
    doubts = parts.where(f.col("reason") == BROKER_LOST).withColumn(
        PART, f.explode(state_hours(time_range, f.col("to_us"), f.greatest(waits, f.coalesce("over_us", never))))
    )
    start_us = f.col(PART).cast("bigint") * HOUR_US
    doubts = doubts.select(
        PART,
        *session,
        f.col("to_us").alias("last_us"),
        f.col("end_seq").alias("seq"),
        f.when(f.col("over_us") < start_us, f.col("over_us")).alias("opened_us"),
        f.when(waits < start_us, f.lit(True)).alias("stopped"),
    )
    loss = f.explode(state_hours(time_range, f.col("first_us"), f.col("last_us"))).alias(PART)
    lost = losses.select(loss, *key, "seq", "first_us", "last_us")
    return state_rows(lives, LIVE).unionByName(state_rows(doubts, DOUBT)).unionByName(state_rows(lost, DEATH))
