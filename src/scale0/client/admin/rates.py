"""Rates between two readings of growing counters (`list_rates`).

After a restart of the broker the counters are smaller than before, and there is no rate until the next reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scale0.history.events.histogram import Histogram, from_counts, merge, quantile

Row = Mapping[str, Any]


class ServiceRates(msgspec.Struct, frozen=True):
    answered_per_second: float
    failed_per_second: float
    p50_seconds: float | None
    p99_seconds: float | None


class ServiceWork(msgspec.Struct, frozen=True):
    """The requests of one service between two readings."""

    answered: int
    failed: int
    histogram: Histogram

    def per(self, seconds: float) -> ServiceRates:
        return ServiceRates(
            self.answered / seconds,
            self.failed / seconds,
            quantile(self.histogram, 0.5),
            quantile(self.histogram, 0.99),
        )


def done_between(before: Row | None, after: Row) -> ServiceWork | None:
    """None if the counters went back."""
    old: Row = before or {"answered": 0, "failed": 0, "histogram": ()}
    counts: dict[int, int] = dict(after["histogram"])
    for bucket, count in old["histogram"]:
        counts[bucket] = counts.get(bucket, 0) - count
    answered, failed = after["answered"] - old["answered"], after["failed"] - old["failed"]
    if answered < 0 or failed < 0 or any(count < 0 for count in counts.values()):
        return None
    return ServiceWork(answered, failed, from_counts(counts))


def together(parts: Iterable[ServiceWork]) -> ServiceWork:
    known = list(parts)
    return ServiceWork(
        sum(one.answered for one in known),
        sum(one.failed for one in known),
        merge(one.histogram for one in known),
    )


def rates_between(before: Iterable[Row], after: Iterable[Row], seconds: float) -> dict[str, ServiceRates]:
    """The rates of each service; a new service starts at zero."""
    old = {row["service"]: row for row in before}
    done = {row["service"]: done_between(old.get(row["service"]), row) for row in after}
    return {name: one.per(seconds) for name, one in done.items() if one is not None} if seconds > 0 else {}


def total_between(before: Iterable[Row], after: Iterable[Row], seconds: float) -> ServiceRates | None:
    """The rates of all services together; None if unknown."""
    old = {row["service"]: row for row in before}
    done = [done_between(old.get(row["service"]), row) for row in after]
    known = [one for one in done if one is not None]
    if seconds <= 0 or len(known) < len(done):
        return None
    return together(known).per(seconds)
