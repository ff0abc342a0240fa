"""Request statistics: one event for each service, backend and ten seconds, in place of one for each request.

Totals are computed from these sums only when events are written or a view is read, so that recording stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scale0.history.events.histogram import bucket_of
from scale0.history.events.requests import RequestFailed, RequestSummed
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

if TYPE_CHECKING:
    from scale0.broker.core.request import RoutedRequest

SUM_SECONDS: Final = 10.0
FAILED_EVENTS_PER_SECOND: Final = 1_000
"""Further failures are only counted."""
MAX_CODES: Final = 20
"""Codes of one event; a backend can invent any number of them, and the others share one."""
OTHER_CODES: Final = "0"
MAX_TOTALS: Final = 10_000
"""Services with totals of their own; all others share one."""
REST: Final = ""
"""The shared name of services that have no backend, and of those beyond MAX_TOTALS."""


class BackendStats:
    """The requests of one backend for one service since the last event."""

    __slots__ = ("answered", "bytes", "failed", "histogram", "longest", "seconds")

    def __init__(self) -> None:
        self.answered = 0
        self.seconds = 0.0
        self.longest = 0.0
        self.bytes = 0
        self.histogram: dict[int, int] = {}
        self.failed: dict[str, int] = {}


class ServiceTotals:
    """The requests for one service since the broker's start."""

    __slots__ = ("answered", "bytes", "failed", "histogram", "longest", "seconds")

    def __init__(self) -> None:
        self.answered = self.failed = self.bytes = 0
        self.seconds = self.longest = 0.0
        self.histogram: dict[int, int] = {}

    def add(self, entry: BackendStats) -> None:
        """Add one backend's sums, except failures, which are counted as they happen."""
        self.answered += entry.answered
        self.bytes += entry.bytes
        self.seconds += entry.seconds
        self.longest = max(self.longest, entry.longest)
        for bucket, count in entry.histogram.items():
            self.histogram[bucket] = self.histogram.get(bucket, 0) + count

    def row(self, service: str) -> dict[str, Any]:
        return {
            "service": service,
            "answered": self.answered,
            "failed": self.failed,
            "seconds": self.seconds,
            "longest": self.longest,
            "bytes": self.bytes,
            "histogram": sorted(self.histogram.items()),
        }


class RequestStats:
    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], BackendStats] = {}
        self._totals: dict[str, ServiceTotals] = {}
        self._second = 0
        self._failures = 0
        self.total_answered = 0
        self.total_failed = 0

    def answered(self, service: str, backend: str, seconds: float, size: int, count: int = 1) -> None:
        """Record replies that took the same time; `size` is the sum of their bytes."""
        key = (service, backend)
        entry = self._sums.get(key)
        if entry is None:
            self._sums[key] = entry = BackendStats()
        entry.answered += count
        entry.bytes += size
        entry.seconds += seconds * count
        if seconds > entry.longest:
            entry.longest = seconds
        bucket = bucket_of(seconds)
        entry.histogram[bucket] = entry.histogram.get(bucket, 0) + count
        self.total_answered += count

    def failed(self, request: RoutedRequest, backend: str, known: bool, code: int, now: Now, effects: Effects) -> None:
        """Record one failure as an event, or only count it when there are too many.

        Failures for services without backends are counted together, because clients can invent any number of names.
        """
        self.total_failed += 1
        self._total(request.service if known else REST).failed += 1
        second = int(now.mono)
        if second != self._second:
            self._second, self._failures = second, 0
        self._failures += 1
        if self._failures > FAILED_EVENTS_PER_SECOND:
            entry = self._sums.setdefault((request.service if known else "", backend), BackendStats())
            key = str(code)
            if key not in entry.failed and len(entry.failed) >= MAX_CODES:
                key = OTHER_CODES
            entry.failed[key] = entry.failed.get(key, 0) + 1
            return
        effects.record(
            RequestFailed(
                service=request.service,
                request_id=request.id,
                backend=backend,
                code=code,
                seconds=now.mono - request.accepted,
                client=request.origin.name,
                hops=request.hops,
            )
        )

    def flush(self, effects: Effects) -> None:
        for (service, backend), entry in self._sums.items():
            self._total(service).add(entry)
            effects.record(
                RequestSummed(
                    service=service,
                    backend=backend,
                    answered=entry.answered,
                    longest_seconds=entry.longest,
                    bytes=entry.bytes,
                    histogram=sorted(entry.histogram.items()),
                    failed=entry.failed,
                )
            )
        self._sums = {}

    def totals(self) -> dict[str, ServiceTotals]:
        """Totals since the start, including sums that are not written yet."""
        fresh: dict[str, ServiceTotals] = {}
        for (service, _), entry in self._sums.items():
            name = service if service in self._totals or len(self._totals) < MAX_TOTALS else REST
            if name not in fresh:
                fresh[name] = copied(self._totals.get(name))
            fresh[name].add(entry)
        return {**self._totals, **fresh}

    def _total(self, service: str) -> ServiceTotals:
        found = self._totals.get(service)
        if found is None:
            name = service if len(self._totals) < MAX_TOTALS else REST
            found = self._totals.setdefault(name, ServiceTotals())
        return found


def copied(total: ServiceTotals | None) -> ServiceTotals:
    out = ServiceTotals()
    if total is not None:
        for name in ServiceTotals.__slots__:
            setattr(out, name, getattr(total, name))
        out.histogram = dict(total.histogram)
    return out
