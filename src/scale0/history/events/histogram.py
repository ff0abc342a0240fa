"""Histograms of durations in logarithmic buckets: small, mergeable, and within 1 % of every value.

A histogram is a list of (bucket, count), ascending and without zero counts, so that equal histograms are equal lists.
Bucket b > ZERO_BUCKET contains (γ^(b-1), γ^b] seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Histogram = list[tuple[int, int]]

GAMMA: Final = 1.02
"""Each bucket's end over its start: with the value in the middle, at most 0.0099 of a value is lost."""

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
"""The quantiles that tables and reports show."""

MIN_SECONDS: Final = 1e-6
"""Durations are whole microseconds: a shorter one counts as 0."""

_PER_LOG: Final = 1.0 / math.log(GAMMA)
_MIDDLE: Final = 2.0 / (1.0 + GAMMA)
"""From a bucket's end to the value with the same relative distance to both ends."""

ZERO_BUCKET: Final = math.floor(math.log(MIN_SECONDS) * _PER_LOG)
"""Below every other bucket: all durations under MIN_SECONDS."""


def bucket_of(seconds: float) -> int:
    """The bucket of a duration. NaN and infinity are bugs and raise."""
    if seconds < MIN_SECONDS:
        return ZERO_BUCKET
    return math.ceil(math.log(seconds) * _PER_LOG)


def value_of(bucket: int) -> float:
    """The duration in seconds that a bucket represents."""
    if bucket <= ZERO_BUCKET:
        return 0.0
    return math.exp(bucket / _PER_LOG) * _MIDDLE


def from_counts(counts: Mapping[int, int]) -> Histogram:
    return sorted((bucket, count) for bucket, count in counts.items() if count)


def merge(histograms: Iterable[Histogram]) -> Histogram:
    counts: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram:
            counts[bucket] = counts.get(bucket, 0) + count
    return from_counts(counts)


def quantile(histogram: Histogram, share: float) -> float | None:
    """The value of the nearest rank ⌈share · n⌉ (at least the first); None of an empty histogram."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a quantile must be between 0 and 1, not {share}")
    total = sum(count for _, count in histogram)
    rank = max(1, math.ceil(share * total))
    seen = 0
    for bucket, count in histogram:
        seen += count
        if seen >= rank:
            return value_of(bucket)
    return None
