"""Changes: what happened since the last batch that got through, for receivers that keep no counters themselves.

Lives here: `PreviousValues`, what was told last. Never here: a format. Invariants: a batch that was lost is in the next
one's difference; a counter that went back began anew, and counts from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from scale0.history.events.histogram import Histogram
from scale0.http.metrics.buckets import since
from scale0.http.metrics.model import Distribution, Metric, Point

Key = tuple[str, tuple[str, ...]]
"""A metric and its labels."""


class PreviousValues(msgspec.Struct, frozen=True):
    """The counters and histograms of a batch."""

    counters: Mapping[Key, float] = {}
    histograms: Mapping[Key, Histogram] = {}
    whole: bool = False
    """False at the beginning, when there was no batch: then nothing is known of differences."""

    def added(self, metric: Metric, point: Point) -> float:
        """By how much a counter grew; nothing in the first batch, which cannot know since when."""
        if not self.whole:
            return 0.0
        was = self.counters.get((metric.name, point.labels), 0.0)
        return point.value - was if point.value >= was else point.value

    def grown(self, metric: Metric, one: Distribution) -> Histogram:
        """What was added to a histogram; all of it in the first batch."""
        return since(one.histogram, self.histograms.get((metric.name, one.labels), []))


def remembered(metrics: Iterable[Metric]) -> PreviousValues:
    """What the next batch is compared with."""
    counters: dict[Key, float] = {}
    histograms: dict[Key, Histogram] = {}
    for metric in metrics:
        if metric.kind == "counter":
            counters.update({(metric.name, point.labels): point.value for point in metric.points})
        for one in metric.spreads:
            histograms[metric.name, one.labels] = one.histogram
    return PreviousValues(counters, histograms, whole=True)
