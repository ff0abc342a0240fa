"""Shapes that several rooms of the pipeline share: the timeline, the pulses, the ids of events.

Lives here: schemas and words. Never here: how a row is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from scale0.pipeline.data_file import fields

if TYPE_CHECKING:
    from pyspark.sql import Column

UP: Final = "up"
DOWN: Final = "down"
DOWNTIME: Final = "downtime"
UNOBSERVED: Final = "unobserved"
ABSENT: Final = "absent"
CLASSES: Final = (UP, DOWN, DOWNTIME, UNOBSERVED, ABSENT)
"""Every second of a subject is one of these."""

BROKER: Final = "broker"
CLIENT: Final = "client"
SERVICE: Final = "service"
AGENT: Final = "agent"
CHECK: Final = "check"

SOFT: Final = "soft"
"""The reason of an `up` that has a problem which is not yet hard."""

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
"""Half-open intervals, cut at every hour; a piece that touches the next and is equal to it but for `evidence` is
its continuation.

`evidence` is the id of the event that made it so; of a check's piece that begins with an hour it is the last result
before that hour, so the pieces of one run may name several. `state` (of a check: ok, warning, critical, unknown) and
`flapping` are null where they have no meaning.
"""

PULSES: Final = fields(
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
"""What a source recorded within one minute of its `time`, seq by seq without a gap: the proof that it was watching.

Taken from the segments when they are adopted; `part` is the hour of `time`. One minute may have several rows (a segment
ended within it). A row with events = 0 only counts duplicates or rejected events; its seqs and times are theirs.
"""


def event_id(source: Column | str = "source", boot: Column | str = "boot", seq: Column | str = "seq") -> Column:
    """The id of an event as text, as `evidence` has it."""
    return f.concat_ws(
        ":",
        source,
        f.col(boot).cast("string") if isinstance(boot, str) else boot.cast("string"),
        f.col(seq).cast("string") if isinstance(seq, str) else seq.cast("string"),
    )
