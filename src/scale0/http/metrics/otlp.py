"""OTLP: metrics as the data that OpenTelemetry's own exporter sends.

Lives here: the model in OpenTelemetry's classes, and the exporter, made when it is wanted. Never here: when to send.
The extra `otlp` may be absent: nothing of it is imported before an export asks for it, and then it is said what to
install. Everything is cumulative since the broker's start; names are those of the catalogue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from scale0 import __version__
from scale0.history.events.histogram import value_of
from scale0.http.metrics.buckets import BOUNDS, spread
from scale0.http.metrics.model import Distribution, Metric
from scale0.kernel.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

UNITS: Final = {"seconds": "s", "bytes": "By", "": ""}
"""As UCUM has them. Plain numbers have none: a collector would call a gauge with the unit 1 a ratio."""
NANO: Final = 1_000_000_000
INSTALL: Final = "an export of the kind otlp needs OpenTelemetry: pip install 'scale0[otlp]'"

Export = Callable[[Iterable[Metric], "OtlpResource"], bool]
"""Sends all metrics; False if they were not taken."""


class OtlpResource:
    """Whose metrics these are, and of when."""

    __slots__ = ("broker", "group", "start", "time")

    def __init__(self, broker: str, group: str, start: float, time: float) -> None:
        self.broker = broker
        self.group = group
        self.start = start
        """When the broker started: since then the counters count."""
        self.time = time


def open_exporter(address: str, headers: Mapping[str, str], seconds: float) -> tuple[Export, Callable[[], None]]:
    """How to send to a receiver, and how to end that. ConfigError: OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415  # an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError([INSTALL]) from error
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what went wrong is counted and told by us
    exporter = OTLPMetricExporter(
        endpoint=address, headers=dict(headers), timeout=seconds, compression=Compression.Gzip
    )

    def export(metrics: Iterable[Metric], about: OtlpResource) -> bool:
        return exporter.export(data_of(metrics, about)) is MetricExportResult.SUCCESS

    return export, exporter.shutdown


def data_of(metrics: Iterable[Metric], about: OtlpResource) -> MetricsData:
    """All metrics of a broker, as one resource."""
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    resource = Resource(
        {
            "service.name": "scale0",
            "service.version": __version__,
            "service.instance.id": about.broker,
            "scale0.group": about.group,
        }
    )
    found = [
        sdk.Metric(
            name=metric.name,
            description=metric.definition.help,
            unit=UNITS[metric.definition.unit],
            data=_data(metric, int(about.start * NANO), int(about.time * NANO)),
        )
        for metric in metrics
        if metric.kind != "info"
    ]
    scope = sdk.ScopeMetrics(InstrumentationScope("scale0", __version__), found, "")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])


def _data(metric: Metric, start: int, time: int) -> Any:
    """The values of one metric."""
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415

    names = metric.definition.labels
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if metric.kind == "histogram":
        return sdk.Histogram([_histogram(names, one, start, time) for one in metric.spreads], cumulative)
    since = start if metric.kind == "counter" else time
    points = [
        sdk.NumberDataPoint(dict(zip(names, point.labels, strict=True)), since, time, point.value)
        for point in metric.points
    ]
    return sdk.Sum(points, cumulative, is_monotonic=True) if metric.kind == "counter" else sdk.Gauge(points)


def _histogram(names: tuple[str, ...], one: Distribution, start: int, time: int) -> Any:
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415

    counts = spread(one.histogram)
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
