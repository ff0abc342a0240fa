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

from pyspark.sql import functions as f
from pyspark.sql import types as t

from scale0.pipeline.aggregations.presence_clients import AGENT as AGENT_ROLE
from scale0.pipeline.aggregations.presence_clients import BACKEND, FRONTEND
from scale0.pipeline.aggregations.presence_clients import LEFT as GONE
from scale0.pipeline.aggregations.presence_sessions import BROKER_LOST, NO_SESSION, ended
from scale0.pipeline.aggregations.presence_state import DOUBT, LIVE, SUBJECT, sort_of
from scale0.pipeline.data_file import fields
from scale0.pipeline.tables import AGENT, BROKER, CLIENT, SERVICE, event_id
from scale0.pipeline.time_ranges import TimeRange

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
    ("watch", "struct<class:string,reason:string,heard_us:bigint>"),
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


def shaped(**cells: Column) -> Column:
    """One boundary as a struct; omitted fields have their empty values."""

    def cell(column: t.StructField) -> Column:
        empty = f.lit(0) if column.name in _COUNTS else f.lit(None)
        return cells.get(column.name, empty).cast(column.dataType).alias(column.name)

    return f.struct(*(cell(column) for column in BOUNDARY))


def listed(rows: DataFrame, *boundaries: Column, stretch: TimeRange) -> DataFrame:
    """The boundaries of every row that lie in or before the range."""
    out = rows.select(f.explode(f.array_compact(f.array(*boundaries))).alias("b")).select("b.*")
    return out.where(ended(f.col("at_us"), stretch))


def clipped(us: Column, stretch: TimeRange) -> Column:
    """Times before the range, just before it."""
    return f.greatest(us, f.lit(stretch.from_us - 1))


def of_clients(segments: DataFrame, stretch: TimeRange) -> DataFrame:
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
    at = {"from": clipped(f.col("from_us"), stretch), "to": f.col("to_us"), "over": f.col("over_us")}
    plus = shaped(**who, at_us=at["from"], seq=f.col("from_seq"), live=f.lit(1), slots=f.col("slots"), start_id=begun)
    # A join that replaces a session, and is the source's last event, ends two at once: its own end comes last.
    late = f.col("reason").isin(BROKER_LOST, "lost").cast("int")
    minus = shaped(**who, at_us=at["to"], seq=seq, rank=late, live=f.lit(-1), slots=-f.col("slots"), end=ends)
    resolved = shaped(**who, at_us=at["over"], seq=seq, over=over)
    real = ~f.col("kind").isin(*NO_SESSION)
    return listed(
        rows,
        f.when(real, plus),
        f.when(real & f.col("to_us").isNotNull(), minus),
        f.when(f.col("kind") == GONE, shaped(**who, at_us=at["to"], seq=seq, end=ends)),
        f.when(f.col("over_us") >= stretch.from_us, resolved),
        stretch=stretch,
    )


def of_services(segments: DataFrame, stretch: TimeRange, absent_us: int) -> DataFrame:
    """Boundaries of services; everything that a lost session offered is in doubt."""
    rows = segments.where(f.col("role") == BACKEND).withColumn("subject", f.explode("services"))
    who = {"subject_kind": f.lit(SERVICE)} | {name: f.col(name) for name in ("subject", "source", "boot")}
    seq = f.col("end_seq")
    end_id = event_id("source", "boot", "end_seq")
    lost = f.coalesce(f.col("reason") == BROKER_LOST, f.lit(False)).cast("int")
    offered = f.when(f.col("kind") != LIVE, event_id("source", "boot", "from_seq"))
    plus = shaped(
        **who, at_us=clipped(f.col("from_us"), stretch), seq=f.col("from_seq"), live=f.lit(1), start_id=offered
    )
    minus = shaped(
        **who, at_us=f.col("to_us"), seq=seq, live=f.lit(-1), doubt=lost, end_id=end_id, ended_us=f.col("to_us")
    )
    doubted = shaped(**who, at_us=f.lit(stretch.from_us - 1), seq=seq, doubt=f.lit(1))
    resolved = shaped(**who, at_us=f.col("over_us"), seq=seq, rank=f.lit(1), doubt=f.lit(-1), end_id=f.col("over_id"))
    expired = shaped(**who, at_us=f.col("to_us") + absent_us, seq=seq)
    real = ~f.col("kind").isin(*NO_SESSION)
    still = (f.col("kind") == DOUBT) & f.coalesce(f.col("over_us") >= stretch.from_us, f.lit(True))
    return listed(
        rows,
        f.when(real, plus).when(still, doubted),
        f.when(real & f.col("to_us").isNotNull(), minus),
        f.when(f.col("over_us") >= stretch.from_us, resolved),
        f.when(real & f.col("to_us").isNotNull(), expired),
        stretch=stretch,
    )


def of_carried(carry: DataFrame, stretch: TimeRange, absent_us: int) -> DataFrame:
    """The subjects at the start of the range; a service without a backend will become absent."""
    columns = ("subject_kind", "identity", "source", "boot", "seq", "last_us", "reason", "evidence", "down_evidence")
    rows = sort_of(carry, SUBJECT, *columns, "peer_us", "peer")
    who = {"subject_kind": f.col("subject_kind"), "subject": f.col("identity")}
    kind = f.col("subject_kind")
    end = f.struct(f.col("last_us").alias("us"), "source", "boot", "seq", "reason", f.col("evidence").alias("id"))
    lost = f.struct(f.lit(True).alias("lost"), f.col("peer_us").alias("us"), f.col("peer").alias("id"))
    before = shaped(
        **who,
        at_us=f.lit(stretch.from_us - 1),
        rank=f.lit(-1),
        end=f.when(kind.isin(CLIENT, AGENT) & f.col("last_us").isNotNull(), end),
        ended_us=f.when(kind == SERVICE, f.col("last_us")),
        end_id=f.when(kind == SERVICE, f.col("evidence")),
        peer=f.when(f.col("peer").isNotNull(), lost),
        known=f.when(kind == BROKER, f.lit(True)),
        carried=f.struct("evidence", "down_evidence"),
    )
    expired = shaped(**who, at_us=f.col("last_us") + absent_us)
    return listed(rows, before, f.when((kind == SERVICE) & f.col("last_us").isNotNull(), expired), stretch=stretch)
