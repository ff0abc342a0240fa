"""What Prometheus reads.

Lives here: the route, and in which form it answers. Never here: a metric. It stands beside the API, where Prometheus
looks for it; a token of the role viewer opens it, or `metrics_open`.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from scale0.broker.admin.access import VIEWER
from scale0.http.auth.authorization import OPEN_WITH, ROLE
from scale0.http.metrics.prometheus import ENCODERS, wants_openmetrics
from scale0.http.metrics.sampler import MetricsSampler


@get(
    "/metrics",
    opt={ROLE: VIEWER, OPEN_WITH: "metrics_open"},
    summary="Metrics for Prometheus",
    include_in_schema=False,
)
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """All metrics, as text for Prometheus or in OpenMetrics."""
    lookout: MetricsSampler = request.app.state.lookout
    as_openmetrics = wants_openmetrics(request.headers.get("accept", ""))
    _, kind = ENCODERS[as_openmetrics]
    headers = {"Content-Type": kind, "Cache-Control": "no-store", "Vary": "Accept"}
    return Response(await lookout.text(as_openmetrics), headers=headers)


HANDLERS: Final[list[HTTPRouteHandler]] = [metrics]
