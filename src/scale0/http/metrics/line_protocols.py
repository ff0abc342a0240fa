"""Metrics as lines of the Graphite plaintext protocol and of StatsD, whose receivers know no labels.

A metric's name and labels become one dotted path, `prefix.broker.metric.label…`, of letters, digits, `_` and `-`. Two
points of a batch never share a path.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from scale0.history.events.histogram import quantile
from scale0.http.metrics.catalog import PREFIX
from scale0.http.metrics.model import Distribution, Metric, Point, PreviousValues

QUANTILES: Final = (("p50", 0.5), ("p99", 0.99))
MAX_DATAGRAM_BYTES: Final = 1_432
"""Fits into one Ethernet frame: a fragmented datagram is lost with any of its fragments."""
MAX_PART_CHARS: Final = 100
"""Of one part of a path: receivers make a file name of it."""
EMPTY: Final = "none"
"""The part for an empty label."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]+")

One = TypeVar("One", bound=Point | Distribution)


def graphite_lines(
    metrics: Iterable[Metric], before: PreviousValues, prefix: str, broker: str, time: float
) -> Iterator[str]:
    """`path value time` for every point, without the line's end.

    Counters are sent as they are; `perSecond()` computes rates. A histogram has its count and sum, and the median and
    99th percentile of what was added since the last batch.
    """
    start = prefix_of(prefix, broker)
    timestamp = str(int(time))
    for metric in metrics:
        if metric.kind == "info":
            continue
        for path, point in with_paths(start, metric, metric.points):
            yield f"{path} {number(point.value)} {timestamp}"
        for path, one in with_paths(start, metric, metric.distributions):
            yield f"{path}.count {sum(count for _, count in one.histogram)} {timestamp}"
            yield f"{path}.sum {number(one.sum)} {timestamp}"
            added = before.added_values(metric, one)
            for name, share in QUANTILES:
                value = quantile(added, share)
                if value is not None:
                    yield f"{path}.{name} {number(value)} {timestamp}"


def statsd_lines(metrics: Iterable[Metric], before: PreviousValues, prefix: str, broker: str) -> Iterator[str]:
    """`path:value|type` for every point.

    Counters are sent as differences since the last batch (`|c`), if they grew, and gauges as they are (`|g`). A
    histogram has the number of added values, and their median and 99th percentile as gauges.
    """
    start = prefix_of(prefix, broker)
    for metric in metrics:
        if metric.kind == "info":
            continue
        for path, point in with_paths(start, metric, metric.points):
            if metric.kind == "gauge":
                yield from _statsd_gauge(path, point.value)
            elif added := before.added(metric, point):
                yield f"{path}:{number(added)}|c"
        for path, one in with_paths(start, metric, metric.distributions):
            values = before.added_values(metric, one)
            if before.is_known and (count := sum(count for _, count in values)):
                yield f"{path}.count:{count}|c"
            for name, share in QUANTILES:
                value = quantile(values, share)
                if value is not None:
                    yield from _statsd_gauge(f"{path}.{name}", value)


def _statsd_gauge(path: str, value: float) -> Iterator[str]:
    """A gauge. A sign would mean a difference, so a negative value is a difference from 0."""
    if value < 0:
        yield f"{path}:0|g"
    yield f"{path}:{number(value)}|g"


def datagrams(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines packed into datagrams; a line that is too long for one is left out."""
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


def number(value: float) -> str:
    """Without an exponent, which not every receiver reads, and without trailing zeros."""
    if value == int(value):
        return str(int(value))
    return f"{value:.9f}".rstrip("0").rstrip(".")


def part(text: str) -> str:
    """One part of a path: other characters become `_`."""
    return _FOREIGN.sub("_", text)[:MAX_PART_CHARS] or EMPTY


def prefix_of(prefix: str, broker: str) -> str:
    """The start of all paths of a broker; dots in the configured prefix separate parts."""
    parts = [part(word) for word in prefix.split(".") if word]
    return ".".join([*parts, part(broker)])


def with_paths(start: str, metric: Metric, ones: Iterable[One]) -> Iterator[tuple[str, One]]:
    """Each point with its path. If two points have the same path, the second gets a checksum of its labels."""
    name = f"{start}.{metric.name.removeprefix(PREFIX)}"
    taken: set[str] = set()
    for one in sorted(ones, key=_labels):
        path = ".".join([name, *map(part, one.labels)])
        if path in taken:
            checksum = zlib.crc32("\0".join(one.labels).encode())
            path = f"{path}_{checksum:08x}"
        taken.add(path)
        yield path, one


def _labels(one: Point | Distribution) -> tuple[str, ...]:
    return one.labels
