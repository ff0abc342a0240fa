"""The application: routes, authorization and error handlers, put together.

Every route names the role that it needs, or the server does not start. An error response never contains internals.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from scale0.broker.main.http_settings import HttpSettings
from scale0.http import openapi, validation
from scale0.http.auth.authentication import Authentication
from scale0.http.auth.authorization import authorize, role_of
from scale0.http.auth.login_limits import LOGINS_AT_ONCE, LoginLimits, LoginTurns
from scale0.http.auth.middleware import MAX_SMALL_BODY_BYTES, RequestChecks
from scale0.http.broker_client import MAX_LOGIN_CONNECTIONS, BrokerClient
from scale0.http.console_pages import read_pages
from scale0.http.data_sources import DataSources
from scale0.http.document_threads import DocumentThreads
from scale0.http.metrics.sampler import MetricsSampler
from scale0.http.problem import ApiProblem
from scale0.http.request_context import provide_context
from scale0.http.routes import ROUTES
from scale0.http.sampler import Sampler
from scale0.kernel.log_context import about

_LOG: Final = logging.getLogger("scale0.http")

INTERNAL_ERROR: Final = "internal server error"


class Route(NamedTuple):
    """One method of one path, and the least role that may use it (None: public)."""

    method: str
    path: str
    role: str | None
    handler: HTTPRouteHandler


def create_app(settings: HttpSettings, broker: BrokerClient) -> ASGIApp:
    """The application with its middleware; it closes `broker` when it ends."""
    return RequestChecks(create_core(settings, broker), settings)


def create_core(
    settings: HttpSettings, broker: BrokerClient, routes: Sequence[Sequence[HTTPRouteHandler]] = ROUTES
) -> Litestar:
    sampler = Sampler(broker)
    metrics = MetricsSampler(broker, settings.exports)
    sources = DataSources(settings)
    documents = DocumentThreads()
    state = {
        "settings": settings,
        "broker": broker,
        "sampler": sampler,
        "metrics": metrics,
        "sources": sources,
        "documents": documents,
        "authentication": Authentication(broker),
        "login_limits": LoginLimits(),
        "login_turns": LoginTurns(LOGINS_AT_ONCE if broker.is_local else MAX_LOGIN_CONNECTIONS),
        "document": msgspec.json.encode(openapi.document(routes)),
        "pages": read_pages(),
    }

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(broker.close)
            stack.callback(documents.close)
            await stack.enter_async_context(sampler.running())
            await stack.enter_async_context(metrics.running())
            await stack.enter_async_context(sources.running())
            yield

    app = Litestar(
        [handler for group in routes for handler in group],
        guards=[authorize],
        before_request=validation.check,
        dependencies={"context": Provide(provide_context)},
        exception_handlers={
            ApiProblem: problem_response,
            HTTPException: http_error_response,
            Exception: internal_error_response,
        },
        lifespan=[lifespan],
        logging_config=None,
        openapi_config=None,
        request_class=validation.CheckedRequest,
        request_max_body_size=MAX_SMALL_BODY_BYTES,
        state=State(state),
        debug=False,
    )
    app.state.queries = validation.known_queries(app)
    list(table(app))
    return app


def table(app: Litestar) -> Iterator[Route]:
    """Every route with its role. LookupError: a route names no role."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            raise TypeError(f"{route.path} is no HTTP route")
        for method, (handler, _) in route.route_handler_map.items():
            if method == "OPTIONS":
                continue  # Litestar adds it; the middleware refuses it
            try:
                role = role_of(handler, app.state.settings)
            except KeyError:
                raise LookupError(f"{method} {route.path} names no role: add opt={{'role': …}}") from None
            yield Route(method, route.path_format, role, handler)


def problem_response(_: Request[Any, Any, Any], problem: ApiProblem) -> Response[dict[str, Any]]:
    return Response(problem.as_json(), status_code=problem.status, headers=problem.headers())


def http_error_response(request: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    """Errors of the framework: an unknown path, a wrong method, a value of another type."""
    message = error.detail if error.status_code < 500 else INTERNAL_ERROR
    extra = error.extra if isinstance(error.extra, list) else []
    reasons = [f"{one.get('key', '')}: {one.get('message', '')}"[:300] for one in extra if isinstance(one, dict)]
    if error.status_code == 400 and reasons:
        message = "invalid parameter: " + "; ".join(reasons)
    elif error.status_code == 404:
        message = f"there is no {request.scope['path'][:200]}"
    elif error.status_code == 413:
        message = "the body is too large for this route"
    elif error.status_code == 405:
        message = f"{request.scope['method']} is not allowed for {request.scope['path'][:200]}"
    problem = ApiProblem(error.status_code, message[:500], reasons=reasons)
    headers = {**(error.headers or {}), **problem.headers()}
    return Response(problem.as_json(), status_code=problem.status, headers=headers)


def internal_error_response(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """A defect of this server: the log has the traceback, the response does not."""
    _LOG.error(
        "internal error while handling %s %s; please report this traceback",
        request.scope["method"],
        request.scope["path"][:200],
        exc_info=error,
        extra=about(path=request.scope["path"][:200]),
    )
    return problem_response(request, ApiProblem(500, INTERNAL_ERROR))
