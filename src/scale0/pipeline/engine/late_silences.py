"""Liveness samples in the driver: gaps that end with new samples, and samples that cross the horizon."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from scale0.pipeline.time_ranges import DAY_HOURS, MINUTE_US, hour_of, to_us
from scale0.pipeline.warehouse.records import PART

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.transaction import Transaction

CLOSE_US: Final = 2 * MINUTE_US
"""A smaller distance within a boot is no gap: every source records something each minute."""
MAX_DAYS: Final = 400
"""How far back a source's previous sample is searched: no table reaches further."""

Pulse = dict[str, Any]


def silent_hours(draft: Transaction, new_hours: Collection[int]) -> frozenset[int]:
    """The hours in which sources were last seen before a gap that their new samples end: these hours must be
    recomputed.
    """
    if not new_hours or not draft.base.chapters:
        return frozenset()
    ours = str(draft.attempt.folder)
    new = [pulse for path, pulse in pulses_in(draft, new_hours) if path.startswith(ours)]
    firsts: dict[str, Pulse] = {}
    for pulse in new:
        known = firsts.get(pulse["source"])
        if known is None or pulse["first_time"] < known["first_time"]:
            firsts[pulse["source"]] = pulse
    found: set[int] = set()
    day = max(new_hours) // DAY_HOURS
    oldest = max(day - MAX_DAYS, min(draft.days(), default=day))
    while firsts and day >= oldest:
        hours = range(day * DAY_HOURS, (day + 1) * DAY_HOURS)
        older = [pulse for path, pulse in pulses_in(draft, hours) if not path.startswith(ours)]
        for source, first in list(firsts.items()):
            before = [one for one in older if one["source"] == source and one["first_time"] < first["first_time"]]
            if before:
                del firsts[source]
                last = max(before, key=lambda one: (one["last_time"], one["boot"], one["last_seq"]))
                if is_break(last, first):
                    found.add(hour_of(to_us(last["last_time"])))
        day -= 1
    return frozenset(found)


def is_break(last: Pulse, first: Pulse) -> bool:
    """True if the source may have been down or unobserved between two samples."""
    apart_us = to_us(first["first_time"]) - to_us(last["last_time"])
    return last["boot"] != first["boot"] or first["first_seq"] != last["last_seq"] + 1 or apart_us > CLOSE_US


def pulses_in(draft: Transaction, hours: Collection[int]) -> list[tuple[str, Pulse]]:
    """The samples of these hours, each with its file."""
    columns = ["source", "boot", "first_seq", "last_seq", "first_time", "last_time", "events", PART]
    found = []
    for path, parts, _carved in draft.pulses(hours):
        for pulse in pq.read_table(path, columns=columns, partitioning=None).to_pylist():
            if pulse["events"] and pulse[PART] in parts:
                found.append((path, pulse))
    return found
