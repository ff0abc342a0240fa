"""Boundaries: the instants at which something about a subject of the timeline changes.

A boundary contains only what is new. What was before the range is placed one microsecond before it.

Brokers: a source is a broker once it recorded broker.started. A gap that has ended is down if the journal has no hole,
because that proves that nothing was recorded, and unobserved if it has one. A gap that has not ended is unobserved,
down once a peer reports it, and down at once if the broker announced its stop.

Downtimes of whole agents: a downtime is (agent, ref); its newest start says when it ends, unless its next event comes
earlier; several form a union. Events at one instant count in recording order, because Helen moves an end by recording
an end and a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.config.monitoring import MAX_WALL
from scale0.pipeline.aggregations.presence_sessions import (
    AGENT_ROLE,
    BACKEND,
    BROKER_LOST,
    FRONTEND,
    NO_SESSION,
    has_ended,
)
from scale0.pipeline.aggregations.presence_sessions import LEFT as GONE
from scale0.pipeline.aggregations.presence_sources import (
    DOUBT,
    LIVE,
    PLANNED,
    SUBJECT,
    GapLimits,
    rows_of_sort,
    state_hours,
    state_rows,
)
from scale0.pipeline.schemas import AGENT, BROKER, CLIENT, DOWN, PART, SERVICE, UNOBSERVED, UP, event_id, fields
from scale0.pipeline.time_ranges import SECOND_US, TimeRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

END: Final = "struct<us:bigint,source:string,boot:bigint,seq:bigint,reason:string,id:string>"
"""The end of a session: time, event and reason; `id` is the evidence."""

BOUNDARY: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("at_us", "bigint"),
    ("source", "string"),
    ("boot", "bigint"),
    ("seq", "bigint"),
    ("rank", "int"),
    ("live", "int"),
    ("doubt", "int"),
    ("down", "int"),
    ("slots", "bigint"),
    ("start_id", "string"),
    ("end_id", "string"),
    ("down_id", "string"),
    ("end", END),
    ("over", END),
    ("ended_us", "bigint"),
    ("watch", "struct<class:string,reason:string,seen_us:bigint>"),
    ("peer", "struct<lost:boolean,us:bigint,id:string>"),
    ("known", "boolean"),
    ("carried", "struct<evidence:string,down_evidence:string>"),
)
"""Ordered by (at_us, source, boot, seq, rank, end_id). `live`, `doubt`, `down` (planned downtimes) and `slots` are
differences; the other columns are null unless they are new. `start_id`: what made it live. `end_id`: what ended
that. `end`, `over`: a client's session ended, the doubt about an end is resolved. `ended_us`: a service lost a
backend. `watch`, `peer` and `known`: of brokers.
"""

_COUNTS: Final = ("rank", "live", "doubt", "down", "slots")


def boundary(**cells: Column) -> Column:
    """One boundary as a struct; omitted fields have their empty values."""

    def cell(column: t.StructField) -> Column:
        empty = f.lit(0) if column.name in _COUNTS else f.lit(None)
        return cells.get(column.name, empty).cast(column.dataType).alias(column.name)

    return f.struct(*(cell(column) for column in BOUNDARY))


def boundaries_in(rows: DataFrame, *boundaries: Column, time_range: TimeRange) -> DataFrame:
    """The boundaries of every row that lie in or before the range."""
    out = rows.select(f.explode(f.array_compact(f.array(*boundaries))).alias("b")).select("b.*")
    return out.where(has_ended(f.col("at_us"), time_range))


def clipped(us: Column, time_range: TimeRange) -> Column:
    """Times before the range, just before it."""
    return f.greatest(us, f.lit(time_range.from_us - 1))


def client_boundaries(segments: DataFrame, time_range: TimeRange) -> DataFrame:
    """Boundaries of clients and agents; a frontend is not a subject."""
    rows = segments.where(f.col("role") != FRONTEND).withColumns(
        {
            "subject_kind": f.when(f.col("role") == AGENT_ROLE, f.lit(AGENT)).otherwise(f.lit(CLIENT)),
            "slots": f.when(f.col("role") == BACKEND, f.col("slots")).otherwise(f.lit(0)),
        }
    )
    who = {name: f.col(name) for name in ("subject_kind", "source", "boot")} | {"subject": f.col("identity")}
    seq = f.col("end_seq")
    end_id = event_id("source", "boot", "end_seq")
    by = (f.col("to_us").alias("us"), f.col("source"), f.col("boot"), seq.alias("seq"))
    ends = f.when(f.col("reason").isNotNull(), f.struct(*by, f.col("reason"), end_id.alias("id")))
    over = f.struct(*by, f.col("over_reason").alias("reason"), f.col("over_id").alias("id"))
    begun = f.when(f.col("from_us") == f.col("joined_us"), f.col("id"))
    at = {"from": clipped(f.col("from_us"), time_range), "to": f.col("to_us"), "over": f.col("over_us")}
    plus = boundary(**who, at_us=at["from"], seq=f.col("from_seq"), live=f.lit(1), slots=f.col("slots"), start_id=begun)
    # A join that replaces a session, and is the source's last event, ends two at once: its own end comes last.
    late = f.col("reason").isin(BROKER_LOST, "lost").cast("int")
    minus = boundary(**who, at_us=at["to"], seq=seq, rank=late, live=f.lit(-1), slots=-f.col("slots"), end=ends)
    resolved = boundary(**who, at_us=at["over"], seq=seq, over=over)
    real = ~f.col("kind").isin(*NO_SESSION)
    return boundaries_in(
        rows,
        f.when(real, plus),
        f.when(real & f.col("to_us").isNotNull(), minus),
        f.when(f.col("kind") == GONE, boundary(**who, at_us=at["to"], seq=seq, end=ends)),
        f.when(f.col("over_us") >= time_range.from_us, resolved),
        time_range=time_range,
    )


def service_boundaries(segments: DataFrame, time_range: TimeRange, absent_us: int) -> DataFrame:
    """Boundaries of services; everything that a lost session offered is in doubt."""
    rows = segments.where(f.col("role") == BACKEND).withColumn("subject", f.explode("services"))
    who = {"subject_kind": f.lit(SERVICE)} | {name: f.col(name) for name in ("subject", "source", "boot")}
    seq = f.col("end_seq")
    end_id = event_id("source", "boot", "end_seq")
    lost = f.coalesce(f.col("reason") == BROKER_LOST, f.lit(False)).cast("int")
    offered = f.when(f.col("kind") != LIVE, event_id("source", "boot", "from_seq"))
    plus = boundary(
        **who, at_us=clipped(f.col("from_us"), time_range), seq=f.col("from_seq"), live=f.lit(1), start_id=offered
    )
    minus = boundary(
        **who, at_us=f.col("to_us"), seq=seq, live=f.lit(-1), doubt=lost, end_id=end_id, ended_us=f.col("to_us")
    )
    doubted = boundary(**who, at_us=f.lit(time_range.from_us - 1), seq=seq, doubt=f.lit(1))
    resolved = boundary(**who, at_us=f.col("over_us"), seq=seq, rank=f.lit(1), doubt=f.lit(-1), end_id=f.col("over_id"))
    expired = boundary(**who, at_us=f.col("to_us") + absent_us, seq=seq)
    real = ~f.col("kind").isin(*NO_SESSION)
    still = (f.col("kind") == DOUBT) & f.coalesce(f.col("over_us") >= time_range.from_us, f.lit(True))
    return boundaries_in(
        rows,
        f.when(real, plus).when(still, doubted),
        f.when(real & f.col("to_us").isNotNull(), minus),
        f.when(f.col("over_us") >= time_range.from_us, resolved),
        f.when(real & f.col("to_us").isNotNull(), expired),
        time_range=time_range,
    )


def state_boundaries(state: DataFrame, time_range: TimeRange, absent_us: int) -> DataFrame:
    """The subjects at the start of the range; a service without a backend will become absent."""
    columns = ("subject_kind", "identity", "source", "boot", "seq", "last_us", "reason", "evidence", "down_evidence")
    rows = rows_of_sort(state, SUBJECT, *columns, "peer_us", "peer")
    who = {"subject_kind": f.col("subject_kind"), "subject": f.col("identity")}
    kind = f.col("subject_kind")
    end = f.struct(f.col("last_us").alias("us"), "source", "boot", "seq", "reason", f.col("evidence").alias("id"))
    lost = f.struct(f.lit(True).alias("lost"), f.col("peer_us").alias("us"), f.col("peer").alias("id"))
    before = boundary(
        **who,
        at_us=f.lit(time_range.from_us - 1),
        rank=f.lit(-1),
        end=f.when(kind.isin(CLIENT, AGENT) & f.col("last_us").isNotNull(), end),
        ended_us=f.when(kind == SERVICE, f.col("last_us")),
        end_id=f.when(kind == SERVICE, f.col("evidence")),
        peer=f.when(f.col("peer").isNotNull(), lost),
        known=f.when(kind == BROKER, f.lit(True)),
        carried=f.struct("evidence", "down_evidence"),
    )
    expired = boundary(**who, at_us=f.col("last_us") + absent_us)
    return boundaries_in(
        rows, before, f.when((kind == SERVICE) & f.col("last_us").isNotNull(), expired), time_range=time_range
    )


BROKER_STARTED: Final = "broker.started"
BROKER_STOPPED: Final = "broker.stopped"
PEER_JOINED: Final = "peer.joined"
PEER_LOST: Final = "peer.lost"
BROKER_KINDS: Final = (BROKER_STARTED, BROKER_STOPPED, PEER_JOINED, PEER_LOST)

WATCHING: Final = "watching"
SILENT: Final = "silent"
"""Nothing is known about the gap yet."""
PEER_REPORTED: Final = "peer_lost"
_STOPPED: Final = "stopped"
_RESTARTED: Final = "restarted"
_ASLEEP: Final = "asleep"
"""It was seen again in the same boot, and had recorded nothing."""
_HOLE: Final = "hole"


def broker_stops(events: DataFrame) -> DataFrame:
    return events.where(f.col("kind") == BROKER_STOPPED).select("source", "boot", "seq")


def gap_boundaries(samples: DataFrame, limits: GapLimits) -> DataFrame:
    """From the chain of liveness samples: where a gap begins, is resolved, and ends."""
    last_seen, following = f.col("seen_us"), f.col("next")
    not_seen = f.lit(limits.time_range.horizon_us) - last_seen > limits.silence_us
    parted = following["begins"] | following["hole"] | (following["first_us"] - last_seen > limits.silence_us)
    gap = f.when(following.isNull(), not_seen | f.col("stopped").isNotNull()).otherwise(parted)
    # The gap between two boots of the previous state is over.
    lasts = following.isNull() | (following["first_us"] >= limits.time_range.from_us)
    rows = samples.where(gap & lasts & (following.isNull() | (following["first_us"] > last_seen)))
    ends = following.isNotNull()
    return boundaries_in(
        rows,
        f.when(~ends, _unsettled(limits)),
        f.when(ends, _settled(limits)),
        f.when(ends, _again()),
        time_range=limits.time_range,
    )


def _watch(state: Column, reason: Column) -> Column:
    return f.struct(state.alias("class"), reason.alias("reason"), f.col("seen_us"))


def _who(boot: str = "boot", seq: str = "seq") -> dict[str, Column]:
    source = f.col("source")
    return {"subject_kind": f.lit(BROKER), "subject": source, "source": source, "boot": f.col(boot), "seq": f.col(seq)}


def _unsettled(limits: GapLimits) -> Column:
    announced = f.col("stopped").isNotNull()
    watch = _watch(
        f.when(announced, f.lit(DOWN)).otherwise(f.lit(UNOBSERVED)),
        f.when(announced, f.lit(_STOPPED)).otherwise(f.lit(SILENT)),
    )
    at = clipped(f.col("seen_us"), limits.time_range)
    return boundary(**_who(), at_us=at, rank=f.lit(1), watch=watch, end_id=event_id())


def _settled(limits: GapLimits) -> Column:
    announced, hole = f.col("stopped").isNotNull(), f.col("next.hole")
    reason = (
        f.when(hole, f.lit(_HOLE))
        .when(announced, f.lit(_STOPPED))
        .when(f.col("next.begins"), f.lit(_RESTARTED))
        .otherwise(f.lit(_ASLEEP))
    )
    watch = _watch(f.when(hole, f.lit(UNOBSERVED)).otherwise(f.lit(DOWN)), reason)
    proof = f.when(announced & ~hole, event_id()).otherwise(
        event_id("source", f.col("next.boot"), f.col("next.first_seq"))
    )
    return boundary(
        **_who(), at_us=clipped(f.col("seen_us"), limits.time_range), rank=f.lit(2), watch=watch, end_id=proof
    )


def _again() -> Column:
    watch = _watch(f.lit(UP), f.lit(WATCHING))
    proof = event_id("source", f.col("next.boot"), f.col("next.first_seq"))
    return boundary(**_who("next.boot", "next.first_seq"), at_us=f.col("next.first_us"), watch=watch, start_id=proof)


def broker_boundaries(events: DataFrame, limits: GapLimits) -> DataFrame:
    """From events of brokers about themselves and their peers. A broker that started is no longer lost."""
    kind = f.col("kind")
    rows = events.where(kind.isin(BROKER_STARTED, PEER_JOINED, PEER_LOST)).withColumn("at_us", f.unix_micros("at"))
    who = {name: f.col(name) for name in ("source", "boot", "seq", "at_us")} | {"subject_kind": f.lit(BROKER)}
    lost = f.struct((kind == PEER_LOST).alias("lost"), f.col("at_us").alias("us"), event_id().alias("id"))
    started = boundary(**who, subject=f.col("source"), known=f.lit(True), start_id=event_id(), peer=lost)
    peer = boundary(**who, subject=f.col("identity"), peer=lost)
    is_peer = (kind != BROKER_STARTED) & f.col("identity").isNotNull()
    return boundaries_in(
        rows, f.when(kind == BROKER_STARTED, started), f.when(is_peer, peer), time_range=limits.time_range
    )


DOWNTIME_STARTED: Final = "downtime.started"
DOWNTIME_ENDED: Final = "downtime.ended"
DOWNTIME_KINDS: Final = (DOWNTIME_STARTED, DOWNTIME_ENDED)

_DATA: Final = fields(("ends", "double"))
_COLUMNS: Final = ("identity", "ref", "source", "boot", "seq", "first_us", "last_us")


def downtimes(events: DataFrame, state: DataFrame) -> DataFrame:
    """One row per start: [first_us, over_us), over_us null while no end is known; last_us is the planned end."""
    ends = f.from_json("data", _DATA)["ends"]
    whole = f.col("service").isNull() | (f.col("service") == "")
    new = events.where(f.col("kind").isin(*DOWNTIME_KINDS) & whole & f.col("identity").isNotNull()).select(
        "identity",
        f.coalesce("ref", f.lit("")).alias("ref"),
        "source",
        "boot",
        "seq",
        f.unix_micros("at").alias("first_us"),
        f.when(ends.between(0, MAX_WALL), f.rint(ends * SECOND_US).cast("bigint")).alias("last_us"),
        (f.col("kind") == DOWNTIME_STARTED).alias("starts"),
    )
    old = rows_of_sort(state, PLANNED, *_COLUMNS).withColumn("starts", f.lit(True))
    later = Window.partitionBy("identity", "ref").orderBy("first_us", "source", "boot", "seq")
    rows = new.unionByName(old).withColumn("next_us", f.lead("first_us").over(later))
    over = f.least("next_us", "last_us")
    return rows.where("starts").withColumn("over_us", over).select(*_COLUMNS, "over_us")


def downtime_boundaries(planned: DataFrame, time_range: TimeRange) -> DataFrame:
    rows = planned.where(f.col("over_us").isNull() | (f.col("over_us") > f.col("first_us")))
    who = {"subject_kind": f.lit(AGENT), "subject": f.col("identity")}
    who |= {name: f.col(name) for name in ("source", "boot", "seq")}
    begun = f.when(f.col("first_us") >= time_range.from_us, event_id())
    plus = boundary(**who, at_us=clipped(f.col("first_us"), time_range), down=f.lit(1), down_id=begun)
    minus = boundary(**who, at_us=f.col("over_us"), down=f.lit(-1))
    return boundaries_in(rows, plus, f.when(f.col("over_us").isNotNull(), minus), time_range=time_range)


def downtime_state(planned: DataFrame, time_range: TimeRange) -> DataFrame:
    """The state: downtimes that have not ended."""
    rows = planned.where(f.col("over_us").isNull() | (f.col("over_us") > f.col("first_us")))
    part = f.explode(state_hours(time_range, f.col("first_us"), f.col("over_us"))).alias(PART)
    return state_rows(rows.select(part, *_COLUMNS), PLANNED)
