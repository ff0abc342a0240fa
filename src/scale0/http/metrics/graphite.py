"""Graphite: metrics as lines of its plaintext protocol, `path value time`.

Lives here: the lines. Never here: a socket. Counters go as they are: `perSecond()` and `nonNegativeDerivative()` make
rates of them. Of a histogram its count and sum go, and the median and the 99th percentile since the last batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scale0.history.events.histogram import quantile
from scale0.http.metrics.deltas import PreviousValues
from scale0.http.metrics.metric_paths import placed, prefix_of
from scale0.http.metrics.model import Metric

SHARES = (("p50", 0.5), ("p99", 0.99))


def lines(metrics: Iterable[Metric], before: PreviousValues, prefix: str, broker: str, time: float) -> Iterator[str]:
    """Every point as a line, without its end."""
    start = prefix_of(prefix, broker)
    moment = str(int(time))
    for metric in metrics:
        if metric.kind == "info":
            continue
        for path, point in placed(start, metric, metric.points):
            yield f"{path} {number(point.value)} {moment}"
        for path, one in placed(start, metric, metric.spreads):
            yield f"{path}.count {sum(count for _, count in one.histogram)} {moment}"
            yield f"{path}.sum {number(one.sum)} {moment}"
            grown = before.grown(metric, one)
            for name, share in SHARES:
                value = quantile(grown, share)
                if value is not None:
                    yield f"{path}.{name} {number(value)} {moment}"


def number(value: float) -> str:
    """Without an exponent, which not every receiver reads, and without needless zeros."""
    if value == int(value):
        return str(int(value))
    return f"{value:.9f}".rstrip("0").rstrip(".")
