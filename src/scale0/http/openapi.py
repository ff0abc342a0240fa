"""The OpenAPI 3.1 document, generated from the routes, with roles, errors and authentication added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig

from scale0 import __version__
from scale0.http.auth.authentication import COOKIE
from scale0.http.auth.authorization import CSRF_HEADER, ROLE
from scale0.http.request_context import provide_context

TITLE: Final = "Scale0 management"
PROBLEM: Final = {
    "type": "object",
    "required": ["status", "code", "message", "next"],
    "properties": {
        "status": {"type": "integer", "description": "The HTTP status."},
        "code": {
            "type": "integer",
            "description": "The code of the Scale0 protocol (PROTOCOL 5) if there is one, otherwise the status.",
        },
        "message": {"type": "string", "description": "What happened."},
        "next": {"type": "string", "description": "What to do next."},
        "reasons": {"type": "array", "items": {"type": "string"}},
    },
}
DESCRIPTION: Final = (
    "Every list is {items, next}: pass `next` as `after` to get the following page. "
    "Log in with POST /api/v1/session and send X-CSRF-Token with every method but GET; "
    "or send `Authorization: Bearer s0_…` with a token of POST /api/v1/tokens. "
    "`x-role` is the least role that a route needs: viewer, operator or admin; null: public."
)


def document(routes: Sequence[Sequence[HTTPRouteHandler]]) -> dict[str, Any]:
    config = OpenAPIConfig(title=TITLE, version=__version__, description=DESCRIPTION)
    handlers = [handler for group in routes for handler in group]
    dependencies = {"context": Provide(provide_context)}
    app = Litestar(handlers, openapi_config=config, dependencies=dependencies, logging_config=None)
    found: dict[str, Any] = app.openapi_schema.to_schema()
    components = found.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        "csrf": {"type": "apiKey", "in": "header", "name": CSRF_HEADER},
    }
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            _complete(found, route.path_format, handler)
    return found


def _complete(found: dict[str, Any], path: str, handler: Any) -> None:
    """Add the role of an operation, and its errors."""
    for method in handler.http_methods:
        operation = found["paths"].get(path, {}).get(method.lower())
        if operation is None:
            continue
        role = handler.opt[ROLE]
        operation["x-role"] = role
        cookie: dict[str, list[str]] = {"cookie": []} if method == "GET" else {"cookie": [], "csrf": []}
        operation["security"] = [{"token": []}, cookie] if role is not None else [{}]
        responses = operation["responses"]
        responses.pop("400", None)
        content = {"schema": {"$ref": "#/components/schemas/Problem"}}
        responses["default"] = {"description": "An error.", "content": {"application/json": content}}
