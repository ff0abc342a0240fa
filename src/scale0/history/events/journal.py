"""The journal: the events of a turn become one row, numbered without gaps; and journal rows back to events.

seq has no gaps over restarts. time never decreases within a boot, and at <= time. An event is in the row or raises, and
after an error the journal is unchanged. Audit events form a chain of hashes (`history.events.audit`).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.audit import AUDIT_KINDS, hash_of, link
from scale0.history.events.columns import MAX_BIGINT, MAX_INT, METRIC_FIELDS, SCHEMA_VERSION, EventMetric, EventRow
from scale0.history.events.sources import SourceClockStepped
from scale0.kernel.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.history.events.columns import Event
    from scale0.kernel.clock import Now

STEP_TOLERANCE_US: Final = 100_000
"""A clock that goes back less than this was only adjusted: the recorded time waits, and no event is recorded."""

_MICRO: Final = 1_000_000
_INT_COLUMNS: Final = ("attempt", "code")
_DOUBLE_COLUMNS: Final = ("at", "seconds", "waited")
_CHAINED: Final = frozenset(AUDIT_KINDS)
_METRIC_DOUBLES: Final = tuple(name for name, kind in METRIC_FIELDS if kind == "double")


class JournalRow(msgspec.Struct, frozen=True):
    """The events of one turn, as stored."""

    first_seq: int
    last_seq: int
    boot: int
    time_us: int
    body: bytes
    """A `JournalTurn` in MessagePack."""


class JournalTurn(msgspec.Struct, frozen=True, array_like=True):
    """The content of a body: complete without the other columns."""

    schema_version: int
    source: str
    boot: int
    first_seq: int
    time_us: int
    rows: msgspec.Raw
    """An array of `_StoredRow`, as this schema version has it."""


_StoredRow: Final[Any] = msgspec.defstruct(
    "_StoredRow",
    [
        (field.name, str | None if field.name == "data" else field.type, None)
        for field in msgspec.structs.fields(EventRow)
    ],
    array_like=True,
    frozen=True,
)
"""EventRow with its data as JSON text, so that data that cannot be encoded raises on append, not on read."""

TURN: Final = msgspec.msgpack.Decoder(JournalTurn)
"""Decodes a body."""
ROWS: Final = msgspec.msgpack.Decoder(list[_StoredRow])
"""Decodes the rows of a turn, without a dict for each event."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_DATA: Final = msgspec.json.Encoder(order="sorted")


class Journal:
    """Numbers and dates the events of one source. One per process; it continues from the state of its store."""

    def __init__(self, source: str, boot_us: int, next_seq: int, last_time_us: int, audit_head: str = "") -> None:
        self._source = source
        self._boot = boot_us
        self._next_seq = next_seq
        self._last_time_us = last_time_us
        self._lag_us = 0
        """How far the clock is known to be behind the last time."""
        self._fresh = True
        """Until the first append: a boot may begin before the last time of the previous one."""
        self.audit_head = audit_head
        """The hash of the newest audit event; blank: there is none."""

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def append(self, events: Sequence[Event], now: Now) -> JournalRow | None:
        """One row of all these events, in order; None if there are none."""
        if not events:
            return None
        wall_us = round(now.wall * _MICRO)
        last_us = self._last_time_us
        lag_us = max(0, last_us - wall_us)
        known_us = min(self._lag_us, lag_us)
        rows = [_cells(event) for event in events]
        if lag_us > known_us + STEP_TOLERANCE_US:
            known_us = lag_us
            rows.insert(0, _cells(SourceClockStepped(self._source, lag_us / _MICRO)))
        # A restart corrects a clock that was ahead; within a boot the time waits until the clock has caught up.
        time_us = wall_us if self._fresh else max(last_us, wall_us)
        first_seq = self._next_seq
        turn = JournalTurn(SCHEMA_VERSION, self._source, self._boot, first_seq, time_us, msgspec.Raw())
        audit_head = _chain(turn, rows, self.audit_head)
        turn = msgspec.structs.replace(turn, rows=msgspec.Raw(_ENCODER.encode(rows)))
        entry = JournalRow(first_seq, first_seq + len(rows) - 1, self._boot, time_us, _ENCODER.encode(turn))
        self._next_seq = entry.last_seq + 1
        self.audit_head = audit_head
        self._last_time_us = time_us
        self._lag_us = 0 if self._fresh else known_us
        self._fresh = False
        return entry


def _chain(turn: JournalTurn, rows: list[list[Any]], head: str) -> str:
    """Link the audit events among the rows of a turn; the hash of the last one."""
    for seq, cells in enumerate(rows, turn.first_seq):
        if cells[0] in _CHAINED:
            cells[-1] = link(cells[-1], head)
            head = hash_of(_columns(turn, seq, _StoredRow(*cells)))
    return head


def _cells(event: Event) -> list[Any]:
    """The fields of a `_StoredRow`; frequent events make them themselves, from numbers that fit."""
    own = getattr(event, "cells", None)
    if own is not None:
        cells: list[Any] = own()
        return cells
    row = event.row()
    _check(row)
    fields = list(msgspec.structs.astuple(row))
    if row.data is not None:
        fields[-1] = _DATA.encode(row.data).decode()
    return fields


def _check(row: EventRow) -> None:
    """Refuse values that the journal could store and a segment could not: they would stop the export there."""
    for name in _INT_COLUMNS:
        number = getattr(row, name)
        if number is not None and not -MAX_INT - 1 <= number <= MAX_INT:
            raise ValueError(f"{row.kind}: {name} = {number} does not fit 32 bits")
    for name in _DOUBLE_COLUMNS:
        number = getattr(row, name)
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{row.kind}: {name} = {number} is not a number of seconds")
    if row.bytes is not None and not 0 <= row.bytes <= MAX_BIGINT:
        raise ValueError(f"{row.kind}: bytes = {row.bytes} does not fit 63 bits")
    for metric in row.metrics or ():
        for name in _METRIC_DOUBLES:
            number = getattr(metric, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{row.kind}: {name} of {metric.name} = {number} is not finite")


def read(body: bytes) -> list[dict[str, Any]]:
    """The events of one journal row with all columns, in order; times in microseconds, data as JSON text."""
    try:
        turn = TURN.decode(body)
        if turn.schema_version > SCHEMA_VERSION:
            raise StoreError(f"the journal has schema {turn.schema_version}, this program supports {SCHEMA_VERSION}")
        rows = ROWS.decode(turn.rows)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"a journal row is damaged: {error}") from error
    return [_columns(turn, number, row) for number, row in enumerate(rows, turn.first_seq)]


def _columns(turn: JournalTurn, seq: int, row: Any) -> dict[str, Any]:
    at_us = turn.time_us if row.at is None else min(turn.time_us, round(row.at * _MICRO))
    buckets = None if row.histogram is None else [{"bucket": b, "count": n} for b, n in row.histogram]
    return {
        "source": turn.source,
        "boot": turn.boot,
        "seq": seq,
        "time": turn.time_us,
        "at": at_us,
        "kind": row.kind,
        "identity": row.identity,
        "service": row.service,
        "ref": row.ref,
        "attempt": row.attempt,
        "code": row.code,
        "state": row.state,
        "seconds": row.seconds,
        "waited": row.waited,
        "histogram": buckets,
        "bytes": row.bytes,
        "metrics": None if row.metrics is None else [_fields(metric) for metric in row.metrics],
        "data": row.data,
    }


def _fields(metric: EventMetric) -> dict[str, Any]:
    return {name: getattr(metric, name) for name, _ in METRIC_FIELDS}


def event_as_json(event: dict[str, Any]) -> bytes:
    """An event as one JSON object on one line: times as text, `data` as JSON."""
    return msgspec.json.encode({name: _as_json(name, value) for name, value in event.items()})


def format_time_us(time_us: int) -> str:
    """2026-05-01T22:00:00.123456Z"""
    seconds, rest = divmod(time_us, _MICRO)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _as_json(name: str, value: Any) -> Any:
    if value is None:
        return None
    match name:
        case "time" | "at":
            return format_time_us(value)
        case "data":
            return _as_data(value)
        case _:
            return value


def _as_data(text: str) -> Any:
    """JSON on one line; invalid JSON as text, because a segment may come from anywhere."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text
    return msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())
