"""Liveness samples that cross the horizon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq

from scale0.pipeline.engine.late_silences import Pulse, pulses_in
from scale0.pipeline.time_ranges import DAY_HOURS, hour_of, to_time, to_us

if TYPE_CHECKING:
    import datetime

    from scale0.pipeline.warehouse.transaction import Transaction

SPOOLED_HOURS: Final = DAY_HOURS
"""How long after it happened an event may be recorded: its file is listed in the hours in which it happened."""


class Cut(NamedTuple):
    """A liveness sample up to the horizon; the first three fields identify it."""

    source: str
    boot: int
    first_seq: int
    last_seq: int
    last_time: datetime.datetime
    events: int


def cuts(draft: Transaction, horizon_us: int) -> list[Cut]:
    """The samples that cross the horizon, recounted from the events."""
    hour = hour_of(horizon_us)
    crossing = [
        pulse
        for _, pulse in pulses_in(draft, [hour])
        if to_us(pulse["first_time"]) <= horizon_us < to_us(pulse["last_time"])
    ]
    files = draft.event_files(range(hour - SPOOLED_HOURS, hour + 1)) if crossing else []
    return [_cut(pulse, files, horizon_us) for pulse in crossing]


def _cut(pulse: Pulse, files: list[str], horizon_us: int) -> Cut:
    """The seqs of a sample have no gap, and times ascend with them."""
    wanted = [
        ("source", "==", pulse["source"]),
        ("boot", "==", pulse["boot"]),
        ("seq", ">=", pulse["first_seq"]),
        ("seq", "<=", pulse["last_seq"]),
        ("time", "<=", to_time(horizon_us)),
    ]
    last_seq, last_time = pulse["first_seq"], pulse["first_time"]
    for path in files:
        for row in pq.read_table(path, columns=["seq", "time"], filters=wanted, partitioning=None).to_pylist():
            last_seq, last_time = max(last_seq, row["seq"]), max(last_time, row["time"])
    return Cut(
        pulse["source"], pulse["boot"], pulse["first_seq"], last_seq, last_time, last_seq - pulse["first_seq"] + 1
    )
