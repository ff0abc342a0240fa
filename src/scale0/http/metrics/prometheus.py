"""Prometheus: the metrics in its text format, or in OpenMetrics, for whoever asks.

Lives here: the model as prometheus-client's families, and which of the two forms is wanted. Never here: a socket, or
when a sample is taken. Invariant: each form of a sample is written once, however many ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from scale0.http.metrics.buckets import BOUNDS, spread
from scale0.http.metrics.model import Distribution, Metric

OPENMETRICS: Final = "application/openmetrics-text"
ENCODERS: Final = {False: choose_encoder("text/plain"), True: choose_encoder(f"{OPENMETRICS}; version=1.0.0")}
"""Whether OpenMetrics is wanted → who writes it, and the Content-Type. An Accept header itself is not given to
prometheus-client: it would raise for some, and answer each version that somebody makes up with itself.
"""

LE: Final = (*map(floatToGoString, BOUNDS), "+Inf")
"""The bounds as labels have them."""


class Families(Collector):
    """The metrics of one sample, as a registry of prometheus-client hands them out."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Family]:
        """Each metric with its values."""
        return map(family_of, self._metrics)


def family_of(metric: Metric) -> Family:
    """One metric as prometheus-client has it: the name without what its kind adds."""
    definition = metric.definition
    base = definition.name.removesuffix("_total").removesuffix("_info")
    family = Family(base, definition.help, definition.kind, definition.unit)
    for point in metric.points:
        family.add_sample(definition.name, dict(zip(definition.labels, point.labels, strict=True)), point.value)
    for one in metric.spreads:
        add_spread(family, definition.labels, one)
    return family


def add_spread(family: Family, names: tuple[str, ...], one: Distribution) -> None:
    """A histogram: counts up to each bound, their sum, and how many there are."""
    labels = dict(zip(names, one.labels, strict=True))
    seen = 0
    for le, count in zip(LE, spread(one.histogram), strict=True):
        seen += count
        family.add_sample(f"{family.name}_bucket", {**labels, "le": le}, seen)
    family.add_sample(f"{family.name}_count", labels, seen)
    family.add_sample(f"{family.name}_sum", labels, one.sum)


def wants_openmetrics(accept: str) -> bool:
    """True if an Accept header names OpenMetrics, and does not refuse it."""
    for part in accept.lower().split(","):
        media, *options = (word.strip() for word in part.split(";"))
        if media == OPENMETRICS:
            return not any(option.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for option in options)
    return False


def written(metrics: Iterable[Metric], as_openmetrics: bool) -> bytes:
    """The text of all metrics."""
    write, _ = ENCODERS[as_openmetrics]
    return write(Families(metrics))
