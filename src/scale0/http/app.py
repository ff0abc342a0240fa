"""The application: routes, guards and errors, put together.

Lives here: composition, top to bottom. Never here: a route, or a decision. Invariants: every route has a role, or the
server does not start; a body and a query are what the route says they are, and nothing else; an error never shows our
own code.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
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
from scale0.http.auth.authorization import guard, role_of
from scale0.http.auth.login_limits import LoginLimits
from scale0.http.auth.middleware import MAX_SMALL_BODY_BYTES, RequestChecks
from scale0.http.console_pages import read_pages
from scale0.http.metrics.sampler import MetricsSampler
from scale0.http.network import BrokerClient
from scale0.http.problem import ApiProblem
from scale0.http.request_context import provide_desk
from scale0.http.routes import LIVES, ROUTES
from scale0.http.sampler import Sampler
from scale0.kernel.log_context import about

_LOG: Final = logging.getLogger("scale0.http")

Life = Callable[[HttpSettings, BrokerClient, Sampler], AbstractAsyncContextManager[None]]
"""Something that runs as long as the server does."""


class Route(NamedTuple):
    """One method of one path, and who may use it at least (None: everybody)."""

    method: str
    path: str
    role: str | None
    handler: HTTPRouteHandler


def create_app(
    settings: HttpSettings,
    network: BrokerClient,
    routes: Sequence[Sequence[HTTPRouteHandler]] = ROUTES,
    lives: Sequence[Life] = LIVES,
) -> ASGIApp:
    """The whole application; it owns `network` from now on."""
    return RequestChecks(create_core(settings, network, routes, lives), settings)


def create_core(
    settings: HttpSettings,
    network: BrokerClient,
    routes: Sequence[Sequence[HTTPRouteHandler]] = ROUTES,
    lives: Sequence[Life] = LIVES,
) -> Litestar:
    """The same without the gate."""
    sampler = Sampler(network)
    lookout = MetricsSampler(network, settings.exports)
    state = {
        "settings": settings,
        "network": network,
        "sampler": sampler,
        "lookout": lookout,
        "who": Authentication(network),
        "attempts": LoginLimits(),
        "document": msgspec.json.encode(openapi.document(routes)),
        "pages": read_pages(),
    }

    @asynccontextmanager
    async def living(_: Litestar) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(network.close)
            await stack.enter_async_context(sampler.running())
            await stack.enter_async_context(lookout.running())
            for life in lives:
                await stack.enter_async_context(life(settings, network, sampler))
            yield

    app = Litestar(
        [handler for group in routes for handler in group],
        guards=[guard],
        before_request=validation.check,
        dependencies={"desk": Provide(provide_desk)},
        exception_handlers={ApiProblem: answer_problem, HTTPException: answer_http, Exception: answer_mistake},
        lifespan=[living],
        logging_config=None,
        openapi_config=None,
        request_max_body_size=MAX_SMALL_BODY_BYTES,
        state=State(state),
        debug=False,
    )
    app.state.queries = validation.known_queries(app)
    list(table(app))
    return app


def table(app: Litestar) -> Iterator[Route]:
    """Every route with its role; one without a role is a mistake of ours, and the server does not start."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            raise TypeError(f"{route.path} is no HTTP route")
        for method, (handler, _) in route.route_handler_map.items():
            if method == "OPTIONS":
                continue  # Litestar's own; the gate lets none in
            try:
                role = role_of(handler, app.state.settings)
            except KeyError:
                raise LookupError(f"{method} {route.path} does not say who may use it: opt={{'role': …}}") from None
            yield Route(method, route.path_format, role, handler)


def answer_problem(_: Request[Any, Any, Any], problem: ApiProblem) -> Response[dict[str, Any]]:
    """What is wrong, in the shape of every answer."""
    return Response(problem.shown(), status_code=problem.status, headers=problem.headers())


def answer_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    """What the framework refuses: an unknown path, a wrong method, a value of another type."""
    message = error.detail if error.status_code < 500 else "something went wrong in this server"
    extra = error.extra if isinstance(error.extra, list) else []
    reasons = [f"{one.get('key', '')}: {one.get('message', '')}"[:300] for one in extra if isinstance(one, dict)]
    if error.status_code == 400 and reasons:
        message = "a parameter is not as it should be: " + "; ".join(reasons)
    elif error.status_code == 404:
        message = f"there is no {request.scope['path'][:200]}"
    elif error.status_code == 413:
        message = "the body is larger than this takes"
    elif error.status_code == 405:
        message = f"{request.scope['method']} is not done with {request.scope['path'][:200]}"
    problem = ApiProblem(error.status_code, message[:500], reasons=reasons)
    return Response(problem.shown(), status_code=problem.status, headers={**(error.headers or {}), **problem.headers()})


def answer_mistake(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """A mistake of ours: the log has it, the answer does not."""
    _LOG.error(
        "%s %s failed",
        request.scope["method"],
        request.scope["path"][:200],
        exc_info=error,
        extra=about(path=request.scope["path"][:200]),
    )
    return answer_problem(request, ApiProblem(500, "something went wrong in this server"))
