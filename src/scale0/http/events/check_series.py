"""The series of a check: its states and metrics of the last day. Reports of the warehouse have longer periods.

A series has at most MAX_POINTS points. A point of several results has the worst state of them, so that no problem is
lost, and the metrics of the last one.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from scale0.history.segments.reader import Event, EventFilter, events_of
from scale0.http.events.event_index import EventIndex
from scale0.http.events.pages import BackwardReader

SPAN_SECONDS: Final = 86_400
MAX_POINTS: Final = 500
MAX_RESULTS: Final = 20_000
"""Results that are read: one in four seconds."""
MAX_METRICS: Final = 32
"""Of one check."""
STATES: Final = ("ok", "warning", "unknown", "critical")
"""From good to bad."""
_MICRO: Final = 1_000_000


class CheckSeries(msgspec.Struct, frozen=True):
    """The series, in columns."""

    times: list[float]
    """Seconds since the Unix epoch."""
    states: list[str]
    metrics: dict[str, list[float | None]]
    units: dict[str, str]
    since: float
    """The start of the period that was read."""


def series_of(index: EventIndex, agent: str, check: str, wall: float | None = None) -> CheckSeries:
    """The last day of a check, from the journals and segments of this machine."""
    now_us = int((time.time() if wall is None else wall) * _MICRO)
    since_us = now_us - SPAN_SECONDS * _MICRO
    filter_ = EventFilter(
        kinds=("check.answered",), identity=glob.escape(agent), service=glob.escape(check), since_us=since_us
    )
    reader = BackwardReader(index, filter_)
    found: list[Event] = []
    for part in reader:
        found += events_of(part.table)
        if len(found) >= MAX_RESULTS:
            break
    reached_us = since_us if reader.is_over else reader.bound_us
    events = sorted(
        (event for event in found if event["at"] >= reached_us), key=lambda event: (event["at"], event["seq"])
    )
    return _points(events, reached_us, now_us)


def _points(events: Sequence[Event], since_us: int, until_us: int) -> CheckSeries:
    groups = [[event] for event in events]
    if len(events) > MAX_POINTS:
        width = (max(until_us, events[-1]["at"] + 1) - since_us) // MAX_POINTS + 1
        by_step: dict[int, list[Event]] = {}
        for event in events:
            by_step.setdefault((event["at"] - since_us) // width, []).append(event)
        groups = [by_step[step] for step in sorted(by_step)]
    metrics: dict[str, list[float | None]] = {}
    units: dict[str, str] = {}
    for number, group in enumerate(groups):
        for metric in group[-1]["metrics"] or ():
            if metric["name"] not in metrics and len(metrics) >= MAX_METRICS:
                continue
            column = metrics.setdefault(metric["name"], [None] * len(groups))
            column[number] = metric["value"]
            units[metric["name"]] = metric["unit"] or ""
    return CheckSeries(
        times=[group[-1]["at"] / _MICRO for group in groups],
        states=[max((event["state"] or "unknown" for event in group), key=_severity) for group in groups],
        metrics=metrics,
        units=units,
        since=since_us / _MICRO,
    )


def _severity(state: str) -> int:
    return STATES.index(state) if state in STATES else STATES.index("unknown")
