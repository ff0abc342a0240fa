"""StatsD: metrics as lines of its protocol, `path:value|type`, packed into datagrams.

Lives here: the lines and the datagrams. Never here: a socket. Counters go as differences since the last batch (`|c`),
gauges as they are (`|g`); of a histogram how many were added, and the median and 99th percentile of these as gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from scale0.history.events.histogram import quantile
from scale0.http.metrics.deltas import PreviousValues
from scale0.http.metrics.graphite import SHARES, number
from scale0.http.metrics.metric_paths import placed, prefix_of
from scale0.http.metrics.model import Metric

MAX_DATAGRAM_BYTES: Final = 1_432
"""What fits into one Ethernet frame with any header: a longer one is lost whole with any of its pieces."""


def lines(metrics: Iterable[Metric], before: PreviousValues, prefix: str, broker: str) -> Iterator[str]:
    """Every point as a line; counters that did not grow are left out."""
    start = prefix_of(prefix, broker)
    for metric in metrics:
        if metric.kind == "info":
            continue
        for path, point in placed(start, metric, metric.points):
            if metric.kind == "gauge":
                yield from gauge(path, point.value)
            elif added := before.added(metric, point):
                yield f"{path}:{number(added)}|c"
        for path, one in placed(start, metric, metric.spreads):
            grown = before.grown(metric, one)
            if before.whole and (count := sum(count for _, count in grown)):
                yield f"{path}.count:{count}|c"
            for name, share in SHARES:
                value = quantile(grown, share)
                if value is not None:
                    yield from gauge(f"{path}.{name}", value)


def gauge(path: str, value: float) -> Iterator[str]:
    """A gauge; a sign would mean a difference, so that one below nothing is set to nothing first."""
    if value < 0:
        yield f"{path}:0|g"
    yield f"{path}:{number(value)}|g"


def datagrams(lines: Iterable[str]) -> Iterator[bytes]:
    """As many lines in each as fit; one that is too long by itself is left out."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        data = line.encode("ascii")
        if len(data) > MAX_DATAGRAM_BYTES:
            continue
        if size + len(data) + len(batch) > MAX_DATAGRAM_BYTES:
            yield b"\n".join(batch)
            batch, size = [], 0
        batch.append(data)
        size += len(data)
    if batch:
        yield b"\n".join(batch)
