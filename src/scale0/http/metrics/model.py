"""The model: a sample as metrics, the same for every wire.

Lives here: `Metric` and `metrics_of`. Never here: a format, a clock or a socket. Invariants: only metrics of the
catalogue; no two points of a metric have the same labels; a metric without points is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from scale0.history.events.histogram import Histogram, merge
from scale0.http.metrics import catalog as have
from scale0.http.metrics.cardinality import LabelLimit
from scale0.http.metrics.catalog import Kind, MetricDefinition
from scale0.http.metrics.sample import LoadRow, NetworkSample, RateRow

Row = TypeVar("Row", RateRow, LoadRow)

MAX_PEERS: Final = 200
"""Brokers with a label of their own: those of the group and its neighbours are fewer."""
MAX_WORDS: Final = 100
"""Values of a label that others choose: roles, states, counters. We know of a dozen each."""
STATES: Final = ("active", "joining", "standby", "draining", "disabled")
HEARD: Final = frozenset(STATES)
"""States that a broker itself told; those that are not heard are `lost` or `unknown`."""


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
    """One metric with all its values."""

    definition: MetricDefinition
    points: tuple[Point, ...] = ()
    spreads: tuple[Distribution, ...] = ()
    """Of a histogram, in place of points."""

    @property
    def name(self) -> str:
        """As it is called everywhere."""
        return self.definition.name

    @property
    def kind(self) -> Kind:
        """Counter, gauge, histogram or info."""
        return self.definition.kind


def metrics_of(sample: NetworkSample, fold: LabelLimit) -> tuple[Metric, ...]:
    """Everything that a sample says; `fold` is told of its services first."""
    names = [row.service for row in sorted(sample.rates, key=lambda row: -row.answered)]
    fold.see([*names, *(row.service for row in sample.loads)])
    found = [
        *_of_server(sample),
        *(_of_broker(sample.status, fold) if sample.status else ()),
        *_of_rates(sample.rates, fold),
        *_of_loads(sample.loads, fold),
        *_of_peers(sample),
        *_of_watched(sample),
        *_of_exports(sample),
    ]
    return tuple(metric for metric in found if metric.points or metric.spreads)


def _one(definition: MetricDefinition, value: float) -> Metric:
    return Metric(definition, (Point((), float(value)),))


def _by(definition: MetricDefinition, values: Mapping[str, float]) -> Metric:
    """One point for each value of the only label."""
    some = sorted(values.items())[:MAX_WORDS]
    return Metric(definition, tuple(Point((word,), float(value)) for word, value in some))


def _of_server(sample: NetworkSample) -> Iterator[Metric]:
    yield _one(have.BROKER_UP, bool(sample.status))
    yield _one(have.SAMPLE_TIME, sample.time)
    yield _one(have.SAMPLE_SECONDS, sample.seconds)
    yield _one(have.SAMPLE_FAILURES, sample.failures)


def _of_broker(status: Mapping[str, Any], fold: LabelLimit) -> Iterator[Metric]:
    words = tuple(str(status.get(key, "")) for key in ("broker", "group", "version"))
    yield Metric(have.BROKER_INFO, (Point(words, 1.0),))
    state = "draining" if status.get("draining") else str(status.get("state", ""))
    yield _by(have.BROKER_STATE, {word: word == state for word in {*STATES, state}})
    yield _one(have.BROKER_UPTIME, status.get("uptime", 0.0))
    yield _by(have.BROKER_COUNTS, status.get("counters", {}))
    yield _one(have.CONFIG_VERSION, status.get("config_version", 0))
    yield _one(have.CONNECTIONS, status.get("connections", 0))
    yield _by(have.CLIENTS, {"backend": 0, "frontend": 0, **status.get("clients", {})})
    yield _one(have.ERROR_CLIENTS, status.get("error_clients", 0))
    yield _one(have.SERVICES, status.get("services", 0))
    yield _one(have.SERVICES_FOLDED, fold.folded)
    requests = status.get("requests", {})
    yield _one(have.WAITING, requests.get("waiting", 0))
    yield _one(have.UNDER_WAY, requests.get("under_way", 0))
    tasks = status.get("tasks", {})
    for definition, key in TASK_COUNTS:
        if key in tasks:
            yield _one(definition, tasks[key])


TASK_COUNTS: Final = (
    (have.TASKS_OPEN, "open"),
    (have.TASKS_LEASED, "leased"),
    (have.TASKS_IN_MEMORY, "in_memory"),
    (have.TASK_WAITS, "waits"),
    (have.TASKS_SUBMITTED, "submitted"),
    (have.TASKS_FINISHED, "finished"),
    (have.TASKS_FAILED, "failed"),
)


def _of_rates(rows: Iterable[RateRow], fold: LabelLimit) -> Iterator[Metric]:
    groups = _grouped((fold.label(row.service), row) for row in rows)
    for definition, key in ((have.ANSWERED, "answered"), (have.FAILED, "failed"), (have.BYTES, "bytes")):
        yield _by_service(definition, {name: sum(getattr(row, key) for row in some) for name, some in groups.items()})
    yield Metric(
        have.DURATION,
        spreads=tuple(
            Distribution(
                (name,),
                some[0].histogram if len(some) == 1 else merge(row.histogram for row in some),
                sum(row.seconds for row in some),
            )
            for name, some in groups.items()
            if any(row.histogram for row in some)
        ),
    )


def _of_loads(rows: Iterable[LoadRow], fold: LabelLimit) -> Iterator[Metric]:
    groups = _grouped((fold.label(row.service), row) for row in rows)
    for definition, key in (
        (have.SERVICE_BACKENDS, "backends"),
        (have.SERVICE_SLOTS, "slots"),
        (have.SERVICE_BUSY, "busy"),
        (have.SERVICE_WAITING, "waiting"),
        (have.SERVICE_TASKS, "tasks_queued"),
    ):
        yield _by_service(definition, {name: sum(getattr(row, key) for row in some) for name, some in groups.items()})
    yield _by_service(
        have.SERVICE_OLDEST, {name: max(row.oldest_seconds for row in some) for name, some in groups.items()}
    )


def _grouped(pairs: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for name, row in pairs:
        groups.setdefault(name, []).append(row)
    return groups


def _by_service(definition: MetricDefinition, values: Mapping[str, float]) -> Metric:
    return Metric(definition, tuple(Point((name,), float(value)) for name, value in values.items()))


def _of_peers(sample: NetworkSample) -> Iterator[Metric]:
    states: dict[str, float] = {}
    for peer in sample.peers:
        states[peer.state] = states.get(peer.state, 0) + 1
    yield _by(have.PEERS, states)
    named = sorted({peer.broker: peer.state in HEARD for peer in sample.peers if peer.broker}.items())
    yield Metric(have.PEER_UP, tuple(Point((name,), float(up)) for name, up in named[:MAX_PEERS]))


def _of_watched(sample: NetworkSample) -> Iterator[Metric]:
    watched = sample.watched
    if watched is not None:
        yield _one(have.HELENS, watched.helens)
        yield _by(have.AGENTS, {"away": 0, "connected": 0, **watched.agents})
        yield _by(have.CHECKS, {**dict.fromkeys(CHECK_STATES, 0), **watched.checks})
        yield _by(have.INCIDENTS, {**dict.fromkeys(CHECK_STATES, 0), **watched.incidents})


CHECK_STATES: Final = ("ok", "warning", "critical", "unknown")


def _of_exports(sample: NetworkSample) -> Iterator[Metric]:
    exports = {(one.kind, one.address): one for one in sample.exports}
    for definition, key in (
        (have.EXPORT_UP, "up"),
        (have.EXPORT_PUSHED, "pushed"),
        (have.EXPORT_DROPPED, "dropped"),
        (have.EXPORT_FAILURES, "failures"),
    ):
        yield Metric(
            definition,
            tuple(Point(labels, float(getattr(one, key))) for labels, one in exports.items()),
        )
