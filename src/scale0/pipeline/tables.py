"""Schemas that several modules share: the timeline, liveness samples, event ids."""

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
"""What a source recorded within one minute of `time`, with consecutive seqs: the proof that it was observing.

Ingestion computes these liveness samples from segments; `part` is the hour of `time`. A minute has several rows if a
segment ended within it. A row with events = 0 only counts duplicates or rejected events; its seqs and times are theirs.
"""


def event_id(source: Column | str = "source", boot: Column | str = "boot", seq: Column | str = "seq") -> Column:
    """The id of an event as text, as in `evidence`."""
    return f.concat_ws(
        ":",
        source,
        f.col(boot).cast("string") if isinstance(boot, str) else boot.cast("string"),
        f.col(seq).cast("string") if isinstance(seq, str) else seq.cast("string"),
    )
