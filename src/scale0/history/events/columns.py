"""The columns of an event: one definition for the journal, the segments and Spark.

A column is never renamed, retyped or moved. New columns are appended with a new SCHEMA_VERSION, so that old journals
and segments stay readable.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

SCHEMA_VERSION: Final = 1
"""Written with every journal row and every segment."""

MAX_INT: Final = 2**31 - 1
"""The largest `int`: 32 bits, as Parquet and Spark have it."""

MAX_BIGINT: Final = 2**63 - 1
"""The largest `bigint`: 64 bits, as SQLite, Parquet and Spark have it."""

Type = Literal["string", "bigint", "int", "double", "timestamp_us", "histogram", "metrics"]
"""timestamp_us: whole microseconds since the Unix epoch, UTC. histogram, metrics: arrays of the structs below."""


class EventColumn(NamedTuple):
    """One column of the schema; most are nullable."""

    name: str
    type: Type
    nullable: bool
    meaning: str


COLUMNS: Final = (
    EventColumn("source", "string", False, "who recorded it: a broker's or Helen's identity"),
    EventColumn("boot", "bigint", False, "start of that process in microseconds"),
    EventColumn("seq", "bigint", False, "goes on gapless over restarts; (source, boot, seq) is the event's id"),
    EventColumn("time", "timestamp_us", False, "when it was recorded; never decreases within a boot"),
    EventColumn("at", "timestamp_us", False, "when it happened, never after time"),
    EventColumn("kind", "string", False, "noun.past"),
    EventColumn("identity", "string", True, "the client, node, agent or broker that it is about"),
    EventColumn("service", "string", True, "service, task method or check name"),
    EventColumn("ref", "string", True, "request, task, downtime or message id"),
    EventColumn("attempt", "int", True, "which attempt of a task"),
    EventColumn("code", "int", True, "an error code, a count or a version, by kind"),
    EventColumn("state", "string", True, "the state that it ended in"),
    EventColumn("seconds", "double", True, "the duration that this event closes"),
    EventColumn("waited", "double", True, "the wait before it, in seconds"),
    EventColumn("histogram", "histogram", True, "of a summary: log buckets of seconds"),
    EventColumn("bytes", "bigint", True, "payload that passed"),
    EventColumn("metrics", "metrics", True, "what a check measured"),
    EventColumn("data", "string", True, "the rest, JSON"),
)

COLUMN_NAMES: Final = tuple(column.name for column in COLUMNS)

HISTOGRAM_FIELDS: Final[tuple[tuple[str, Type], ...]] = (("bucket", "int"), ("count", "bigint"))
"""The struct that a `histogram` is an array of."""

METRIC_FIELDS: Final[tuple[tuple[str, Type], ...]] = (
    ("name", "string"),
    ("value", "double"),
    ("unit", "string"),
    ("warn", "double"),
    ("crit", "double"),
    ("min", "double"),
    ("max", "double"),
)
"""The struct that `metrics` is an array of."""


class EventMetric(msgspec.Struct, frozen=True, array_like=True):
    """One measurement of a check, with its limits if it has any."""

    name: str
    value: float
    unit: str | None = None
    warn: float | None = None
    crit: float | None = None
    min: float | None = None
    max: float | None = None


class EventRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The columns that an event fills; the journal adds source, boot, seq and time.

    `at` is None if it happened when it was recorded. The order of the fields is the order in the journal.
    """

    kind: str
    at: float | None = None
    """Seconds since the Unix epoch."""
    identity: str | None = None
    service: str | None = None
    ref: str | None = None
    attempt: int | None = None
    code: int | None = None
    state: str | None = None
    seconds: float | None = None
    waited: float | None = None
    histogram: list[tuple[int, int]] | None = None
    bytes: int | None = None
    metrics: list[EventMetric] | None = None
    data: dict[str, Any] | None = None


_TARGETS: Final = {
    **dict.fromkeys(("agent", "backend", "client", "node"), "identity"),
    **dict.fromkeys(("check", "method"), "service"),
    **dict.fromkeys(("downtime", "incident", "notice", "request_id", "task_id"), "ref"),
    "last_received_wall": "at",
}
"""The column of a field that is not named as one, where no event class says otherwise."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened, in terms of its domain. Each field fills one column, or one key of `data`."""

    kind: ClassVar[str]
    """`noun.past`"""
    targets: ClassVar[Mapping[str, str]] = {}
    """The column, or the key of `data`, of a field that does not follow `_TARGETS`."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Fields that are left out where they are empty."""

    def row(self) -> EventRow:
        """This event in the columns of the schema."""
        columns, data = _targets(type(self))
        optional = self.optional
        values = {
            target: value for field, target in columns if (value := getattr(self, field)) or field not in optional
        }
        for name in ("attempt", "code"):
            if values.get(name) is not None:
                values[name] = clip_int(values[name])
        if data:
            rest = {key: value for field, key in data if (value := getattr(self, field)) or field not in optional}
            values["data"] = rest or None
        return EventRow(kind=self.kind, **values)


@functools.cache
def _targets(event: type[Event]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The fields that fill columns, and the fields that fill `data`."""
    targets = {**_TARGETS, **event.targets}
    pairs = [(field, targets.get(field, field)) for field in event.__struct_fields__]
    columns = [pair for pair in pairs if pair[1] in EventRow.__struct_fields__]
    return columns, [pair for pair in pairs if pair not in columns]


def clip_int(number: int) -> int:
    """The nearest number that fits an `int` column."""
    return max(-MAX_INT - 1, min(number, MAX_INT))
