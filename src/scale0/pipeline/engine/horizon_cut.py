"""Pulses that cross the horizon: what a source recorded in its minute up to there, and no further.

Lives here: the pulses that begin at or before a horizon and end behind it, counted anew from the events. Never here: a
frame, or what a pulse means. Invariant: a horizon that no pulse crosses costs one look at the pulses of its hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq

from scale0.pipeline.engine.late_silences import Pulse, pulses_in
from scale0.pipeline.time_ranges import DAY_HOURS, hour_of, to_time, to_us

if TYPE_CHECKING:
    import datetime

    from scale0.pipeline.warehouse.transaction import Transaction

SPOOLED_HOURS: Final = DAY_HOURS
"""How long before it was recorded something may have happened: its file stands with the hours in which it happened."""


class Cut(NamedTuple):
    """A pulse as it stands at the horizon; the first three name it."""

    source: str
    boot: int
    first_seq: int
    last_seq: int
    last_time: datetime.datetime
    events: int


def cuts(draft: Transaction, horizon_us: int) -> list[Cut]:
    """Of the pulses that cross the horizon."""
    hour = hour_of(horizon_us)
    crossing = [
        pulse
        for _, pulse in pulses_in(draft, [hour])
        if to_us(pulse["first_time"]) <= horizon_us < to_us(pulse["last_time"])
    ]
    files = draft.event_files(range(hour - SPOOLED_HOURS, hour + 1)) if crossing else []
    return [_cut(pulse, files, horizon_us) for pulse in crossing]


def _cut(pulse: Pulse, files: list[str], horizon_us: int) -> Cut:
    """Seqs of a pulse have no gap, and times only grow with them."""
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
