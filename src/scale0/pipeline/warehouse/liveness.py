"""Liveness samples: what a source recorded minute by minute, computed from its segments.

Every event of a segment is counted in exactly one sample: as new, as a duplicate, or as rejected.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from scale0.pipeline.time_ranges import HOUR_US, MINUTE_US
from scale0.pipeline.warehouse.records import PART

HourKinds = dict[int, dict[str, int]]
"""Events by hour of `at` and by kind."""

TAKEN: Final = 0
DUPLICATE: Final = 1
REJECTED: Final = 2

_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("boot", pa.int64()),
        ("first_seq", pa.int64()),
        ("last_seq", pa.int64()),
        ("first_time", _TIME),
        ("last_time", _TIME),
        ("events", pa.int64()),
        ("duplicates", pa.int64()),
        ("rejected", pa.int64()),
        (PART, pa.int32()),
    ]
)
"""As in `tables.PULSES`, plus the hour of `time`."""


def liveness_samples(source: str, boot: int, seq: Any, time_us: Any, verdict: Any = None) -> pa.Table:
    """One row per minute of `time`, split where a seq is missing or the verdict changes. seq and time must be
    ascending.
    """
    count = len(seq)
    minute = time_us // MINUTE_US
    cut = (minute[1:] != minute[:-1]) | (seq[1:] != seq[:-1] + 1)
    if verdict is None:
        verdict = np.zeros(count, np.int8)
    else:
        cut |= verdict[1:] != verdict[:-1]
    starts = np.concatenate(([0], np.flatnonzero(cut) + 1)) if count else np.zeros(0, np.int64)
    ends = np.append(starts[1:], count) - 1 if count else starts
    sizes = ends - starts + 1 if count else starts
    verdicts = verdict[starts]
    columns = [
        pa.array([source] * len(starts), pa.string()),
        pa.array(np.full(len(starts), boot, np.int64)),
        pa.array(seq[starts]),
        pa.array(seq[ends]),
        pa.array(time_us[starts], _TIME),
        pa.array(time_us[ends], _TIME),
        *(pa.array(np.where(verdicts == one, sizes, 0)) for one in (TAKEN, DUPLICATE, REJECTED)),
        pa.array((time_us[starts] // HOUR_US).astype(np.int32)),
    ]
    return pa.table(columns, schema=SCHEMA)


def table_hour_kinds(events: pa.Table) -> HourKinds:
    kinds = events["kind"].combine_chunks().dictionary_encode()
    return hour_kinds(events["at"].cast(pa.int64()).to_numpy(), kinds.indices.to_numpy(), kinds.dictionary.to_pylist())


def add_hour_kinds(total: HourKinds, hours: HourKinds) -> None:
    for hour, kinds in hours.items():
        counts = total.setdefault(hour, {})
        for kind, count in kinds.items():
            counts[kind] = counts.get(kind, 0) + count


def hour_kinds(at_us: Any, codes: Any, kinds: list[str]) -> HourKinds:
    """Events by hour of `at` and by kind; `codes` are indexes into `kinds`."""
    hours: HourKinds = {}
    if len(at_us):
        keys, counts = np.unique(at_us // HOUR_US * len(kinds) + codes, return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            hour, code = divmod(key, len(kinds))
            hours.setdefault(hour, {})[kinds[code]] = count
    return hours
