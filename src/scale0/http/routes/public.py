"""What needs no login: whether the server lives, what the API is, and the console's pages.

Lives here: answers that are the same for everybody. Never here: anything of the network.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from scale0.http.auth.authorization import ROLE
from scale0.http.auth.middleware import API
from scale0.http.console_pages import INDEX, Asset
from scale0.http.problem import ApiProblem

FOR_EVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"


@get("/healthz", opt={ROLE: None}, summary="Whether this server lives")
async def healthz() -> dict[str, str]:
    """The server answers; whether the broker does is in the overview."""
    return {"status": "ok"}


@get("/api/v1/openapi.json", opt={ROLE: None}, summary="This document", include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The API as an OpenAPI document."""
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
        "Cache-Control": FOR_EVER if asset.is_final else ASK_AGAIN,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == asset.etag:
        return Response(b"", status_code=304, headers=headers, media_type=asset.kind)
    body = asset.body
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = asset.packed
    return Response(body, headers=headers, media_type=asset.kind)


HANDLERS: Final[list[HTTPRouteHandler]] = [healthz, openapi, page]
