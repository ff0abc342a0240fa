"""Rings: the last five minutes of every service, second by second.

Lives here: what is kept of them. Never here: a clock, or asking. Invariants: memory is
bounded by RING_SAMPLES and MAX_SERVICES; a counter that went back is one that began again; a second in which nobody
looked is a gap, not a zero.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import asdict

from scale0.client.admin.rates import ServiceWork, done_between, together
from scale0.history.events.histogram import merge

RING_SAMPLES: Final = 300
MAX_SERVICES: Final = 1_000
RATE_SAMPLES: Final = 10
"""Over how many of the last samples a rate is told."""
NOTHING: Final = {"answered": 0, "failed": 0, "histogram": ()}
COLUMNS: Final = ("answered", "failed", "p99_seconds", "busy", "waiting")
NO_RATES: Final = {"answered_per_second": None, "failed_per_second": None, "p50_seconds": None, "p99_seconds": None}

Row = dict[str, Any]


class ServiceRing:
    """One service, or all together."""

    __slots__ = ("columns", "known", "recent", "told")

    def __init__(self) -> None:
        self.columns = {name: array("d", [math.nan] * RING_SAMPLES) for name in COLUMNS}
        self.recent: deque[tuple[float, ServiceWork]] = deque(maxlen=RATE_SAMPLES)
        """The last samples: in how many seconds, what."""
        self.told: Mapping[str, Any] | None = None
        """The counts of the last one."""
        self.known = 0
        """The last sample in which somebody told of it."""


class RingBuffers:
    """All lines, at one pace."""

    def __init__(self) -> None:
        self._times = array("d", [math.nan] * RING_SAMPLES)
        self._count = 0
        self._last: float | None = None
        self._lines: dict[str, ServiceRing] = {}
        self._all = ServiceRing()

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
                self._lines[name] = ServiceRing()
        for name, line in self._lines.items():
            row, offer = told.get(name), work.get(name)
            line.known = self._count if row or offer else line.known
            busy, waiting = (offer["busy"], offer["waiting"]) if offer else (0, 0)
            _advance(line, at, seconds, row or NOTHING, busy, waiting)
        requests = status["requests"]
        durations = merge([[tuple(one) for one in row["histogram"]] for row in told.values()])
        _advance(
            self._all, at, seconds, {**requests, "histogram": durations}, requests["under_way"], requests["waiting"]
        )
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
        seconds = sum(one for one, _ in line.recent) if line else 0.0
        if line is None or not seconds:
            return dict(NO_RATES)
        return asdict(together(done for _, done in line.recent).per(seconds))

    def series(self, service: str | None) -> Row:
        """The ring, the oldest first; null: nobody looked, or there is nothing to tell."""
        line = self._all if service is None else self._lines.get(service, ServiceRing())
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


def _advance(line: ServiceRing, at: int, seconds: float, told: Mapping[str, Any], busy: float, waiting: float) -> None:
    before, line.told = line.told, told
    line.columns["busy"][at] = busy
    line.columns["waiting"][at] = waiting
    for name in ("answered", "failed", "p99_seconds"):
        line.columns[name][at] = math.nan
    if before is None or seconds <= 0:
        return
    done = done_between(before, told) or done_between(None, told)
    if done is None:
        return
    line.recent.append((seconds, done))
    rates = done.per(seconds)
    line.columns["answered"][at] = rates.answered_per_second
    line.columns["failed"][at] = rates.failed_per_second
    line.columns["p99_seconds"][at] = math.nan if rates.p99_seconds is None else rates.p99_seconds
