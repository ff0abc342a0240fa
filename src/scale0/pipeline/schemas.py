"""Schemas of everything the pipeline stores or reads with Spark: events, data sets, the timeline, liveness samples.

Every stored row has `part`, the hour, day or month it belongs to, and `row_hash`. A row never moves to another part.
What is still open at the horizon is in a data set of its own (period `open`), so that closed parts do not change when
it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type

from scale0.pipeline.time_ranges import DAY_HOURS, Period
from scale0.pipeline.warehouse import records
from scale0.pipeline.warehouse.selection import EVENT_COLUMNS
from scale0.pipeline.warehouse.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column


PART: Final = records.PART


class DataSet(NamedTuple):
    """One stored relation. A table is one data set, or the union of several with one schema."""

    name: str
    """The table and a suffix, for example `task_stats.hour`."""
    table: str
    """The table that shows it; "" for internal data."""
    period: Period
    schema: t.StructType
    """The columns without `part` and `row_hash`, in the table's order; the first ones are the key."""
    key: str = ""
    """For a separable aggregation: the column that holds the separating key."""
    hidden: tuple[str, ...] = ()
    """Columns that the table does not show."""


def fields(*columns: tuple[str, t.DataType | str]) -> t.StructType:
    """A schema from (name, type) pairs; a type may be the name Spark uses for it."""
    out = t.StructType()
    for name, kind in columns:
        # Spark parses type names only with a running session, and schemas are needed before that.
        out.add(name, from_arrow_type(arrow_type(kind)) if isinstance(kind, str) else kind, True)
    return out


EVENTS: Final = fields(*EVENT_COLUMNS.items())
"""All nullable: a Parquet file does not guarantee otherwise."""
HISTOGRAM: Final = EVENTS["histogram"].dataType
"""Counts by log bucket, ascending, without zero counts."""

UP: Final = "up"
DOWN: Final = "down"
DOWNTIME: Final = "downtime"
UNOBSERVED: Final = "unobserved"
ABSENT: Final = "absent"
CLASSES: Final = (UP, DOWN, DOWNTIME, UNOBSERVED, ABSENT)
"""Every second of a subject has one of these classes."""

BROKER: Final = "broker"
CLIENT: Final = "client"
SERVICE: Final = "service"
AGENT: Final = "agent"
CHECK: Final = "check"

SOFT: Final = "soft"
"""The reason of an `up` interval with a problem that is not yet hard."""

TIMELINE: Final = fields(
    ("subject_kind", "string"),
    ("subject", "string"),
    ("from", "timestamp"),
    ("to", "timestamp"),
    ("class", "string"),
    ("reason", "string"),
    ("evidence", "string"),
    ("state", "string"),
    ("flapping", "boolean"),
)
"""Half-open intervals, split at every hour. An interval that touches the next one and equals it except for `evidence`
continues it.

`evidence` is the id of the event that caused it; for a check's interval that begins at an hour it is the last result
before that hour, so the pieces of one run may name several. `state` (of a check: ok, warning, critical, unknown) and
`flapping` are null where they do not apply.
"""

LIVENESS_SAMPLES: Final = fields(
    ("source", "string"),
    ("boot", "bigint"),
    ("first_seq", "bigint"),
    ("last_seq", "bigint"),
    ("first_time", "timestamp"),
    ("last_time", "timestamp"),
    ("events", "bigint"),
    ("duplicates", "bigint"),
    ("rejected", "bigint"),
)
"""What a source recorded within one minute of `time`, with consecutive seqs: the proof that it was observing.

Ingestion computes these liveness samples from segments; `part` is the hour of `time`. A minute has several rows if a
segment ended within it. A row with events = 0 only counts duplicates or rejected events; its seqs and times are theirs.
"""


def day_of_hour() -> Column:
    """The day of a row whose `part` is an hour."""
    return f.call_function("div", f.col(PART), f.lit(DAY_HOURS)).cast("int")


def event_id(source: Column | str = "source", boot: Column | str = "boot", seq: Column | str = "seq") -> Column:
    """The id of an event as text, as in `evidence`."""
    return f.concat_ws(
        ":",
        source,
        f.col(boot).cast("string") if isinstance(boot, str) else boot.cast("string"),
        f.col(seq).cast("string") if isinstance(seq, str) else seq.cast("string"),
    )
