"""Buckets: the broker's log histograms on the few fixed bounds that receivers expect.

Lives here: the bounds, and the arithmetic. Never here: what is measured. A value lies below a bound if the middle of
its log bucket does, which is within 1 % of it.
"""

from __future__ import annotations

from typing import Final

from scale0.history.events.histogram import Histogram, from_counts, value_of

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds; what is longer is in the last bucket, which has no end."""


def spread(histogram: Histogram) -> list[int]:
    """Counts between the bounds, one more than there are bounds."""
    counts = [0] * (len(BOUNDS) + 1)
    place = 0
    for bucket, count in histogram:
        value = value_of(bucket)
        while place < len(BOUNDS) and value > BOUNDS[place]:
            place += 1
        counts[place] += count
    return counts


def since(now: Histogram, before: Histogram) -> Histogram:
    """What was added to a histogram that only grows; all of it, if it began anew."""
    counts = dict(now)
    for bucket, count in before:
        left = counts.get(bucket, 0) - count
        if left < 0:
            return now
        counts[bucket] = left
    return from_counts(counts)
