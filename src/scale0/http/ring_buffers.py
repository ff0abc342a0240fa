"""Ring buffers with the last five minutes of every service, one sample per second.

Memory is bounded by RING_SAMPLES and MAX_SERVICES. A counter that decreased has restarted. A second without a sample is
a gap and not a zero.
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
"""The number of samples over which a rate is computed."""
NO_COUNTS: Final = {"answered": 0, "failed": 0, "histogram": ()}
COLUMNS: Final = ("answered", "failed", "p99_seconds", "busy", "waiting")
NO_RATES: Final = {"answered_per_second": None, "failed_per_second": None, "p50_seconds": None, "p99_seconds": None}

Row = dict[str, Any]


class ServiceRing:
    """One service, or the sum of all."""

    __slots__ = ("columns", "counts", "last_sample", "recent")

    def __init__(self) -> None:
        self.columns = {name: array("d", [math.nan] * RING_SAMPLES) for name in COLUMNS}
        self.recent: deque[tuple[float, ServiceWork]] = deque(maxlen=RATE_SAMPLES)
        """The last samples: the seconds since the previous one, and the work in them."""
        self.counts: Mapping[str, Any] | None = None
        """The counts of the last sample."""
        self.last_sample = 0
        """The number of the last sample that contained the service."""

    def put(self, index: int, seconds: float, counts: Mapping[str, Any], busy: float, waiting: float) -> None:
        """Store one sample at `index`, `seconds` after the previous one."""
        before, self.counts = self.counts, counts
        self.columns["busy"][index] = busy
        self.columns["waiting"][index] = waiting
        for name in ("answered", "failed", "p99_seconds"):
            self.columns[name][index] = math.nan
        if before is None or seconds <= 0:
            return
        done = done_between(before, counts) or done_between(None, counts)
        if done is None:
            return
        self.recent.append((seconds, done))
        rates = done.per(seconds)
        self.columns["answered"][index] = rates.answered_per_second
        self.columns["failed"][index] = rates.failed_per_second
        self.columns["p99_seconds"][index] = math.nan if rates.p99_seconds is None else rates.p99_seconds


class RingBuffers:
    def __init__(self) -> None:
        self._times = array("d", [math.nan] * RING_SAMPLES)
        self._count = 0
        self._last_mono: float | None = None
        self._services: dict[str, ServiceRing] = {}
        self._total = ServiceRing()

    def __len__(self) -> int:
        return len(self._services)

    def add(self, wall: float, mono: float, status: Row, rates: Iterable[Row], services: Iterable[Row]) -> None:
        seconds = 0.0 if self._last_mono is None else mono - self._last_mono
        index = self._next(wall)
        self._last_mono = mono
        loads = {row["service"]: row for row in services}
        counts = {row["service"]: row for row in rates}
        for name in (*counts, *loads):
            if name and name not in self._services and len(self._services) < MAX_SERVICES:
                self._services[name] = ServiceRing()
        for name, ring in self._services.items():
            row, load = counts.get(name), loads.get(name)
            ring.last_sample = self._count if row or load else ring.last_sample
            busy, waiting = (load["busy"], load["waiting"]) if load else (0, 0)
            ring.put(index, seconds, row or NO_COUNTS, busy, waiting)
        requests = status["requests"]
        durations = merge([[tuple(one) for one in row["histogram"]] for row in counts.values()])
        total = {**requests, "histogram": durations}
        self._total.put(index, seconds, total, requests["under_way"], requests["waiting"])
        self._remove_old()

    def gap(self, wall: float) -> None:
        """Add a second in which the broker did not answer."""
        index = self._next(wall)
        for ring in (self._total, *self._services.values()):
            for column in ring.columns.values():
                column[index] = math.nan

    def rates(self, service: str | None) -> Row:
        """The rates over the last RATE_SAMPLES; without a name, of all services together."""
        ring = self._total if service is None else self._services.get(service)
        seconds = sum(one for one, _ in ring.recent) if ring else 0.0
        if ring is None or not seconds:
            return dict(NO_RATES)
        return asdict(together(done for _, done in ring.recent).per(seconds))

    def series(self, service: str | None) -> Row:
        """All samples, the oldest first; null: no sample, or no value."""
        ring = self._total if service is None else self._services.get(service, ServiceRing())
        size = min(self._count, RING_SAMPLES)
        indexes = [(self._count - size + one) % RING_SAMPLES for one in range(size)]
        series: Row = {"times": [self._times[index] for index in indexes]}
        for name, column in ring.columns.items():
            series[name] = [None if math.isnan(column[index]) else column[index] for index in indexes]
        return series

    def _next(self, wall: float) -> int:
        index = self._count % RING_SAMPLES
        self._times[index] = wall
        self._count += 1
        return index

    def _remove_old(self) -> None:
        for name in [name for name, ring in self._services.items() if self._count - ring.last_sample > RING_SAMPLES]:
            del self._services[name]
