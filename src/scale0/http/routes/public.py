"""Routes beside the API: the health check, the metrics for Prometheus, the OpenAPI document, and the console's pages.

Metrics and the OpenAPI document need a token of the role viewer, unless `metrics_open` or `openapi_open` is set; the
other routes are public.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from scale0.broker.admin.access import VIEWER
from scale0.http.auth.authorization import OPEN_WITH, ROLE
from scale0.http.auth.middleware import API
from scale0.http.console_pages import INDEX, Asset
from scale0.http.metrics.prometheus import ENCODERS, wants_openmetrics
from scale0.http.metrics.sampler import MetricsSampler
from scale0.http.problem import ApiProblem

IMMUTABLE: Final = "public, max-age=31536000, immutable"
REVALIDATE: Final = "no-cache"


@get("/healthz", opt={ROLE: None}, summary="Health check of this server")
async def healthz() -> dict[str, str]:
    """The server is running; the overview has the state of the broker."""
    return {"status": "ok"}


@get(
    "/metrics",
    opt={ROLE: VIEWER, OPEN_WITH: "metrics_open"},
    summary="Metrics for Prometheus",
    include_in_schema=False,
)
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """All metrics, in the text format of Prometheus or in OpenMetrics."""
    sampler: MetricsSampler = request.app.state.metrics
    as_openmetrics = wants_openmetrics(request.headers.get("accept", ""))
    _, content_type = ENCODERS[as_openmetrics]
    headers = {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept"}
    return Response(await sampler.text(as_openmetrics), headers=headers)


@get(
    "/api/v1/openapi.json",
    opt={ROLE: VIEWER, OPEN_WITH: "openapi_open"},
    summary="This document",
    include_in_schema=False,
)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    return Response(request.app.state.document, media_type="application/json")


@get(["/", "/{path:path}"], opt={ROLE: None}, include_in_schema=False)
async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
    """A page or asset of the console."""
    path = request.scope["path"]
    asset: Asset | None = request.app.state.pages.get(path.removeprefix("/") or INDEX)
    if asset is None or path.startswith(API):
        raise ApiProblem(404, f"there is no {path[:200]}", "see /api/v1/openapi.json, or open / in a browser")
    headers = {
        "ETag": asset.etag,
        "Cache-Control": IMMUTABLE if asset.is_final else REVALIDATE,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == asset.etag:
        return Response(b"", status_code=304, headers=headers, media_type=asset.media_type)
    body = asset.body
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = asset.packed
    return Response(body, headers=headers, media_type=asset.media_type)


HANDLERS: Final[list[HTTPRouteHandler]] = [metrics, healthz, openapi, page]
