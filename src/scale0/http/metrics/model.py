"""A sample as metrics, the same for every format; the limit on label values; and differences between two batches.

No two points of a metric have the same labels. A metric without points is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from scale0.history.events.histogram import Histogram, from_counts, merge, value_of
from scale0.http.metrics import catalog
from scale0.http.metrics.catalog import Kind, MetricDefinition
from scale0.http.metrics.sample import LoadRow, NetworkSample, Row

Grouped = TypeVar("Grouped")

MAX_PEERS: Final = 200
"""Peers with a label of their own; a group and its neighbours are fewer."""
MAX_LABEL_VALUES: Final = 100
"""Of a label whose values the broker chooses: roles, states, counters. There are about a dozen of each."""
STATES: Final = ("active", "joining", "standby", "draining", "disabled")
REACHABLE: Final = frozenset(STATES)
"""States of a peer whose heartbeats arrive; the other states are `lost` and `unknown`."""
MAX_SERVICES: Final = 1_000
"""Services with a label of their own. Each has about thirty series; a scrape of all of them has two megabytes."""
OTHER: Final = "other"
"""The label of all other services, and of the empty name that the broker gives to unknown services."""
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds. The last bucket has no upper bound. A value is below a bound if the middle of its log bucket is, which is
within 1 %."""

Key = tuple[str, tuple[str, ...]]
"""A metric and its labels."""


class Point(msgspec.Struct, frozen=True):
    """One value, with the values of its metric's labels."""

    labels: tuple[str, ...]
    value: float


class Distribution(msgspec.Struct, frozen=True):
    """One histogram: log buckets of `history.events.histogram`, and the sum of all values."""

    labels: tuple[str, ...]
    histogram: Histogram
    sum: float


class Metric(msgspec.Struct, frozen=True):
    definition: MetricDefinition
    points: tuple[Point, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    """Of a histogram, in place of points."""

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def kind(self) -> Kind:
        return self.definition.kind


class LabelLimit:
    """Limits the number of services with a label of their own, first come first served.

    A service keeps its label, or stays in `other`, as long as it exists: so no counter decreases because of another
    service.
    """

    def __init__(self, max_labels: int = MAX_SERVICES) -> None:
        self._max_labels = max_labels
        self._kept: set[str] = set()
        self._folded: set[str] = set()

    def update(self, services: Iterable[str]) -> None:
        """The services of a new sample, in the order in which they get labels."""
        found = dict.fromkeys(services)
        self._kept &= found.keys()
        self._folded &= found.keys()
        for service in found:
            if service in self._kept or service in self._folded:
                continue
            (self._kept if service and len(self._kept) < self._max_labels else self._folded).add(service)

    def label(self, service: str) -> str:
        return service if service in self._kept else OTHER

    @property
    def folded(self) -> int:
        """The number of services without a label of their own."""
        return len(self._folded - {""})


def metrics_of(sample: NetworkSample, limit: LabelLimit) -> tuple[Metric, ...]:
    """All metrics of a sample; `limit` decides which services have a label."""
    names = [row["service"] for row in sorted(sample.rates, key=lambda row: -row["answered"])]
    limit.update([*names, *(row.service for row in sample.loads)])
    found = [
        *_of_server(sample),
        *(_of_broker(sample.status, limit) if sample.status else ()),
        *_of_rates(sample.rates, limit),
        *_of_loads(sample.loads, limit),
        *_of_peers(sample),
        *_of_monitoring(sample),
        *_of_exports(sample),
    ]
    return tuple(metric for metric in found if metric.points or metric.distributions)


def _one(definition: MetricDefinition, value: float) -> Metric:
    return Metric(definition, (Point((), float(value)),))


def _by(definition: MetricDefinition, values: Mapping[str, float]) -> Metric:
    """One point for each value of the only label."""
    bounded = sorted(values.items())[:MAX_LABEL_VALUES]
    return Metric(definition, tuple(Point((label,), float(value)) for label, value in bounded))


def _of_server(sample: NetworkSample) -> Iterator[Metric]:
    yield _one(catalog.BROKER_UP, bool(sample.status))
    yield _one(catalog.SAMPLE_TIME, sample.time)
    yield _one(catalog.SAMPLE_SECONDS, sample.seconds)
    yield _one(catalog.SAMPLE_FAILURES, sample.failures)


def _of_broker(status: Mapping[str, Any], limit: LabelLimit) -> Iterator[Metric]:
    labels = tuple(str(status.get(key, "")) for key in ("broker", "group", "version"))
    yield Metric(catalog.BROKER_INFO, (Point(labels, 1.0),))
    state = "draining" if status.get("draining") else str(status.get("state", ""))
    yield _by(catalog.BROKER_STATE, {word: word == state for word in {*STATES, state}})
    yield _one(catalog.BROKER_UPTIME, status.get("uptime", 0.0))
    yield _by(catalog.BROKER_COUNTS, status.get("counters", {}))
    yield _one(catalog.CONFIG_VERSION, status.get("config_version", 0))
    yield _one(catalog.CONNECTIONS, status.get("connections", 0))
    yield _by(catalog.CLIENTS, {"backend": 0, "frontend": 0, **status.get("clients", {})})
    yield _one(catalog.ERROR_CLIENTS, status.get("error_clients", 0))
    yield _one(catalog.SERVICES, status.get("services", 0))
    yield _one(catalog.SERVICES_FOLDED, limit.folded)
    requests = status.get("requests", {})
    yield _one(catalog.WAITING, requests.get("waiting", 0))
    yield _one(catalog.UNDER_WAY, requests.get("under_way", 0))
    tasks = status.get("tasks", {})
    for definition, key in TASK_COUNTS:
        if key in tasks:
            yield _one(definition, tasks[key])


TASK_COUNTS: Final = (
    (catalog.TASKS_OPEN, "open"),
    (catalog.TASKS_LEASED, "leased"),
    (catalog.TASKS_IN_MEMORY, "in_memory"),
    (catalog.TASK_WAITS, "waits"),
    (catalog.TASKS_SUBMITTED, "submitted"),
    (catalog.TASKS_FINISHED, "finished"),
    (catalog.TASKS_FAILED, "failed"),
)


def _of_rates(rows: Iterable[Row], limit: LabelLimit) -> Iterator[Metric]:
    groups = _grouped((limit.label(row["service"]), row) for row in rows)
    for definition, key in ((catalog.ANSWERED, "answered"), (catalog.FAILED, "failed"), (catalog.BYTES, "bytes")):
        yield _by_service(definition, {name: sum(row[key] for row in some) for name, some in groups.items()})
    yield Metric(
        catalog.DURATION,
        distributions=tuple(
            Distribution(
                (name,),
                some[0]["histogram"] if len(some) == 1 else merge(row["histogram"] for row in some),
                sum(row["seconds"] for row in some),
            )
            for name, some in groups.items()
            if any(row["histogram"] for row in some)
        ),
    )


def _of_loads(rows: Iterable[LoadRow], limit: LabelLimit) -> Iterator[Metric]:
    groups = _grouped((limit.label(row.service), row) for row in rows)
    for definition, key in (
        (catalog.SERVICE_BACKENDS, "backends"),
        (catalog.SERVICE_SLOTS, "slots"),
        (catalog.SERVICE_BUSY, "busy"),
        (catalog.SERVICE_WAITING, "waiting"),
        (catalog.SERVICE_TASKS, "tasks_queued"),
    ):
        yield _by_service(definition, {name: sum(getattr(row, key) for row in some) for name, some in groups.items()})
    yield _by_service(
        catalog.SERVICE_OLDEST, {name: max(row.oldest_seconds for row in some) for name, some in groups.items()}
    )


def _grouped(pairs: Iterable[tuple[str, Grouped]]) -> dict[str, list[Grouped]]:
    groups: dict[str, list[Grouped]] = {}
    for name, row in pairs:
        groups.setdefault(name, []).append(row)
    return groups


def _by_service(definition: MetricDefinition, values: Mapping[str, float]) -> Metric:
    return Metric(definition, tuple(Point((name,), float(value)) for name, value in values.items()))


def _of_peers(sample: NetworkSample) -> Iterator[Metric]:
    states = [(peer.get("broker"), peer.get("state") or "unknown") for peer in sample.peers]
    yield _by(catalog.PEERS, Counter(state for _, state in states))
    named = sorted({broker: state in REACHABLE for broker, state in states if broker}.items())
    yield Metric(catalog.PEER_UP, tuple(Point((name,), float(up)) for name, up in named[:MAX_PEERS]))


def _of_monitoring(sample: NetworkSample) -> Iterator[Metric]:
    counts = sample.monitoring
    if counts is not None:
        yield _one(catalog.HELENS, counts.helens)
        yield _by(catalog.AGENTS, {"away": 0, "connected": 0, **counts.agents})
        yield _by(catalog.CHECKS, {**dict.fromkeys(CHECK_STATES, 0), **counts.checks})
        yield _by(catalog.INCIDENTS, {**dict.fromkeys(CHECK_STATES, 0), **counts.incidents})


CHECK_STATES: Final = ("ok", "warning", "critical", "unknown")


def _of_exports(sample: NetworkSample) -> Iterator[Metric]:
    exports = {(one.kind, one.address): one for one in sample.exports}
    for definition, key in (
        (catalog.EXPORT_UP, "up"),
        (catalog.EXPORT_PUSHED, "pushed"),
        (catalog.EXPORT_DROPPED, "dropped"),
        (catalog.EXPORT_FAILURES, "failures"),
    ):
        yield Metric(
            definition,
            tuple(Point(labels, float(getattr(one, key))) for labels, one in exports.items()),
        )


def bucket_counts(histogram: Histogram) -> list[int]:
    """Counts between the bounds: one more than there are bounds."""
    counts = [0] * (len(BOUNDS) + 1)
    index = 0
    for bucket, count in histogram:
        value = value_of(bucket)
        while index < len(BOUNDS) and value > BOUNDS[index]:
            index += 1
        counts[index] += count
    return counts


def added_to(now: Histogram, before: Histogram) -> Histogram:
    """What was added to a histogram that only grows; all of it, if it was reset."""
    counts = dict(now)
    for bucket, count in before:
        left = counts.get(bucket, 0) - count
        if left < 0:
            return now
        counts[bucket] = left
    return from_counts(counts)


class PreviousValues(msgspec.Struct, frozen=True):
    """The counters and histograms of the last batch that was sent, for receivers that keep no counters.

    A batch that was lost is part of the next difference. A counter that decreased was reset, and counts from zero.
    """

    counters: Mapping[Key, float] = {}
    histograms: Mapping[Key, Histogram] = {}
    is_known: bool = False
    """False before the first batch: then there are no differences."""

    def added(self, metric: Metric, point: Point) -> float:
        """The increase of a counter; 0 in the first batch."""
        if not self.is_known:
            return 0.0
        was = self.counters.get((metric.name, point.labels), 0.0)
        return point.value - was if point.value >= was else point.value

    def added_values(self, metric: Metric, one: Distribution) -> Histogram:
        """What was added to a histogram; all of it in the first batch."""
        return added_to(one.histogram, self.histograms.get((metric.name, one.labels), []))


def previous_values(metrics: Iterable[Metric]) -> PreviousValues:
    """The values of a batch, for the differences of the next one."""
    counters: dict[Key, float] = {}
    histograms: dict[Key, Histogram] = {}
    for metric in metrics:
        if metric.kind == "counter":
            counters.update({(metric.name, point.labels): point.value for point in metric.points})
        for one in metric.distributions:
            histograms[metric.name, one.labels] = one.histogram
    return PreviousValues(counters, histograms, is_known=True)
