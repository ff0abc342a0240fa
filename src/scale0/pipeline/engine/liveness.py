"""Liveness samples in the driver: gaps that end with new samples, and samples that cross the horizon."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq

from scale0.pipeline.time_ranges import DAY_HOURS, MINUTE_US, hour_of, to_time, to_us
from scale0.pipeline.warehouse.records import LIVENESS, PART

if TYPE_CHECKING:
    import datetime

    from scale0.pipeline.warehouse.transaction import Transaction

CLOSE_US: Final = 2 * MINUTE_US
"""A smaller distance within a boot is no gap: every source records something each minute."""
MAX_DAYS: Final = 400
"""How far back a source's previous sample is searched: no table reaches further."""

Sample = dict[str, Any]


def gap_hours(transaction: Transaction, new_hours: Collection[int]) -> frozenset[int]:
    """The hours in which sources were last seen before a gap that their new samples end: these hours must be
    recomputed.
    """
    if not new_hours or not transaction.base.chapters:
        return frozenset()
    ours = str(transaction.staging.folder)
    new = [sample for path, sample in samples_in(transaction, new_hours) if path.startswith(ours)]
    firsts: dict[str, Sample] = {}
    for sample in new:
        known = firsts.get(sample["source"])
        if known is None or sample["first_time"] < known["first_time"]:
            firsts[sample["source"]] = sample
    found: set[int] = set()
    day = max(new_hours) // DAY_HOURS
    oldest = max(day - MAX_DAYS, min(transaction.days(), default=day))
    while firsts and day >= oldest:
        hours = range(day * DAY_HOURS, (day + 1) * DAY_HOURS)
        older = [sample for path, sample in samples_in(transaction, hours) if not path.startswith(ours)]
        for source, first in list(firsts.items()):
            before = [one for one in older if one["source"] == source and one["first_time"] < first["first_time"]]
            if before:
                del firsts[source]
                last = max(before, key=lambda one: (one["last_time"], one["boot"], one["last_seq"]))
                if is_gap(last, first):
                    found.add(hour_of(to_us(last["last_time"])))
        day -= 1
    return frozenset(found)


def is_gap(last: Sample, first: Sample) -> bool:
    """True if the source may have been down or unobserved between two samples."""
    apart_us = to_us(first["first_time"]) - to_us(last["last_time"])
    return last["boot"] != first["boot"] or first["first_seq"] != last["last_seq"] + 1 or apart_us > CLOSE_US


def samples_in(transaction: Transaction, hours: Collection[int]) -> list[tuple[str, Sample]]:
    """The samples of these hours, each with its file."""
    columns = ["source", "boot", "first_seq", "last_seq", "first_time", "last_time", "events", PART]
    found = []
    for path, parts, _carved in transaction.files(LIVENESS, hours):
        for sample in pq.read_table(path, columns=columns, partitioning=None).to_pylist():
            if sample["events"] and sample[PART] in parts:
                found.append((path, sample))
    return found


SPOOLED_HOURS: Final = DAY_HOURS
"""How long after it happened an event may be recorded: its file is listed in the hours in which it happened."""


class CutSample(NamedTuple):
    """A liveness sample up to the horizon; the first three fields identify it."""

    source: str
    boot: int
    first_seq: int
    last_seq: int
    last_time: datetime.datetime
    events: int


def samples_at_horizon(transaction: Transaction, horizon_us: int) -> list[CutSample]:
    """The samples that cross the horizon, recounted from the events."""
    hour = hour_of(horizon_us)
    crossing = [
        sample
        for _, sample in samples_in(transaction, [hour])
        if to_us(sample["first_time"]) <= horizon_us < to_us(sample["last_time"])
    ]
    files = transaction.event_files(range(hour - SPOOLED_HOURS, hour + 1)) if crossing else []
    return [_cut(sample, files, horizon_us) for sample in crossing]


def _cut(sample: Sample, files: list[str], horizon_us: int) -> CutSample:
    """The seqs of a sample have no gap, and times ascend with them."""
    wanted = [
        ("source", "==", sample["source"]),
        ("boot", "==", sample["boot"]),
        ("seq", ">=", sample["first_seq"]),
        ("seq", "<=", sample["last_seq"]),
        ("time", "<=", to_time(horizon_us)),
    ]
    last_seq, last_time = sample["first_seq"], sample["first_time"]
    for path in files:
        for row in pq.read_table(path, columns=["seq", "time"], filters=wanted, partitioning=None).to_pylist():
            last_seq, last_time = max(last_seq, row["seq"]), max(last_time, row["time"])
    return CutSample(
        sample["source"], sample["boot"], sample["first_seq"], last_seq, last_time, last_seq - sample["first_seq"] + 1
    )
