"""Rings: the last five minutes of every service, second by second.

Lives here: differences of counters, and what they are per second. Never here: a clock, or asking. Invariants: memory is
bounded by RING_SAMPLES and MAX_SERVICES; a counter that went back is one that began again; a second in which nobody
looked is a gap, not a zero.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from scale0.events.histogram import Histogram, merge, quantile

RING_SAMPLES: Final = 300
MAX_SERVICES: Final = 1_000
RATE_SAMPLES: Final = 10
"""Over how many of the last samples a rate is told."""
COLUMNS: Final = ("answered", "failed", "p99_seconds", "busy", "waiting")
NO_RATES: Final = {"answered_per_second": None, "failed_per_second": None, "p50_seconds": None, "p99_seconds": None}

Row = dict[str, Any]


class Line:
    """One service, or all together."""

    __slots__ = ("columns", "histogram", "known", "recent", "totals")

    def __init__(self) -> None:
        self.columns = {name: array("d", [math.nan] * RING_SAMPLES) for name in COLUMNS}
        self.recent: deque[tuple[float, float, float, Histogram]] = deque(maxlen=RATE_SAMPLES)
        """Seconds, answered, failed and durations of the last samples."""
        self.totals: tuple[int, int] | None = None
        self.histogram: dict[int, int] = {}
        self.known = 0
        """The last sample in which somebody told of it."""


class Rings:
    """All lines, at one pace."""

    def __init__(self) -> None:
        self._times = array("d", [math.nan] * RING_SAMPLES)
        self._count = 0
        self._last: float | None = None
        self._lines: dict[str, Line] = {}
        self._all = Line()

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, wall: float, mono: float, status: Row, rates: Iterable[Row], services: Iterable[Row]) -> None:
        """One look at the broker."""
        seconds = 0.0 if self._last is None else mono - self._last
        at = self._next(wall)
        self._last = mono
        work = {row["service"]: row for row in services}
        told = {row["service"]: row for row in rates}
        for name in (*told, *work):
            if name and name not in self._lines and len(self._lines) < MAX_SERVICES:
                self._lines[name] = Line()
        for name, line in self._lines.items():
            row, offer = told.get(name), work.get(name)
            line.known = self._count if row or offer else line.known
            counted = (row["answered"], row["failed"]) if row else (0, 0)
            durations = [tuple(one) for one in row["histogram"]] if row else []
            busy, waiting = (offer["busy"], offer["waiting"]) if offer else (0, 0)
            _advance(line, at, seconds, counted, durations, busy, waiting)
        requests = status["requests"]
        together = merge([[tuple(one) for one in row["histogram"]] for row in told.values()])
        counted = (requests["answered"], requests["failed"])
        _advance(self._all, at, seconds, counted, together, requests["under_way"], requests["waiting"])
        self._forget()

    def gap(self, wall: float) -> None:
        """A second in which the broker did not answer."""
        at = self._next(wall)
        for line in (self._all, *self._lines.values()):
            for column in line.columns.values():
                column[at] = math.nan

    def rates(self, service: str | None) -> Row:
        """What the last RATE_SAMPLES were like."""
        line = self._all if service is None else self._lines.get(service)
        seconds = sum(one[0] for one in line.recent) if line else 0.0
        if line is None or not seconds:
            return dict(NO_RATES)
        durations = merge(one[3] for one in line.recent)
        return {
            "answered_per_second": sum(one[1] for one in line.recent) / seconds,
            "failed_per_second": sum(one[2] for one in line.recent) / seconds,
            "p50_seconds": quantile(durations, 0.5),
            "p99_seconds": quantile(durations, 0.99),
        }

    def series(self, service: str | None) -> Row:
        """The ring, the oldest first; null: nobody looked, or there is nothing to tell."""
        line = self._all if service is None else self._lines.get(service, Line())
        size = min(self._count, RING_SAMPLES)
        places = [(self._count - size + one) % RING_SAMPLES for one in range(size)]
        shown: Row = {"times": [self._times[at] for at in places]}
        for name, column in line.columns.items():
            shown[name] = [None if math.isnan(column[at]) else column[at] for at in places]
        return shown

    def _next(self, wall: float) -> int:
        at = self._count % RING_SAMPLES
        self._times[at] = wall
        self._count += 1
        return at

    def _forget(self) -> None:
        for name in [name for name, line in self._lines.items() if self._count - line.known > RING_SAMPLES]:
            del self._lines[name]


def _advance(
    line: Line, at: int, seconds: float, counted: tuple[int, int], durations: Histogram, busy: float, waiting: float
) -> None:
    before, line.totals = line.totals, counted
    known, line.histogram = line.histogram, dict(durations)
    line.columns["busy"][at] = busy
    line.columns["waiting"][at] = waiting
    for name in ("answered", "failed", "p99_seconds"):
        line.columns[name][at] = math.nan
    if before is None or seconds <= 0:
        return
    if counted[0] < before[0] or counted[1] < before[1]:
        before, known = (0, 0), {}
    answered, failed = counted[0] - before[0], counted[1] - before[1]
    fresh = [(bucket, count - known.get(bucket, 0)) for bucket, count in durations if count > known.get(bucket, 0)]
    line.recent.append((seconds, answered, failed, fresh))
    line.columns["answered"][at] = answered / seconds
    line.columns["failed"][at] = failed / seconds
    slowest = quantile(fresh, 0.99)
    line.columns["p99_seconds"][at] = math.nan if slowest is None else slowest
