"""OTLP: metrics in OpenTelemetry's classes, sent by OpenTelemetry's exporter.

The packages of the extra `otlp` may be absent: they are imported only for an export of that kind. All values are
cumulative since the broker's start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from scale0 import __version__
from scale0.history.events.histogram import value_of
from scale0.http.metrics.model import BOUNDS, Distribution, Metric, bucket_counts
from scale0.kernel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

UNITS: Final = {"seconds": "s", "bytes": "By", "": ""}
"""Units of UCUM. Plain numbers have none, because a collector names a gauge with the unit 1 a ratio."""
NANO: Final = 1_000_000_000
INSTALL: Final = "an export of the kind otlp needs OpenTelemetry: pip install 'scale0[otlp]'"

Export = Callable[[Iterable[Metric], "OtlpResource"], bool]
"""Sends all metrics; False if the receiver did not accept them."""


class OtlpResource:
    def __init__(self, broker: str, group: str, start: float, time: float) -> None:
        self.broker = broker
        self.group = group
        self.start = start
        """The broker's start, from which the counters count."""
        self.time = time


def open_exporter(address: str, headers: Mapping[str, str], seconds: float) -> tuple[Export, Callable[[], None]]:
    """The functions that send to a receiver and that shut down. ConfigError: OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415  # an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError([INSTALL]) from error
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # exports.py counts and logs failures
    exporter = OTLPMetricExporter(
        endpoint=address, headers=dict(headers), timeout=seconds, compression=Compression.Gzip
    )

    def export(metrics: Iterable[Metric], source: OtlpResource) -> bool:
        return exporter.export(data_of(metrics, source)) is MetricExportResult.SUCCESS

    return export, exporter.shutdown


def data_of(metrics: Iterable[Metric], source: OtlpResource) -> MetricsData:
    """All metrics of a broker, as one OpenTelemetry resource."""
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    resource = Resource(
        {
            "service.name": "scale0",
            "service.version": __version__,
            "service.instance.id": source.broker,
            "scale0.group": source.group,
        }
    )
    found = [
        sdk.Metric(
            name=metric.name,
            description=metric.definition.help,
            unit=UNITS[metric.definition.unit],
            data=_data(metric, int(source.start * NANO), int(source.time * NANO)),
        )
        for metric in metrics
        if metric.kind != "info"
    ]
    scope = sdk.ScopeMetrics(InstrumentationScope("scale0", __version__), found, "")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])


def _data(metric: Metric, start: int, time: int) -> Any:
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415

    names = metric.definition.labels
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if metric.kind == "histogram":
        return sdk.Histogram([_histogram(names, one, start, time) for one in metric.distributions], cumulative)
    since = start if metric.kind == "counter" else time
    points = [
        sdk.NumberDataPoint(dict(zip(names, point.labels, strict=True)), since, time, point.value)
        for point in metric.points
    ]
    return sdk.Sum(points, cumulative, is_monotonic=True) if metric.kind == "counter" else sdk.Gauge(points)


def _histogram(names: tuple[str, ...], one: Distribution, start: int, time: int) -> Any:
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415

    counts = bucket_counts(one.histogram)
    return sdk.HistogramDataPoint(
        attributes=dict(zip(names, one.labels, strict=True)),
        start_time_unix_nano=start,
        time_unix_nano=time,
        count=sum(counts),
        sum=one.sum,
        bucket_counts=counts,
        explicit_bounds=BOUNDS,
        min=value_of(one.histogram[0][0]) if one.histogram else 0.0,
        max=value_of(one.histogram[-1][0]) if one.histogram else 0.0,
    )
