"""Metrics in the text format of Prometheus, or in OpenMetrics, written by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from scale0.http.metrics.model import BOUNDS, Distribution, Metric, bucket_counts

OPENMETRICS: Final = "application/openmetrics-text"
ENCODERS: Final = {False: choose_encoder("text/plain"), True: choose_encoder(f"{OPENMETRICS}; version=1.0.0")}
"""Whether OpenMetrics is wanted → the encoder and the Content-Type. prometheus-client never gets the Accept header
itself: it raises for some, and answers with any version that the header names.
"""

LE: Final = (*map(floatToGoString, BOUNDS), "+Inf")
"""The bounds as values of the label `le`."""


class Families(Collector):
    """The metrics of one sample, in the interface of a registry of prometheus-client."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Family]:
        return map(family_of, self._metrics)


def family_of(metric: Metric) -> Family:
    """A metric as prometheus-client represents it: its name lacks the suffix of its kind."""
    definition = metric.definition
    base = definition.name.removesuffix("_total").removesuffix("_info")
    family = Family(base, definition.help, definition.kind, definition.unit)
    for point in metric.points:
        family.add_sample(definition.name, dict(zip(definition.labels, point.labels, strict=True)), point.value)
    for one in metric.distributions:
        add_distribution(family, definition.labels, one)
    return family


def add_distribution(family: Family, names: tuple[str, ...], one: Distribution) -> None:
    """A histogram: the cumulative count of each bound, the total count, and the sum."""
    labels = dict(zip(names, one.labels, strict=True))
    total = 0
    for le, count in zip(LE, bucket_counts(one.histogram), strict=True):
        total += count
        family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, total)
    family.add_sample(f"{family.name}_count", labels, total)
    family.add_sample(f"{family.name}_sum", labels, one.sum)


def wants_openmetrics(accept: str) -> bool:
    """True if an Accept header names OpenMetrics, and does not refuse it."""
    for part in accept.lower().split(","):
        media, *options = (word.strip() for word in part.split(";"))
        if media == OPENMETRICS:
            return not any(option.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for option in options)
    return False


def encoded(metrics: Iterable[Metric], as_openmetrics: bool) -> bytes:
    encode, _ = ENCODERS[as_openmetrics]
    return encode(Families(metrics))
