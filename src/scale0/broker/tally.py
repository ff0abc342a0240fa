"""Requests summed up: one event per service, backend and ten seconds, in place of one per request.

Lives here: counts and histograms since the last sum. Never here: a single request's story. Recording must not cost more
than the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.base.now import Now
from scale0.base.step import Step
from scale0.events.histogram import bucket_of
from scale0.events.requests import RequestFailed, RequestSummed

if TYPE_CHECKING:
    from scale0.broker.requests import Request

SUM_SECONDS: Final = 10.0
"""How often sums become events."""
FAILED_EVENTS_PER_SECOND: Final = 1_000
"""Failures beyond these are only counted."""


class Sum:
    """What one backend did for one service since the last sum."""

    __slots__ = ("answered", "bytes", "failed", "histogram", "longest")

    def __init__(self) -> None:
        self.answered = 0
        self.longest = 0.0
        self.bytes = 0
        self.histogram: dict[int, int] = {}
        self.failed: dict[str, int] = {}


class Tally:
    """All sums of one broker."""

    __slots__ = ("_failures", "_second", "_sums", "total_answered", "total_failed")

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Sum] = {}
        self._second = 0
        self._failures = 0
        self.total_answered = 0
        self.total_failed = 0

    def answered(self, service: str, backend: str, seconds: float, size: int) -> None:
        """One request was answered."""
        key = (service, backend)
        entry = self._sums.get(key)
        if entry is None:
            self._sums[key] = entry = Sum()
        entry.answered += 1
        entry.bytes += size
        if seconds > entry.longest:
            entry.longest = seconds
        bucket = bucket_of(seconds)
        entry.histogram[bucket] = entry.histogram.get(bucket, 0) + 1
        self.total_answered += 1

    def failed(self, request: Request, backend: str, known: bool, code: int, now: Now, step: Step) -> None:
        """One request failed: an event, or a count when there are too many.

        Those of services that nobody offers are counted together: their names are whatever clients make up.
        """
        self.total_failed += 1
        second = int(now.mono)
        if second != self._second:
            self._second, self._failures = second, 0
        self._failures += 1
        if self._failures > FAILED_EVENTS_PER_SECOND:
            entry = self._sums.setdefault((request.service if known else "", backend), Sum())
            entry.failed[str(code)] = entry.failed.get(str(code), 0) + 1
            return
        step.record(
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

    def flush(self, step: Step) -> None:
        """Record the sums and start anew."""
        for (service, backend), entry in self._sums.items():
            step.record(
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
